"""Read-only attributes of TorchRL's collectors.

Base class of `collectx.library.base.BaseCollector`. Used in the trainer's process.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import nn

from collectx.collector.collector import Collector
from collectx.config.derived import is_stacked, resolve_devices
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.library import refused
from collectx.library.delivery import Delivery
from collectx.library.keywords import Keywords
from collectx.library.values import for_each
from collectx.policy.random import RandomPolicy
from collectx.worker.spec import WorkerOverrides


def _keywords(collector: Any) -> set[str]:
    """The keywords of the collector's constructor; none before it has read them."""
    keywords = vars(collector).get("_keywords")
    return set() if keywords is None else {field.name for field in dataclasses.fields(keywords)}


def _kwargs(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _passed(name: str) -> Any:
    """A property: a keyword as it was passed to the constructor; None if it does not take the keyword."""
    return property(lambda collector: getattr(collector._keywords, name, None), doc="As passed to the constructor.")


class CollectorProperties:
    """The configuration of a collector, as properties.

    A device property is one device for a collector in this process, a tuple with one per worker process of this
    machine, otherwise a list of them. Every keyword of the constructor that has no property here is an attribute too,
    as it was passed or with its default.
    """

    _core: Collector
    _keywords: Keywords
    _cfg: RunConfig
    # For each worker, what differs from `_cfg`.
    _overrides: list[WorkerOverrides]
    _frames_per_batch: int
    _spec: EnvSpec
    _delivery: Delivery
    policy: Any
    # Whether `shutdown` was called.
    closed: bool = False
    # Of TorchRL; here they have no other values.
    get_weights_fn = None
    local_init_rb = True
    verbose = False

    interruptor = _passed("interruptor")
    replay_buffer = _passed("replay_buffer")
    trajs_per_batch = _passed("trajs_per_batch")
    trajs_per_write = _passed("trajs_per_write")
    weight_updater = _passed("weight_updater")
    worker_idx = _passed("worker_idx")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _keywords(self):
                return getattr(self._keywords, name)
            why = f" (of TorchRL's, not here: {refused.ATTRIBUTES[name]})" if name in refused.ATTRIBUTES else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_keywords(self)})

    @property
    def _collector(self) -> Collector:
        """The collector whose batches this one delivers. Raises `RuntimeError` in a forked process."""
        self._core.owner.check_process()
        return self._core

    @property
    def device(self) -> Any:
        """The default of the other devices; None if the constructor got none."""
        return self._per_worker(self._cfg.devices.device)

    @property
    def storing_device(self) -> Any:
        """The device of the batches; None: batches stay on the device that produced them."""
        return self._per_worker(resolve_devices(self._cfg.devices).storing_device)

    @property
    def env_device(self) -> Any:
        """The device on which envs take actions and return observations; None: the env's own."""
        return self._per_worker(resolve_devices(self._cfg.devices).env_device)

    @property
    def policy_device(self) -> Any:
        """The device of each worker's policy; None: the CPU, as none was passed."""
        return self._per_worker(
            [resolve_devices(each.devices or self._cfg.devices).policy_device for each in self._overrides]
        )

    @property
    def env_path(self) -> str:
        """What steps an env of TorchRL: "gymnasium", the env below it, or "torchrl: ", its own `_step`, and the reason;
        otherwise empty."""
        return self._spec.path

    def _per_worker(self, names: str | list[str | None] | None) -> Any:
        devices = [None if name is None else torch.device(name) for name in for_each(names, self.num_workers)]
        if self._keywords.kind == "single":
            return devices[0]
        return tuple(devices) if self._keywords.kind.startswith("multi") else devices

    @property
    def num_workers(self) -> int:
        """Number of workers, including added and lost ones; 1 for a collector in this process."""
        return len(self._overrides)

    @property
    def frames_per_batch(self) -> int:
        """Frames of one batch, rounded up to whole steps of all envs."""
        return self._frames_per_batch

    def frames_per_batch_worker(self, *, worker_idx: int | None = None) -> int:
        """Frames of one worker's part of a batch, rounded up to whole steps of its envs.

        Args:
            worker_idx: index of the worker; None: the mean over all workers, rounded up.

        Raises:
            ValueError: there is no such worker.
        """
        cfg = self._cfg.collector
        slot = cfg.frames_per_batch // (cfg.num_workers if is_stacked(cfg) else 1)
        steps = [each.steps for each in self._overrides if each.steps is not None]
        frames = [slot // max(steps) * count for count in steps] if steps else [slot] * self.num_workers
        if worker_idx is None:
            return -(-sum(frames) // len(frames))
        if not 0 <= worker_idx < len(frames):
            raise ValueError(f"worker_idx={worker_idx}: there are {len(frames)} workers, numbered from 0")
        return frames[worker_idx]

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of one batch as passed to the constructor."""
        return self._keywords.requested_frames

    @property
    def total_frames(self) -> int:
        """Frames after which the collector ends; -1: never."""
        return self._cfg.collector.total_frames

    @property
    def init_random_frames(self) -> int:
        """Frames with random actions at the begin, as passed to the constructor; 0: none."""
        return self._keywords.init_random_frames or 0

    @property
    def max_frames_per_traj(self) -> int:
        """Frames after which trajectories are truncated, as passed to the constructor; 0: never."""
        return self._keywords.max_frames_per_traj or 0

    @property
    def n_env(self) -> int:
        """Number of envs of one worker."""
        return self._spec.num_envs

    @property
    def compiled_policy(self) -> bool:
        """Whether workers compile the policy."""
        return bool(self._keywords.compile_policy)

    @property
    def cudagraphed_policy(self) -> bool:
        """Whether workers record the policy in CUDA graphs."""
        return bool(self._keywords.cudagraph_policy)

    @property
    def compiled_policy_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of `compile_policy`."""
        return _kwargs(self._keywords.compile_policy)

    @property
    def cudagraphed_policy_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of `cudagraph_policy`."""
        return _kwargs(self._keywords.cudagraph_policy)

    @property
    def create_env_kwargs(self) -> Any:
        """As passed to the constructor; a list with one dict per worker, if there are workers."""
        return self._by_worker(self._keywords.create_env_kwargs, {})

    @property
    def policy_factory(self) -> Any:
        """As passed to the constructor; a list with one per worker, if there are workers."""
        return self._by_worker(self._keywords.policy_factory, None)

    def _by_worker(self, value: Any, default: Any) -> Any:
        if self._cfg.collector.kind == "single":
            return value
        # A list has no entries for workers that were added.
        values = value if isinstance(value, list | tuple) else [value] * self.num_workers
        return [default if each is None else each for each in values]

    @property
    def num_threads(self) -> int:
        """torch's intra-op threads of this process."""
        return getattr(self._keywords, "num_threads", None) or torch.get_num_threads()

    @property
    def preemptive_threshold(self) -> float:
        """The share of the workers that a batch waits for."""
        threshold = self._cfg.collector.preemptive_threshold
        return 1.0 if threshold is None else threshold

    @property
    def trust_policy(self) -> bool:
        """As passed to the constructor; by default, whether the policy is a `RandomPolicy`."""
        trusted = self._keywords.trust_policy
        return isinstance(self.policy, RandomPolicy) if trusted is None else trusted

    @property
    def policy_weights(self) -> TensorDict:
        """The parameters and buffers of `collector.policy`, not copied; empty if it is no module."""
        return TensorDict.from_module(self.policy).data if isinstance(self.policy, nn.Module) else TensorDict({}, [])

    @property
    def traj_format(self) -> str:
        """ "padded" or "cat"."""
        return self._cfg.collector.traj_format

    @property
    def policy_version(self) -> int:
        """The version of the newest published weights; 0 at first. `load_state_dict` restores it."""
        return self._collector.policy_version + self._delivery.version_offset

    def get_policy_version(self) -> int:
        """Returns `policy_version`."""
        return self.policy_version

    def __len__(self) -> int:
        """The number of batches of the whole run.

        Raises:
            TypeError: `total_frames` is -1, or batches consist of whole trajectories.
        """
        total, frames = self.total_frames, self.frames_per_batch
        if total < 0 or self.trajs_per_batch is not None:
            raise TypeError("an endless collector (total_frames=-1), or one of whole trajectories, has no length")
        return -(-total // frames)
