"""Batches by trajectory, and batches with places that hold no frame. Used by the trainer's process, on what a collector
has delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import TRAJ_IDS

MASK = ("collector", "mask")


def split_trajectories(batch: TensorDictBase) -> TensorDictBase:
    """The frames of a batch, a row for each trajectory, in order of their ids.

    Args:
        batch: `[*rows, time]`, of successive frames in each row, with `("collector", "traj_ids")`.

    Returns:
        `[trajectories, longest]`, padded with zeros at the end of the rows; `("collector", "mask")`, bool, is True
        where there is a frame. New memory, on the batch's device. A trajectory that goes on in two rows of a batch (an
        env that spends a step on a reset has such rows) is one row of the result.
    """
    frames = batch.reshape(-1)
    _, lengths = torch.unique(frames[TRAJ_IDS], return_counts=True)
    # Sorting by id keeps the order of time within one.
    order = torch.argsort(frames[TRAJ_IDS], stable=True)
    return _rows(frames[order], lengths)


def mask(batch: TensorDict, steps: Sequence[int]) -> None:
    """Adds `("collector", "mask")` to a stacked batch, `[workers, ..., time]`, of whose parts so many steps are filled.
    What was not filled is zero, and of trajectory -1."""
    true = torch.zeros(batch.shape, dtype=torch.bool, device=batch.device)
    for part, filled, row in zip(batch.unbind(0), steps, true.unbind(0), strict=True):
        row[..., :filled] = True
        rest = part[..., filled:]
        rest.zero_()
        rest[TRAJ_IDS].fill_(-1)
    batch[MASK] = true


def _rows(frames: TensorDictBase, lengths: torch.Tensor) -> TensorDictBase:
    """Runs of so many frames, one after another in `frames`, as rows, padded."""
    longest = int(lengths.max())
    mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
    place = mask.reshape(-1).nonzero().squeeze(-1)
    size = (len(lengths), longest)

    def pad(leaf: torch.Tensor) -> torch.Tensor:
        rows = leaf.new_zeros((mask.numel(), *leaf.shape[1:]))
        rows[place] = leaf
        return rows.unflatten(0, size)

    split = frames.apply(pad, batch_size=size, names=[None, "time"])
    split[MASK] = mask
    return split


class Assembler:
    """Joins the frames of trajectories until they have ended.

    Args:
        trajs_per_batch, traj_format: see `conf/collector/multi_sync.yaml`.
        breaks_off: no trajectory goes on in the next batch.
    """

    def __init__(self, trajs_per_batch: int, traj_format: str, breaks_off: bool):
        self._count = trajs_per_batch
        self._format = traj_format
        self._breaks_off = breaks_off
        self.forget()

    def forget(self) -> None:
        """Drops all frames."""
        self._under_way: dict[int, list[TensorDictBase]] = {}
        self._whole: deque[TensorDictBase] = deque()

    def add(self, batch: TensorDictBase) -> None:
        """Takes a batch, `[*rows, time]`; copies its frames. Those of a trajectory come in order of time."""
        frames = batch.reshape(-1)
        ids, lengths = torch.unique(frames[TRAJ_IDS], return_counts=True)
        order = torch.argsort(frames[TRAJ_IDS], stable=True)
        for index, places in zip(ids.tolist(), order.split(lengths.tolist()), strict=True):
            if index < 0:
                continue  # where a stacked batch has no frame
            pieces = self._under_way.setdefault(index, [])
            pieces.append(frames[places])
            if pieces[-1]["next", "done"][-1].all():
                self._whole.append(torch.cat(self._under_way.pop(index)))
        if self._breaks_off:
            self._under_way.clear()

    def take(self) -> TensorDictBase | None:
        """`trajs_per_batch` trajectories, if so many have ended."""
        chosen = self._next(self._count)
        if chosen is None or self._format == "cat":
            return None if chosen is None else _joined(chosen)
        return _rows(_joined(chosen), torch.tensor([len(each) for each in chosen], device=chosen[0].device))

    def writes(self, count: int) -> Iterator[TensorDictBase]:
        """All that have ended, so many at once: `[time]`."""
        while chosen := self._next(count):
            yield _joined(chosen)

    def _next(self, count: int) -> list[TensorDictBase] | None:
        if len(self._whole) < count:
            return None
        return [self._whole.popleft() for _ in range(count)]


def _joined(trajectories: list[TensorDictBase]) -> TensorDictBase:
    joined: Any = torch.cat(trajectories)
    joined.names = ["time"]
    return joined
