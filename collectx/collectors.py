"""Collectors as a Python library, with TorchRL's names and keywords: thin compositions of what `collectx run` composes.

    keywords --gathered at once--> Order --> RunConfig, one env per worker, a policy --> collector.build --> batches

Called in the trainer's process. Keyword arguments do not travel further than `collectx.keywords`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.collector.build import build
from collectx.config import EnvConfig, RunConfig, SubmititLauncherConfig, is_stacked, rows_per_env
from collectx.errors import ConfigError
from collectx.keywords import (
    CreateEnv,
    Devices,
    EachBatchWeights,
    Frames,
    Handing,
    Keywords,
    Order,
    Remote,
    Weights,
    Work,
    Workers,
    described,
)
from collectx.launcher.place import Place
from collectx.launcher.submitit import slurm_resources
from collectx.run import RunFolder, rules
from collectx.run.events import EventLog
from collectx.run.folder import new_folder
from collectx.run.submitted import Beforehand, submitted_workers, waiting_workers
from collectx.trajectories import split_trajectories


class DataCollector:
    """What all collectors of this module share; not to be made itself.

    Iterate to get TensorDicts of `frames_per_batch` frames (see README, "A batch"), until `total_frames` are delivered.
    Used from one thread. A context manager: leaving it shuts the workers down.

    Raises:
        ConfigError: by the constructor: what is wrong with the arguments, all at once, before anything is started.
        TypeError: by the constructor: a keyword that it does not know.
    """

    # What the keywords are taken apart into.
    _specs: tuple[type, ...] = ()

    def __init__(self, kind: str, create_env_fn: CreateEnv, policy: Any, keywords: dict[str, Any]):
        taken = Keywords(type(self).__name__, {"create_env_fn": create_env_fn, "policy": policy, **keywords})

        def take(spec: type) -> Any:
            chosen = next((own for own in self._specs if issubclass(own, spec)), None)
            return spec() if chosen is None else taken.take(chosen)

        self._order = order = Order(kind, *map(take, (Work, Frames, Devices, Handing, Workers, Weights, Remote)))
        taken.end()
        order.check()
        self._cfg, own = order.config()
        create = [each["env"] for each in own]
        if kind.startswith("distributed"):
            _launch_by(self._cfg, order.remote)
        self._num_delivered = 0
        spec = envs.read_spec(create[0])
        want = self._cfg.collector
        unit = spec.num_envs * rows_per_env(want) * (want.num_workers if is_stacked(want) else 1)
        # TorchRL's rule: as many frames as asked for, rounded up to whole steps of all envs.
        want.frames_per_batch = -(-want.frames_per_batch // unit) * unit
        self.policy: Any = policies.build(self._cfg.policy, spec, self._cfg.seed)
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            place, events = _jobs(stack, self._cfg, create, order.remote.folder)
            self._collector = build(self._cfg, self.policy, spec, events, place=place, own=own)
            stack.callback(self._collector.close)
            self._closing = stack.pop_all()
        self._iterator: Iterator[TensorDictBase] | None = None

    def __iter__(self) -> Iterator[TensorDictBase]:
        handing, interval = self._order.handing, self._order.weights.interval
        for delivered in self._collector:
            self._num_delivered += 1
            batch: Any = split_trajectories(delivered) if handing.split_trajs else delivered
            yield batch if handing.postproc is None else handing.postproc(batch)
            if interval > 0 and self._num_delivered % interval == 0:
                self.update_policy_weights_()

    def next(self) -> TensorDictBase | None:
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
                parameters), which are copied into this collector's policy; None takes that policy as it is, or what
                `weight_updater` gives.

        Raises:
            KeyError: the weights lack one of the policy's.
        """
        weights = self._order.weights
        if not weights.travel:
            return
        if policy_or_weights is None and weights.weight_updater is not None:
            policy_or_weights = weights.weight_updater()
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


@described(Work, Frames, Devices, Handing, Weights)
class Collector(DataCollector):
    """One rollout in this process (TorchRL's `Collector`, formerly `SyncDataCollector`). Acts with the policy itself,
    so that no publishing is needed."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__("single", create_env_fn, policy, keywords)


@described(Work, Frames, Devices, Handing, Workers, Weights)
class MultiCollector(DataCollector):
    """Workers in processes of this machine, over shared memory. The policy is copied to them.

    `sync=True`: a batch is one equal part of each worker, `[workers, ...]`, all with the newest weights. `sync=False`:
    every batch comes whole from the worker that is ready first.
    """

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool, **keywords: Any):
        super().__init__("multi_sync" if sync else "multi_async", create_env_fn, policy, keywords)


@described(*MultiCollector._specs)
class MultiSyncCollector(MultiCollector):
    """`MultiCollector(sync=True)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


@described(*MultiCollector._specs)
class MultiAsyncCollector(MultiCollector):
    """`MultiCollector(sync=False)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=False, **keywords)


@described(Work, Frames, Devices, Handing, Workers, Weights, Remote)
class DistributedCollector(DataCollector):
    """Workers over torch.distributed; `sync` as in `MultiCollector`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("distributed_sync" if sync else "distributed", create_env_fn, policy, keywords)


@described(Work, Frames, Devices, Handing, Workers, EachBatchWeights, Remote)
class DistributedSyncCollector(DistributedCollector):
    """`DistributedCollector(sync=True)`; publishes the policy's weights after every batch if nothing else is said."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


# TorchRL's earlier names.
SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector


def _launch_by(cfg: RunConfig, remote: Remote) -> None:
    """Puts the launcher into `cfg`."""
    if remote.launcher == "submitit":
        cfg.launcher = slurm_resources(remote.slurm_kwargs or {}, cfg.launcher.num_threads)
    elif remote.launcher == "submitit_delayed":
        cfg.launcher = _SubmittedBeforehand(**vars(slurm_resources({}, cfg.launcher.num_threads)))
        cfg.backend.port = _check_beforehand(cfg, remote.tcp_port)


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
    stack: contextlib.ExitStack, cfg: RunConfig, create: Sequence[EnvConfig], folder: str | Path | None
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
