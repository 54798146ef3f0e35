"""What can be read from a collector: TorchRL's attributes, counters, and attributes of the workers' envs.

Base class of `collectx.library.base.BaseCollector`, which adds the methods.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.collector.batch_info import workers_write
from collectx.collector.collector import CollectorCore
from collectx.collector.env_methods import EnvMethods
from collectx.config.check import out_of_range
from collectx.config.derived import frames_per_part, resolve_devices
from collectx.config.problem import PYTHON, Names, counted, naming
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.library.background import Background
from collectx.library.batch_converter import BatchConverter
from collectx.library.configuration import parse, to_config
from collectx.library.keywords import Keywords, RemoteKeywords
from collectx.library.refused import REFUSED_ATTRIBUTES, REFUSED_IN_ONE_PROCESS
from collectx.library.rules import check_arguments
from collectx.library.values import (
    for_each,
    kwargs_of,
    numbered_workers,
    within,
)
from collectx.policy.random import RandomPolicy
from collectx.worker.env_settings import resolve
from collectx.worker.profiling import ProfileConfig
from collectx.worker.spec import ConfigOverrides


def _keywords(collector: Any) -> set[str]:
    """Returns the names of the constructor's keywords; an empty set before the constructor has parsed them."""
    keywords = vars(collector).get("_keywords")
    return set() if keywords is None else {field.name for field in dataclasses.fields(keywords)}


def _passed(name: str) -> Any:
    """Returns a property for a keyword's value as passed; None if the constructor does not take it."""
    return property(lambda collector: getattr(collector._keywords, name, None), doc="As passed to the constructor.")


def _assignable(name: str) -> Any:
    """Returns a property for a keyword's value that may be assigned."""
    return property(
        lambda collector: getattr(collector._keywords, name),
        lambda collector, value: collector._change(name, value),
        doc="As passed to the constructor, or assigned since then. An assignment acts from the next batch on.",
    )


# How to change what cannot be assigned; without an entry, by another collector.
_INSTEAD = {
    "policy": "To act with other weights, call update_policy_weights_(policy)",
    "weight_updater": "To publish other weights, call update_policy_weights_(weights)",
    "init_fn": "Workers have called it already",
}


