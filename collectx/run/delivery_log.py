"""The order in which an async run has delivered its batches, from its folder.

Used by the command line and in the trainer's process. Imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path

from collectx.errors import DamagedFile
from collectx.run.folder import RunFolder


def read(folder: str | Path) -> list[tuple[int, int, int]]:
    """Of each batch its worker, the version of the weights with which it began, and the newest at its delivery.

    Raises:
        ValueError: no run could be done again by that, and why.
        DamagedFile: a file of the folder cannot be read.
    """
    files = RunFolder(folder)
    # A loss that ends the run changes no batch before.
    if any(event.get("event") in ("worker_restarted", "worker_dropped") for event in files.read_events()):
        raise ValueError(f"in {files.path} a worker was lost, and the events do not say between which batches")
    found = []
    for line in files.read_metrics():
        parts = line.get("workers", ())
        try:
            if len(parts) != 1:
                raise ValueError(f"{files.path} is not of an async run: a batch there has {len(parts)} workers' parts")
            found.append((parts[0]["worker"], parts[0]["policy_version"], line["version"]))
        except (KeyError, TypeError) as error:
            raise DamagedFile([f"{files.metrics}: a line is not of a batch: {error!r}"]) from error
    if not found:
        raise ValueError(f"{files.path} is no folder of a run that has delivered a batch")
    return found


def why_never(refresh: str, num_workers_per_collector: int, inner: str) -> str | None:
    """Why no folder says enough of a run with these keys of `collector`; None where it does."""
    if refresh == "step":
        return "with collector.refresh=step the weights change within a batch, which no folder says"
    if num_workers_per_collector > 1 and inner == "async":
        return "collector.inner=async: in which order the processes of a worker were ready no folder says"
    return None
