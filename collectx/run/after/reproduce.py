"""The batch digests in run folders, by which `collectx reproduce` compares two runs. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, zip_longest
from pathlib import Path

from collectx.errors import DamagedFileError
from collectx.run.folder.layout import RunFolder


class Verdict(StrEnum):
    """The outcome of a comparison."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`. `message` tells the user the batch or the reason in one sentence; `first_different` is
    the index of the first batch that differs, or that only one run has; None if there is none."""

    verdict: Verdict
    message: str
    first_different: int | None = None

    @property
    def identical(self) -> bool:
        return self.verdict is Verdict.IDENTICAL


def compare(old: str | Path, new: str | Path, limit: int | None = None) -> Comparison:
    """Compares the batches of two run folders by their digests, which it reads from `metrics.jsonl`. `limit` is the
    number of batches of `old` to compare; None: all."""
    count = 0
    for index, (before, after) in enumerate(zip_longest(islice(digests_of(old), limit), digests_of(new))):
        if before is None or after is None:
            shorter = old if before is None else new
            before_it = "the batch before it is" if index == 1 else f"the {index} batches before it are"
            message = f"{shorter} contains no batch {index}; {before_it} identical"
            return Comparison(Verdict.DIFFERENT, message, index) if index else _no_batches(shorter)
        for folder, digest in ((old, before), (new, after)):
            if not digest:
                reason = f"{folder} has no digest of batch {index}. Run it with trainer.digest=true."
                return Comparison(Verdict.NOT_COMPARABLE, reason)
        if before.rpartition("-")[0] != after.rpartition("-")[0]:
            reason = f"batch {index} has digests of different kinds, {before} in {old} and {after} in {new}"
            return Comparison(Verdict.NOT_COMPARABLE, reason)
        if before != after:
            message = f"batch {index} is the first that differs"
            return Comparison(Verdict.DIFFERENT, message, index)
        count = index + 1
    if not count:
        return _no_batches(old)
    return Comparison(
        Verdict.IDENTICAL, f"all {count} batches are identical" if count > 1 else "the only batch is identical"
    )


def _no_batches(folder: str | Path) -> Comparison:
    return Comparison(Verdict.NOT_COMPARABLE, f"{folder} contains no batch to compare")


def digests_of(folder: str | Path) -> Iterator[str]:
    """Yields the digest of each batch of a run; "" for a batch without one. Raises `DamagedFileError` if the metrics
    cannot be read."""
    run_folder = RunFolder(folder)
    for number, line in enumerate(run_folder.read_metrics(), start=1):
        digest = line.get("digest") or ""
        if not isinstance(digest, str):
            raise DamagedFileError(f"{run_folder.metrics}: line {number}: its digest is {digest!r}")
        yield digest
