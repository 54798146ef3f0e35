"""The keywords of the collectors' constructors: a dataclass for each constructor, with a field for each keyword.

`parse` makes an object of this dataclass from the arguments, `configuration` makes the run's configuration from the
object, and `rules` checks both.
"""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from gymnasium.vector import VectorEnv
from tensordict.nn import InteractionType as ExplorationType

from collectx.library.keyword_fields import documented, fixed, ignored, only, sets
from collectx.library.values import (
    exploration_name,
    first_device,
    frames_limit,
    only_device,
    port_number,
    positive,
    visible_names,
)
from collectx.place.base import NETWORKS
from collectx.user_objects import Hooks

# Subclasses of `Collector` refuse the keywords that select another class.
_IN_PROCESS = (
    "this collector collects in this process, without workers. Call Collector itself, for example with "
    "backend='process'"
)
CreateEnv = Callable[..., Any] | gymnasium.Env | VectorEnv | Sequence[Any]
# A device, its name, or a list with the one of each worker: `collectx.library.values` says what is wrong with others.
Devices = Any
# Keyword arguments for all workers, or a list with those of each.
PerWorker = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
BACKENDS = ("direct", "process", "multiprocessing", "ray", "rpc", "distributed", "submitit")


@documented
@dataclass(frozen=True, kw_only=True)
class Keywords:
    """The keywords of all constructors.

    Args:
        create_env_fn: a callable that returns a Gymnasium env, a Gymnasium vector env (whose envs are a dimension of
            the batch) or a TorchRL env; with workers, one for all, or a list with one per worker. You may also pass an
            env object: `Collector` steps it, and `shutdown()` closes it; workers step copies.
        policy: a TensorDictModule, an `nn.Module`, or another callable from the observation to the action. With None or
            a `RandomPolicy`, actions are random.
        policy_factory: a callable that returns the policy, or a list with one per worker. A callable without `policy`:
            called in this process and in every worker; all act with the weights of this process's policy. A callable
            with `policy`: called in the workers, which act with their own weights until you publish others. A list:
            the same, and the first callable also makes this process's policy.
        create_env_kwargs: keyword arguments of `create_env_fn`; one dict for all workers, or a list with one per
            worker.
        exploration_type: how an action is chosen from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC, a member of TorchRL's `ExplorationType` or its name. collectx's own policies sample for
            RANDOM, and take the mode for the others.
        exploration_mode: TorchRL's earlier name of `exploration_type`.
        trust_policy: True: call the policy with a TensorDict, without a check of its signature and `in_keys`. Each
            process still calls it once, with the first observations of the env, to learn what it writes.
        auto_register_policy_transforms: whether to add `InitTracker` and the primers of `policy` to TorchRL envs, so
            their specs contain `is_init` and the state of a recurrent policy. Recurrent policies get both in any case:
            see `collectx docs policies`.
        compile_policy: whether to compile the policy in each worker with `torch.compile`: True, or a dict of its
            keyword arguments. The first batch includes the compilation: see `start_timeout_s`.
        cudagraph_policy: whether to record the policy's calls as CUDA graphs with tensordict's `CudaGraphModule`: True,
            or a dict of its keyword arguments. For policies on GPUs.
        seed: seed of the envs and of the policies' random numbers. None: a number that the constructor draws from
            torch's global generator, so each collector has another seed. After `torch.manual_seed`, a script collects
            the same batches each time that you run it.
        num_envs: envs per worker: `create_env_fn`, which must return a single env, is called `num_envs` times, and a
            worker's part of a batch is `[envs, time]`, even with 1. None: it is called once; the part is `[time]` if it
            returns a single env.
        info_keys: names of entries of Gymnasium's `info` to keep in batches, as `("info", name)` and
            `("next", "info", name)`: numbers, arrays or dicts of these. If a step lacks an entry, its value is zero and
            `("info", "_name")` is False. To learn shapes and dtypes, the constructor makes an env and steps it for up
            to an episode, unless you pass declarations: see `collectx docs envs`.
        exclude_keys: names of observation parts, such as texts, that neither batches nor the policy get; "inner.text"
            for a nested part, "observation" for an observation without parts.
        worker_idx: value of the attribute `worker_idx`: a number that you give this collector, if you have several.
        frames_per_batch: frames of one batch; the constructor warns if it rounds them up to whole steps of all envs.
            `MultiSyncCollector` with `cat_results=-1` also takes a list with the frames of each worker. For
            `MultiAsyncCollector`, a list means its sum.
        total_frames: the collector ends with the batch that reaches this number of frames; -1, None or infinity: never.
            The constructor warns if whole batches have over 5% more.
        device: default of the three devices below. With workers, each of the four but `storing_device` may be a list
            with a device per worker. If the env returns tensors (`collectx docs envs`, "Envs on a GPU"), all devices
            must equal its device.
        storing_device: device of the delivered batches.
        policy_device: device of the policy.
        env_device: device of the env's actions and observations.
        split_trajs: whether batches are `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called in this process with every batch; its result is delivered instead. `total_frames` counts the
            frames that it was called with.
        post_traj: with `trajs_per_batch`: called in this process with each complete trajectory, `[time]`. Its result
            replaces the trajectory: `[time]`, of any length above 0, or None to drop it.
        cat_results: how a sync collector joins the parts of its workers. None or "stack": `[workers, ...]`. An int:
            concatenated along that dimension of the parts; -1 is time.
        return_same_td: whether to copy every batch into the same TensorDict, as long as the shape stays the same.
        track_traj_ids: whether batches contain `("collector", "traj_ids")`.
        track_policy_version: whether batches contain TorchRL's `policy_version` and `("next", "policy_version")`,
            besides `("collector", "policy_version")`.
        replay_buffer: an object with a method `extend`, which gets the batches, one worker's part at a time; iteration
            then returns None. See `start` and `fill`. Workers of this machine write to a `collectx.ReplayBuffer`
            themselves, in the order in which they are ready, unless another keyword needs the batch in this process:
            `postproc`, `track_policy_version=True`, `track_traj_ids=False`, `extend_buffer=False`, `trajs_per_batch` or
            `overlap=1`. With `split_trajs`, the buffer must store trajectories.
        extend_buffer: False: write step by step with the buffer's `add`; a step contains a frame of each of a worker's
            envs.
        trajs_per_write: maximum number of trajectories in one write to the replay buffer; None: no maximum.
        update_at_each_batch, update_after_each_batch: whether to publish the policy's weights after every batch.
            If False, set `update_interval` or call `update_policy_weights_`.
        max_weight_update_interval, update_interval: number of batches between two publishes; -1: never.
        update_weights_between_steps: whether workers also load newer weights between two steps of a batch;
            `("collector", "policy_version")` may then differ between its frames.
        weight_updater: a callable that returns the weights to publish when none are passed, in a form that
            `update_policy_weights_` takes. You may also pass a weight updater of TorchRL, or a callable that makes one:
            it supplies and maps the weights, and the collector's transport sends them.
        weight_sync_schemes, weight_recv_schemes: TorchRL's schemes by model id, see `update_policy_weights_`. With
            `NoWeightSyncScheme`, the policy's weights are not published. All other schemes are ignored, because the
            collector's transport sends the weights.
        pre_collect_hook: called without arguments in the worker, before each of its batches.
        post_collect_hook: called in the worker with each batch that it collected. Its in-place changes are delivered;
            its result is ignored.
        init_fn: called without arguments in every worker, before the worker makes its env.
    """

    # `collector.kind` of the configuration, for `sync=False` and `sync=True`.
    kinds: ClassVar[tuple[str, str]]
    # Whether workers step the envs; otherwise this process does.
    has_workers: ClassVar[bool] = True
    # Default number of batches between two publishes; -1: never.
    default_interval: ClassVar[int] = -1
    # `inference.kind` of the configuration.
    inference: ClassVar[str] = "local"

    create_env_fn: CreateEnv = field(kw_only=False)
    policy: Callable[..., Any] | None = field(
        default=None,
        kw_only=False,
        metadata={
            "advice": "pass a module, or another callable from the observation to the action; for an agent of "
            "Stable-Baselines3, policy_from_agent(agent)."
        },
    )
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any] | None] | None = None
    create_env_kwargs: PerWorker = None
    exploration_type: Any = sets("collector.exploration_type", ExplorationType.RANDOM, exploration_name)
    exploration_mode: str | None = sets("collector.exploration_type", None, exploration_name)
    trust_policy: bool | None = None
    auto_register_policy_transforms: bool | None = None
    compile_policy: bool | dict[str, Any] | None = None
    cudagraph_policy: bool | dict[str, Any] | None = None
    seed: int | None = sets("seed", None)
    num_envs: int | None = sets("env.num_envs", None)
    info_keys: Sequence[str | Mapping[str, Any]] = ()
    exclude_keys: Sequence[str] = ()
    worker_idx: int | None = None

    frames_per_batch: int | Sequence[int] = sets("collector.frames_per_batch", 200)
    total_frames: float | None = sets("collector.total_frames", -1, frames_limit)
    max_frames_per_traj: int | None = sets(
        "collector.max_frames_per_traj", convert=positive, note="0 or less: no maximum."
    )
    init_random_frames: int | None = sets("collector.init_random_frames", convert=positive, note="Less than 0: none.")
    reset_at_each_iter: bool = sets("collector.reset_at_each_iter", note="")
    set_truncated: bool = sets("collector.set_truncated", note="")
    reset_when_done: bool = fixed(True, "collectx always resets envs that are done, so leave it out")

    device: Devices = sets("devices.device", None, only_device)
    storing_device: Devices = sets("devices.storing_device", None, first_device)
    policy_device: Devices = sets("devices.policy_device", None, first_device)
    env_device: Devices = sets("devices.env_device", None, first_device)
    no_cuda_sync: bool = ignored(False, ": a step waits for the policy's actions anyway")

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    post_traj: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = sets("collector.zero_copy", note="")
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = ignored(None, ": batches are written into memory that is allocated once")
    compact_obs: bool = sets("collector.compact_obs", note="")
    check_finite: bool = sets(
        "collector.check_finite", note="Batches of a user-defined `collector_class` are not checked."
    )
    trajs_per_batch: int | None = sets(
        "collector.trajs_per_batch",
        note="""With a replay buffer, each one is written there as soon as it ends. A `UserWarning` says so if no batch
        is complete after 10 s of frames.""",
    )
    trajs_per_write: int | None = field(default=None, metadata={"minimum": 1})
    traj_format: str | None = sets("collector.traj_format", None, note="")

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = field(default=-1, metadata={"minimum": 1, "also": (-1,)})
    update_interval: int | None = field(default=None, metadata={"minimum": 1, "also": (-1,)})
    update_weights_between_steps: bool = sets("collector.refresh", False, {False: "batch", True: "step"})
    weight_updater: Callable[[], Any] | None = field(
        default=None, metadata={"advice": "pass a callable that returns the weights, or a TorchRL weight updater."}
    )
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
    def worker_count(self) -> int:
        """Number of workers: `given_count`, or the length of `create_env_fn`; 1 without workers."""
        if not self.has_workers:
            return 1
        creates = self.create_env_fn
        return self.given_count or (len(creates) if isinstance(creates, list | tuple) else 1)

    @property
    def given_count(self) -> int | None:
        """The number of workers that was passed, as `num_workers` or `num_collectors`; None without one."""
        counts = (getattr(self, name, None) for name in ("num_workers", "num_collectors"))
        return next(filter(None, counts), None)

    @property
    def chosen_exploration(self) -> Any:
        """The exploration type as passed: `exploration_mode`, by default `exploration_type`."""
        return self.exploration_type if self.exploration_mode is None else self.exploration_mode

    @property
    def hooks(self) -> Hooks:
        """The user's hooks."""
        return Hooks(
            pre_collect_hook=self.pre_collect_hook, post_collect_hook=self.post_collect_hook, init_fn=self.init_fn
        )

    @property
    def frames_per_worker(self) -> Sequence[int] | None:
        """Frames of each worker, if `frames_per_batch` is a list."""
        return None if isinstance(self.frames_per_batch, int) else self.frames_per_batch

    @property
    def requested_frames(self) -> int:
        """`frames_per_batch`, or the sum of a list."""
        return self.frames_per_batch if isinstance(self.frames_per_batch, int) else sum(self.frames_per_batch)

    @property
    def is_concatenated(self) -> bool:
        """Whether `cat_results` concatenates the parts of a batch; otherwise they are stacked."""
        return isinstance(self.cat_results, int)

    @property
    def changes_batches(self) -> bool:
        """Whether this process must change or divide batches before they are written to a replay buffer."""
        is_changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        return bool(is_changed) or not self.extend_buffer

    @property
    def has_individual_policies(self) -> bool:
        """Whether `policy_factory` is a list of different callables."""
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
    """The keywords of `Collector`. `backend`, `num_collectors`, `sync` and `backend_options` select the class of the
    collector that `Collector(...)` creates; subclasses of `Collector` refuse them.

    Args:
        interruptor: an object with a method `collection_stopped()`, called after every step. If it returns True, the
            batch ends early.
        backend: where envs are stepped. "direct": in this process. "process" or "multiprocessing":
            `MultiAsyncCollector`. "ray": `RayCollector`. "rpc": `RPCCollector`. "distributed": `DistributedCollector`.
            "submitit": the same, with SLURM jobs as workers. None: the backend of an enclosing
            `collectx.service_backend`; without one, "process" if you pass `num_collectors`, otherwise "direct".
        num_collectors: number of workers; `create_env_fn` may be one callable for all of them.
        sync: whether a batch contains a part of every worker; with "process", the class is then `MultiSyncCollector`.
        backend_options: further keywords of the selected class, such as `launcher`. You may also pass them directly,
            but type checkers only know the keywords of `Collector`.
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
        num_workers: number of workers. None: the length of the list `create_env_fn`.
        num_threads: number of torch threads in this process; None: unchanged.
    """

    num_workers: int | None = sets("collector.num_workers", None)
    num_threads: int | None = field(default=None, metadata={"minimum": 1})
    num_sub_threads: int = sets("launcher.num_threads", note="")
    num_slots: int = sets("collector.num_slots", note="")
    overlap: int = sets("collector.overlap", note="")
    on_worker_failure: str = sets("collector.on_worker_failure", note="")
    max_restarts: int = sets("collector.max_restarts", note="")
    min_workers: int | None = sets("collector.min_workers", note="")
    start_timeout_s: float = sets("collector.start_timeout_s", note="")
    worker_timeout_s: float = sets("collector.worker_timeout_s", note="")
    close_timeout_s: float = sets("collector.close_timeout_s", note="")


