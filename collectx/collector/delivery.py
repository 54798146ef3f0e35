"""What the trainer's process learns about a batch besides its tensors. Plain data, made by workers and the collector,
read by progress, metrics and the event log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
