"""What the learners of a run tell each other besides gradients (`trainer.num_learners`): a few numbers before and after
each batch, and at checkpoints.

    before a batch    rank 0 says whether a signal has stopped the run, and whether a checkpoint is due
    after it          each learner tells its part: frames, episodes and times of its workers, and the digest
    at a checkpoint   the digest of the weights, which must be equal; then, whether the part is on the disk

So all learners count the same frames and episodes, and none decides alone to leave a collective that the others enter.

Imports torch only with several learners.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import xxhash

from collectx.errors import CollectxError

if TYPE_CHECKING:
    import torch

    from collectx.collector.batch_info import BatchInfo
    from collectx.trainer.learners import Learners
    from collectx.transport.base import Arrival

# What a learner does when it speaks; its index is the first number of each message.
_ACTS = (
    "asks for the next batch",
    "has a batch",
    "compares its weights",
    "has written a checkpoint",
    "has ended its training",
)
REQUEST, BATCH, WEIGHTS, WRITTEN, END = range(len(_ACTS))
# How many numbers of a message the first collective carries; most messages have fewer.
_FIRST = 127
# The numbers of a message about a batch, and of each of its parts, before the values of episodes.
_HEAD, _PART = 8, 9
# A digest as numbers, which float64 represents exactly.
_WORDS = struct.Struct("<4I")


class Words:
    """The words of one learner. With one learner, every method returns what it got. All methods block until all
    learners have called them, at most `trainer.learner_timeout_s`; they raise the `RuntimeError` of torch if a learner
    is lost, and `CollectxError` if another learner calls another method.

    Attributes:
        is_alone: whether there is one learner.
        is_end: whether all learners know that the run ends, and end themselves.

    Args:
        learners: what the trainer gets; see `collectx.trainer.learners`. None: there is one learner.
        group: the process group of the words, which no collective of the trainer uses.
        num_workers: number of workers of each learner.
    """

    def __init__(self, learners: Learners | None = None, group: Any = None, num_workers: int = 0):
        self.learners, self._group, self._num_workers = learners, group, num_workers
        self.is_end = False
        # Seconds in which these words waited for the others since the last word about a batch.
        self._waited_s = 0.0
        self.rank, self.num_learners = (0, 1) if learners is None else (learners.rank, learners.num_learners)
        self.is_alone = self.num_learners == 1

    def of_first(self, act: int, *numbers: float) -> list[float]:
        """Returns the numbers of the learner with rank 0; those of the others are ignored."""
        return list(numbers) if self.is_alone else self._exchange(act, numbers)[0]

    def merge(self, info: BatchInfo, digest: bytes | None) -> tuple[BatchInfo, bytes | None]:
        """Returns the metadata and the digest of the run's batch, from those of this learner's part. The parts are
        ordered by learner, and workers are numbered through."""
        if self.is_alone:
            return info, digest
        parts: list[Arrival] = []
        settings: list[int] = []
        learners: list[tuple[float, float]] = []
        assert self.learners is not None
        digests, times = b"", (info.waited_s, self._waited_s + self.learners.waited_s)
        self._waited_s = self.learners.waited_s = 0.0
        for rank, row in enumerate(self._exchange(BATCH, [*times, *_packed(info, digest)])):
            waited_s, waited_for_others_s, *counts = row[:_HEAD]
            num_parts, num_settings, *words = map(int, counts)
            learners.append((waited_s, waited_for_others_s))
            digests += _WORDS.pack(*words)
            settings += map(int, row[_HEAD : _HEAD + num_settings])
            parts += _parts(row[_HEAD + num_settings :], num_parts, rank * self._num_workers)
        frames = sum(part.report.frames for part in parts)
        merged = replace(info, frames=frames, parts=tuple(parts), settings=tuple(settings), learners=tuple(learners))
        return merged, None if digest is None else xxhash.xxh3_128(digests).digest()

    def check_weights(self, weights: Callable[[], torch.Tensor], batches: int) -> None:
        """Raises `CollectxError` if the learners have different weights, bytes on any device."""
        if self.is_alone:
            return
        digest = xxhash.xxh3_128(weights().cpu().numpy().data).digest()
        first, *others = self._exchange(WEIGHTS, _WORDS.unpack(digest))
        if different := [str(rank) for rank, each in enumerate(others, start=1) if each != first]:
            which = f"learner{'s' * (len(different) > 1)} {', '.join(different)}"
            raise CollectxError(
                f"after {batches} batches, the weights of {which} differ from those of learner 0. Begin with the same "
                "weights on all learners, and average the gradients: with collection.learners.average, or with "
                "torch's DistributedDataParallel."
            )

    def not_written(self, is_written: bool) -> list[int]:
        """Returns the ranks of the learners whose part of a checkpoint is not on the disk."""
        rows = [[float(is_written)]] if self.is_alone else self._exchange(WRITTEN, [is_written])
        return [rank for rank, row in enumerate(rows) if not row[0]]

    def _exchange(self, act: int, numbers: Sequence[float]) -> list[list[float]]:
        began_s = perf_counter()
        rows = self._gather([act, *numbers])
        self._waited_s += perf_counter() - began_s
        acts = [int(row[0]) for row in rows]
        if other := next((rank for rank, each in enumerate(acts) if each != acts[0]), 0):
            raise CollectxError(
                f"learner {other} {_ACTS[acts[other]]}, but learner 0 {_ACTS[acts[0]]}. The trainer must take the same "
                "number of batches on all learners: let train decide by what all know, such as collection.frames."
            )
        return [row[1:] for row in rows]

    def _gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Does what `Learners.gather` does, with one collective for messages of up to `_FIRST` numbers."""
        import torch
        from torch import distributed as dist

        def gather(values: Sequence[float], size: int) -> list[list[float]]:
            rows = [torch.empty(size, dtype=torch.float64) for _ in range(self.num_learners)]
            padded = torch.tensor([*values, *[0.0] * (size - len(values))], dtype=torch.float64)
            dist.all_gather(rows, padded, group=self._group)
            return [row.tolist() for row in rows]

        rows = gather([len(numbers), *numbers[:_FIRST]], 1 + _FIRST)
        counts = [int(row.pop(0)) for row in rows]
        if max(counts) > _FIRST:
            rest = gather(numbers[_FIRST:], max(counts) - _FIRST)
            rows = [row + more for row, more in zip(rows, rest, strict=True)]
        return [row[:count] for row, count in zip(rows, counts, strict=True)]


