"""Profiles of workers: the arguments of `enable_profile`, and the profiler in a worker's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

_ACTIVITIES = ("cpu", "cuda")
_FILE = "collector_profile_{worker_idx}.json"


@dataclass(frozen=True)
class ProfileConfig:
    """The arguments of `BaseCollector.enable_profile`.

    Args:
        workers: indices of the workers to profile; None: the first worker that is alive.
        num_rollouts: number of batches, including those of the warm-up.
        warmup_rollouts: number of warm-up batches, which are not recorded.
        save_path: path of each worker's trace file, in which `{worker_idx}` stands for its index; None:
            `./collector_profile_{worker_idx}.json`.
        activities: what to record, "cpu" and "cuda"; None: both.
        record_shapes, profile_memory, with_stack, with_flops: arguments of `torch.profiler.profile`.
        on_trace_ready: called in the worker with the `torch.profiler.profile` object; no file is written then.

    Raises:
        ValueError: no batch would be recorded.
    """

    workers: Sequence[int] | None = None
    num_rollouts: int = 3
    warmup_rollouts: int = 1
    save_path: str | Path | None = None
    activities: Sequence[str] | None = None
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = True
    with_flops: bool = False
    on_trace_ready: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_rollouts < self.num_rollouts:
            raise ValueError(
                f"warmup_rollouts={self.warmup_rollouts} must be at least 0 and below num_rollouts="
                f"{self.num_rollouts}, so that at least one batch is recorded."
            )

    def get_save_path(self, worker_idx: int) -> Path:
        """Returns the path of a worker's trace file."""
        return Path(str(self.save_path or _FILE).replace("{worker_idx}", str(worker_idx)))

    def get_activities(self) -> list[ProfilerActivity]:
        """Returns those of `activities` that this process supports, as torch's constants."""
        names = _ACTIVITIES if self.activities is None else self.activities
        activities = [getattr(ProfilerActivity, name.upper()) for name in names]
        return [each for each in activities if each in supported_activities()]

    def should_profile_worker(self, worker_idx: int) -> bool:
        """Whether the worker with this index is profiled; without `workers`, worker 0 is."""
        return worker_idx in ([0] if self.workers is None else self.workers)

    def complete(self, first_worker: int) -> ProfileConfig:
        """Returns a copy with defaults in place of None."""
        return replace(
            self,
            workers=[first_worker] if self.workers is None else list(self.workers),
            save_path=str(Path(self.save_path or _FILE).absolute()),
            activities=[*_ACTIVITIES] if self.activities is None else list(self.activities),
        )

    def problems(self, workers: Sequence[int]) -> list[str]:
        """Returns messages about unknown workers and activities; `workers` are those of the collector."""
        problems = []
        if unknown := sorted(set(self.workers or ()) - set(workers)):
            problems.append(
                f"workers={self.workers} names worker {unknown[0]}, which does not exist. Valid indices: "
                + f"{', '.join(map(str, workers))}."
            )
        if invalid := sorted(set(self.activities or ()) - {*_ACTIVITIES}):
            problems.append(
                f"activities={self.activities} contains {invalid[0]!r}, which is unknown. Valid names: 'cpu', 'cuda'."
            )
        return problems


class Profiling:
    """Runs torch's profiler over the next `num_rollouts` batches of a worker."""

    def __init__(self, worker: int, config: ProfileConfig):
        path = str(config.get_save_path(worker))
        self._num_left = config.num_rollouts
        self._profile = profile(
            activities=config.get_activities(),
            schedule=schedule(
                wait=0,
                warmup=config.warmup_rollouts,
                active=config.num_rollouts - config.warmup_rollouts,
                repeat=1,
            ),
            on_trace_ready=config.on_trace_ready or (lambda done: done.export_chrome_trace(path)),
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
        )
        self._profile.start()

    def step(self) -> bool:
        """Counts a batch; returns False after the last one."""
        self._profile.step()
        self._num_left -= 1
        if self._num_left == 0:
            self.end()
        return self._num_left > 0

    def end(self) -> None:
        """Ends profiling, and writes the trace."""
        self._profile.stop()
