"""The keyword arguments of the collectors' constructors: taken apart at once into a few frozen specs, and made into a
configuration. Nothing else ever sees them.

    keywords --take--> Work, Frames, Devices, ... --order--> RunConfig, what each worker has of its own

Called in the trainer's process, by `collectx.collectors`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tensordict import TensorDict
from tensordict.nn import CudaGraphModule

from collectx.batch import POLICY_VERSION, TRAJ_IDS
from collectx.config import (
    GROUP_BACKENDS,
    BackendConfig,
    CollectorConfig,
    DevicesConfig,
    EitherCollectorConfig,
    LauncherConfig,
    MeterTrainerConfig,
    PolicyConfig,
    RandomPolicyConfig,
    RayLauncherConfig,
    RpcBackendConfig,
    RunConfig,
    is_stacked,
    rows_per_env,
)
from collectx.early import Early, mask
from collectx.errors import ConfigError
from collectx.given import GivenEnvConfig, GivenPolicyConfig, Hooks
from collectx.policy.exploration import ExplorationType
from collectx.replay.buffer import ReplayBuffer
from collectx.trajectories import Assembly, split_trajectories
from collectx.transport.backends import actor_problems, tensorpipe_problems, why_not

CreateEnv = Callable[..., Any] | Sequence[Callable[..., Any]]
Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Work:
    """What is run.

    Args:
        create_env_fn: makes a Gymnasium env, or a vector env, whose envs make a dimension of the batch, or a TorchRL
            env. With several workers: one callable for all, or one for each.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None for random
            actions.
        policy_factory: makes the policy instead, in every process.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN or DETERMINISTIC, of
            this package's `ExplorationType` or TorchRL's, or its name.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: is not looked at: every policy is called once, on zeros, to learn what it writes.
        compile_policy: the policy is compiled in the workers by `torch.compile`: True, or its keyword arguments. The
            time that takes is in the first batch (`start_timeout_s`).
        cudagraph_policy: the policy's calls are recorded as CUDA graphs by tensordict's `CudaGraphModule`: True, or its
            keyword arguments. For policies on GPUs.
        seed: what envs and random actions are seeded with.
        worker_idx: this collector's number, where it is one of several that the caller has made: `worker_idx` gives it.
    """

    create_env_fn: CreateEnv
    policy: Any = None
    policy_factory: Callable[[], Any] | None = None
    create_env_kwargs: Any = None
    exploration_type: Any = ExplorationType.RANDOM
    exploration_mode: str | None = None
    trust_policy: bool | None = None
    compile_policy: bool | dict[str, Any] | None = None
    cudagraph_policy: bool | dict[str, Any] | None = None
    seed: int = 0
    worker_idx: int | None = None

    @property
    def exploration(self) -> str:
        """The exploration type's name."""
        return _exploration(self.exploration_type if self.exploration_mode is None else self.exploration_mode)

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        creates = _each(self.create_env_fn, num_workers)
        found = [f"create_env_fn[{i}]={one!r} cannot be called." for i, one in enumerate(creates) if not callable(one)]
        if not creates:
            found.append("create_env_fn is empty: give one callable for each worker.")
        elif len(creates) != num_workers:
            found.append(
                f"num_workers={num_workers}, but create_env_fn has {len(creates)} callables: one for each worker."
            )
        elif (count := len(_each(self.create_env_kwargs, num_workers))) != num_workers:
            found.append(f"create_env_kwargs has {count} entries for {num_workers} workers: one for each, or one dict.")
        if self.policy is not None and self.policy_factory is not None:
            found.append("policy and policy_factory are both given: give one of them.")
        for name in ("policy", "policy_factory"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                found.append(f"{name}={given!r} cannot be called.")
        for name, made in (("compile_policy", torch.compile), ("cudagraph_policy", CudaGraphModule)):
            found += self._acceleration_problems(name, made)
        return [*found, *_exploration_problems("", self.exploration)]

    def _acceleration_problems(self, name: str, made: Callable) -> list[str]:
        given = getattr(self, name)
        if given is None or given is False:
            return []
        if self.policy is None and self.policy_factory is None:
            return [f"{name}={given!r}: there is no policy, actions are random: leave it out."]
        if not isinstance(given, bool | dict):
            return [f"{name}={given!r}: must be True, or a dict of keyword arguments of {made.__name__}."]
        try:
            inspect.signature(made).bind(None, **(_kwargs(given) or {}))
        except TypeError as error:
            return [f"{name}={given!r}: {made.__name__}: {error}."]
        return []

    def envs(self, num_workers: int) -> list[GivenEnvConfig]:
        """One for each worker."""
        creates, kwargs = _each(self.create_env_fn, num_workers), _each(self.create_env_kwargs, num_workers)
        return [GivenEnvConfig("given", 0, make, dict(own or {})) for make, own in zip(creates, kwargs, strict=True)]

    def policy_config(self) -> PolicyConfig:
        """The policy as a choice of the group."""
        if self.policy is None and self.policy_factory is None:
            return RandomPolicyConfig("random")
        compiling, recording = _kwargs(self.compile_policy), _kwargs(self.cudagraph_policy)
        return GivenPolicyConfig("given", self.policy, self.policy_factory, compiling, recording)


@dataclass(frozen=True)
class Frames:
    """How many frames.

    Args:
        frames_per_batch: frames of one batch, rounded up to a multiple of the number of envs that take part in it. Of
            `MultiSyncCollector`, with `cat_results=-1`, also a list of how many each worker has of them; of
            `MultiAsyncCollector` such a list is their sum.
        total_frames: when to end, a multiple of `frames_per_batch`; -1 is never. What was rounded up there is
            delivered too.
        max_frames_per_traj: a trajectory that has as many is cut, marked truncated, and its env is reset; batches then
            have `step_count` as well. None or negative: never.
        init_random_frames: so many frames, rounded up to whole batches, have random actions before the policy is called
            at all. None or negative: none.
        reset_at_each_iter: every batch begins with a reset of all envs.
        set_truncated: the last frame of each row of a batch is marked truncated.
        reset_when_done: True: an env that is done is reset. There is no other way any more, as in TorchRL.
    """

    frames_per_batch: int | Sequence[int] = 200
    total_frames: int = -1
    max_frames_per_traj: int | None = None
    init_random_frames: int | None = None
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    reset_when_done: bool = True

    def problems(self) -> list[str]:
        """What is wrong."""
        found = self._counts()
        if not self.reset_when_done:
            found.append("reset_when_done=False: envs that are done are always reset: leave it out.")
        return found

    @property
    def per_worker(self) -> Sequence[int] | None:
        """Frames of each worker, where they are told one by one."""
        return None if isinstance(self.frames_per_batch, int) else self.frames_per_batch

    @property
    def in_all(self) -> int:
        """Frames of one batch, as they were asked for."""
        return self.frames_per_batch if isinstance(self.frames_per_batch, int) else sum(self.frames_per_batch)

    def _counts(self) -> list[str]:
        least = min(self.per_worker or [self.in_all])
        if least < 1:
            return [f"frames_per_batch={self.frames_per_batch}: must be at least 1."]
        frames, total = self.in_all, self.total_frames
        if total != -1 and total < 1:
            return [f"total_frames={total}: must be at least 1, or -1 for an endless collector."]
        if total != -1 and total % frames:
            below = total // frames * frames
            use = f"use {below} or {below + frames}" if below else f"use {frames}"
            return [
                f"total_frames={total} is not a multiple of frames_per_batch={frames} "
                f"({total} / {frames} = {total / frames:.2f}): {use}, or -1 for an endless collector."
            ]
        return []


@dataclass(frozen=True)
class Devices:
    """Where.

    Args:
        device, storing_device, policy_device, env_device: `device` fills whichever of the others is None. With several
            workers each may be a list, one for each worker, but `storing_device`, where batches lie.
        no_cuda_sync: is not looked at: a policy on a GPU is waited for once in a step, as its actions are needed.
    """

    device: Any = None
    storing_device: Any = None
    policy_device: Any = None
    env_device: Any = None
    no_cuda_sync: bool = False

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        found = []
        for name, value in self._all().items():
            values = _each(value, num_workers)
            if len(values) != num_workers:
                found.append(
                    f"{name} has {len(values)} entries for {num_workers} workers: one for each, or one device."
                )
            found += [f"{name}={value!r}: {why}" for why in {_why_no_device(one) for one in values} if why]
        if not found and len(set(_each(self.storing_device, num_workers))) > 1:
            found.append(f"storing_device={self.storing_device!r}: batches lie on one device, the trainer's.")
        return found

    def _all(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.endswith("device")}

    def resolve(self, num_workers: int) -> tuple[DevicesConfig, list[str | None]]:
        """The devices of the run, and where each worker's policy acts."""
        lists = {name: [_name_of(one) for one in _each(value, num_workers)] for name, value in self._all().items()}
        first = {name: values[0] for name, values in lists.items()}
        if len(set(lists["device"])) > 1:
            first["device"] = None
        acting = [own or general for own, general in zip(lists["policy_device"], lists["device"], strict=True)]
        return DevicesConfig(**first), acting


@dataclass(frozen=True)
class Handing:
    """How batches are handed over.

    Args:
        split_trajs: a batch is `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch, in this process; what it returns is delivered. Where it changes how many
            frames there are, `total_frames` still counts what was collected.
        cat_results: of a sync collector: None or "stack": the parts of its workers are `[workers, ...]`; 0, -1, ...:
            they are concatenated along that dimension of a part.
        return_same_td: every batch is the same TensorDict with new values.
        zero_copy: batches are views of the transport's memory, valid until the next is asked for.
        track_traj_ids: whether batches have `("collector", "traj_ids")`.
        track_policy_version: batches have `policy_version` and `("next", "policy_version")`, as TorchRL's, beside
            `("collector", "policy_version")`, which they always have.
        replay_buffer: batches go there, by its `extend`, and iteration gives None in their place. See `start`. Workers
            of this machine write to a `collectx.ReplayBuffer` themselves, in the order in which they are ready, unless
            batches are to be changed before (`postproc`, `split_trajs`, `track_...`, `extend_buffer`).
        extend_buffer: False: the frames go there step by step, by `add`; where there are several envs, one of each.
        use_buffers: is not looked at: batches are always written into memory that is allocated once.
        compact_obs: batches have no observation below `next`, which is the next frame's where a trajectory goes on.
    """

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = False
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = None
    compact_obs: bool = False

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        if self.cat_results not in (None, "stack") and not isinstance(self.cat_results, int):
            found.append(f"cat_results={self.cat_results!r}: must be 'stack' or a dimension, as 0 or -1.")
        if self.split_trajs and not self.track_traj_ids:
            found.append("split_trajs=True with track_traj_ids=False: trajectories are known by their ids.")
        if self.postproc is not None and not callable(self.postproc):
            found.append(f"postproc={self.postproc!r} cannot be called.")
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            found.append(f"replay_buffer={type(self.replay_buffer).__name__}: has no `extend`.")
        return found

    @property
    def shared_buffer(self) -> ReplayBuffer | None:
        """The replay buffer, if workers may write their batches there as they are."""
        changed = self.split_trajs or self.postproc or self.track_policy_version or not self.track_traj_ids
        shared = isinstance(self.replay_buffer, ReplayBuffer) and self.extend_buffer and not changed
        return self.replay_buffer if shared else None

    def hand(self, batch: TensorDict, stacked: bool, steps: Sequence[int], masked: bool = False) -> Any:
        """The batch as it is wanted.

        Args:
            stacked: whether its first dimension is that of the workers.
            steps: how many of each part are filled.
            masked: whether to add `("collector", "mask")` where parts are stacked.
        """
        if not stacked and steps[0] < batch.shape[-1]:
            batch = batch[..., : steps[0]]
        if stacked and masked and not self.is_concatenated:
            mask(batch, steps)
        if self.track_policy_version:
            versions = batch[POLICY_VERSION]
            batch["policy_version"] = versions
            batch["next", "policy_version"] = versions.clone()
        if not self.track_traj_ids:
            del batch[TRAJ_IDS]
        if stacked and isinstance(self.cat_results, int):
            parts = zip(batch.unbind(0), steps, strict=True)
            batch = torch.cat([part[..., :filled] for part, filled in parts], self.cat_results)
        handed: Any = split_trajectories(batch) if self.split_trajs else batch
        return handed if self.postproc is None else self.postproc(handed)

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are put one after the other."""
        return isinstance(self.cat_results, int)

    def store(self, batch: Any) -> None:
        """Puts a batch into the replay buffer."""
        if self.extend_buffer:
            self.replay_buffer.extend(batch)
            return
        for step in batch.unbind(-1):
            self.replay_buffer.add(step)


@dataclass(frozen=True)
class Workers:
    """Those of a collector that has several.

    Args:
        num_workers: how many; None: as many as `create_env_fn` has callables.
        num_threads: of torch, in this process; None: as they are.
        num_sub_threads: of torch, in each worker.
        num_slots: batches that an async worker may have filled or under way at once.
        on_worker_failure: "raise", "restart" or "drop"; see README, "When a worker is gone".
        max_restarts: how many may be started again, of all workers together.
        start_timeout_s, worker_timeout_s, close_timeout_s: how long a worker may take to start, may be silent, and may
            take to stop.
    """

    num_workers: int | None = None
    num_threads: int | None = None
    num_sub_threads: int = 1
    num_slots: int = 2
    on_worker_failure: str = "raise"
    max_restarts: int = 10
    start_timeout_s: float = 60.0
    worker_timeout_s: float = 120.0
    close_timeout_s: float = 10.0

    def problems(self) -> list[str]:
        """What is wrong."""
        least = {
            "num_workers": 1,
            "num_threads": 1,
            "num_sub_threads": 1,
            "num_slots": 1,
            "max_restarts": 0,
            "close_timeout_s": 0,
        }
        given = {name: getattr(self, name) for name in least}
        found = [
            f"{name}={value}: must be at least {least[name]}."
            for name, value in given.items()
            if value is not None and value < least[name]
        ]
        for name in ("start_timeout_s", "worker_timeout_s"):
            if getattr(self, name) <= 0:
                found.append(f"{name}={getattr(self, name)}: must be above 0.")
        if self.on_worker_failure not in ("raise", "restart", "drop"):
            found.append(f"on_worker_failure={self.on_worker_failure!r}: must be 'raise', 'restart' or 'drop'.")
        return found


@dataclass(frozen=True)
class Weights:
    """How the workers come by newer weights; without any of these, `update_policy_weights_` has to be called.

    Args:
        update_at_each_batch, update_after_each_batch: the policy's weights are published after every batch.
        max_weight_update_interval, update_interval: they are published after so many batches; -1: never by itself.
        update_weights_between_steps: a worker takes newer weights between two steps of a batch too, of which
            `("collector", "policy_version")` then tells frame by frame.
        weight_updater: called without arguments whenever weights are published and none are given; returns them, as
            `update_policy_weights_` takes them. Of one of TorchRL's, or a callable that makes one, the weights and
            their mapping are taken; their way to the workers is the collector's own.
        weight_sync_schemes, weight_recv_schemes: TorchRL's, by model; "policy" is the only one. Weights travel by the
            collector's own way, whatever the scheme; of TorchRL's `NoWeightSyncScheme` none do.
    """

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = -1
    update_interval: int | None = None
    update_weights_between_steps: bool = False
    weight_updater: Callable[[], Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        for name in ("max_weight_update_interval", "update_interval"):
            value = getattr(self, name)
            if value is not None and value != -1 and value < 1:
                found.append(f"{name}={value}: must be at least 1, or -1 for never.")
        updater = self.weight_updater
        if updater is not None and not callable(updater):
            found.append(f"weight_updater={updater!r}: give a callable that returns the weights, or one of TorchRL's.")
        for name in ("weight_sync_schemes", "weight_recv_schemes"):
            if unknown := sorted(set(getattr(self, name) or ()) - {"policy"}):
                found.append(f"{name} names {', '.join(unknown)}: the only model here is 'policy'.")
        return found

    @property
    def interval(self) -> int:
        """After how many batches; -1: never by itself."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        return min(chosen, default=-1)

    @property
    def travel(self) -> bool:
        """Whether workers are to be told at all."""
        scheme = (self.weight_sync_schemes or {}).get("policy")
        return scheme is None or type(scheme).__name__ != "NoWeightSyncScheme"


@dataclass(frozen=True)
class EachBatchWeights(Weights):
    """`Weights`, published after every batch if no interval is given."""

    @property
    def interval(self) -> int:
        """See `Weights`."""
        nothing_said = self.update_interval is None and self.max_weight_update_interval == -1
        return 1 if nothing_said else super().interval


@dataclass(frozen=True)
class Nested:
    """What a worker is.

    Args:
        num_workers_per_collector: processes of each worker, which then is a collector itself.
        collector_class: which: "single" (one process), "sync" (a batch has a part of each) or "async" (a batch comes
            from one), or the class of that meaning, of this package or of TorchRL. None: "single" for one process,
            otherwise "sync".
        collector_kwargs: what a worker's collector is told otherwise than all; one dict for all, or one for each. May
            have `create_env_kwargs`, `device`, `policy_device` and `exploration_type`.
    """

    num_workers_per_collector: int = 1
    collector_class: Any = None
    collector_kwargs: Any = None

    @property
    def inner(self) -> str:
        """ "single", "sync" or "async"."""
        if self.collector_class is None:
            return "sync" if self.num_workers_per_collector > 1 else "single"
        name = getattr(self.collector_class, "__name__", self.collector_class)
        return _COLLECTOR_CLASSES.get(name, str(name))

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        found = []
        count, inner = self.num_workers_per_collector, self.inner
        if count < 1:
            found.append(f"num_workers_per_collector={count}: must be at least 1.")
        if inner not in ("single", "sync", "async"):
            found.append(
                f"collector_class={self.collector_class!r}: must be 'single', 'sync', 'async', or one of "
                f"{', '.join(_COLLECTOR_CLASSES)}; a class of your own cannot run in a worker."
            )
        elif inner == "single" and count > 1:
            found.append(
                f"num_workers_per_collector={count}: collector_class='single' has one process: use 'sync' or 'async'."
            )
        each = _each(self.collector_kwargs, num_workers)
        if len(each) != num_workers:
            found.append(
                f"collector_kwargs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        for own in each:
            found += _own_problems(own or {})
        return list(dict.fromkeys(found))

    def backend_config(self) -> BackendConfig:
        """How bytes travel."""
        return BackendConfig("auto", None, None)


@dataclass(frozen=True)
class Remote(Nested):
    """Workers over torch.distributed.

    Args:
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join as they start; "mp": processes of this
            machine; "submitit_delayed": jobs that were submitted beforehand, see
            `collectx.submitit_delayed_launcher`.
        slurm_kwargs: what the jobs ask for, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: where the trainer listens; None: the system chooses.
        folder: where jobs find the trainer and write their logs, on a file system that all nodes share; None: a new one
            below `outputs/`.
    """

    backend: str = "gloo"
    launcher: str = "submitit"
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | None = None
    folder: str | Path | None = None

    def problems(self, num_workers: int) -> list[str]:
        """See `Nested`."""
        found = []
        if self.launcher not in ("mp", "submitit", "submitit_delayed"):
            found.append(
                f"launcher={self.launcher!r}: use 'mp', 'submitit' or 'submitit_delayed'; "
                "`collectx run launcher=...` knows more."
            )
        if self.backend not in GROUP_BACKENDS:
            found.append(f"backend={self.backend!r}: must be 'gloo', 'nccl', 'mpi' or 'ucc'.")
        return found + super().problems(num_workers)

    def backend_config(self) -> BackendConfig:
        """See `Nested`."""
        return BackendConfig(self.backend, None, self.tcp_port)


@dataclass(frozen=True)
class RpcRemote(Remote):
    """Workers over torch RPC; `backend` is not looked at.

    Args:
        visible_devices: is not looked at: bytes lie on the CPU on their way.
        tensorpipe_options: `num_worker_threads`, `rpc_timeout` (seconds), `_transports` and `_channels` of
            `torch.distributed.rpc.TensorPipeRpcBackendOptions`.
    """

    visible_devices: Any = None
    tensorpipe_options: Mapping[str, Any] | None = None

    def problems(self, num_workers: int) -> list[str]:
        """See `Remote`."""
        return super().problems(num_workers) + tensorpipe_problems("tensorpipe_options", self.tensorpipe_options or {})

    def backend_config(self) -> BackendConfig:
        """See `Remote`."""
        return RpcBackendConfig("rpc", None, self.tcp_port, dict(self.tensorpipe_options or {}))


@dataclass(frozen=True)
class RayRemote(Nested):
    """Workers that are Ray actors.

    Args:
        ray_init_config: arguments of `ray.init`, such as `{"address": "auto"}` for the cluster that runs here already;
            not looked at where this process is connected to Ray. None: that cluster, or where there is none one of this
            machine alone.
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or one for each. None: one core.
        num_collectors: TorchRL's name for `num_workers`.
        use_env_creator: is not looked at.
    """

    ray_init_config: dict[str, Any] | None = None
    remote_configs: Any = None
    num_collectors: int | None = None
    use_env_creator: bool = False

    def problems(self, num_workers: int) -> list[str]:
        """See `Nested`."""
        found = super().problems(num_workers)
        if (why := why_not("ray")) is not None:
            found.append(why)
        each = _each(self.remote_configs, num_workers)
        if len(each) != num_workers:
            found.append(
                f"remote_configs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        if not all(own is None or isinstance(own, Mapping) for own in each):
            found.append(f"remote_configs={self.remote_configs!r}: must be a dict, or one for each worker.")
        else:
            found += actor_problems("remote_configs", each)
        if self.num_collectors is not None and self.num_collectors != num_workers:
            found.append(f"num_collectors={self.num_collectors}, but num_workers={num_workers}: give one of them.")
        return found

    def launcher_config(self, num_threads: int, num_workers: int) -> RayLauncherConfig:
        """Where workers come up."""
        each = [dict(own or {"num_cpus": 1}) for own in _each(self.remote_configs, num_workers)]
        return RayLauncherConfig("ray", None, num_threads, False, dict(self.ray_init_config or {}), each)


# What `collector_class` may be called.
_COLLECTOR_CLASSES = {
    "Collector": "single",
    "SyncDataCollector": "single",
    "MultiSyncCollector": "sync",
    "MultiSyncDataCollector": "sync",
    "MultiAsyncCollector": "async",
    "MultiaSyncDataCollector": "async",
}

_OWN = ("create_env_kwargs", "device", "policy_device", "exploration_type")


def _own_problems(own: dict[str, Any]) -> list[str]:
    found = []
    if unknown := sorted(set(own) - set(_OWN)):
        found.append(f"collector_kwargs has {', '.join(unknown)}: may have {', '.join(_OWN)}.")
    for name in ("device", "policy_device"):
        if why := _why_no_device(own.get(name)):
            found.append(f"collector_kwargs: {name}={own[name]!r}: {why}")
    if "exploration_type" in own:
        found += _exploration_problems("collector_kwargs: ", _exploration(own["exploration_type"]))
    return found


@dataclass(frozen=True)
class Order:
    """All that was asked for.

    Attributes:
        kind: of `collectx.config.CollectorConfig`.
        sync: whether it is sync, of a kind that can be both.
    """

    kind: str
    work: Work
    frames: Frames
    devices: Devices
    handing: Handing
    workers: Workers
    weights: Weights
    remote: Nested
    hooks: Hooks
    assembly: Assembly
    early: Early
    sync: bool | None = None

    @property
    def num_workers(self) -> int:
        """How many workers are meant."""
        if self.kind == "single":
            return 1
        if self.workers.num_workers is not None:
            return self.workers.num_workers
        if isinstance(self.remote, RayRemote) and self.remote.num_collectors is not None:
            return self.remote.num_collectors
        create = self.work.create_env_fn
        return 1 if callable(create) else len(create)

    @property
    def workers_write(self) -> bool:
        """Whether workers write to the replay buffer themselves."""
        is_whole = self.assembly.trajs_per_batch is not None
        return self.kind.startswith("multi") and self.handing.shared_buffer is not None and not is_whole

    def check(self) -> None:
        """Looks at all of it.

        Raises:
            ConfigError: what is wrong, all at once.
        """
        num_workers = self.num_workers
        problems = [
            *self.work.problems(num_workers),
            *self._graph_problems(),
            *self._share_problems(),
            *self.early.problems(self.kind, self.handing),
            *self.frames.problems(),
            *self.devices.problems(num_workers),
            *self.handing.problems(),
            *self.workers.problems(),
            *self.weights.problems(),
            *self.remote.problems(num_workers),
            *self.hooks.problems(),
            *self.assembly.problems(),
        ]
        if self.assembly.trajs_per_batch is not None:
            needs = {"return_same_td": False, "track_traj_ids": True, "split_trajs": False, "extend_buffer": True}
            problems += [
                f"{name}={not value} with trajs_per_batch={self.assembly.trajs_per_batch}: batches are of whole "
                f"trajectories, each of its own length: leave {name} out."
                for name, value in needs.items()
                if bool(getattr(self.handing, name)) is not value
            ]
        if self.weights.update_weights_between_steps and self.remote.num_workers_per_collector > 1:
            problems.append(
                "update_weights_between_steps=True: a worker that is itself a collector (num_workers_per_collector="
                f"{self.remote.num_workers_per_collector}) takes weights between its batches: use 1."
            )
        if problems:
            raise ConfigError(problems)

    def _share_problems(self) -> list[str]:
        """What is wrong about frames that are told worker by worker."""
        told = self.frames.per_worker
        if told is None:
            return []
        if self.kind not in ("multi_sync", "multi_async"):
            return [f"frames_per_batch={told}: must be one number, but for MultiSyncCollector and MultiAsyncCollector."]
        found = []
        if len(told) != self.num_workers:
            found.append(
                f"frames_per_batch={told} has {len(told)} entries for {self.num_workers} workers: one for each, or one "
                "number."
            )
        if self.kind == "multi_sync" and not self.handing.is_concatenated:
            found.append(
                f"frames_per_batch={told}: parts of different lengths cannot be stacked: give cat_results=-1, or one "
                "number."
            )
        return found

    def fit(self, cfg: RunConfig, own: list[dict[str, Any]], num_envs: int) -> int:
        """Rounds the frames of a batch up to whole steps of all envs, as TorchRL does, in what `config` gave; returns
        how many they are.

        Args:
            num_envs: of one worker's process.

        Raises:
            ConfigError: parts of different lengths are to be concatenated along another dimension than time.
        """
        want, told, dim = cfg.collector, self.frames.per_worker, self.handing.cat_results
        stacked = is_stacked(want)
        uneven = told is not None or self.early.threshold is not None
        last = 0 if num_envs == 1 else 1
        if stacked and uneven and self.handing.is_concatenated and dim not in (-1, last):
            raise ConfigError(
                [
                    f"cat_results={dim}: parts of different lengths, [envs, time] or [time], fit together along time "
                    "only: use cat_results=-1."
                ]
            )
        unit = num_envs * rows_per_env(want) * (want.num_workers if stacked else 1)
        if told is None or not stacked:
            want.frames_per_batch = _up(self.frames.in_all, unit)
            return want.frames_per_batch
        steps = [-(-frames // num_envs) for frames in told]
        for each, count in zip(own, steps, strict=True):
            each["steps"] = count
        # Every slot has room for the longest part.
        want.frames_per_batch = max(steps) * unit
        frames = sum(steps) * num_envs
        if want.init_random_frames is not None:
            want.init_random_frames = -(-want.init_random_frames // frames) * want.frames_per_batch
        return frames

    def _graph_problems(self) -> list[str]:
        """What is wrong about CUDA graphs and where the policy acts."""
        given = self.work.cudagraph_policy
        if not given or self.devices.problems(self.num_workers) or self.remote.problems(self.num_workers):
            return []
        acting = sorted({device for device in self._acting() if torch.device(device).type != "cuda"})
        if not acting:
            return []
        return [
            f"cudagraph_policy={given!r}: the policy acts on {', '.join(acting)}, and CUDA graphs are recorded on GPUs "
            "only: give policy_device='cuda', or leave it out."
        ]

    def _acting(self) -> list[str]:
        """Where each worker's policy acts."""
        _, general = self.devices.resolve(self.num_workers)
        own = [kwargs or {} for kwargs in _each(self.remote.collector_kwargs, self.num_workers)]
        named = [_name_of(kwargs.get("policy_device") or kwargs.get("device")) for kwargs in own]
        return [mine or device or "cpu" for mine, device in zip(named, general, strict=True)]

    def config(self) -> tuple[RunConfig, list[dict[str, Any]]]:
        """The configuration, of workers on this machine, and for each worker the fields of its
        `collectx.collector.worker.WorkerTask` that are its own. For an order that is right."""
        num_workers, workers, remote = self.num_workers, self.workers, self.remote
        envs, (devices, _), acting = self.work.envs(num_workers), self.devices.resolve(num_workers), self._acting()
        each = _each(remote.collector_kwargs, num_workers)
        own = [_own(env, device, kwargs or {}) for env, device, kwargs in zip(envs, acting, each, strict=True)]
        if self.hooks != Hooks():
            own = [each | {"hooks": self.hooks} for each in own]
        if self.workers_write:
            own = [each | {"replay": self.handing.shared_buffer} for each in own]
        collector = (CollectorConfig if self.sync is None else partial(EitherCollectorConfig, sync=self.sync))(
            kind=self.kind,
            num_workers=num_workers,
            frames_per_batch=self.frames.in_all,
            total_frames=self.frames.total_frames,
            exploration_type=self.work.exploration,
            num_slots=workers.num_slots,
            zero_copy=self.handing.zero_copy,
            on_worker_failure=workers.on_worker_failure,
            max_restarts=workers.max_restarts,
            start_timeout_s=workers.start_timeout_s,
            worker_timeout_s=workers.worker_timeout_s,
            close_timeout_s=workers.close_timeout_s,
            num_workers_per_collector=remote.num_workers_per_collector,
            inner=remote.inner,
            max_frames_per_traj=_positive(self.frames.max_frames_per_traj),
            init_random_frames=_positive(self.frames.init_random_frames),
            reset_at_each_iter=self.frames.reset_at_each_iter,
            set_truncated=self.frames.set_truncated,
            refresh="step" if self.weights.update_weights_between_steps else "batch",
        )
        if self.early.asked is not None:
            own[0]["asked"] = self.early.asked
        cfg = RunConfig(
            env=own[0]["env"],
            policy=self.work.policy_config(),
            collector=collector,
            backend=remote.backend_config(),
            launcher=LauncherConfig("local", None, workers.num_sub_threads, False),
            devices=devices,
            trainer=MeterTrainerConfig("meter", False),
            seed=self.work.seed,
        )
        return cfg, own


def own_of(order: Order, create: Callable[..., Any], kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """What a worker has of its own that comes later, beside the first one's device."""
    return _own(GivenEnvConfig("given", 0, create, {}), order._acting()[0], kwargs or {})


def _own(env: GivenEnvConfig, device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    env = dataclasses.replace(env, kwargs=env.kwargs | (kwargs.get("create_env_kwargs") or {}))
    own: dict[str, Any] = {"env": env, "policy_device": device}
    if "exploration_type" in kwargs:
        own["exploration_type"] = _exploration(kwargs["exploration_type"])
    return own


class Keywords:
    """The keyword arguments of one call, until all are taken."""

    def __init__(self, name: str, keywords: dict[str, Any]):
        self._name = name
        self._left = dict(keywords)
        self._known: list[str] = []

    def take(self, kind: type[Spec]) -> Spec:
        """The spec made of those that are its fields."""
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        self._known += names
        return kind(**{name: self._left.pop(name) for name in names if name in self._left})

    def end(self) -> None:
        """
        Raises:
            TypeError: some are left that no spec has, but for those of `REFUSED` that are None or False.
        """
        told = []
        for name, value in self._left.items():
            near = difflib.get_close_matches(name, self._known, 1)
            if name not in REFUSED:
                told.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            elif value is not None and value is not False:
                told.append(f"{name!r} (of TorchRL's, not taken here: {REFUSED[name]})")
        if told:
            raise TypeError(
                f"{self._name}() got an unexpected keyword argument {', '.join(told)}; "
                f"it takes {', '.join(self._known)}"
            )


_BY_THE_CLASS = "use the class of that meaning, as MultiSyncCollector or DistributedCollector"

# Keywords of TorchRL's collectors that some of ours do not take, and why or what to do instead.
REFUSED = {
    "backend": _BY_THE_CLASS,
    "backend_options": _BY_THE_CLASS,
    "num_collectors": _BY_THE_CLASS,
    "sync": _BY_THE_CLASS,
    "collector_class": "workers of this machine always are single collectors",
    "interruptor": "a batch is always whole",
    "preemptive_threshold": "a batch always has all frames of all workers; MultiAsyncCollector waits for none",
    "auto_register_policy_transforms": "append InitTracker and TensorDictPrimer to the env",
}


def described(*specs: type) -> Callable[[type], type]:
    """A decorator of a collector whose constructor takes the fields of these specs as keyword arguments: it is told
    which, and its signature and docstring say so."""

    def decorate(cls: type) -> type:
        fields = [field for spec in specs for field in dataclasses.fields(spec)]
        own = [
            each for each in inspect.signature(cls).parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for field in fields:
            place = _POSITIONAL if field.name in ("create_env_fn", "policy") else inspect.Parameter.KEYWORD_ONLY
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(inspect.Parameter(field.name, place, default=default, annotation=field.type))
        parameters += [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        cls._specs = specs  # type: ignore[attr-defined]
        cls.__init__.__signature__ = inspect.Signature(parameters)  # type: ignore[misc]
        told = [_arguments(spec) for spec in specs]
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), "Args:\n" + "\n".join(filter(None, told))])
        return cls

    return decorate


def _arguments(spec: type) -> str:
    """What the docstring says about the fields, after those of the classes that it is made from."""
    texts = (inspect.cleandoc(each.__doc__ or "").partition("Args:\n")[2] for each in reversed(spec.__mro__))
    return "\n".join(text.rstrip() for text in texts if text)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _each(value: Any, num_workers: int) -> list[Any]:
    """One for each worker: the entries of a list or tuple, or the same for all."""
    return list(value) if isinstance(value, (list, tuple)) else [value] * num_workers


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _kwargs(given: bool | dict[str, Any] | None) -> dict[str, Any] | None:
    """Keyword arguments, of a keyword that may be True in their place."""
    return dict(given) if isinstance(given, dict) else {} if given else None


def _positive(count: int | None) -> int | None:
    """TorchRL takes None, 0 and negative numbers for none."""
    return count if count is not None and count > 0 else None


def _exploration(given: Any) -> str:
    """The name of an exploration type, of this package's, TorchRL's, or a name."""
    return str(getattr(given, "name", given)).lower()


def _exploration_problems(where: str, name: str) -> list[str]:
    known = [kind.value for kind in ExplorationType]
    return [] if name in known else [f"{where}exploration_type={name!r}: must be one of {', '.join(known)}."]


def _name_of(device: Any) -> str | None:
    return None if device is None else str(torch.device(device))


def _why_no_device(device: Any) -> str | None:
    try:
        _name_of(device)
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None