def _packed(info: BatchInfo, digest: bytes | None) -> list[float]:
    numbers: list[float] = [len(info.parts), len(info.settings), *_WORDS.unpack(digest or bytes(16)), *info.settings]
    for part in info.parts:
        report = part.report
        numbers += [part.worker, report.policy_version, report.frames, report.env_s, report.policy_s, report.wait_s]
        numbers += [report.send_s, len(report.returns), report.metrics.shape[1]]
        numbers += [*report.returns.tolist(), *report.lengths.tolist(), *report.metrics.ravel().tolist()]
    return numbers


def _parts(row: Sequence[float], num_parts: int, first_worker: int) -> Iterator[Arrival]:
    import numpy as np

    from collectx.transport.base import Arrival, SlotReport

    numbers = np.array(row)
    for _ in range(num_parts):
        worker, version, frames, *times, num_episodes, num_metrics = numbers[:_PART].tolist()
        env_s, policy_s, wait_s, send_s = times
        ends = np.cumsum([_PART, num_episodes, num_episodes, 2 * num_metrics]).astype(int)
        returns, lengths, metrics = (numbers[begin:end] for begin, end in pairwise(ends))
        numbers = numbers[ends[-1] :]
        report = SlotReport(
            policy_version=int(version),
            frames=int(frames),
            env_s=env_s,
            policy_s=policy_s,
            returns=returns,
            lengths=lengths.astype(np.int64),
            wait_s=wait_s,
            send_s=send_s,
            metrics=metrics.reshape(2, -1),
        )
        yield Arrival(first_worker + int(worker), 0, report)
