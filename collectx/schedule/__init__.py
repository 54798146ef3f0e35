"""Schedules: which slots workers may fill, and which filled slots make a batch."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.config.derived import is_async
from collectx.config.schema.collector import CollectorConfig
from collectx.schedule.asynchronous import AsyncSchedule
from collectx.schedule.base import Schedule
from collectx.schedule.replay import RecordedBatch, ReplaySchedule
from collectx.schedule.sync import PreemptiveSchedule, SyncSchedule


def make_schedule(
    options: CollectorConfig, num_workers: int, recorded: Sequence[RecordedBatch] | None = None, exact: bool = False
) -> Schedule:
    """The schedule of a collector.

    Args:
        recorded: the batches of another run, for an async collector that delivers the same.
        exact: see `AsyncSchedule`.
    """
    if not is_async(options):
        if options.preemptive_threshold is not None:
            return PreemptiveSchedule(num_workers, options.preemptive_threshold)
        return SyncSchedule(num_workers)
    num_batches = None if options.total_frames < 0 else -(-options.total_frames // options.frames_per_batch)
    if recorded is not None:
        return ReplaySchedule(num_workers, options.num_slots, num_batches, recorded, options.zero_copy)
    return AsyncSchedule(num_workers, options.num_slots, num_batches, exact)
