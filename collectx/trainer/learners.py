"""The learners of a run (`trainer.num_learners`), as one of them sees the others.

A learner is a trainer's process with workers of its own. Learners share gradients, the statistics of normalisation, and
a few numbers per batch, by collectives of `torch.distributed`. All learners call the same collectives in the same order
(https://docs.pytorch.org/docs/stable/distributed.html).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import distributed as dist


class Learners:
    """This learner and the others. With one learner, every method returns its argument without a copy.

    Attributes:
        rank: index of this learner; the learner with rank 0 writes the run folder.
        num_learners: how many learners the run has.
        group: the `torch.distributed.ProcessGroup` of the learners; None with one learner.
        waited_s: seconds spent in the collectives of this object, in which it waits for the others. Not on GPUs, where
            they run in the background.
    """

    def __init__(self, rank: int = 0, num_learners: int = 1, group: Any = None):
        self.rank, self.num_learners, self.group = rank, num_learners, group
        self.waited_s = 0.0

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces floating-point tensors by their means over the learners, in place, with one all-reduce for each
        dtype and device. Blocks until all learners have called it."""
        if self.group is None:
            return
        alike = defaultdict(list)
        for tensor in tensors:
            alike[tensor.dtype, tensor.device].append(tensor)
        for some in alike.values():
            flat = torch.cat([tensor.flatten() for tensor in some])
            self._run(dist.all_reduce, flat)
            parts = flat.div_(self.num_learners).split([tensor.numel() for tensor in some])
            torch._foreach_copy_(some, [part.view_as(tensor) for part, tensor in zip(parts, some, strict=True)])

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the sum over the learners. Blocks until all learners have called it."""
        if self.group is None:
            return tensor
        total = tensor.clone()
        self._run(dist.all_reduce, total)
        return total

    def mean_std(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mean and the standard deviation (without Bessel's correction) of all learners' values, `[N]`,
        where N may differ between the learners. Blocks until all learners have called it."""
        if self.group is None:
            return values.mean(), values.std(correction=0)
        wide = values.double()
        count, total, squares = self.sum(torch.stack((wide.new_tensor(len(wide)), wide.sum(), wide.square().sum())))
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_(min=0.0).sqrt()
        return mean.to(values.dtype), deviation.to(values.dtype)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of every learner, by rank; each may have another count. Blocks until all learners have
        called it."""
        if self.group is None:
            return [list(numbers)]
        return [row.tolist() for row in self._gather(torch.tensor(numbers, dtype=torch.float64))]

    def concatenate(self, tensor: Any) -> Any:
        """Returns the rows of all learners, by rank, `[sum of N, *shape]`. Blocks until all learners have called it.

        Args:
            tensor: `[N, *shape]`, a tensor or TensorDict; only N may differ between the learners.
        """
        if self.group is None:
            return tensor
        if isinstance(tensor, TensorDictBase):
            return tensor.apply(self.concatenate, batch_size=[])
        return torch.cat(self._gather(tensor))

    def _run(self, collective: Callable[..., Any], *tensors: Any) -> None:
        began_s = perf_counter()
        collective(*tensors, group=self.group)
        self.waited_s += perf_counter() - began_s

    def _gather(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensor `[N, *shape]` of each learner, by rank."""
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num_learners)]
        self._run(dist.all_gather, counts, torch.tensor([len(rows)]))
        longest = int(max(counts))
        # All learners send as many rows, because collectives require it.
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in counts]
        if padded.numel():
            self._run(dist.all_gather, received, padded)
        return [each[: int(count)] for each, count in zip(received, counts, strict=True)]


ALONE = Learners()
