"""The keyword arguments of the collectors: one dataclass for each constructor, whose fields are the keywords.

`parse` reads them, `configuration` builds the configuration of the run from them, `rules` checks both.
"""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium.vector import VectorEnv
from tensordict.nn import InteractionType as ExplorationType

from collectx.config.registry import limits_of
from collectx.library.nested import user_class
from collectx.library.values import (
    exploration_name,
    first_device,
    only_device,
    port_number,
    positive,
    visible_names,
)
from collectx.place.base import NETWORKS
from collectx.replay.buffer import ReplayBuffer
from collectx.user_objects import Hooks

CreateEnv = Callable[..., Any] | gymnasium.Env | VectorEnv | Sequence[Any]
BACKENDS = ("direct", "process", "multiprocessing", "ray", "rpc", "distributed", "submitit")


def option(path: str, default: Any, convert: Any = None, **limits: Any) -> Any:
    """A keyword that sets an option of the configuration.

    Args:
        path: path of the option, as `collector.num_slots`. Messages about the option have the name of the keyword.
        convert: the option's value for a value of the keyword, as a function or a dict; None: the same value.
        limits: limits in place of the option's; see `collectx.config.schema.fields`.
    """
    return field(default=default, metadata={**(limits or limits_of(path)), "path": path, "convert": convert})


