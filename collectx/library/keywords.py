"""The collectors' keyword arguments: a dataclass for each constructor, whose fields are the keywords.

`parse` reads them, `configuration` makes the run's configuration from them, `rules` checks both.
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

from collectx.library.keyword_fields import documented, fixed, ignored, only, option
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

# Subclasses of `Collector` refuse the keywords that select another class.
_IN_PROCESS = (
    "this collector collects in this process, without workers: call Collector itself, with backend='process' or another"
)
CreateEnv = Callable[..., Any] | gymnasium.Env | VectorEnv | Sequence[Any]
BACKENDS = ("direct", "process", "multiprocessing", "ray", "rpc", "distributed", "submitit")


@documented
@dataclass(frozen=True, kw_only=True)
class Keywords:
    """The keywords of all constructors.

    Args:
        create_env_fn: returns a Gymnasium env, a vector env, whose envs are a dimension of the batch, or a TorchRL env.
            With several workers: one callable for all, or one for each. You may also pass an env: `Collector` steps it,
            and `shutdown()` closes it; workers step copies.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None or a
            `RandomPolicy` for random actions.
        policy_factory: returns the policy instead, in every process; with `policy`, only in the workers, which then act
            with the factory's weights until others are published. One callable for all workers: they act with the
            weights of the policy that it returns in this process. A list with a callable per worker: each worker acts
            with its own policy's weights until `update_policy_weights_`, or an update interval, publishes others; the
            first callable also makes this process's policy.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are chosen from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC of TorchRL's `ExplorationType`, or its name. Built-in policies support RANDOM and the mode.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: True: the policy is called with a TensorDict, without checks of its signature and `in_keys`. Each
            process still calls it once, with first observations of the env, to learn what it writes.
        auto_register_policy_transforms: whether TorchRL envs get `InitTracker` and the primers of `policy`, so their
            specs contain `is_init` and the state of a recurrent policy. Such a policy gets both in any case, see
            docs/reference/policies.md.
        compile_policy: whether workers compile the policy with `torch.compile`: True, or its keyword arguments. The
            first batch includes the compilation (`start_timeout_s`).
        cudagraph_policy: whether tensordict's `CudaGraphModule` records the policy's calls as CUDA graphs: True, or its
            keyword arguments. For policies on GPUs.
        seed: seed of envs and of the policies' random numbers; None: that of `torch.manual_seed`, or a constant.
        num_envs: number of envs of each worker, if `create_env_fn` returns single envs: it is called `num_envs` times,
            and batches are `[envs, time]`, even with 1. None: the envs of one call; a single env's batches are
            `[time]`.
        info_keys: entries of Gymnasium's `info` to keep in the batch, numbers, arrays or dicts of these, as
            `("info", name)` and `("next", "info", name)`. If the env lacks an entry, its value is zero and
            `("info", "_name")` is False. Names, or declarations as in `env.info_keys`: without declarations, the
            constructor steps an env of its own for up to an episode.
        exclude_keys: parts of the observation to leave out of the batch, such as texts; nested parts with dots, as in
            "inner.text"; "observation" for an observation without parts. The policy does not see them.
        worker_idx: this collector's number among several collectors of the caller: the attribute `worker_idx`.
        frames_per_batch: frames of one batch, rounded up to a multiple of its envs. For `MultiSyncCollector` with
            `cat_results=-1` also a list with the frames of each worker; for `MultiAsyncCollector`, a list counts as its
            sum.
        total_frames: the collector ends with the batch that reaches this number; -1 or None: never. The constructor
            warns if it is not a multiple of `frames_per_batch`.
        device, storing_device, policy_device, env_device: `device` is the default of the others. With several workers,
            each may be a list with a device per worker, except `storing_device`, the device of the batches. If an env
            returns tensors (docs/reference/envs.md, "Envs on a GPU"), all devices must equal its device.
        split_trajs: whether batches are `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch in this process; its result is delivered. `total_frames` counts frames before
            this call.
        post_traj: called in this process with each whole trajectory, `[time]`, when it ends; needs `trajs_per_batch`.
            Its result, `[time]` of any length above 0, counts as one trajectory; None drops the trajectory.
        cat_results: for a sync collector. None or "stack": the parts of its workers are stacked, `[workers, ...]`. An
            int: the parts are concatenated along that dimension.
        return_same_td: whether every batch is the same TensorDict with new values, as long as the shape is the same.
        track_traj_ids: whether batches contain `("collector", "traj_ids")`.
        track_policy_version: whether batches contain TorchRL's `policy_version` and `("next", "policy_version")`,
            besides `("collector", "policy_version")`.
        replay_buffer: gets the batches by its `extend`, part by part from a sync collector; iteration then returns
            None. See `start`. Workers of this machine write to a `collectx.ReplayBuffer` themselves, in the order in
            which they are ready, unless batches must be changed first (`postproc`, `track_...`, `extend_buffer`) or
            `overlap=1`. `split_trajs` needs a buffer that stores trajectories.
        extend_buffer: False: frames are written step by step with `add`; with several envs, one frame of each at once.
        trajs_per_write: maximum number of trajectories in one write to the replay buffer; None: no maximum.
        update_at_each_batch, update_after_each_batch: whether the policy's weights are published after every batch.
            Without these and the intervals, call `update_policy_weights_`.
        max_weight_update_interval, update_interval: number of batches between two publishes; -1: never.
        update_weights_between_steps: whether workers load newer weights also between two steps of a batch;
            `("collector", "policy_version")` then contains the version of each frame.
        weight_updater: called without arguments when weights are published but none are passed; returns weights in a
            form that `update_policy_weights_` takes. Of one of TorchRL's updaters, or a callable that makes one, only
            the weights and their mapping are used; the collector's transport sends them.
        weight_sync_schemes, weight_recv_schemes: TorchRL's schemes by model, see `update_policy_weights_`. The
            collector's transport sends weights, whatever the scheme; with TorchRL's `NoWeightSyncScheme`, the policy's
            weights are not published.
        pre_collect_hook: called without arguments in the worker, before every batch that the worker collects.
        post_collect_hook: called in the worker with every batch that it has collected; its in-place changes are
            delivered.
        init_fn: called without arguments in every worker before it makes its env.
    """

    # `collector.kind` of the configuration: of an async collector, and of a sync one.
    kinds: ClassVar[tuple[str, str]]
    # Whether there are workers beside this process, which otherwise steps the envs itself.
    has_workers: ClassVar[bool] = True
    # Default number of batches between two publishes; -1: never.
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
    info_keys: Sequence[str | Mapping[str, Any]] = ()
    exclude_keys: Sequence[str] = ()
    worker_idx: int | None = None

    frames_per_batch: int | Sequence[int] = option("collector.frames_per_batch", 200)
    total_frames: int | None = option("collector.total_frames", -1, lambda total: -1 if total is None else total)
    max_frames_per_traj: int | None = option(
        "collector.max_frames_per_traj", convert=positive, note="0 and negative: None."
    )
    init_random_frames: int | None = option("collector.init_random_frames", convert=positive, note="Negative: None.")
    reset_at_each_iter: bool = option("collector.reset_at_each_iter", note="")
    set_truncated: bool = option("collector.set_truncated", note="")
    reset_when_done: bool = fixed(True, "envs that are done are always reset: leave it out")

    device: Any = option("devices.device", None, only_device)
    storing_device: Any = option("devices.storing_device", None, first_device)
    policy_device: Any = option("devices.policy_device", None, first_device)
    env_device: Any = option("devices.env_device", None, first_device)
    no_cuda_sync: bool = ignored(False, ": a step waits for the policy's actions anyway")

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    post_traj: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = option("collector.zero_copy", note="")
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = ignored(None, ": batches are written into memory allocated once")
    compact_obs: bool = option("collector.compact_obs", note="")
    check_finite: bool = option(
        "collector.check_finite", note="Batches of a user-defined `collector_class` are not checked."
    )
    trajs_per_batch: int | None = option(
        "collector.trajs_per_batch",
        note="""With a replay buffer they are written there as soon as they end. A `UserWarning` says if no batch is
        complete after 10 s of frames.""",
    )
    trajs_per_write: int | None = field(default=None, metadata={"minimum": 1})
    traj_format: str | None = option("collector.traj_format", None, note="")

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = field(default=-1, metadata={"minimum": 1, "also": (-1,)})
    update_interval: int | None = field(default=None, metadata={"minimum": 1, "also": (-1,)})
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
        if not self.has_workers:
            return 1
        counts = (getattr(self, name, None) for name in ("num_workers", "num_collectors"))
        creates = self.create_env_fn
        return next(filter(None, counts), len(creates) if isinstance(creates, list | tuple) else 1)

    @property
    def chosen_exploration(self) -> Any:
        """The exploration type, as passed."""
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
        this process samples, so samples do not depend on timing."""
        buffer = self.replay_buffer
        is_changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        is_whole = self.extend_buffer and self.trajs_per_batch is None and not getattr(self, "overlap", 0)
        is_here = self.has_workers and not isinstance(self, RemoteKeywords)
        are_able = is_here and user_class(getattr(self, "collector_class", None)) is None
        return buffer if isinstance(buffer, ReplayBuffer) and is_whole and are_able and not is_changed else None

    @property
    def has_individual_policies(self) -> bool:
        """Whether workers use different policy factories."""
        factories = self.policy_factory
        return isinstance(factories, list | tuple) and any(factory is not factories[0] for factory in factories)

    @property
    def publish_interval(self) -> int:
        """Number of batches between two publishes of the policy's weights; -1: never."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        if chosen or self.update_interval is not None:
            return min(chosen, default=-1)
        return -1 if self.has_individual_policies else self.default_interval


@dataclass(frozen=True, kw_only=True)
class SingleKeywords(Keywords):
    """The keywords of `Collector`. The last four select the class of the collector that `Collector(...)` makes;
    subclasses refuse them.

    Args:
        interruptor: its `collection_stopped()` is called after every step; True ends the batch early.
        backend: where envs are stepped: "direct": in this process; "process" or "multiprocessing":
            `MultiAsyncCollector`; "ray": `RayCollector`; "rpc": `RPCCollector`; "distributed" and "submitit":
            `DistributedCollector`, for "submitit" with workers that are SLURM jobs. None: the backend of an enclosing
            `collectx.service_backend`; without one, "process" with `num_collectors`, otherwise "direct".
        num_collectors: number of workers, which may share one callable as `create_env_fn`.
        sync: whether a batch contains a part of every worker; with "process": `MultiSyncCollector`.
        backend_options: further keywords of the selected class, such as `cat_results` or `launcher`. You may also pass
            them directly, but type checkers only know the keywords of this class.
    """

    kinds = ("single", "single")
    has_workers = False

    interruptor: Any = None
    backend: str | None = field(
        default=None, metadata={"choices": BACKENDS, "convert": only(_IN_PROCESS, None, "direct")}
    )
    num_collectors: int | None = field(default=None, metadata={"convert": only(_IN_PROCESS, None, 1)})
    sync: bool | None = field(default=None, metadata={"convert": only(_IN_PROCESS, None)})
    backend_options: dict[str, Any] | None = field(default=None, metadata={"convert": only(_IN_PROCESS, None)})


@documented
@dataclass(frozen=True, kw_only=True)
class WorkerKeywords(Keywords):
    """The keywords of collectors with workers.

    Args:
        num_workers: None: as many as `create_env_fn` has callables.
        num_threads: torch threads of this process; None: unchanged.
    """

    num_workers: int | None = option("collector.num_workers", None)
    num_threads: int | None = field(default=None, metadata={"minimum": 1})
    num_sub_threads: int = option("launcher.num_threads", note="")
    num_slots: int = option("collector.num_slots", note="")
    overlap: int = option("collector.overlap", note="")
    on_worker_failure: str = option("collector.on_worker_failure", note="")
    max_restarts: int = option("collector.max_restarts", note="")
    min_workers: int | None = option("collector.min_workers", note="")
    start_timeout_s: float = option("collector.start_timeout_s", note="")
    worker_timeout_s: float = option("collector.worker_timeout_s", note="")
    close_timeout_s: float = option("collector.close_timeout_s", note="")


@documented
@dataclass(frozen=True, kw_only=True)
class MultiSyncKeywords(WorkerKeywords):
    """The keywords of `MultiSyncCollector`.

    Args:
        collector_class: None or `Collector`; or a user's class, see docs/reference/library.md,
            "User-defined collector classes".
    """

    kinds = ("multi_sync", "multi_sync")

    preemptive_threshold: float | None = option(
        "collector.preemptive_threshold", note="With `cat_results=-1` a batch has fewer frames in place of these."
    )
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


@documented
@dataclass(frozen=True, kw_only=True)
class AsyncBatchedKeywords(WorkerKeywords):
    """The keywords of `AsyncBatchedCollector`.

    Args:
        backend, env_backend, policy_backend: "multiprocessing" or "threading", with the same effect: envs and policy
            are in processes of this machine.
    """

    kinds = ("multi_async", "multi_async")

    max_batch_size: int | None = option("inference.max_batch", note="")
    min_batch_size: int | None = option("inference.min_batch", None, note="")
    server_timeout: float | None = option("inference.timeout_s", None, note="")
    backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    env_backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    policy_backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    transport: Any = fixed(None, "observations and actions lie in shared memory", "auto", "driver")
    env_exchange: str = ignored("auto")
    envs_per_worker: int = fixed(1, "use `num_envs`, for the envs of each worker")
    transition_chunk_size: int | str = ignored("auto")
    yield_completed_trajectories: bool = fixed(False, "use `trajs_per_batch`, a number of trajectories")
    weight_sync: Any = fixed(None, "call `update_policy_weights_`")
    weight_sync_model_id: str = ignored("policy")
    verbose: bool = ignored(False)
    worker_affinity: Any = fixed(None, "set the affinity of a worker's process in `init_fn`")
    driver_affinity: Any = fixed(None, "set the affinity of this process by os.sched_setaffinity")
    server_config: Any = fixed(None, "use `max_batch_size`, `min_batch_size` and `server_timeout`")
    device_config: Any = fixed(None, "use `device`, `policy_device` and `storing_device`")
    policy_version: int = fixed(0, "versions begin with 0")
    policy_version_key: Any = ignored(
        "policy_version", """: batches have `("collector", "policy_version")`; see `track_policy_version`"""
    )
    compile_policy: bool | dict[str, Any] | None = fixed(
        None, "the sizes of the batches differ: compile the policy's modules yourself", False
    )
    cudagraph_policy: bool | dict[str, Any] | None = fixed(None, "the sizes of the batches differ", False)

    @property
    def inference(self) -> str:
        return "server"


@documented
@dataclass(frozen=True, kw_only=True)
class RemoteKeywords(WorkerKeywords):
    """The keywords of collectors with workers on any host.

    Args:
        collector_class: the kind of a worker: "single" (one process), "sync" (a batch contains a part of each process)
            or "async" (a batch comes from one process), or the class of that kind, of this package or TorchRL; or a
            user's class, see docs/reference/library.md, "User-defined collector classes". None: "single" for one
            process, otherwise "sync".
        collector_kwargs: keyword arguments of a worker's collector; one dict for all, or one per worker. It may contain
            `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, equal for all workers, the
            constructor's keywords about trajectories and devices, such as `max_frames_per_traj`; for a user's class,
            any keyword that it takes.
    """

    num_workers_per_collector: int = option("collector.num_workers_per_collector", note="")
    collector_class: Any = option("collector.inner", None, choices=None)
    collector_kwargs: Any = None


@dataclass(frozen=True, kw_only=True)
class NetworkKeywords(RemoteKeywords):
    """The keywords of collectors over torch.distributed and torch RPC.

    Args:
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join when they start; "mp": processes of
            this machine; "submitit_delayed": jobs that `collectx.submitit_delayed_launcher` submitted. The command
            line, `collectx run launcher=...`, offers others.
        slurm_kwargs: resources of the jobs, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: the trainer's port, also as digits; None: the system chooses.
        folder: folder in which jobs find the trainer and write their logs, on a file system that all nodes share; None:
            a new folder below `outputs/`.
    """

    backend: str = option("backend", "gloo", choices=[name for name in NETWORKS if name != "rpc"])
    launcher: str = option("launcher", "submitit", choices=("mp", "submitit", "submitit_delayed"))
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | str | None = option("backend.port", None, port_number)
    folder: str | Path | None = None

    @property
    def has_jobs(self) -> bool:
        """Whether each worker is a SLURM job."""
        return self.launcher != "mp"

    @property
    def has_submitted_jobs(self) -> bool:
        """Whether these jobs were submitted along with that of this process."""
        return self.launcher == "submitit_delayed"


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


@documented
@dataclass(frozen=True, kw_only=True)
class RpcKeywords(NetworkKeywords):
    """The keywords of `RPCCollector`; `backend` is ignored."""

    kinds = ("rpc", "rpc")

    sync: bool = option("collector.sync", note="")
    visible_devices: Any = option("backend.visible_devices", convert=visible_names, note="")
    tensorpipe_options: Mapping[str, Any] | None = option("backend.tensorpipe", None, note="")


@documented
@dataclass(frozen=True, kw_only=True)
class RayKeywords(RemoteKeywords):
    """The keywords of `RayCollector`.

    Args:
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or one per worker. None: one core.
        num_collectors: TorchRL's name for `num_workers`.
    """

    kinds = ("ray", "ray")

    sync: bool = option("collector.sync", note="")
    ray_init_config: dict[str, Any] | None = option(
        "launcher.ray_init_config", None, note="Ignored if this process is connected to Ray."
    )
    remote_configs: Any = option("launcher.remote_configs", None)
    num_collectors: int | None = None
    use_env_creator: bool = ignored(False)
    queue_timeout_s: float = option("launcher.queue_timeout_s", note="")
    autoscaling: bool = option("launcher.autoscaling", note="")
