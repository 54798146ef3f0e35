"""Options of the groups `collector` (the schedule, and how many frames) and `inference` (which process calls the
policy)."""

from __future__ import annotations

from dataclasses import dataclass

from collectx.config.schema.fields import Section, like, option, required

# The schedule of each kind of collector; that of `rpc` and `ray` is their option `sync`.
SCHEDULES = {
    "single": "single",
    "multi_sync": "sync",
    "multi_async": "async",
    "distributed_sync": "sync",
    "distributed": "async",
}


@dataclass(kw_only=True)
class CollectorConfig(Section):
    kind: str = required("The schedule.", kept=True)
    num_workers: int = option(2, "Worker processes, at least 1. Each steps env.num_envs envs.", minimum=1, kept=True)
    frames_per_batch: int = option(
        512,
        """Frames in one batch. Sync workers collect it together, so it must be a multiple of num_workers x
        env.num_envs. An async worker collects it alone, so it must be a multiple of env.num_envs.""",
        minimum=1,
        kept=True,
    )
    total_frames: int = option(
        192000,
        "Frames in the run, rounded up to complete batches (a note reports the surplus). -1: no limit.",
        minimum=1,
        also=(-1,),
    )
    max_frames_per_traj: int | None = option(
        None,
        """Maximum frames of a trajectory. Its last frame is marked truncated and done, and the env is reset.
        Statistics count the trajectory as an episode. Batches then contain step_count, the number of earlier frames of
        the trajectory. `null`: no maximum.""",
        minimum=1,
        kept=True,
    )
    init_random_frames: int | None = option(
        None,
        """Frames with random actions at the start of the run, shared equally by all workers and rounded up to complete
        batches. Other policy outputs are zero in these frames. Restarted workers collect none. `null`: none.""",
        minimum=0,
        kept=True,
    )
    reset_at_each_iter: bool = option(
        False,
        """`true`: reset all envs between batches. Interrupted trajectories are not marked as done, but statistics count
        them as episodes. `false`: trajectories continue in the next batch.""",
        kept=True,
    )
    set_truncated: bool = option(
        False,
        """`true`: mark the last frame of every env in a batch truncated and done, for algorithms that treat batches
        separately. The trajectory still continues in the next batch, and statistics count it once, unless
        reset_at_each_iter is `true`.""",
    )
    refresh: str = option(
        "batch",
        """When a worker loads newer weights. batch: between batches. step: also between steps; ("collector",
        "policy_version") then records the version of each frame, and metrics the version of a batch's first step.""",
        choices=("batch", "step"),
    )
    overlap: int = option(
        0,
        """For sync workers. 1: the workers fill the next batch while the trainer learns from the previous batch. The
        next batch uses the newest weights at the time the previous batch is requested, so the lag is one version if the
        trainer publishes once per batch. Runs are as reproducible as with 0. 0: the workers wait for the new
        weights.""",
        minimum=0,
        maximum=1,
        kept=True,
    )
    max_policy_lag: int | None = option(
        None,
        """For async workers. Maximum lag of a batch: how many versions were published between the version that acted
        and the delivery of the batch. A worker waits if its next batch could exceed this lag. So with a maximum of
        n, at most n + 1 batches are in flight, and one slow worker makes the others wait. The
        trainer must publish at most once per batch, as the built-in trainers do; otherwise, a batch with a higher lag
        is an error. Not available for vector envs with autoreset_mode=next_step, whose batches contain frames of
        earlier batches. `null`: no maximum.""",
        minimum=0,
        kept=True,
    )
    preemptive_threshold: float | None = option(
        None,
        """For multi_sync. As soon as this fraction of the workers (0 to 1) has finished its part of a batch, the others
        end their parts early, after at least one step. Missing frames are zeros, with trajectory id -1 and False in
        ("collector", "mask"). `null`: a batch waits for all workers.""",
        minimum=0,
        maximum=1,
        kept=True,
    )
    trajs_per_batch: int | None = option(
        None,
        """Complete trajectories per batch, in the order in which they end. frames_per_batch is then the number of
        frames collected at a time, and total_frames counts collected frames. The run drops incomplete trajectories and
        an incomplete batch at its end. `null`: batches of frames.""",
        minimum=1,
        kept=True,
    )
    traj_format: str = option(
        "padded",
        """Layout of batches with trajs_per_batch. padded: [trajectories, time], padded to the longest, with
        ("collector", "mask"). cat: [time], one trajectory after another.""",
        choices=("padded", "cat"),
        kept=True,
    )
    compact_obs: bool = option(
        False,
        """`true`: batches have no observation below next. Within a trajectory, take it from the next frame. The
        trainers ppo, impala, dqn, sac and record need final observations, so they refuse this option.""",
        kept=True,
    )
    check_finite: bool = option(
        True,
        """`true`: raise an error if an observation, an action or a reward contains NaN or infinity, or a
        log-probability NaN. The error names the worker, env, key and step, and says whether the env or the policy
        returned the value. Each worker checks its batches once, without infos (env.info_keys). Publishing weights that
        are not finite is an error too, and a run says which scalars of its trainer are not. `false`: deliver and
        publish such values; logged returns exclude them.""",
    )
    order_of: str | None = option(
        None,
        """Folder of an earlier async run. Batches are delivered in its recorded order and collected with the recorded
        weight versions, so equal seeds give equal batches. `collectx reproduce` sets this key. `null`: the order of
        completion. Sync collectors, such as multi_sync, only accept null: their batches always come in the same
        order.""",
    )
    exploration_type: str = option(
        "random",
        """How actions are chosen from the policy's distribution: random (sampled), mode, mean, median or deterministic.
        trainer=ppo and impala need random.""",
        choices=("random", "mode", "mean", "median", "deterministic"),
        kept=True,
    )
    num_slots: int = option(
        2,
        """Memory slots per worker, 1 to 64: how many batches a worker may be ahead of the trainer. 1: the worker waits
        until the trainer has consumed its batch. Sync workers use 1.""",
        minimum=1,
        # A trainer that grants some hundred slots at once and a worker that returns them would wait for each other.
        maximum=64,
    )
    zero_copy: bool = option(
        False,
        """`true`: a batch is valid only until you request the next one, which saves memory. `false`: the trainer owns
        the batch, and its memory is used again when its last tensor is gone.""",
    )
    on_worker_failure: str = option(
        "raise",
        """What to do when a worker dies, hangs or raises. raise: end the run with its error. restart: start a
        replacement. drop: continue with the other workers (sync batches lack its part).""",
        choices=("raise", "restart", "drop"),
        without_effect=True,
    )
    max_restarts: int = option(
        10,
        """Maximum restarts, over all workers. One more failure ends the run. A resume counts again from 0, so you can
        continue such a run.""",
        minimum=0,
        without_effect=True,
    )
    min_workers: int | None = option(
        None,
        """If on_worker_failure drops lost workers: how many of the num_workers workers must be ready before the run
        starts. The others join when they are ready; sync workers join at the next batch. A worker that is not ready
        within start_timeout_s (in a queue: launcher.queue_timeout_s) is dropped. If failures leave too few workers, the
        run waits for those that are starting; if these are too few as well, it ends with the last worker's error.
        `null`: the run starts with all workers, and continues until the last one fails.""",
        minimum=1,
        without_effect=True,
    )
    start_timeout_s: float = option(
        60.0,
        """Maximum seconds, above 0, for which a worker may make no progress until it has stepped its envs; afterwards,
        worker_timeout_s applies. Each import, and creating or resetting an env, count as progress. It also limits the
        first env, whose spaces the trainer reads.""",
        above=0,
        without_effect=True,
    )
    worker_timeout_s: float = option(
        120.0,
        """Maximum seconds, above 0, for which a worker may make no progress while the trainer waits for its batch.
        Creating an env, resetting one, and one step of all envs each count as progress. After this time, the worker
        counts as hung. A whole batch may take longer.""",
        above=0,
        without_effect=True,
    )
    close_timeout_s: float = option(
        10.0, "Maximum seconds for a worker to stop. After this time, it is killed.", minimum=0, without_effect=True
    )
    num_workers_per_collector: int = option(
        1,
        """Over a network: processes per worker, all on its host, each with env.num_envs envs. They share one copy of
        the weights and send their parts in one message. 1: no inner processes.""",
        minimum=1,
        kept=True,
    )
    inner: str = option(
        "sync",
        """Schedule within a worker with several processes. sync: a batch stacks one part per process. async: a batch
        comes from the first process that is ready. single: one process.""",
        choices=("sync", "async", "single"),
        kept=True,
    )

    @property
    def schedule(self) -> str:
        """The kind of batch. "sync": one part of every worker; "async": a part of one worker, the first that is
        complete; "single": the same, of the trainer's process."""
        return SCHEDULES[self.kind]

    @property
    def has_workers(self) -> bool:
        """Whether workers step the envs; otherwise the trainer's process does."""
        return self.kind != "single"

    @property
    def needs_network(self) -> bool:
        """Whether batches travel over a network even if the workers are on this machine."""
        return self.kind not in ("single", "multi_sync", "multi_async")


