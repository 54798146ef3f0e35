"""The delivery order of an async run, which its `metrics.jsonl` records, to repeat it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFileError
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import LOSSES


def recorded_order(folder: str | Path) -> list[tuple[int, ...]]:
    """Returns for each batch of an async run: (worker, policy version at its start, newest policy version at its
    delivery, settings version at its start, newest settings version at its delivery). Raises `ValueError` if the order
    cannot be repeated (the message says why), or `DamagedFileError` if a file of the folder cannot be read."""
    run_folder = RunFolder(folder)
    if has_losses(run_folder.read_events()):
        raise ValueError("that run lost a worker, and did not record between which two batches")
    batches = order_of(run_folder.metrics, run_folder.read_metrics())
    if not batches:
        raise ValueError("it contains no delivered batch")
    return batches


def has_losses(events: Iterable[dict[str, Any]], after: int = 0) -> bool:
    """Whether a worker was lost while the run collected its batches after the first `after`. A loss does not count if
    the run was resumed from a checkpoint before it, as its batches were collected again; nor does a failure that ended
    the run."""
    num_losses, at_checkpoint = 0, {}
    for event in events:
        name, batches = event.get("event"), event.get("batches")
        if name in LOSSES:
            num_losses += 1
        elif name == "checkpoint":
            at_checkpoint[batches] = num_losses
        elif name == "resumed":
            num_losses = at_checkpoint.get(batches, num_losses)
    return num_losses > at_checkpoint.get(after, 0)


def order_of(path: Path, lines: Iterable[dict[str, Any]]) -> list[tuple[int, ...]]:
    """Returns the same as `recorded_order`, from lines of `metrics.jsonl`; `path` names the file in errors."""
    batches: list[tuple[int, ...]] = []
    for line in lines:
        parts = line.get("workers", ())
        try:
            if len(parts) != 1:
                raise ValueError(
                    f"{path} belongs to a sync run ({len(parts)} workers per batch), and only an async run has an "
                    "order to repeat"
                )
            settings = parts[0].get("settings", 0), line.get("settings", 0)
            batches.append((parts[0]["worker"], parts[0]["policy_version"], line["version"], *settings))
        except (AttributeError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} is damaged: a line does not describe a batch: {error!r}") from error
    return batches


def why_not_recorded(refresh: str, num_workers_per_collector: int, inner: str) -> str | None:
    """Returns the reason why a run with these collector options does not record its order; None if it does."""
    if refresh == "step":
        return "with collector.refresh=step, the weights change within a batch, which is not recorded"
    if num_workers_per_collector > 1 and inner == "async":
        return "with collector.inner=async, the order in which a worker's processes were ready is not recorded"
    return None
