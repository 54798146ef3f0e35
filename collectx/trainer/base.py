"""What a trainer sees. It must not know transports, workers or processes.

A trainer is anything with `train(collection)`; see `meter.py` for the smallest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tensordict import TensorDict
from torch import nn


class Collection(Protocol):
    """Batches in, weights out.

    Attributes:
        total_frames: frames that the whole run will deliver, or -1 for an endless one.
        frames: frames delivered so far, the current batch included.
        mean_return: mean undiscounted return of the last 100 finished episodes; nan before the first one ends.
        num_episodes: episodes finished so far.
    """

    total_frames: int
    frames: int
    mean_return: float
    num_episodes: int

    def __iter__(self) -> Iterator[TensorDict | None]:
        """Yields batches (see `collectx/batch.py`) until `total_frames` are delivered. Each batch is the trainer's own
        memory unless `collector.zero_copy=true`, when it is valid until the next one is asked for. None where the
        workers have written it to the trainer's `shared_replay`."""

    def publish(self, policy: nn.Module) -> int:
        """Hands the policy's present weights to the workers and returns their version. Copies them before it returns,
        so the module may be changed at once. Sync workers act with them from the next batch on."""

    def log(self, **scalars: float) -> None:
        """Adds scalars to the line that metrics.jsonl gets for the current batch, and to the progress display."""


class Trainer(Protocol):
    """Consumes a collection: returns when it is exhausted, or earlier to end the run (status completed).

    A trainer may have the attribute `shared_replay`: a `collectx.ReplayBuffer`, or a picklable object whose
    `extend(batch)` writes to one. Async workers of this machine then write their batches there, `[envs, time]`, in the
    order in which they are ready, unless batches are digested, or made of whole trajectories.
    """

    def train(self, collection: Collection) -> None: ...

    def state_dict(self) -> dict:
        """Everything needed to go on later: tensors and plain data only."""