@documented
@dataclass(frozen=True, kw_only=True)
class MultiSyncKeywords(WorkerKeywords):
    """The keywords of `MultiSyncCollector`.

    Args:
        collector_class: a class of your own that each worker runs, see
            `collectx docs torchrl-scripts`, "User-defined collector classes". None or `Collector`: collectx's.
    """

    kinds = ("multi_sync", "multi_sync")

    preemptive_threshold: float | None = sets(
        "collector.preemptive_threshold", note="With `cat_results=-1`, a batch has fewer frames instead."
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
        max_batch_size: maximum number of envs in one call of the policy. None: no maximum.
        min_batch_size: the server waits for at least this many envs, but at most `server_timeout` seconds, before it
            calls the policy. None: 1.
        server_timeout: maximum seconds that the server waits for `min_batch_size` envs. Workers whose batch is complete
            request no actions, so every step of the others may wait that long. Must be below `worker_timeout_s`. None:
            0.01.
        backend, env_backend, policy_backend: "multiprocessing" or "threading". Both have the same effect, because envs
            and policy always run in processes.
    """

    kinds = ("multi_async", "multi_async")
    inference = "server"

    max_batch_size: int | None = sets("inference.max_batch")
    min_batch_size: int | None = sets("inference.min_batch", None)
    server_timeout: float | None = sets("inference.timeout_s", None)
    backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    env_backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    policy_backend: str | None = field(default=None, metadata={"choices": ("threading", "multiprocessing")})
    transport: Any = fixed(
        None, "observations and actions always pass through shared memory, so leave it out", "auto", "driver"
    )
    env_exchange: str = ignored("auto")
    envs_per_worker: int = fixed(1, "use `num_envs` for the number of envs in each worker")
    transition_chunk_size: int | str = ignored("auto")
    yield_completed_trajectories: bool = fixed(False, "use `trajs_per_batch` for batches of complete trajectories")
    weight_sync: Any = fixed(None, "call `update_policy_weights_`")
    weight_sync_model_id: str = ignored("policy")
    verbose: bool = ignored(False)
    worker_affinity: Any = fixed(None, "use `init_fn` to set the affinity of each worker process")
    driver_affinity: Any = fixed(None, "use `os.sched_setaffinity` to set the affinity of this process")
    server_config: Any = fixed(None, "use `max_batch_size`, `min_batch_size` and `server_timeout`")
    device_config: Any = fixed(None, "use `device`, `policy_device` and `storing_device`")
    policy_version: int = fixed(0, "policy versions always start at 0, so leave it out")
    policy_version_key: Any = ignored(
        "policy_version", """: batches have `("collector", "policy_version")`; see `track_policy_version`"""
    )
    compile_policy: bool | dict[str, Any] | None = fixed(
        None,
        "the server calls the policy with batches of different sizes, so compile the policy's modules yourself",
        False,
    )
    cudagraph_policy: bool | dict[str, Any] | None = fixed(
        None,
        "the server calls the policy with batches of different sizes, which a CUDA graph cannot replay",
        False,
    )


@documented
@dataclass(frozen=True, kw_only=True)
class RemoteKeywords(WorkerKeywords):
    """The keywords of collectors with workers on any host.

    Args:
        collector_class: the collector that each worker runs: "single" (one process), "sync" (several processes; a batch
            contains a part of each) or "async" (several processes; a batch comes from one of them), or the
            corresponding class of collectx or TorchRL; or a class of your own, see
            `collectx docs torchrl-scripts`, "User-defined collector classes". None: "single", or "sync" with
            `num_workers_per_collector` above 1.
        collector_kwargs: keyword arguments of the workers' collectors; one dict for all, or a list with one per worker.
            A dict may contain `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, with the same
            value for all workers, keywords of this constructor such as `max_frames_per_traj`; for a class of your own,
            any keyword of that class.
    """

    num_workers_per_collector: int = sets("collector.num_workers_per_collector", note="")
    collector_class: Any = sets("collector.inner", None, choices=None)
    collector_kwargs: PerWorker = None


@dataclass(frozen=True, kw_only=True)
class NetworkKeywords(RemoteKeywords):
    """The keywords of collectors over torch.distributed and torch RPC.

    Args:
        backend: how torch.distributed sends frames and weights: "gloo", "nccl", "mpi" or "ucc".
        launcher: what the workers are. "submitit": SLURM jobs that the constructor submits; they join when they start.
            "mp": processes of this machine. "submitit_delayed": jobs that `collectx.submitit_delayed_launcher`
            submitted.
        slurm_kwargs: resources of each job, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: the port of this process to which workers connect, as a number or its digits; None: a free port.
        folder: a folder on a file system that all nodes share. Jobs read this process's address there, and write their
            logs. None: a new folder below `outputs/`.
    """

    backend: str = sets("backend", "gloo", choices=[name for name in NETWORKS if name != "rpc"])
    launcher: str = sets("launcher", "submitit", choices=("mp", "submitit", "submitit_delayed"))
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | str | None = sets("backend.port", None, port_number)
    folder: str | Path | None = None

    @property
    def has_jobs(self) -> bool:
        """Whether each worker is a SLURM job."""
        return self.launcher != "mp"

    @property
    def has_submitted_jobs(self) -> bool:
        """Whether `submitit_delayed_launcher` submitted these jobs, together with this process's own."""
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

    sync: bool = sets("collector.sync", note="")
    visible_devices: Any = sets("backend.visible_devices", convert=visible_names, note="")
    tensorpipe_options: Mapping[str, Any] | None = sets("backend.tensorpipe", None, note="")


@documented
@dataclass(frozen=True, kw_only=True)
class RayKeywords(RemoteKeywords):
    """The keywords of `RayCollector`.

    Args:
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or a list with one per worker. None: one core each.
        num_collectors: number of workers, by TorchRL's name.
    """

    kinds = ("ray", "ray")

    sync: bool = sets("collector.sync", note="")
    ray_init_config: dict[str, Any] | None = sets(
        "launcher.ray_init_config", None, note="Ignored if this process is already connected to Ray."
    )
    remote_configs: PerWorker = sets("launcher.remote_configs", None)
    num_collectors: int | None = None
    use_env_creator: bool = ignored(False)
    queue_timeout_s: float = sets("launcher.queue_timeout_s", note="")
    autoscaling: bool = sets("launcher.autoscaling", note="")


# The keywords of each class.
BY_CLASS = {
    "Collector": SingleKeywords,
    "MultiSyncCollector": MultiSyncKeywords,
    "MultiAsyncCollector": MultiAsyncKeywords,
    "MultiCollector": MultiKeywords,
    "AsyncBatchedCollector": AsyncBatchedKeywords,
    "DistributedCollector": DistributedKeywords,
    "DistributedSyncCollector": DistributedSyncKeywords,
    "RPCCollector": RpcKeywords,
    "RayCollector": RayKeywords,
}
