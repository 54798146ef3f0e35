"""The shapes and devices of batches, who writes them, and the metadata of a delivered batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from collectx.batch import Key, to_tensordict
from collectx.config.derived import rows_per_env
from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.place import place_of
from collectx.transport.base import Arrival, SlotSpec
from collectx.worker.spec import ConfigOverrides


def part_shape(spec: EnvSpec, collector: CollectorConfig) -> tuple[int, ...]:
    """Returns the shape of one worker's part of a batch, without time: `()` for a single env, `(E,)` or the env's batch
    size for an env group of E envs, `(P * E,)` for a worker with P processes."""
    rows = rows_per_env(collector)
    return spec.policy_shape if rows == 1 else (rows * spec.num_envs,)


@dataclass(frozen=True)
class WrittenBatch:
    """A batch that its workers wrote to a replay buffer.

    Attributes:
        frames: number of frames in the batch.
    """

    frames: int


def workers_can_write(cfg: RunConfig, needs_batches: bool, is_ordered: bool = False) -> bool:
    """Whether the workers can write their batches to a shared replay buffer (`Hooks.write_batch`), in the order in
    which they are ready. With `overlap`, they would write while this process samples, so samples would depend on
    timing.

    Args:
        needs_batches: whether this process needs the batches too, or changes them.
        is_ordered: whether the buffer must contain the batches in the order that the seed or a record fixes, if one
            does.
    """
    options = cfg.collector
    if needs_batches or options.trajs_per_batch is not None or options.overlap:
        return False
    has_order = options.schedule != "async" or options.order_of is not None
    return place_of(cfg).shares_memory and not (is_ordered and has_order)


def workers_write(overrides: Sequence[ConfigOverrides]) -> bool:
    """Whether workers with these overrides write their batches themselves, so that `WrittenBatch`es are delivered."""
    return any(each.hooks.write_batch is not None for each in overrides)


@dataclass(frozen=True)
class BatchSpec:
    """The shapes and devices of batches, and who owns their memory.

    Attributes:
        slots: the layout of a slot, which contains one worker's part.
        shape: the shape of a part without time; see `part_shape`.
        nested_dims: additional batch dimensions of nested TensorDicts, by key.
        stacked: whether a batch stacks several parts, `[parts, *shape, steps]`; otherwise it is a single part,
            `[*shape, steps]`.
        total_frames: frames of the whole run; -1: no limit.
        check_finite: whether publishing weights that are not finite raises an error.
        zero_copy: whether a batch is valid only until the next one is requested; otherwise it is leased or copied
            (`collectx.transport.leases`).
        storing_device: the device of batches; None: the device of the transport's memory, and the TensorDicts name no
            device.
        is_written: whether the workers write batches to a replay buffer (`Hooks.write_batch`), and `WrittenBatch`es are
            delivered.
        num_envs: number of envs of the first workers, for the env of a trajectory id (`Episodes`); None: a user's
            collector numbers the trajectories.
        has_gaps: whether a part may end early, so that batches have a mask (`collectx.trajectories.add_mask`).
    """

    slots: SlotSpec
    shape: tuple[int, ...]
    nested_dims: Mapping[Key, tuple[int, ...]]
    stacked: bool
    total_frames: int
    check_finite: bool
    zero_copy: bool
    storing_device: torch.device | None
    is_written: bool = False
    num_envs: int | None = None
    has_gaps: bool = False

    def batch(self, memory: torch.Tensor, num_parts: int) -> TensorDict:
        """Returns a batch of `num_parts` parts that is a view of `memory`, uint8."""
        size = (*((num_parts,) if self.stacked else ()), *self.shape, self.slots.steps)
        tensors = self.slots.layout(num_parts).tensors(memory, size)
        return to_tensordict(tensors, size, self.storing_device, self.nested_dims)

    def zeros(self, num_parts: int) -> TensorDict:
        """Returns a batch of `num_parts` parts that contains zeros, in new memory."""
        return self.batch(torch.zeros(self.slots.layout(num_parts).nbytes, dtype=torch.uint8), num_parts)


@dataclass(frozen=True, slots=True, eq=False)
class BatchInfo:
    """The metadata of a delivered batch.

    Attributes:
        index: 0 for the first batch.
        parts: the arrival of each part, in the order of the batch.
        version: newest policy version at the time of delivery; `version - part.report.policy_version` is the lag of a
            part.
        waited_s: seconds for which `next()` blocked.
        settings: the settings version with which each part was collected (`collectx.collector.worker_record`); empty
            before the run's first setting.
        learners: with several learners, the seconds for which each waited for its workers, and for the others.
    """

    index: int
    frames: int
    parts: tuple[Arrival, ...]
    version: int
    waited_s: float
    settings: tuple[int, ...] = ()
    learners: tuple[tuple[float, float], ...] = ()
