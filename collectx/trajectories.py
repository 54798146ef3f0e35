"""Batches by trajectory. Used by the trainer's process, on what a collector has delivered."""

from __future__ import annotations

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
    ids, lengths = torch.unique(frames[TRAJ_IDS], return_counts=True)
    # Sorting by id keeps the order of time within one.
    order = torch.argsort(frames[TRAJ_IDS], stable=True)
    longest = int(lengths.max())
    mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
    place = mask.reshape(-1).nonzero().squeeze(-1)
    size = (len(ids), longest)

    def pad(leaf: torch.Tensor) -> torch.Tensor:
        rows = leaf.new_zeros((mask.numel(), *leaf.shape[1:]))
        rows[place] = leaf[order]
        return rows.unflatten(0, size)

    split = frames.apply(pad, batch_size=size, names=[None, "time"])
    split[MASK] = mask
    return split
