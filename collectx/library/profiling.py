"""What `enable_profile` was told. Used in the trainer's process; the profiling itself is in `worker/requests.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProfileConfig:
    """See `Inspected.enable_profile`, whose arguments these are, with what was not given filled in."""

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
        """What is wrong, of a collector that has these workers."""
        found = []
        if not 0 <= self.warmup_rollouts < self.num_rollouts:
            found.append(
                f"num_rollouts={self.num_rollouts}, warmup_rollouts={self.warmup_rollouts}: at least one batch must be "
                "watched."
            )
        if unknown := sorted(set(self.workers) - set(workers)):
            found.append(f"workers={self.workers}: there is no {unknown[0]}.")
        if unnamed := sorted(set(self.activities) - {"cpu", "cuda"}):
            found.append(f"activities={self.activities}: there is no {unnamed[0]!r}; use 'cpu' or 'cuda'.")
        return found

    @property
    def arguments(self) -> tuple:
        """Those of `collectx.worker.requests.RequestHandler.profile`."""
        names = ("record_shapes", "profile_memory", "with_stack", "with_flops")
        options = {name: getattr(self, name) for name in names}
        watched = (self.num_rollouts, self.warmup_rollouts, self.save_path, self.activities)
        return *watched, options, self.on_trace_ready
