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
    num_workers: int = option(
        2, "Number of worker processes, at least 1. Each steps env.num_envs envs.", minimum=1, kept=True
    )
    frames_per_batch: int = option(
        512,
        """Frames in one batch. Sync workers collect it together: a multiple of num_workers x env.num_envs. An async
        worker collects it alone: a multiple of env.num_envs.""",
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
        """Maximum frames of a trajectory. The last frame is marked truncated and done, then the env is reset.
        Statistics count the trajectory as an episode. Adds step_count to batches: the number of earlier frames of the
        trajectory. `null`: no maximum.""",
        minimum=1,
        kept=True,
    )
    init_random_frames: int | None = option(
        None,
        """Frames with random actions at the start of the run, of all workers together. Each worker collects an equal
        share, rounded up to complete batches. Other outputs of the policy are zero in these frames. Restarted workers
        collect no such frames. `null`: none.""",
        minimum=0,
        kept=True,
    )
    reset_at_each_iter: bool = option(
        False,
        """`true`: all envs are reset between batches. The interrupted trajectories are not marked as done, but
        statistics count them as episodes. `false`: trajectories continue in the next batch.""",
        kept=True,
    )
    set_truncated: bool = option(
        False,
        """`true`: the last frame of every env in a batch is marked truncated and done, for algorithms that treat
        batches separately. The trajectory still continues in the next batch, and statistics count it as one, unless
        reset_at_each_iter is `true`.""",
    )
    refresh: str = option(
        "batch",
        """When a worker loads newer weights. batch: between two batches. step: also between two steps; ("collector",
        "policy_version") has the version of every frame, metrics the version of a batch's first step.""",
        choices=("batch", "step"),
    )
    overlap: int = option(
        0,
        """For sync workers. 1: the workers fill the next batch while the trainer learns from the previous batch. The
        next batch uses the weights that were the newest when the previous batch was requested, so the lag is one
        version. Runs are as reproducible as with 0. 0: the workers wait for the new weights.""",
        minimum=0,
        maximum=1,
        kept=True,
    )
    max_policy_lag: int | None = option(
        None,
        """For async workers. Maximum lag of a batch: the number of versions that were published between the version
        that acted and the delivery of the batch. A worker waits if its next batch could exceed this lag. With n, at
        most n + 1 batches are being collected or ready at a time, and all workers wait for a slow worker. The trainer
        must publish at most once per batch, as the built-in trainers do. Otherwise, a batch with a higher lag is an
        error. Not available for vector envs with autoreset_mode=next_step, whose batches have frames of earlier
        batches. `null`: no maximum.""",
        minimum=0,
        kept=True,
    )
    preemptive_threshold: float | None = option(
        None,
        """For multi_sync. A fraction of the workers, 0 to 1. As soon as this fraction has finished its part of a batch,
        the other workers end their parts early, after at least one step. Missing frames are zeros, False in
        ("collector", "mask"), and have trajectory id -1. `null`: a batch waits for all workers.""",
        minimum=0,
        maximum=1,
        kept=True,
    )
    trajs_per_batch: int | None = option(
        None,
        """Complete trajectories per batch, in the order in which they end. frames_per_batch is then the number of
        frames collected at a time, and total_frames counts collected frames. Incomplete trajectories and incomplete
        batches at the end of the run are dropped. `null`: batches of frames.""",
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
        """`true`: batches have no observation below next. Within a trajectory, it equals the observation of the next
        frame. The built-in trainers ppo, impala, dqn and record need the final observation of a trajectory, and refuse
        it.""",
        kept=True,
    )
    check_finite: bool = option(
        True,
        """`true`: NaN or an infinity in an observation, an action or a reward is an error that names worker, env, key
        and step, and the source: env or policy. Each worker checks its batches once. infos (env.info_keys) are not
        checked. `false`: such values are delivered, and logged returns exclude such rewards.""",
    )
    order_of: str | None = option(
        None,
        """Folder of an earlier async run. Batches are delivered in its recorded order, and collected with the recorded
        versions of the weights, so that equal seeds give equal batches. `collectx reproduce` sets this key. `null`: in
        the order of completion, or for sync collectors, whose order is always the same.""",
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
        """Slots of memory per worker, at least 1: the number of batches that a worker may be ahead of the trainer. 1:
        the worker waits until the trainer has consumed its batch. Sync workers use 1.""",
        minimum=1,
    )
    zero_copy: bool = option(
        False,
        """`true`: a batch is a view of the transport's memory, valid until the next one is requested. `false`: the
        trainer owns it.""",
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
        "Maximum restarts in a run, counted over all workers. A further failure ends the run.",
        minimum=0,
        without_effect=True,
    )
    min_workers: int | None = option(
        None,
        """With `collector.on_worker_failure=drop`, n: the run begins as soon as n of the num_workers workers are ready.
        The others join when they are ready, sync ones at the next batch, which then has their parts too; one that is
        not ready in time (start_timeout_s, and launcher.queue_timeout_s in a queue) is dropped. While fewer than n are
        ready, the run waits for those that are starting; if fewer than n would be left, it ends with the error of the
        one that is gone. `null`: the run begins with all workers and continues down to the last one.""",
        minimum=1,
        without_effect=True,
    )
    start_timeout_s: float = option(
        60.0,
        "Maximum seconds, above 0, from a worker's start to its first batch, including imports.",
        above=0,
        without_effect=True,
    )
    worker_timeout_s: float = option(
        120.0,
        "Maximum seconds, above 0, for one batch of a worker. After this time, the worker counts as hung.",
        above=0,
        without_effect=True,
    )
    close_timeout_s: float = option(
        10.0, "Maximum seconds for a worker to stop. After this time, it is killed.", minimum=0, without_effect=True
    )
    num_workers_per_collector: int = option(
        1,
        """Over a network: processes in each worker, all on its host and each with env.num_envs envs. They share one
        copy of the weights and send their parts in one message. 1: no inner processes.""",
        minimum=1,
        kept=True,
    )
    inner: str = option(
        "sync",
        """Schedule within a worker with several processes. sync: one part of each process. async: the batch of the
        first process that is ready. single: one process.""",
        choices=("sync", "async", "single"),
        kept=True,
    )

    @property
    def schedule(self) -> str:
        """The kind of batch: "single" or "async", a part of one worker, the first that is complete; "sync", one part of
        every worker."""
        return SCHEDULES[self.kind]

    @property
    def needs_network(self) -> bool:
        """Whether batches travel over a network also from workers of this machine."""
        return self.kind not in ("single", "multi_sync", "multi_async")


@dataclass(kw_only=True)
class SingleCollectorConfig(CollectorConfig):
    num_workers: int = like(CollectorConfig, "num_workers", "Always 1: the trainer's process is the worker.", default=1)


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
        """The envs of one call of the policy. fixed: all envs of one half, in the order of the workers, so that runs
        are reproducible; the other half steps meanwhile. ready: the envs that wait for an action, in the order of their
        requests, so that a slow env does not delay other envs. auto: fixed for sync collectors, ready for async
        collectors.""",
        choices=("auto", "fixed", "ready"),
        kept=True,
    )
    max_batch: int | None = option(
        None, "With order=ready. The maximum number of envs in one call. `null`: no maximum.", minimum=1
    )
    min_batch: int = option(
        1,
        "With order=ready. The minimum number of envs in one call. A call waits for them, for at most `timeout_s`.",
        minimum=1,
    )
    timeout_s: float = option(
        0.01,
        """With order=ready. Maximum seconds that a call waits for `min_batch` envs. Workers whose batch is complete
        request no actions, so each step of another worker may wait as long: together less than
        collector.worker_timeout_s.""",
        minimum=0,
        finite=True,
    )
