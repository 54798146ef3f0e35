"""Collectors as a Python library, with TorchRL's names and keywords: thin compositions of what `collectx run` composes.

    keywords --gathered at once--> RunConfig, one env per worker, a policy --> collector.build --> batches

Called in the trainer's process. Keyword arguments do not travel further than this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.collector.build import build
from collectx.config import (
    BackendConfig,
    CollectorConfig,
    DevicesConfig,
    LauncherConfig,
    MeterTrainerConfig,
    PolicyConfig,
    RandomPolicyConfig,
    RunConfig,
    SlurmResources,
    SubmititLauncherConfig,
    is_stacked,
)
from collectx.errors import ConfigError
from collectx.given import GivenEnvConfig, GivenPolicyConfig
from collectx.launcher.place import Place
from collectx.policy.exploration import ExplorationType
from collectx.run import RunFolder, rules
from collectx.run.events import EventLog
from collectx.run.folder import new_folder
from collectx.run.submitted import Beforehand, submitted_workers, waiting_workers

CreateEnv = Callable[..., Any] | Sequence[Callable[..., Any]]


class DataCollector:
    """What all collectors of this module share; not to be made itself.

    Iterate to get TensorDicts of `frames_per_batch` frames (see README, "A batch"), until `total_frames` are delivered.
    Used from one thread. A context manager: leaving it shuts the workers down.
    """

    def __init__(
        self,
        cfg: RunConfig,
        create: Sequence[GivenEnvConfig],
        policy_devices: Sequence[str | None],
        update_interval: int,
        folder: Path | None = None,
    ):
        self._cfg = cfg
        self._update_interval = update_interval
        self._num_delivered = 0
        spec = envs.read_spec(create[0])
        unit = spec.num_envs * (cfg.collector.num_workers if is_stacked(cfg.collector) else 1)
        # TorchRL's rule: as many frames as asked for, rounded up to whole steps of all envs.
        cfg.collector.frames_per_batch = -(-cfg.collector.frames_per_batch // unit) * unit
        self.policy: Any = policies.build(cfg.policy, spec, cfg.seed)
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            place, events = _jobs(stack, cfg, create, folder)
            self._collector = build(
                cfg, self.policy, spec, events, place=place, envs=create, policy_devices=policy_devices
            )
            stack.callback(self._collector.close)
            self._closing = stack.pop_all()
        self._iterator: Iterator[TensorDict] | None = None

    def __iter__(self) -> Iterator[TensorDict]:
        for batch in self._collector:
            self._num_delivered += 1
            yield batch
            if self._update_interval > 0 and self._num_delivered % self._update_interval == 0:
                self.update_policy_weights_()

    def next(self) -> TensorDict | None:
        """The next batch; None after the last. Blocks until it is there."""
        if self._iterator is None:
            self._iterator = iter(self)
        return next(self._iterator, None)

    @property
    def policy_version(self) -> int:
        """The newest published version of the weights; 0 at first."""
        return self._collector.policy_version

    def update_policy_weights_(self, policy_or_weights: nn.Module | TensorDictBase | dict | None = None) -> None:
        """Lets the workers act with newer weights from their next batch on. Copies before it returns, does not wait.

        Args:
            policy_or_weights: a module built as the policy, or its weights by name (a state dict, or a TensorDict of
                parameters), which are copied into this collector's policy; None takes that policy as it is.

        Raises:
            KeyError: the weights lack one of the policy's.
        """
        if isinstance(policy_or_weights, nn.Module):
            self._collector.publish(policy_or_weights)
            return
        if policy_or_weights is not None:
            _load(self.policy, policy_or_weights)
        self._collector.publish(self.policy if isinstance(self.policy, nn.Module) else None)

    def state_dict(self) -> dict[str, Any]:
        """The policy's weights, copied, and how many frames were delivered."""
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        return {
            "policy_state_dict": {name: value.clone() for name, value in weights.items()},
            "frames": self._collector.num_frames,
        }

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Takes the weights of `state_dict()`, and publishes them."""
        if isinstance(self.policy, nn.Module):
            self.policy.load_state_dict(state_dict["policy_state_dict"], strict=strict)
            self.update_policy_weights_()

    def shutdown(self, timeout: float | None = None) -> None:
        """Stops the workers; kills those that do not stop. Idempotent.

        Args:
            timeout: is not looked at: `close_timeout_s` was given to the constructor.
        """
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __len__(self) -> int:
        """How many batches there are in all.

        Raises:
            TypeError: the collector is endless.
        """
        total, frames = self._cfg.collector.total_frames, self._cfg.collector.frames_per_batch
        if total < 0:
            raise TypeError("an endless collector (total_frames=-1) has no length")
        return -(-total // frames)


class Collector(DataCollector):
    """One rollout in this process (TorchRL's `Collector`, formerly `SyncDataCollector`).

    Args:
        create_env_fn: makes a Gymnasium env, or a vector env, whose envs make the batch's first dimension.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None for random
            actions. Its weights are looked at live: no publishing is needed.
        policy_factory: makes the policy instead.
        frames_per_batch: frames of one batch, rounded up to a multiple of the number of envs.
        total_frames: when to end; -1 is never. Rounded up to whole batches.
        device, storing_device, policy_device, env_device: `device` fills whichever of the others is None. With several
            workers each may be a list, one for each worker, but `storing_device`, where batches lie.
        create_env_kwargs: passed to `create_env_fn`.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN or DETERMINISTIC, of
            this package's `ExplorationType` or TorchRL's, or its name.
        seed: what envs and random actions are seeded with.
        options: further values of the `collector` group of the configuration, by name, such as `zero_copy`.

    Raises:
        ConfigError: what is wrong with the arguments, all at once.
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int = 200,
        total_frames: int = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        exploration_type: Any = ExplorationType.RANDOM,
        seed: int = 0,
        **options: Any,
    ):
        create = _envs(create_env_fn, create_env_kwargs, 1)
        devices, acting = _devices(len(create), device, storing_device, policy_device, env_device)
        values = _values("single", 1, frames_per_batch, total_frames, exploration_type, options)
        cfg = _config(values, create[0], _policy(policy, policy_factory), devices, seed)
        super().__init__(cfg, create, acting, -1)


