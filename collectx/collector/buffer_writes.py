"""Who writes batches to a replay buffer: the workers that collected them, or the process that gets them."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.config.schema.run import RunConfig
from collectx.place import place_of
from collectx.worker.spec import ConfigOverrides


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