@dataclass(kw_only=True)
class SingleCollectorConfig(CollectorConfig):
    num_workers: int = like(CollectorConfig, "num_workers", "Always 1: the trainer process is the worker.", default=1)


@dataclass(kw_only=True)
class EitherCollectorConfig(CollectorConfig):
    """Options of `rpc` and `ray`, which can be sync or async."""

    sync: bool = option(
        False,
        """`true`: a batch stacks one part per worker, as with multi_sync. `false`: a batch comes from the first worker
        that is ready, as with multi_async.""",
        kept=True,
    )

    @property
    def schedule(self) -> str:
        return "sync" if self.sync else "async"


@dataclass(kw_only=True)
class InferenceConfig(Section):
    kind: str = option("local", "Which process calls the policy.", kept=True)


@dataclass(kw_only=True)
class ServerInferenceConfig(InferenceConfig):
    order: str = option(
        "auto",
        """Which envs one policy call serves. fixed: one half of all envs, in worker order, while the other half steps;
        runs are reproducible. ready: the envs that wait for an action, in the order of their requests, so a slow env
        does not delay the others. auto: fixed for sync collectors, ready for async collectors.""",
        choices=("auto", "fixed", "ready"),
        kept=True,
    )
    max_batch: int | None = option(
        None, "With order=ready: maximum number of envs in one call. `null`: no maximum.", minimum=1
    )
    min_batch: int = option(
        1,
        "With order=ready: a call waits for at least this many envs, but at most `timeout_s` seconds.",
        minimum=1,
    )
    timeout_s: float = option(
        0.01,
        """With order=ready: maximum seconds that a call waits for `min_batch` envs. Workers whose batch is
        complete request no actions, so every step of the others may wait that long. Must be below
        collector.worker_timeout_s.""",
        minimum=0,
        finite=True,
    )
