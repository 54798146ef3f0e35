"""Options of the groups `collector` (the schedule, and how many frames) and `inference` (which process calls the
policy)."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectx.config.schema.fields import (
    Section,
    above,
    at_least,
    count_or_endless,
    kept,
    one_of,
    within,
    without_effect,
)

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
    kind: str = kept()
    num_workers: int = kept(at_least(1))
    frames_per_batch: int = kept(at_least(1))
    total_frames: int = count_or_endless()
    exploration_type: str = kept(one_of("random", "mode", "mean", "median", "deterministic"))
    num_slots: int = at_least(1)
    zero_copy: bool
    on_worker_failure: str = without_effect(one_of("raise", "restart", "drop"))
    max_restarts: int = without_effect(at_least(0))
    min_workers: int | None = without_effect(at_least(1))
    start_timeout_s: float = without_effect(above(0))
    worker_timeout_s: float = without_effect(above(0))
    close_timeout_s: float = without_effect(at_least(0))
    num_workers_per_collector: int = kept(at_least(1))
    inner: str = kept(one_of("sync", "async", "single"))
    max_frames_per_traj: int | None = kept(at_least(1))
    init_random_frames: int | None = kept(at_least(0))
    reset_at_each_iter: bool = kept()
    set_truncated: bool
    refresh: str = one_of("batch", "step")
    overlap: int = kept(within(0, 1))
    max_policy_lag: int | None = kept(at_least(0))
    preemptive_threshold: float | None = kept(within(0, 1))
    trajs_per_batch: int | None = kept(at_least(1))
    traj_format: str = kept(one_of("padded", "cat"))
    compact_obs: bool = kept()
    check_finite: bool
    order_of: str | None

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
class EitherCollectorConfig(CollectorConfig):
    """Options of `rpc` and `ray`, which can be sync or async."""

    sync: bool = kept()

    @property
    def schedule(self) -> str:
        return "sync" if self.sync else "async"


@dataclass(kw_only=True)
class InferenceConfig(Section):
    kind: str = kept(field(default="local"))


@dataclass(kw_only=True)
class ServerInferenceConfig(InferenceConfig):
    order: str = kept(one_of("auto", "fixed", "ready"))
    max_batch: int | None = at_least(1)
    min_batch: int = at_least(1)
    timeout_s: float = at_least(0, finite=True)
