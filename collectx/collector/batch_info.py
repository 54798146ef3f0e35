"""The form of batches, and the metadata of a delivered batch: worker, policy version, timings, returns.

Made by the collector; read by progress, metrics and the event log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDict

from collectx.batch import Layout, Leaf, to_tensordict
from collectx.transport.base import Arrival


@dataclass(frozen=True)
class DeliverySpec:
    """The form of batches.

    Attributes:
        leaves: of one frame.
        rows, steps: of one worker's part.
        shape: of the rows in a batch; empty for one row.
        stacked: whether a batch of several parts is `[parts, *shape, steps]`; otherwise it is one part, `[*shape,
            steps]`.
        total_frames: frames of the whole run, or -1.
        zero_copy: whether batches are views of the transport's memory, valid until the next batch is requested.
        storing_device: the device of batches; None: as the transport's memory, and batches have no device.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    shape: tuple[int, ...]
    steps: int
    stacked: bool
    total_frames: int
    zero_copy: bool
    storing_device: torch.device | None
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    def layout(self, num_parts: int) -> Layout:
        """The layout of a batch of `num_parts` parts."""
        if num_parts not in self._layouts:
            self._layouts[num_parts] = Layout(self.leaves, self.rows * num_parts, self.steps)
        return self._layouts[num_parts]

    def batch(self, memory: torch.Tensor, num_parts: int) -> TensorDict:
        """A batch of `num_parts` parts over its bytes."""
        size = (*((num_parts,) if self.stacked else ()), *self.shape, self.steps)
        return to_tensordict(self.layout(num_parts).tensors(memory, size), size, self.storing_device)


@dataclass(frozen=True, slots=True)
class Timings:
    """The seconds that a worker reports with a batch.

    Attributes:
        env_s, policy_s: stepping envs and calling the policy.
        wait_s: waiting for the grant.
        send_s: sending the previous batch, and taking new weights for this one.
    """

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

    @classmethod
    def of(
        cls, arrivals: tuple[Arrival, ...], spec: DeliverySpec, index: int, version: int, waited_s: float
    ) -> Delivery:
        """The metadata of a batch of these parts."""
        parts = tuple(
            Part(
                arrival.worker,
                report.policy_version,
                spec.rows * (spec.steps if report.steps is None else report.steps),
                Timings(report.env_s, report.policy_s, report.wait_s, report.send_s),
                report.returns,
                report.lengths,
            )
            for arrival in arrivals
            for report in (arrival.report,)
        )
        return cls(index, sum(part.frames for part in parts), parts, version, waited_s)
