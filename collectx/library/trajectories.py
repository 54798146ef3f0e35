"""Batches by trajectory. Used by the trainer's process, on what a collector has delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

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


@dataclass(frozen=True)
class Assembly:
    """Batches of whole trajectories, whose frames come in several batches.

    Args:
        trajs_per_batch: every batch has so many trajectories that have ended, those of an earlier batch first; at the
            end of the run those that are left are dropped. With a replay buffer they go there, one after another. None:
            batches are of `frames_per_batch` frames.
        trajs_per_write: so many go to the replay buffer at once; None: 1.
        traj_format: "padded" or None: `[trajectories, longest]`, as `split_trajs` makes them; "cat": `[time]`, one
            trajectory after another.
    """

    trajs_per_batch: int | None = None
    trajs_per_write: int | None = None
    traj_format: str | None = None

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        for name in ("trajs_per_batch", "trajs_per_write"):
            value = getattr(self, name)
            if value is not None and value < 1:
                found.append(f"{name}={value}: must be at least 1.")
        if self.traj_format not in (None, "padded", "cat"):
            found.append(f"traj_format={self.traj_format!r}: must be 'padded' or 'cat'.")
        if self.trajs_per_batch is None:
            found += [
                f"{name}={getattr(self, name)!r} without trajs_per_batch: give it how many trajectories a batch has."
                for name in ("trajs_per_write", "traj_format")
                if getattr(self, name) is not None
            ]
        return found


class Assembler:
    """Joins the frames of trajectories until they have ended.

    Args:
        breaks_off: no trajectory goes on in the next batch.
    """

    def __init__(self, want: Assembly, breaks_off: bool):
        self._want = want
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
        chosen = self._next(self._want.trajs_per_batch or 1)
        if chosen is None or self._want.traj_format == "cat":
            return None if chosen is None else _joined(chosen)
        return _rows(_joined(chosen), torch.tensor([len(each) for each in chosen], device=chosen[0].device))

    def writes(self) -> Iterator[TensorDictBase]:
        """All that have ended, `trajs_per_write` at once: `[time]`."""
        while chosen := self._next(self._want.trajs_per_write or 1):
            yield _joined(chosen)

    def _next(self, count: int) -> list[TensorDictBase] | None:
        if len(self._whole) < count:
            return None
        return [self._whole.popleft() for _ in range(count)]


def _joined(trajectories: list[TensorDictBase]) -> TensorDictBase:
    joined: Any = torch.cat(trajectories)
    joined.names = ["time"]
    return joined
