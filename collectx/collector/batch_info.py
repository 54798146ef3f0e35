"""How batches are handed to the user, and what the trainer's process learns about each besides its tensors. Plain data;
the latter is made by workers and the collector, read by progress, metrics and the event log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from collectx.batch import Leaf


@dataclass(frozen=True)
class DeliverySpec:
    """How batches are handed to the user.

    Attributes:
        leaves: of one frame.
        rows, steps: of one worker's part.
        shape: of the rows in a batch: left out where there is one.
        stacked: whether a batch of several parts is `[parts, *shape, steps]`; otherwise it is one worker's
            `[*shape, steps]`.
        total_frames: frames of the whole run, or -1.
        zero_copy: whether batches are views of the transport's memory, valid until the next is asked for.
        storing_device: where batches go; None leaves them where they are, without a device.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    shape: tuple[int, ...]
    steps: int
    stacked: bool
    total_frames: int
    zero_copy: bool
    storing_device: torch.device | None

    def batch_size(self, num_parts: int) -> tuple[int, ...]:
        """Of a batch of so many parts."""
        parts = (num_parts,) if self.stacked else ()
        return (*parts, *self.shape, self.steps)


@dataclass(frozen=True, slots=True)
class Timings:
    """Where one worker's time for one batch went, in seconds: stepping envs, calling the policy, waiting for a slot to
    become free, handing over (and taking new weights)."""

    env_s: float
    policy_s: float
    wait_s: float
    send_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One worker's share of a delivered batch.

    Attributes:
        worker: index of the worker.
        policy_version: version of the weights that acted first.
        frames: frames of this part.
        timings: see `Timings`.
        returns, lengths: float64 and int64, `[episodes]`: undiscounted return and frames of each episode that ended in
            this part, in order of time.
    """

    worker: int
    policy_version: int
    frames: int
    timings: Timings
    returns: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One batch as it was delivered.

    Attributes:
        index: 0 for the first batch.
        frames: frames in the batch.
        parts: one per worker that contributed, in batch order.
        version: newest published policy version at the time of delivery; `version - part.policy_version` is the lag.
        waited_s: how long `next()` blocked.
    """

    index: int
    frames: int
    parts: tuple[Part, ...]
    version: int
    waited_s: float
