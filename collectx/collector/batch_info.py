"""The form of batches, and the metadata of a delivered batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from collectx.batch import Key, to_tensordict
from collectx.config.derived import rows_per_env
from collectx.config.schema.collector import CollectorConfig
from collectx.env.base import EnvSpec
from collectx.transport.base import Arrival, SlotSpec


def part_shape(spec: EnvSpec, collector: CollectorConfig) -> tuple[int, ...]:
    """Returns the env dimensions of one worker's part of a batch, without time: `[]` for a single env, `[E]` or the
    env's batch size for an env group, `[P * E]` for a worker with P processes."""
    rows = rows_per_env(collector)
    return spec.policy_shape if rows == 1 else (rows * spec.num_envs,)


@dataclass(frozen=True)
class WrittenBatch:
    """A batch that a worker wrote to a replay buffer.

    Attributes:
        frames: the number of its frames.
    """

    frames: int


@dataclass(frozen=True)
class DeliverySpec:
    """The form of batches.

    Attributes:
        slots: each contains one worker's part.
        shape: the env dimensions of a part; see `part_shape`.
        nested_dims: additional batch dimensions of nested TensorDicts, by key.
        stacked: whether a batch is a stack of parts, `[parts, *shape, steps]`, or a single part, `[*shape, steps]`.
        total_frames: frames of the complete run, or -1.
        zero_copy: whether batches are views of the transport's memory, valid until the next batch is requested.
        storing_device: the device of batches; None: the tensors stay where the transport's memory is, and TensorDicts
            name no device.
        is_written: whether the workers write batches to a replay buffer (`Hooks.write_batch`), so that only their
            number of frames is delivered.
    """

    slots: SlotSpec
    shape: tuple[int, ...]
    nested_dims: Mapping[Key, tuple[int, ...]]
    stacked: bool
    total_frames: int
    zero_copy: bool
    storing_device: torch.device | None
    is_written: bool = False

    def batch(self, memory: torch.Tensor, num_parts: int) -> TensorDict:
        """A batch of `num_parts` parts, as a view of `memory`."""
        size = (*((num_parts,) if self.stacked else ()), *self.shape, self.slots.steps)
        tensors = self.slots.layout(num_parts).tensors(memory, size)
        return to_tensordict(tensors, size, self.storing_device, self.nested_dims)

    def zeros(self, num_parts: int) -> TensorDict:
        """A batch of `num_parts` parts, of zeros."""
        return self.batch(torch.zeros(self.slots.layout(num_parts).nbytes, dtype=torch.uint8), num_parts)


@dataclass(frozen=True, slots=True, eq=False)
class BatchInfo:
    """One batch as it was delivered.

    Attributes:
        index: 0 for the first batch.
        frames: frames in the batch.
        parts: one per worker that contributed, in batch order.
        version: newest published policy version at the time of delivery; `version - part.report.policy_version` is the
            lag.
        waited_s: seconds for which `next()` blocked.
        settings: for each part, the settings version of its envs (`collectx.collector.settings`); empty before the
            first setting of the run.
    """

    index: int
    frames: int
    parts: tuple[Arrival, ...]
    version: int
    waited_s: float
    settings: tuple[int, ...] = ()
