"""The configuration of `enable_profile`. Used in the trainer's process; `worker/requests.py` does the profiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProfileConfig:
    """The arguments of `InspectableCollector.enable_profile`, with defaults filled in."""

    workers: Sequence[int]
    num_rollouts: int
    warmup_rollouts: int
    save_path: str
    activities: Sequence[str]
    record_shapes: bool
    profile_memory: bool
    with_stack: bool
    with_flops: bool
    on_trace_ready: Callable[[Any], Any] | None

    def problems(self, workers: Sequence[int]) -> list[str]:
        """Returns the problems, for a collector with these workers."""
        problems = []
        if not 0 <= self.warmup_rollouts < self.num_rollouts:
            problems.append(
                f"num_rollouts={self.num_rollouts}, warmup_rollouts={self.warmup_rollouts}: at least one batch must "
                "be recorded."
            )
        if unknown := sorted(set(self.workers) - set(workers)):
            problems.append(f"workers={self.workers}: there is no worker {unknown[0]}.")
        if invalid := sorted(set(self.activities) - {"cpu", "cuda"}):
            problems.append(f"activities={self.activities}: unknown activity {invalid[0]!r}; use 'cpu' or 'cuda'.")
        return problems

    @property
    def arguments(self) -> tuple:
        """The arguments of `collectx.worker.requests.RequestHandler.profile`."""
        names = ("record_shapes", "profile_memory", "with_stack", "with_flops")
        options = {name: getattr(self, name) for name in names}
        schedule = (self.num_rollouts, self.warmup_rollouts, self.save_path, self.activities)
        return *schedule, options, self.on_trace_ready