class MultiCollector(DataCollector):
    """Workers in processes of this machine, over shared memory.

    Args:
        create_env_fn: one callable for each worker, or one for all with `num_workers`.
        num_workers: how many workers.
        sync: True: a batch is one equal part of each worker, `[workers, ...]`, all with the newest weights. False:
            every batch comes whole from the worker that is ready first.
        update_at_each_batch: publishes the policy's weights after every batch.
        others: see `Collector`. The policy is copied to the workers: `update_policy_weights_` publishes newer weights.
    """

    def __init__(
        self,
        create_env_fn: CreateEnv,
        policy: Any = None,
        *,
        sync: bool,
        num_workers: int | None = None,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int = 200,
        total_frames: int = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        exploration_type: Any = ExplorationType.RANDOM,
        update_at_each_batch: bool = False,
        num_threads: int = 1,
        seed: int = 0,
        **options: Any,
    ):
        create = _envs(create_env_fn, create_env_kwargs, num_workers)
        devices, acting = _devices(len(create), device, storing_device, policy_device, env_device)
        kind = "multi_sync" if sync else "multi_async"
        values = _values(kind, len(create), frames_per_batch, total_frames, exploration_type, options)
        cfg = _config(values, create[0], _policy(policy, policy_factory), devices, seed, num_threads=num_threads)
        super().__init__(cfg, create, acting, 1 if update_at_each_batch else -1)