class ReadableCollector(EnvMethods):
    """The attributes of a collector, and queries of its workers.

    A device property is one device without workers, a tuple with a device per worker for workers of this machine, and a
    list for workers on other hosts. Every other keyword of the constructor is an attribute too: its value as passed, or
    its default. `postproc`, `split_trajs`, `worker_idx` and the hooks may be assigned; an assignment to another keyword
    raises `AttributeError`.

    Workers answer queries between two of their batches, so a query blocks until then; an async worker first completes
    its granted batches. Workers over a network (torch.distributed, RPC and Ray) cannot be queried: these calls raise
    `NotImplementedError`.
    """

    # The same as `_core`, without a check of the process.
    _unchecked_core: CollectorCore
    _background: Background
    _keywords: Keywords
    _names: Names
    _cfg: RunConfig
    # The differences of each worker's configuration from `_cfg`.
    _overrides: list[ConfigOverrides]
    _frames_per_batch: int
    _spec: EnvSpec
    _converter: BatchConverter
    _policy: Any
    _profile_config: ProfileConfig | None = None
    _is_closed = False
    # TorchRL's attributes whose values are constant here.
    get_weights_fn = property(lambda collector: None)
    local_init_rb = property(lambda collector: True)
    verbose = property(lambda collector: False)

    postproc = _assignable("postproc")
    split_trajs = _assignable("split_trajs")
    worker_idx = _assignable("worker_idx")
    interruptor = _passed("interruptor")
    replay_buffer = _passed("replay_buffer")
    trajs_per_batch = _passed("trajs_per_batch")
    trajs_per_write = _passed("trajs_per_write")
    weight_updater = _passed("weight_updater")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _keywords(self):
                return getattr(self._keywords, name)
            reasons = REFUSED_ATTRIBUTES | REFUSED_IN_ONE_PROCESS
            why = f". {reasons[name]}." if name in reasons else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}")

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and name in _keywords(self):
                known = getattr(type(self), name, None)
                if not isinstance(known, property) or known.fset is None:
                    instead = _INSTEAD.get(name, f"Create a collector with {name}={value!r}")
                    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed. {instead}.")
            super().__setattr__(name, value)

    def _change(self, name: str, value: Any) -> None:
        """Changes a keyword from the next batch on. Raises `ConfigError` with the problems of the constructor."""
        passed = {field.name: getattr(self._keywords, field.name) for field in dataclasses.fields(self._keywords)}
        keywords, problems = parse(type(self).__name__, type(self._keywords), (), passed | {name: value})
        if workers_write(self._overrides) and keywords.changes_batches:
            problems.append(
                f"{name} cannot be changed, because the workers write their batches to the replay buffer. Pass {name} "
                "to the constructor."
            )
        cfg = to_config(dataclasses.replace(keywords, seed=self._cfg.seed), problems)
        check_arguments(keywords, cfg, problems)
        with self._exclusive():
            self._keywords = self._converter.keywords = keywords

    def __repr__(self) -> str:
        if "_converter" not in vars(self):  # the constructor has not ended
            return object.__repr__(self)
        total, frames = self._cfg.collector.total_frames, self._unchecked_core.num_frames
        parts = [
            counted(self.num_workers, "worker") if self._keywords.has_workers else "no workers",
            counted(self.n_env, "env") + (" each" if self._keywords.has_workers else ""),
            "random actions" if self.policy is None else f"policy {type(self.policy).__name__}",
            f"{self.frames_per_batch:,} frames per batch",
            f"{frames:,} {'' if total < 0 else f'of {total:,} '}frames delivered",
        ]
        return f"<{type(self).__name__}: {', '.join(parts)}{', closed' if self.closed else ''}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_keywords(self)})

    @property
    def _core(self) -> CollectorCore:
        self._check_process()
        return self._unchecked_core

    def _check_process(self) -> None:
        """Raises `RuntimeError` in a process that was forked from the one that made the collector."""
        self._unchecked_core.exclusive_use.check_process()

    @contextlib.contextmanager
    def _exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Waits for the background thread's current batch, and keeps the thread idle within the block, whose errors
        name keywords."""
        self._check_process()
        with naming(self._names), self._background.hold(timeout_s):
            yield

    def _ask(self, name: str, *arguments: Any, per_worker: dict[int, tuple] | None = None) -> dict[int, Any]:
        """Calls the method `name` of `worker.requests.RequestHandler` in workers: in all with `arguments`, or in those
        of `per_worker` with theirs. Returns results by worker index."""
        with self._exclusive():
            return self._core.ask(name, *arguments, per_worker=per_worker)

    def _with_core(self, use: Callable[[CollectorCore], Any]) -> Any:
        with self._exclusive():
            return use(self._core)

    @property
    def policy(self) -> Any:
        """The policy in this process, whose weights are published; None for random actions of workers."""
        return self._policy

    @property
    def closed(self) -> bool:
        """Whether `shutdown` was called."""
        return self._is_closed

    @property
    def profile_config(self) -> ProfileConfig | None:
        """The configuration of the last `enable_profile`; None before it, and after `disable_profile`."""
        return self._profile_config

    @property
    def device(self) -> Any:
        """The keyword `device`, the default of the other devices. If workers have different ones, None for each."""
        return self._per_worker(self._cfg.devices.device)

    @property
    def storing_device(self) -> Any:
        """The device of the delivered batches; None: the device on which they were collected."""
        return self._per_worker(resolve_devices(self._cfg.devices).storing_device)

    @property
    def env_device(self) -> Any:
        """The device of the actions that envs get and of the observations that they return; None: the env's own."""
        return self._per_worker(resolve_devices(self._cfg.devices).env_device)

    @property
    def policy_device(self) -> Any:
        """The device of each worker's policy; None means the CPU, as no device was passed."""
        return self._per_worker(
            [resolve_devices(each.devices or self._cfg.devices).policy_device for each in self._overrides]
        )

    @property
    def env_path(self) -> str:
        """How a TorchRL env is stepped. "gymnasium": by the Gymnasium env below it; "torchrl: " and a reason: by its
        own `_step`. Empty for other envs."""
        return self._spec.path

    def _per_worker(self, names: str | list[str | None] | None) -> Any:
        devices = [None if name is None else torch.device(name) for name in for_each(names, self.num_workers)]
        if not self._keywords.has_workers:
            return devices[0]
        return devices if isinstance(self._keywords, RemoteKeywords) else tuple(devices)

    @property
    def num_workers(self) -> int:
        """Number of workers, including added and lost ones; 1 without workers."""
        return len(self._overrides)

    @property
    def frames_per_batch(self) -> int:
        """Frames of one batch, rounded up to whole steps of all envs."""
        return self._frames_per_batch

    def frames_per_batch_worker(self, *, worker_idx: int | None = None) -> int:
        """Frames of one worker's part of a batch, rounded up to whole steps of its envs.

        Args:
            worker_idx: index of the worker; None: the mean of all workers, rounded up.

        Raises:
            ValueError: there is no such worker.
        """
        cfg = self._cfg.collector
        slot = frames_per_part(cfg)
        steps = [each.steps for each in self._overrides if each.steps is not None]
        frames = [slot // max(steps) * count for count in steps] if steps else [slot] * self.num_workers
        if worker_idx is None:
            return -(-sum(frames) // len(frames))
        if not 0 <= worker_idx < len(frames):
            raise ValueError(f"worker_idx={worker_idx} does not exist: {numbered_workers(len(frames))}")
        return frames[worker_idx]

    @property
    def requested_frames_per_batch(self) -> int:
        """`frames_per_batch` as passed to the constructor; the sum of a list."""
        return self._keywords.requested_frames

    @property
    def total_frames(self) -> float:
        """Frames after which the collector ends, an int; `math.inf`: never."""
        total = self._cfg.collector.total_frames
        return math.inf if total < 0 else total

    @property
    def init_random_frames(self) -> int:
        """Frames with random actions at the beginning, as passed to the constructor; 0: none."""
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
        """Whether the policy is compiled (`compile_policy`)."""
        return bool(self._keywords.compile_policy)

    @property
    def cudagraphed_policy(self) -> bool:
        """Whether the policy's calls are recorded as CUDA graphs (`cudagraph_policy`)."""
        return bool(self._keywords.cudagraph_policy)

    @property
    def compiled_policy_kwargs(self) -> dict[str, Any]:
        """`compile_policy`, if it is a dict; otherwise empty."""
        return kwargs_of(self._keywords.compile_policy) or {}

    @property
    def cudagraphed_policy_kwargs(self) -> dict[str, Any]:
        """`cudagraph_policy`, if it is a dict; otherwise empty."""
        return kwargs_of(self._keywords.cudagraph_policy) or {}

    @property
    def create_env_kwargs(self) -> Any:
        """As passed to the constructor; with workers, a list with a dict per worker."""
        return self._by_worker(self._keywords.create_env_kwargs, {})

    @property
    def policy_factory(self) -> Any:
        """As passed to the constructor; with workers, a list with an entry per worker."""
        return self._by_worker(self._keywords.policy_factory, None)

    def _by_worker(self, value: Any, default: Any) -> Any:
        if not self._keywords.has_workers:
            return value
        # A list lacks entries for added workers.
        values = value if isinstance(value, list | tuple) else [value] * self.num_workers
        return [default if each is None else each for each in values]

    @property
    def num_threads(self) -> int:
        """The keyword `num_threads`; by default, torch's number of threads in this process."""
        return getattr(self._keywords, "num_threads", None) or torch.get_num_threads()

    @property
    def preemptive_threshold(self) -> float:
        """The fraction of workers whose parts a batch waits for; by default 1.0."""
        threshold = self._cfg.collector.preemptive_threshold
        return 1.0 if threshold is None else threshold

    @property
    def trust_policy(self) -> bool:
        """As passed to the constructor; by default, whether the policy is a `RandomPolicy`."""
        trusted = self._keywords.trust_policy
        return isinstance(self.policy, RandomPolicy) if trusted is None else trusted

    @property
    def policy_weights(self) -> TensorDict:
        """The parameters and buffers of `collector.policy`, which share its memory; empty if the policy is not a
        module."""
        return TensorDict.from_module(self.policy).data if isinstance(self.policy, nn.Module) else TensorDict({}, [])

    @property
    def traj_format(self) -> str:
        """The layout of batches with `trajs_per_batch`: "padded" or "cat"."""
        return self._cfg.collector.traj_format

    @property
    def policy_version(self) -> int:
        """The version of the newest published weights. The first version is 0; `load_state_dict` restores a saved
        one."""
        return self._core.policy_version + self._converter.version_offset

    def get_policy_version(self) -> int:
        """Returns `policy_version`."""
        return self.policy_version

    def __len__(self) -> int:
        """Returns the number of batches until `total_frames`, including delivered ones.

        Raises:
            TypeError: `total_frames` is infinite, or batches consist of whole trajectories.
        """
        total, frames = self._cfg.collector.total_frames, self.frames_per_batch
        if total < 0 or self.trajs_per_batch is not None:
            why = "total_frames=-1" if total < 0 else f"trajs_per_batch={self.trajs_per_batch}"
            raise TypeError(f"this collector has no length, because {why}.")
        return -(-total // frames)

    def getattr_env(self, attr: str) -> Any:
        """Returns an attribute of the first worker's env, or of the wrapper that defines it; a list if the worker steps
        several envs. A worker process sends a copy, so the attribute must be data: numbers, text, arrays, spaces,
        specs, or containers of these.

        Args:
            attr: name of the attribute, or a path such as `transform[0].shape`.

        Raises:
            AttributeError: the env and its wrappers lack the attribute.
            TypeError: the env is in a worker process, and the attribute is a method or another object that is not data.
        """
        return self._with_core(lambda core: core.ask_first("getattr_env", attr))

    def get_distant_attr(self, attr: str) -> Any:
        """Returns a list with a value per worker; without workers, an attribute of this collector.

        Args:
            attr: `env.PATH`: an attribute of each worker's env, see `getattr_env`; `worker_idx`: the worker's index;
                `replay_buffer.PATH`: an attribute of the replay buffer, the same for all workers.

        Raises:
            AttributeError: the attribute does not exist; or there are workers, and the path begins in another way.
            TypeError: an env's attribute is not data, see `getattr_env`.
        """
        if not self._keywords.has_workers:
            path = within("env", attr)
            return self.getattr_env(path) if path else resolve(self, attr)
        if attr == "worker_idx":
            return self._core.worker_indices
        if within("replay_buffer", attr) is not None:
            return [resolve(self, attr)] * len(self._core.worker_indices)
        if (path := within("env", attr)) is None:
            raise AttributeError(
                f"{attr!r} cannot be read from the workers. Pass 'worker_idx', or a path that begins with 'env.' or "
                "'replay_buffer.', such as 'env.spec'."
            )
        return [value for _, value in sorted(self._ask("getattr_env", path).items())]

    def getattr_policy(self, attr: str) -> Any:
        """Returns an attribute of `collector.policy`."""
        return getattr(self.policy, attr)

    def getattr_rb(self, attr: str) -> Any:
        """Returns an attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    def get_model(self, model_id: str = "policy") -> Any:
        """Returns `collector.policy`.

        Raises:
            AttributeError: `model_id` is not "policy".
        """
        if model_id != "policy":
            raise AttributeError(f"model_id={model_id!r} is unknown. Valid names: 'policy'.")
        return self.policy

    def stats(self, workers: str = "aggregate", *, timeout: float | None = None) -> dict[str, int | float | bool]:
        """Returns counters. Does not block, as this process keeps all of them:

        - `workers`, including lost ones, and `workers_alive`
        - `frames` and `batches` that were delivered, `worker_frames` (the sum of `frames` over the workers),
          `completed` (whether `total_frames` are delivered), `requested_frames_per_batch`, `policy_version`, and
          `total_frames` unless it is infinite
        - for each worker `worker_<index>/frames`, `.../batches` and `.../requested_frames_per_batch`: the frames,
          number and size of its parts of delivered batches

        Args:
            workers: "aggregate": the first and second group; "per_worker": the first and third; "both": all three.
            timeout: ignored (accepted for TorchRL compatibility).

        Raises:
            ValueError: `workers` has another value than these three.
        """
        if wrong := out_of_range(workers, {"choices": ("aggregate", "per_worker", "both")}, PYTHON):
            raise ValueError(f"workers={workers!r} {wrong}")
        collector = self._core
        counters: dict[str, int | float | bool]
        counters = {"workers": self.num_workers, "workers_alive": len(collector.worker_indices)}
        if workers != "per_worker":
            total = collector.total_frames
            counters |= {
                "frames": collector.num_frames,
                "worker_frames": sum(collector.frames_by_worker.values()),
                "batches": collector.num_batches,
                "completed": 0 <= total <= collector.num_frames,
                "requested_frames_per_batch": self.requested_frames_per_batch,
                "policy_version": self.policy_version,
            } | ({"total_frames": total} if total >= 0 else {})
        if workers != "aggregate":
            for index in sorted({*collector.worker_indices, *collector.frames_by_worker}):
                worker, part = collector.pool.records[index], self.frames_per_batch_worker(worker_idx=index)
                # Parts that ended early have fewer frames; a loaded state has only the frames.
                batches = max(worker.num_parts, -(-worker.num_frames // part))
                each = {"frames": worker.num_frames, "batches": batches, "requested_frames_per_batch": part}
                counters |= {f"worker_{index}/{name}": count for name, count in each.items()}
        return counters

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a batch of zeros with the keys, shapes, dtypes and dimension names of delivered batches. Steps no
        env."""
        # While no worker is ready, with `min_workers`: a batch of all of them.
        workers = self._core.worker_indices or range(self.num_workers)
        return self._converter.zeros([self._overrides[worker].steps for worker in workers])
