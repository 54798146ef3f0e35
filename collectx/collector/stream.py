"""The batches of a collector as its consumer gets them: the trainer of a run, or the user of a Python collector.

Either the workers that collected the batches write them to a replay buffer, or the process that gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import POLICY_VERSION, SETTINGS_VERSION
from collectx.collector.batch_info import WrittenBatch
from collectx.collector.collector import CollectorCore
from collectx.collector.saved_state import StreamState
from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.run import RunConfig
from collectx.place import place_of
from collectx.trajectories import Assembler, add_mask
from collectx.worker.spec import ConfigOverrides


class Stream:
    """Takes batches from the collector `core`, and joins them to complete trajectories with
    `collector.trajs_per_batch`.

    Args:
        say, post_traj: see `collectx.trajectories.Assembler`.
        prefix: text before option names in the messages of `say`.
        is_concatenated: whether the parts of a batch are joined without missing frames, so that batches need no mask.

    Attributes:
        assembler: joins frames to trajectories; None without `collector.trajs_per_batch`.
        version_offset: added to the policy versions in batches, to continue those of a loaded state.
    """

    def __init__(
        self,
        core: CollectorCore,
        options: CollectorConfig,
        say: Callable[[str], object] = lambda text: None,
        prefix: str = "",
        post_traj: Callable[[TensorDictBase], TensorDictBase | None] | None = None,
        is_concatenated: bool = False,
    ):
        self.core = core
        self.version_offset = 0
        self._has_gaps = options.preemptive_threshold is not None and not is_concatenated
        self.assembler: Assembler | None = None
        if (count := options.trajs_per_batch) is not None:
            ends_with_batch = options.reset_at_each_iter
            self.assembler = Assembler(count, options.traj_format, ends_with_batch, post_traj, say, prefix, core.env_of)

    def collect(self) -> TensorDict | WrittenBatch:
        """Returns the next batch of the collector, with mask and settings versions if it needs them. Blocks and raises
        like `CollectorCore.__next__`."""
        batch = next(self.core)
        if not isinstance(batch, WrittenBatch):
            if self.version_offset:
                batch[POLICY_VERSION].add_(self.version_offset)
            if settings := self.core.last_batch_info.settings:
                versions = torch.tensor(settings, device=batch.device).view(-1, *[1] * (batch.ndim - 1))
                batch[SETTINGS_VERSION] = versions.expand(batch.shape).clone()
            if self._has_gaps:
                add_mask(batch, self.core.filled_steps)
        return batch

    def mark_gaps(self, batch: TensorDict, steps: Sequence[int]) -> None:
        """Adds a mask to a batch if frames may be missing; see `collectx.trajectories.add_mask`."""
        if self._has_gaps:
            add_mask(batch, steps)

    def next(self, collect: Callable[[], Any]) -> Any:
        """Returns the consumer's next batch, or its next batch of trajectories. `collect` returns a batch of
        `Stream.collect`, which it may convert."""
        if self.assembler is None:
            return collect()
        while (trajectories := self.assembler.take()) is None:
            self.assembler.add(collect())
        return trajectories

    def forget(self) -> None:
        """Drops the collected frames of trajectories that are not delivered yet."""
        if self.assembler is not None:
            self.assembler.forget()

    @property
    def policy_version(self) -> int:
        """The version of the newest published weights, as batches name it."""
        return self.core.policy_version + self.version_offset

    def state(self, wait_for_workers: bool = True) -> StreamState:
        """Returns the state for `load`; see `CollectorCore.state`."""
        assembler = None if self.assembler is None else self.assembler.state()
        return {"collector": self.core.state(wait_for_workers), "assembler": assembler}

    def load(self, state: StreamState, seed: int) -> dict[int, str]:
        reasons = self.core.load(state["collector"], seed)
        if self.assembler is not None and state["assembler"] is not None:
            self.assembler.load(state["assembler"])
        return reasons


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