class MultiSyncCollector(MultiCollector):
    """`MultiCollector(sync=True)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


class MultiAsyncCollector(MultiCollector):
    """`MultiCollector(sync=False)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=False, **keywords)


class DistributedCollector(DataCollector):
    """Workers over torch.distributed.

    Args:
        sync: see `MultiCollector`.
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join as they start; "mp": processes of this
            machine; "submitit_delayed": jobs that were submitted beforehand, see
            `collectx.submitit_delayed_launcher`.
        slurm_kwargs: what the jobs ask for, by submitit's names or sbatch's (`timeout_min`, `slurm_partition`,
            `mem_gb`, `cpus_per_task`, `setup`, `additional_parameters`, ...).
        tcp_port: where the trainer listens; None: the system chooses.
        folder: where jobs find the trainer and write their logs, on a file system that all nodes share; None:
            a new one below `outputs/`.
        update_after_each_batch: publishes the policy's weights after every batch.
        max_weight_update_interval: publishes them after so many batches; -1: only when told to.
        others: see `MultiCollector`.
    """

    def __init__(
        self,
        create_env_fn: CreateEnv,
        policy: Any = None,
        *,
        num_workers: int | None = None,
        policy_factory: Callable[[], Any] | None = None,
        frames_per_batch: int = 200,
        total_frames: int = -1,
        device: Any = None,
        storing_device: Any = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: dict[str, Any] | None = None,
        exploration_type: Any = ExplorationType.RANDOM,
        sync: bool = False,
        backend: str = "gloo",
        launcher: str = "submitit",
        slurm_kwargs: dict[str, Any] | None = None,
        tcp_port: int | None = None,
        folder: str | Path | None = None,
        update_after_each_batch: bool = False,
        max_weight_update_interval: int = -1,
        num_threads: int = 1,
        seed: int = 0,
        **options: Any,
    ):
        if launcher not in ("mp", "submitit", "submitit_delayed"):
            raise ConfigError(
                [
                    f"launcher={launcher!r}: use 'mp', 'submitit' or 'submitit_delayed'; "
                    "`collectx run launcher=...` knows more."
                ]
            )
        create = _envs(create_env_fn, create_env_kwargs, num_workers)
        devices, acting = _devices(len(create), device, storing_device, policy_device, env_device)
        kind = "distributed_sync" if sync else "distributed"
        values = _values(kind, len(create), frames_per_batch, total_frames, exploration_type, options)
        cfg = _config(
            values,
            create[0],
            _policy(policy, policy_factory),
            devices,
            seed,
            num_threads=num_threads,
            backend=BackendConfig(backend, None, tcp_port),
        )
        if launcher == "submitit":
            cfg.launcher = slurm_resources(slurm_kwargs or {}, num_threads)
        elif launcher == "submitit_delayed":
            cfg.launcher = _SubmittedBeforehand(**vars(slurm_resources({}, num_threads)))
            cfg.backend.port = _check_beforehand(cfg, tcp_port)
        interval = 1 if update_after_each_batch else max_weight_update_interval
        super().__init__(cfg, create, acting, interval, None if folder is None else Path(folder))


class DistributedSyncCollector(DistributedCollector):
    """`DistributedCollector(sync=True)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


# TorchRL's earlier names.
SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector

# Of the `collector` group, where the constructors say nothing.
_OPTIONS: dict[str, Any] = {
    "num_slots": 2,
    "zero_copy": False,
    "on_worker_failure": "raise",
    "max_restarts": 10,
    "start_timeout_s": 60.0,
    "worker_timeout_s": 120.0,
    "close_timeout_s": 10.0,
    "num_workers_per_collector": 1,
    "inner": "sync",
    "max_frames_per_traj": None,
    "init_random_frames": None,
    "reset_at_each_iter": False,
    "set_truncated": False,
}


