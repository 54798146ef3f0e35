"""The order in which an async run delivered its batches, read from its folder.

Used by the command line and in the trainer's process. Imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path

from collectx.errors import DamagedFile
from collectx.run.folder import RunFolder


def read(folder: str | Path) -> list[tuple[int, int, int]]:
    """For each batch its worker, the policy version at its start, and the newest version at its delivery.

    Raises:
        ValueError: the order cannot be repeated; the message has the reason.
        DamagedFile: a file of the folder cannot be read.
    """
    files = RunFolder(folder)
    # A failure that ends the run has no effect on the batches before.
    if any(event.get("event") in ("worker_restarted", "worker_dropped") for event in files.read_events()):
        raise ValueError(f"in {files.path} a worker was lost, and the log does not record between which batches")
    batches = []
    for line in files.read_metrics():
        parts = line.get("workers", ())
        try:
            if len(parts) != 1:
                raise ValueError(f"{files.path} is not of an async run: a batch there has {len(parts)} workers' parts")
            batches.append((parts[0]["worker"], parts[0]["policy_version"], line["version"]))
        except (KeyError, TypeError) as error:
            raise DamagedFile([f"{files.metrics}: a line is not of a batch: {error!r}"]) from error
    if not batches:
        raise ValueError(f"{files.path} is not the folder of a run that has delivered a batch")
    return batches


def why_never(refresh: str, num_workers_per_collector: int, inner: str) -> str | None:
    """The reason why the order of a run with these keys of `collector` is not recorded; None where it is."""
    if refresh == "step":
        return "with collector.refresh=step the weights change within a batch, which is not recorded"
    if num_workers_per_collector > 1 and inner == "async":
        return "collector.inner=async: the order in which the processes of a worker were ready is not recorded"
    return None
