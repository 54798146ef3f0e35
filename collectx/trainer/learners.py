"""The learners of a run (`trainer.num_learners`), as one of them sees the others.

A learner is a trainer's process with workers of its own. Learners share gradients, the statistics of normalisation, and
a few numbers per batch, by collectives of `torch.distributed`. All learners call the same collectives in the same order
(https://docs.pytorch.org/docs/stable/distributed.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist


class Learners:
    """This learner and the others. With one learner, every method returns its argument without a copy.

    Attributes:
        rank: index of this learner; the learner with rank 0 writes the run folder.
        num_learners: how many learners the run has.
        group: the `torch.distributed.ProcessGroup` of the learners; None with one learner.
    """

    def __init__(self, rank: int = 0, num_learners: int = 1, group: Any = None):
        self.rank, self.num_learners, self.group = rank, num_learners, group

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces tensors of one dtype and device by their means over the learners, in place, with one all-reduce.
        Blocks until all learners have called it."""
        if self.group is None or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self.group)
        flat /= self.num_learners
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(each) for part, each in zip(parts, tensors, strict=True)])

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the sum over the learners. Blocks until all learners have called it."""
        if self.group is None:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of every learner, by rank; each may have another count. Blocks until all learners have
        called it."""
        if self.group is None:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.float64)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num_learners)]
        dist.all_gather(counts, torch.tensor([len(numbers)]), group=self.group)
        longest = int(max(counts))
        if not longest:
            return [[] for _ in counts]
        rows = [torch.zeros(longest, dtype=torch.float64) for _ in counts]
        dist.all_gather(rows, torch.nn.functional.pad(mine, (0, longest - len(mine))), group=self.group)
        return [row[:count].tolist() for row, count in zip(rows, counts, strict=True)]


ALONE = Learners()