def _envs(
    create: CreateEnv, kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None, num_workers: int | None
) -> list[GivenEnvConfig]:
    """One env for each worker."""
    given = [create] * (num_workers or 1) if callable(create) else list(create)
    each = [dict(kwargs or {})] * len(given) if kwargs is None or isinstance(kwargs, dict) else list(kwargs)
    problems = [f"create_env_fn[{i}]={one!r} cannot be called" for i, one in enumerate(given) if not callable(one)]
    if num_workers is not None and len(given) != num_workers:
        problems.append(
            f"num_workers={num_workers}, but create_env_fn has {len(given)} callables: one for each worker."
        )
    if len(each) != len(given):
        problems.append(
            f"create_env_kwargs has {len(each)} entries for {len(given)} workers: one for each, or one dict."
        )
    if not given:
        problems.append("create_env_fn is empty: give one callable for each worker.")
    if problems:
        raise ConfigError(problems)
    return [GivenEnvConfig("given", 0, one, values) for one, values in zip(given, each, strict=True)]


def _policy(policy: Any, factory: Callable[[], Any] | None) -> PolicyConfig:
    if policy is not None and factory is not None:
        raise ConfigError(["policy and policy_factory are both given: give one of them."])
    if policy is None and factory is None:
        return RandomPolicyConfig("random")
    if not callable(factory if policy is None else policy):
        raise ConfigError([f"policy={policy!r} cannot be called."])
    return GivenPolicyConfig("given", policy, factory)


def _devices(
    num_workers: int, device: Any, storing_device: Any, policy_device: Any, env_device: Any
) -> tuple[DevicesConfig, list[str | None]]:
    """The devices of the run, and where each worker's policy acts."""
    given = {
        "device": device,
        "storing_device": storing_device,
        "policy_device": policy_device,
        "env_device": env_device,
    }
    lists: dict[str, list[str | None]] = {}
    problems = []
    for name, value in given.items():
        values = list(value) if isinstance(value, (list, tuple)) else [value] * num_workers
        if len(values) != num_workers:
            problems.append(f"{name} has {len(values)} entries for {num_workers} workers: one for each, or one device.")
        try:
            lists[name] = [None if one is None else str(torch.device(one)) for one in values]
        except (RuntimeError, TypeError) as error:
            problems.append(f"{name}={value!r}: {str(error).splitlines()[0]}")
    if not problems and len(set(lists["storing_device"])) > 1:
        problems.append(f"storing_device={storing_device!r}: batches lie on one device, the trainer's.")
    if problems:
        raise ConfigError(problems)
    first = {name: values[0] for name, values in lists.items()}
    if len(set(lists["device"])) > 1:
        first["device"] = None
    acting = [own or general for own, general in zip(lists["policy_device"], lists["device"], strict=True)]
    return DevicesConfig(**first), acting


def _values(
    kind: str, num_workers: int, frames_per_batch: int, total_frames: int, exploration: Any, options: dict[str, Any]
) -> CollectorConfig:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(f"unexpected keyword argument {', '.join(unknown)}; options are {', '.join(_OPTIONS)}")
    problems = []
    if frames_per_batch < 1:
        problems.append(f"frames_per_batch={frames_per_batch}: must be at least 1.")
    if total_frames < 1 and total_frames != -1:
        problems.append(f"total_frames={total_frames}: must be at least 1, or -1 for an endless collector.")
    name = str(getattr(exploration, "name", exploration)).lower()
    known = [kind.value for kind in ExplorationType]
    if name not in known:
        problems.append(f"exploration_type={exploration!r}: must be one of {', '.join(known)}.")
    if problems:
        raise ConfigError(problems)
    return CollectorConfig(
        kind=kind,
        num_workers=num_workers,
        frames_per_batch=frames_per_batch,
        total_frames=total_frames,
        exploration_type=name,
        **(_OPTIONS | options),
    )


def _config(
    collector: CollectorConfig,
    env: GivenEnvConfig,
    policy: PolicyConfig,
    devices: DevicesConfig,
    seed: int,
    num_threads: int = 1,
    backend: BackendConfig | None = None,
) -> RunConfig:
    return RunConfig(
        env=env,
        policy=policy,
        collector=collector,
        backend=backend or BackendConfig("auto", None, None),
        launcher=LauncherConfig("local", None, num_threads, False),
        devices=devices,
        trainer=MeterTrainerConfig("meter", False),
        seed=seed,
    )


