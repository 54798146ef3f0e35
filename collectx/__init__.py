"""collectx: collects experience for reinforcement learning, as a command configured by YAML and as a Python library.

Names are imported on first access, because they import torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from collectx import imports

if TYPE_CHECKING:
    from collectx.library.backend_choice import service_backend as service_backend
    from collectx.library.collectors import AsyncBatchedCollector as AsyncBatchedCollector
    from collectx.library.collectors import AsyncCollector as AsyncCollector
    from collectx.library.collectors import BaseCollector as BaseCollector
    from collectx.library.collectors import Collector as Collector
    from collectx.library.collectors import DataCollectorBase as DataCollectorBase
    from collectx.library.collectors import DistributedCollector as DistributedCollector
    from collectx.library.collectors import DistributedDataCollector as DistributedDataCollector
    from collectx.library.collectors import DistributedSyncCollector as DistributedSyncCollector
    from collectx.library.collectors import DistributedSyncDataCollector as DistributedSyncDataCollector
    from collectx.library.collectors import MultiAsyncCollector as MultiAsyncCollector
    from collectx.library.collectors import MultiaSyncDataCollector as MultiaSyncDataCollector
    from collectx.library.collectors import MultiCollector as MultiCollector
    from collectx.library.collectors import MultiSyncCollector as MultiSyncCollector
    from collectx.library.collectors import MultiSyncDataCollector as MultiSyncDataCollector
    from collectx.library.collectors import RayCollector as RayCollector
    from collectx.library.collectors import RPCCollector as RPCCollector
    from collectx.library.collectors import RPCDataCollector as RPCDataCollector
    from collectx.library.collectors import SyncDataCollector as SyncDataCollector
    from collectx.library.collectors import aSyncDataCollector as aSyncDataCollector
    from collectx.library.slurm import DEFAULT_SLURM_CONF as DEFAULT_SLURM_CONF
    from collectx.library.slurm import submitit_delayed_launcher as submitit_delayed_launcher
    from collectx.library.weights import DistributedWeightUpdater as DistributedWeightUpdater
    from collectx.library.weights import MultiProcessedWeightUpdater as MultiProcessedWeightUpdater
    from collectx.library.weights import RayWeightUpdater as RayWeightUpdater
    from collectx.library.weights import RemoteModuleWeightUpdater as RemoteModuleWeightUpdater
    from collectx.library.weights import RPCWeightUpdater as RPCWeightUpdater
    from collectx.library.weights import VanillaWeightUpdater as VanillaWeightUpdater
    from collectx.library.weights import WeightUpdaterBase as WeightUpdaterBase
    from collectx.policy.custom import adapt as adapt
    from collectx.policy.custom import policy_from_agent as policy_from_agent
    from collectx.policy.random import RandomPolicy as RandomPolicy
    from collectx.replay import PrioritizedSampler as PrioritizedSampler
    from collectx.replay import ReplayBuffer as ReplayBuffer
    from collectx.replay import SliceSampler as SliceSampler
    from collectx.replay import UniformSampler as UniformSampler
    from collectx.run.after.trained import load_policy as load_policy
    from collectx.trajectories import split_trajectories as split_trajectories
    from collectx.worker.profiling import ProfileConfig as ProfileConfig

imports.install()

__version__ = "0.2.0.dev0"

# Whether local worker processes suppress Python's warnings, which the trainer's process prints too. Read when a worker
# starts.
filter_warnings_subprocess = True

# The public names of each module.
_NAMES = {
    "trajectories": "split_trajectories",
    "library.collectors": (
        "AsyncBatchedCollector AsyncCollector BaseCollector Collector DataCollectorBase DistributedCollector "
        "DistributedDataCollector DistributedSyncCollector DistributedSyncDataCollector MultiAsyncCollector "
        "MultiCollector MultiSyncCollector MultiSyncDataCollector MultiaSyncDataCollector RPCCollector "
        "RPCDataCollector RayCollector SyncDataCollector aSyncDataCollector"
    ),
    "library.slurm": "DEFAULT_SLURM_CONF submitit_delayed_launcher",
    "library.backend_choice": "service_backend",
    "library.weights": (
        "DistributedWeightUpdater MultiProcessedWeightUpdater RPCWeightUpdater RayWeightUpdater "
        "RemoteModuleWeightUpdater VanillaWeightUpdater WeightUpdaterBase"
    ),
    "policy.custom": "adapt policy_from_agent",
    "policy.random": "RandomPolicy",
    "replay": "PrioritizedSampler ReplayBuffer SliceSampler UniformSampler",
    "run.after.trained": "load_policy",
    "worker.profiling": "ProfileConfig",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

# Public modules, which `import collectx` does not import either.
_PUBLIC = ("data", "loggers", "replay")

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"collectx.{_MODULES[name]}"), name)
    if name in _PUBLIC:
        return importlib.import_module(f"collectx.{name}")
    from collectx.library.refused import REFUSED_NAMES

    why = f". {REFUSED_NAMES[name]}" if name in REFUSED_NAMES else ""
    # With the name and the module, Python's traceback adds "Did you mean: ...?".
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES} - {"Any", "TYPE_CHECKING", "annotations", "importlib", "sys"})