def limited(default: Any, **limits: Any) -> Any:
    """A keyword of Python alone, with limits as in `collectx.config.schema.fields`."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """The keywords of all constructors.

    Args:
        create_env_fn: returns a Gymnasium env, a vector env, whose envs are a dimension of the batch, or a TorchRL env.
            With several workers: one callable for all, or one for each. An env itself will do too: `Collector` steps
            it, and `shutdown()` closes it; workers step copies of it.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None or a
            `RandomPolicy` for random actions.
        policy_factory: returns the policy instead, in every process; with `policy`, in the workers alone, which then
            act with the weights of their factory until others are published. One callable for all workers: they act
            with the weights of the policy that it returns in this process. A list with one per worker: each worker acts
            with the weights of its policy until `update_policy_weights_`, or an update interval, publishes others; the
            first callable also makes this process's policy.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC of TorchRL's `ExplorationType`, or its name. Built-in policies support RANDOM and the mode.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: True: the policy is called with a TensorDict, and its signature and `in_keys` are not checked. It
            is still called once in each process, with first observations of the env, to learn what it writes.
        auto_register_policy_transforms: whether envs of TorchRL get `InitTracker` and the primers of `policy`, so that
            their specs show `is_init` and the state of a recurrent policy. Without it, such a policy gets both too, see
            docs/reference/policies.md.
        compile_policy: whether workers compile the policy by `torch.compile`: True, or its keyword arguments. The first
            batch includes the compilation (`start_timeout_s`).
        cudagraph_policy: whether tensordict's `CudaGraphModule` records the policy's calls as CUDA graphs: True, or its
            keyword arguments. For policies on GPUs.
        seed: seed of envs and of what policies draw; None: that of `torch.manual_seed`, a constant without such a call.
        num_envs: envs of each worker, if `create_env_fn` returns single ones: it is called `num_envs` times; batches
            are `[envs, time]`, also of 1. None: the envs of one call; a single env's batches are `[time]`.
        info_keys: entries of Gymnasium's `info` to keep in the batch, numbers, arrays or dicts of these, as
            `("info", name)` and `("next", "info", name)`. `("info", "_name")` is False where the env lacks the entry;
            its value then is zero.
        exclude_keys: parts of the observation that are left out of the batch, for example texts; nested ones with dots,
            "inner.text"; "observation" for one without parts. The policy does not see them.
        worker_idx: this collector's number among several of the caller: the value of the attribute `worker_idx`.
        frames_per_batch: frames of one batch, rounded up to a multiple of the envs that take part in it. For
            `MultiSyncCollector` with `cat_results=-1` also a list with the frames of each worker; for
            `MultiAsyncCollector` such a list counts as its sum.
        total_frames: the collector ends with the batch that reaches this number; -1 or None: never. The constructor
            warns if it is not a multiple of `frames_per_batch`.
        max_frames_per_traj: longer trajectories are cut: the last frame is marked truncated, and the env is reset.
            Batches then have `step_count`. None or negative: no limit.
        init_random_frames: number of first frames with random actions, without a call of the policy; rounded up to
            whole batches. None or negative: 0.
        reset_at_each_iter: whether every batch begins with a reset of all envs.
        set_truncated: whether the last frame of each row of a batch is marked truncated.
        reset_when_done: must be True: envs that are done are always reset, as in TorchRL.
        device, storing_device, policy_device, env_device: `device` is the default of the others. With several workers
            each may be a list with one device per worker, except `storing_device`, the device of the batches. An env
            that returns tensors (docs/reference/envs.md, "Envs on a GPU") has its own, which the others must equal.
        no_cuda_sync: ignored (accepted for TorchRL compatibility): a step waits for the policy's actions anyway.
        split_trajs: whether batches are `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch in this process; its result is delivered. `total_frames` counts the frames
            before it.
        post_traj: called in this process with each whole trajectory, `[time]`, as it ends; needs `trajs_per_batch`. Its
            result, `[time]` of any length above 0, counts as one trajectory; None leaves it out.
        cat_results: for a sync collector. None or "stack": the parts of its workers are stacked, `[workers, ...]`. An
            int: the parts are concatenated along that dimension.
        return_same_td: whether every batch is the same TensorDict with new values, as long as the shape is the same.
        zero_copy: whether batches are views of the transport's memory, valid until the next one is requested.
        track_traj_ids: whether batches have `("collector", "traj_ids")`.
        track_policy_version: whether batches have TorchRL's `policy_version` and `("next", "policy_version")`, besides
            `("collector", "policy_version")`, which they always have.
        replay_buffer: batches are written to it by its `extend`, for a sync collector part by part, and iteration
            returns None. See `start`. Workers of this machine write to a `collectx.ReplayBuffer` themselves, in the
            order in which they are ready, unless batches must be changed first (`postproc`, `track_...`,
            `extend_buffer`) or `overlap=1`. `split_trajs` needs a buffer that stores trajectories.
        extend_buffer: False: the frames are written step by step, by `add`; with several envs, one of each at once.
        use_buffers: ignored (accepted for TorchRL compatibility): batches are written into memory allocated once.
        compact_obs: whether to leave out the observation below `next`, which within a trajectory is that of the next
            frame.
        check_finite: whether NaN or an infinity in an observation or a reward raises `ShapeError`, which names worker,
            env, key and step. Every batch is checked once, in its worker; batches of a user-defined `collector_class`
            are not. With False such values are delivered; returns in statistics leave out such rewards.
        trajs_per_batch: number of trajectories of a batch, in the order in which they ended; those left at the end of
            the run are dropped. With a replay buffer they are written there as soon as they end. A `UserWarning` says
            if no batch is complete after 10 s of frames. None: batches have `frames_per_batch` frames.
        trajs_per_write: maximal number of trajectories that one write to the replay buffer has; None: no maximum.
        traj_format: "padded" or None: `[trajectories, longest]`, as with `split_trajs`; "cat": `[time]`, trajectories
            concatenated.
        update_at_each_batch, update_after_each_batch: whether the policy's weights are published after every batch.
            Without these and the intervals, call `update_policy_weights_`.
        max_weight_update_interval, update_interval: number of batches after which they are published; -1: never.
        update_weights_between_steps: whether workers take newer weights also between two steps of a batch;
            `("collector", "policy_version")` has the version of each frame.
        weight_updater: called without arguments whenever weights are published and none are passed; returns weights as
            `update_policy_weights_` takes them. Of TorchRL's updaters, or a callable that makes one, only the weights
            and their mapping are used; the transport is the collector's.
        weight_sync_schemes, weight_recv_schemes: TorchRL's schemes by model, see `update_policy_weights_`. The
            transport is the collector's, whatever the scheme; with TorchRL's `NoWeightSyncScheme` no weights of the
            policy are published.
        pre_collect_hook: called without arguments before every batch that a worker makes, in its process.
        post_collect_hook: called with every batch that a worker has made, in its process, before it is handed over;
            its changes in place are delivered.
        init_fn: called without arguments in every worker before its env is made.
    """

    # `collector.kind` of the configuration: of an async collector, and of a sync one.
    kinds: ClassVar[tuple[str, str]]
    # Number of batches between two publishes where the keywords do not say; -1: never.
    default_interval: ClassVar[int] = -1

    create_env_fn: CreateEnv = field(kw_only=False)
    policy: Any = field(default=None, kw_only=False)
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None
    create_env_kwargs: Any = None
    exploration_type: Any = option("collector.exploration_type", ExplorationType.RANDOM, exploration_name)
    exploration_mode: str | None = option("collector.exploration_type", None, exploration_name)
    trust_policy: bool | None = None
    auto_register_policy_transforms: bool | None = None
    compile_policy: bool | dict[str, Any] | None = None
    cudagraph_policy: bool | dict[str, Any] | None = None
    seed: int | None = option("seed", None, lambda seed: torch.initial_seed() % 2**61 if seed is None else seed)
    num_envs: int | None = option("env.num_envs", None)
    info_keys: Sequence[str] = ()
    exclude_keys: Sequence[str] = ()
    worker_idx: int | None = None

    frames_per_batch: int | Sequence[int] = option("collector.frames_per_batch", 200)
    total_frames: int | None = option("collector.total_frames", -1, lambda total: -1 if total is None else total)
    max_frames_per_traj: int | None = option("collector.max_frames_per_traj", None, positive)
    init_random_frames: int | None = option("collector.init_random_frames", None, positive)
    reset_at_each_iter: bool = option("collector.reset_at_each_iter", False)
    set_truncated: bool = option("collector.set_truncated", False)
    reset_when_done: bool = True

    device: Any = option("devices.device", None, only_device)
    storing_device: Any = option("devices.storing_device", None, first_device)
    policy_device: Any = option("devices.policy_device", None, first_device)
    env_device: Any = option("devices.env_device", None, first_device)
    no_cuda_sync: bool = False

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    post_traj: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = option("collector.zero_copy", False)
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = None
    compact_obs: bool = option("collector.compact_obs", False)
    check_finite: bool = option("collector.check_finite", True)
    trajs_per_batch: int | None = option("collector.trajs_per_batch", None)
    trajs_per_write: int | None = limited(None, minimum=1)
    traj_format: str | None = option("collector.traj_format", None, lambda name: name or "padded")

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = limited(-1, minimum=1, also=(-1,))
    update_interval: int | None = limited(None, minimum=1, also=(-1,))
    update_weights_between_steps: bool = option("collector.refresh", False, {False: "batch", True: "step"})
    weight_updater: Callable[[], Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None

    pre_collect_hook: Callable[[], Any] | None = None
    post_collect_hook: Callable[[Any], Any] | None = None
    init_fn: Callable[[], Any] | None = None

    @property
    def kind(self) -> str:
        """`collector.kind` of the configuration."""
        return self.kinds[bool(getattr(self, "sync", False))]

    @property
    def inference(self) -> str:
        """`inference.kind` of the configuration."""
        return "local"

    @property
    def worker_count(self) -> int:
        """Number of workers, by `num_workers`, `num_collectors` or `create_env_fn`."""
        if self.kind == "single":
            return 1
        counts = (getattr(self, name, None) for name in ("num_workers", "num_collectors"))
        creates = self.create_env_fn
        return next(filter(None, counts), len(creates) if isinstance(creates, list | tuple) else 1)

    @property
    def chosen_exploration(self) -> Any:
        """The exploration type, as it was passed."""
        return self.exploration_type if self.exploration_mode is None else self.exploration_mode

    @property
    def hooks(self) -> Hooks:
        """The hooks."""
        names = ("pre_collect_hook", "post_collect_hook", "init_fn")
        return Hooks(**{name: getattr(self, name) for name in names})

    @property
    def frames_per_worker(self) -> Sequence[int] | None:
        """Frames of each worker, if `frames_per_batch` is a list."""
        return None if isinstance(self.frames_per_batch, int) else self.frames_per_batch

    @property
    def requested_frames(self) -> int:
        """Requested frames of one batch."""
        return self.frames_per_batch if isinstance(self.frames_per_batch, int) else sum(self.frames_per_batch)

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are concatenated, not stacked."""
        return isinstance(self.cat_results, int)

    @property
    def shared_buffer(self) -> ReplayBuffer | None:
        """The replay buffer, if workers write to it themselves: batches are stored unchanged, and none is filled while
        this process samples, so that samples do not depend on the time."""
        buffer = self.replay_buffer
        is_changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        is_whole = self.extend_buffer and self.trajs_per_batch is None and not getattr(self, "overlap", 0)
        are_able = self.kind.startswith("multi") and user_class(getattr(self, "collector_class", None)) is None
        return buffer if isinstance(buffer, ReplayBuffer) and is_whole and are_able and not is_changed else None

    @property
    def has_individual_policies(self) -> bool:
        """Whether different factories make the policies of the workers."""
        factories = self.policy_factory
        return isinstance(factories, list | tuple) and any(factory is not factories[0] for factory in factories)

    @property
    def publish_interval(self) -> int:
        """Number of batches after which the policy's weights are published to all workers; -1: never."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        if chosen or self.update_interval is not None:
            return min(chosen, default=-1)
        return -1 if self.has_individual_policies else self.default_interval


@dataclass(frozen=True, kw_only=True)
class SingleKeywords(Keywords):
    """The keywords of `Collector`. The last four choose the class of the collector that `Collector(...)` makes; its
    subclasses do not take them.

    Args:
        interruptor: its `collection_stopped()` is called after every step; True ends the batch with the frames that it
            has.
        backend: where envs are stepped: "direct": in this process; "process" or "multiprocessing":
            `MultiAsyncCollector`; "ray": `RayCollector`; "rpc": `RPCCollector`; "distributed" and "submitit":
            `DistributedCollector`, in the latter case with workers that are SLURM jobs. None: the backend of an
            enclosing `collectx.service_backend`; without one, "process" with `num_collectors`, otherwise "direct".
        num_collectors: number of workers; one callable as `create_env_fn` is then for all of them.
        sync: whether a batch has a part of every worker; with "process": `MultiSyncCollector`.
        backend_options: further keywords of the class of that backend, such as `cat_results` or `launcher`. Type
            checkers see the keywords of this class alone; they may also be passed directly.
    """

    kinds = ("single", "single")

    interruptor: Any = None
    backend: str | None = limited(None, choices=BACKENDS)
    num_collectors: int | None = None
    sync: bool | None = None
    backend_options: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerKeywords(Keywords):
    """The keywords of constructors of collectors with workers.

    Args:
        num_workers: None: as many as `create_env_fn` has callables.
        num_threads: torch threads of this process; None: unchanged.
        num_sub_threads: torch threads of each worker.
        num_slots: batches that an async worker may have filled or in progress at once.
        overlap: 1: sync workers fill the next batch while this process learns from the last one, with the weights from
            before the last one was requested; see docs/explanation/overlap.md.
        on_worker_failure: "raise", "restart" or "drop"; see docs/how-to/worker-failures.md.
        max_restarts: maximal number of restarts, over all workers.
        min_workers: with `on_worker_failure="drop"`, the number of workers that must be left, and with which collection
            begins; the others join when they are ready. None: collection begins with all, and continues with one.
        start_timeout_s, worker_timeout_s, close_timeout_s: seconds within which a worker must start, send a batch, and
            stop.
    """

    num_workers: int | None = option("collector.num_workers", None)
    num_threads: int | None = limited(None, minimum=1)
    num_sub_threads: int = option("launcher.num_threads", 1)
    num_slots: int = option("collector.num_slots", 2)
    overlap: int = option("collector.overlap", 0)
    on_worker_failure: str = option("collector.on_worker_failure", "raise")
    max_restarts: int = option("collector.max_restarts", 10)
    min_workers: int | None = option("collector.min_workers", None)
    start_timeout_s: float = option("collector.start_timeout_s", 60.0)
    worker_timeout_s: float = option("collector.worker_timeout_s", 120.0)
    close_timeout_s: float = option("collector.close_timeout_s", 10.0)


@dataclass(frozen=True, kw_only=True)
class MultiSyncKeywords(WorkerKeywords):
    """The keywords of `MultiSyncCollector`.

    Args:
        preemptive_threshold: for a sync collector: once this share of the workers, 0 to 1, has finished its part, the
            others end theirs with the frames that they have, at least one step. With `cat_results=-1` a batch then has
            fewer frames; a stacked one has `("collector", "mask")`, and zeros and -1 as `traj_ids` in empty places.
        collector_class: None or `Collector`; or a user's class, see docs/reference/library.md,
            "User-defined collector classes".
    """

    kinds = ("multi_sync", "multi_sync")

    preemptive_threshold: float | None = option("collector.preemptive_threshold", None)
    collector_class: Any = None


@dataclass(frozen=True, kw_only=True)
class MultiAsyncKeywords(MultiSyncKeywords):
    """The keywords of `MultiAsyncCollector`."""

    kinds = ("multi_async", "multi_async")


@dataclass(frozen=True, kw_only=True)
class MultiKeywords(MultiSyncKeywords):
    """The keywords of `MultiCollector`."""

    kinds = ("multi_async", "multi_sync")

    sync: bool


@dataclass(frozen=True, kw_only=True)
class AsyncBatchedKeywords(WorkerKeywords):
    """The keywords of `AsyncBatchedCollector`.

    Args:
        max_batch_size: the maximum number of envs in one call of the policy; None: no maximum.
        min_batch_size: the number of envs that a call waits for, for `server_timeout` seconds at most; None: 1.
        server_timeout: see `min_batch_size`; None: 0.01.
        backend, env_backend, policy_backend: "multiprocessing" or "threading", with the same effect: envs and policy
            are in processes of this machine.
        transport, env_exchange, transition_chunk_size, weight_sync_model_id, verbose: ignored (accepted for TorchRL
            compatibility): the transport is the collector's. `transport` must be None, "auto" or "driver".
        envs_per_worker: must be 1; for several envs in each worker use `num_envs`.
        yield_completed_trajectories: must be False; use `trajs_per_batch`.
        weight_sync: must be None; call `update_policy_weights_`.
        worker_affinity, driver_affinity: must be None.
        server_config: must be None; use `max_batch_size`, `min_batch_size` and `server_timeout`.
        device_config: must be None; use `device` or `policy_device`.
        policy_version: must be 0, the version of the first weights.
        policy_version_key: ignored (accepted for TorchRL compatibility): batches have
            `("collector", "policy_version")`; see `track_policy_version`.
    """

    kinds = ("multi_async", "multi_async")

    max_batch_size: int | None = option("inference.max_batch", None)
    min_batch_size: int | None = option("inference.min_batch", None, lambda count: count or 1)
    server_timeout: float | None = option(
        "inference.timeout_s", None, lambda seconds: 0.01 if seconds is None else seconds
    )
    backend: str | None = limited(None, choices=("threading", "multiprocessing"))
    env_backend: str | None = limited(None, choices=("threading", "multiprocessing"))
    policy_backend: str | None = limited(None, choices=("threading", "multiprocessing"))
    transport: Any = None
    env_exchange: str = "auto"
    envs_per_worker: int = 1
    transition_chunk_size: int | str = "auto"
    yield_completed_trajectories: bool = False
    weight_sync: Any = None
    weight_sync_model_id: str = "policy"
    verbose: bool = False
    worker_affinity: Any = None
    driver_affinity: Any = None
    server_config: Any = None
    device_config: Any = None
    policy_version: int = 0
    policy_version_key: Any = "policy_version"

    @property
    def inference(self) -> str:
        return "server"


@dataclass(frozen=True, kw_only=True)
class RemoteKeywords(WorkerKeywords):
    """The keywords of constructors of collectors with workers on any host.

    Args:
        num_workers_per_collector: processes of each worker; more than one make it a collector itself.
        collector_class: its kind: "single" (one process), "sync" (a batch has a part of each process) or "async" (a
            batch comes from one process), or the class of that kind, of this package or TorchRL; or a user's class, see
            docs/reference/library.md, "User-defined collector classes". None: "single" for one process, otherwise
            "sync".
        collector_kwargs: keyword arguments of a worker's collector; one dict for all, or one per worker. May have
            `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, the same for all workers, the
            constructor's keywords about trajectories and devices, such as `max_frames_per_traj`; for a user's class,
            any that it takes.
    """

    num_workers_per_collector: int = option("collector.num_workers_per_collector", 1)
    collector_class: Any = option("collector.inner", None, choices=None)
    collector_kwargs: Any = None


@dataclass(frozen=True, kw_only=True)
class NetworkKeywords(RemoteKeywords):
    """The keywords of constructors of collectors over torch.distributed and torch RPC.

    Args:
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join as they start; "mp": processes of this
            machine; "submitit_delayed": jobs that `collectx.submitit_delayed_launcher` has submitted. The command line,
            `collectx run launcher=...`, has others.
        slurm_kwargs: resources of the jobs, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: port of the trainer, also as digits; None: the system chooses.
        folder: in which jobs find the trainer and write their logs, on a file system that all nodes share; None: a new
            folder below `outputs/`.
    """

    backend: str = option("backend", "gloo", choices=[name for name in NETWORKS if name != "rpc"])
    launcher: str = option("launcher", "submitit", choices=("mp", "submitit", "submitit_delayed"))
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | str | None = option("backend.port", None, port_number)
    folder: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class DistributedKeywords(NetworkKeywords):
    """The keywords of `DistributedCollector`."""

    kinds = ("distributed", "distributed_sync")

    sync: bool = False


@dataclass(frozen=True, kw_only=True)
class DistributedSyncKeywords(NetworkKeywords):
    """The keywords of `DistributedSyncCollector`, which publishes after every batch by default, unless workers have
    individual policies."""

    kinds = ("distributed_sync", "distributed_sync")
    default_interval = 1


@dataclass(frozen=True, kw_only=True)
class RpcKeywords(NetworkKeywords):
    """The keywords of `RPCCollector`; `backend` is ignored.

    Args:
        visible_devices: for each worker the only GPU that its process sees, by its index on the host; its policy uses
            that name or "cuda". "cpu": no GPU. Bytes are sent from the CPU. None: every worker sees all GPUs.
        tensorpipe_options: `num_worker_threads`, `rpc_timeout` (seconds), `_transports` and `_channels` of
            `torch.distributed.rpc.TensorPipeRpcBackendOptions`.
    """

    kinds = ("rpc", "rpc")

    sync: bool = option("collector.sync", False)
    visible_devices: Any = option("backend.visible_devices", None, visible_names)
    tensorpipe_options: Mapping[str, Any] | None = option(
        "backend.tensorpipe", None, lambda options: dict(options or {})
    )


@dataclass(frozen=True, kw_only=True)
class RayKeywords(RemoteKeywords):
    """The keywords of `RayCollector`.

    Args:
        ray_init_config: arguments of `ray.init`, such as `{"address": "auto"}` for the cluster that runs on this host;
            ignored if this process is connected to Ray. Without an address, here or in RAY_ADDRESS: a cluster of this
            machine alone, until this process ends.
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or one per worker. None: one core.
        num_collectors: TorchRL's name for `num_workers`.
        use_env_creator: ignored (accepted for TorchRL compatibility).
        queue_timeout_s: seconds within which Ray must start a worker's process, its first imports included. Ray waits
            for resources that others use, or, with `autoscaling`, for a new node.
        autoscaling: whether the cluster adds nodes by itself. Otherwise missing resources are an error before anything
            starts.
    """

    kinds = ("ray", "ray")

    sync: bool = option("collector.sync", False)
    ray_init_config: dict[str, Any] | None = option("launcher.ray_init_config", None, lambda config: dict(config or {}))
    remote_configs: Any = option("launcher.remote_configs", None)
    num_collectors: int | None = None
    use_env_creator: bool = False
    queue_timeout_s: float = option("launcher.queue_timeout_s", 180.0)
    autoscaling: bool = option("launcher.autoscaling", False)