# submitit's names for what SLURM is asked for, and how ours are made of their values.
_SUBMITIT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "timeout_min": ("time", str),
    "mem_gb": ("mem", lambda value: f"{value}G"),
    "gpus_per_node": ("gpus", int),
    "gpus_per_task": ("gpus", int),
}


def slurm_resources(slurm_kwargs: dict[str, Any], num_threads: int) -> SubmititLauncherConfig:
    """What jobs ask for, by submitit's names or sbatch's (see `DistributedCollector`), as this package has it."""
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(SlurmResources)}
    values |= {"exclusive": False, "setup": [], "sbatch": {}}
    for given, value in slurm_kwargs.items():
        name = given.removeprefix("slurm_")
        name, convert = _SUBMITIT.get(name, (name, lambda value: value))
        if name == "additional_parameters":
            values["sbatch"] |= value
        elif name in values:
            values[name] = convert(value)
        else:
            values["sbatch"][name.replace("_", "-")] = value
    return SubmititLauncherConfig(
        kind="submitit",
        hydra_mode=None,
        num_threads=num_threads,
        pin_cores=False,
        python=None,
        queue_timeout_s=3600.0,
        **values,
    )


class _SubmittedBeforehand(SubmititLauncherConfig):
    """Jobs that wait already, see `collectx.run.submitted.Beforehand`."""


def _check_beforehand(cfg: RunConfig, tcp_port: int | None) -> int | None:
    """Whether what was submitted beforehand is what `cfg` wants; returns the port to listen at.

    Raises:
        ConfigError: it is not, or nothing was submitted.
    """
    there = Beforehand.from_environment()
    if there is None:
        raise ConfigError(
            [
                "launcher='submitit_delayed': no jobs were submitted for this process: decorate the main function with "
                "collectx.submitit_delayed_launcher, or use launcher='submitit'."
            ]
        )
    problems = []
    if there.num_workers != cfg.collector.num_workers:
        problems.append(
            f"{cfg.collector.num_workers} workers, but submitit_delayed_launcher(num_jobs={there.num_workers}): "
            "give both the same number."
        )
    if there.backend != cfg.backend.kind:
        problems.append(
            f"backend={cfg.backend.kind!r}, but submitit_delayed_launcher(backend={there.backend!r}): "
            "give both the same."
        )
    if cfg.collector.on_worker_failure == "restart":
        problems.append(
            "on_worker_failure='restart': with launcher='submitit_delayed' no job may be submitted in the place of one "
            "that is gone: use 'raise' or 'drop'."
        )
    if problems:
        raise ConfigError(problems)
    return there.tcp_port if tcp_port is None else tcp_port


def _jobs(
    stack: contextlib.ExitStack, cfg: RunConfig, create: Sequence[GivenEnvConfig], folder: Path | None
) -> tuple[Place | None, Callable[..., None]]:
    """Where the workers come up that are SLURM jobs, until `stack` is closed; and what writes events down."""
    if isinstance(cfg.launcher, _SubmittedBeforehand):
        beforehand = Beforehand.from_environment()
        assert beforehand is not None
        events = EventLog(beforehand.files())
        stack.callback(events.close)
        return waiting_workers(cfg, beforehand, create), events
    if cfg.launcher.kind != "submitit":
        return None, lambda name, **fields: None
    if problems := rules.launcher_problems(cfg):
        raise ConfigError(problems)
    files = new_folder() if folder is None else RunFolder(folder)
    files.begin()
    events = EventLog(files)
    stack.callback(events.close)
    return stack.enter_context(submitted_workers(cfg, files, lambda text: events("jobs", message=text), create)), events


def _load(policy: Any, weights: TensorDictBase | dict) -> None:
    if isinstance(weights, TensorDictBase):
        weights = weights.flatten_keys(".").to_dict()
    own = policy.state_dict()
    missing = sorted(set(own) - set(weights))
    if missing:
        raise KeyError(f"the weights lack {', '.join(missing)}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name])
