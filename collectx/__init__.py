"""collectx: reinforcement-learning experience collection from one YAML-driven command, and as a Python library.

The collectors are imported when they are first asked for, as that imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectx.collectors import Collector as Collector
    from collectx.collectors import DistributedCollector as DistributedCollector
    from collectx.collectors import DistributedDataCollector as DistributedDataCollector
    from collectx.collectors import DistributedSyncCollector as DistributedSyncCollector
    from collectx.collectors import DistributedSyncDataCollector as DistributedSyncDataCollector
    from collectx.collectors import MultiAsyncCollector as MultiAsyncCollector
    from collectx.collectors import MultiaSyncDataCollector as MultiaSyncDataCollector
    from collectx.collectors import MultiCollector as MultiCollector
    from collectx.collectors import MultiSyncCollector as MultiSyncCollector
    from collectx.collectors import MultiSyncDataCollector as MultiSyncDataCollector
    from collectx.collectors import SyncDataCollector as SyncDataCollector
    from collectx.delayed import submitit_delayed_launcher as submitit_delayed_launcher
    from collectx.replay import ReplayBuffer as ReplayBuffer

__version__ = "0.1.0"

_COLLECTORS = (
    "Collector",
    "DistributedCollector",
    "DistributedDataCollector",
    "DistributedSyncCollector",
    "DistributedSyncDataCollector",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "SyncDataCollector",
)


def __getattr__(name: str) -> Any:
    if name in _COLLECTORS:
        from collectx import collectors

        return getattr(collectors, name)
    if name == "submitit_delayed_launcher":
        from collectx import delayed

        return delayed.submitit_delayed_launcher
    if name == "ReplayBuffer":
        from collectx import replay

        return replay.ReplayBuffer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_COLLECTORS, "ReplayBuffer", "submitit_delayed_launcher"])
