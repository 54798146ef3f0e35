"""collectx: reinforcement-learning experience collection from one YAML-driven command, and as a Python library.

What is here is imported when it is first asked for, as that imports torch.
"""

from __future__ import annotations

import importlib
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
    from collectx.collectors import RayCollector as RayCollector
    from collectx.collectors import RPCCollector as RPCCollector
    from collectx.collectors import RPCDataCollector as RPCDataCollector
    from collectx.collectors import SyncDataCollector as SyncDataCollector
    from collectx.delayed import submitit_delayed_launcher as submitit_delayed_launcher
    from collectx.replay import ReplayBuffer as ReplayBuffer
    from collectx.trajectories import split_trajectories as split_trajectories

__version__ = "0.1.0"

# Whether worker processes of this machine leave out Python's warnings, as the trainer's process prints the same ones.
# Looked at when a worker is started.
filter_warnings_subprocess = True

# Where each name is.
_MODULES = {
    "Collector": "collectors",
    "DistributedCollector": "collectors",
    "DistributedDataCollector": "collectors",
    "DistributedSyncCollector": "collectors",
    "DistributedSyncDataCollector": "collectors",
    "MultiAsyncCollector": "collectors",
    "MultiCollector": "collectors",
    "MultiSyncCollector": "collectors",
    "MultiSyncDataCollector": "collectors",
    "MultiaSyncDataCollector": "collectors",
    "RPCCollector": "collectors",
    "RPCDataCollector": "collectors",
    "RayCollector": "collectors",
    "ReplayBuffer": "replay",
    "SyncDataCollector": "collectors",
    "split_trajectories": "trajectories",
    "submitit_delayed_launcher": "delayed",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"collectx.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
