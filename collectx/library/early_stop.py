"""The keywords about batches that end before they have all their frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectx.library.keywords.options import option
from collectx.library.output import BatchOutput


@dataclass(frozen=True)
class EarlyStop:
    """Every batch has all its frames."""

    @property
    def should_end(self) -> Callable[[], bool] | None:
        """Called after every step; True ends the batch."""
        return None

    @property
    def threshold(self) -> float | None:
        """The share of the workers that a batch waits for."""
        return None

    def problems(self, output: BatchOutput) -> list[str]:
        """What is wrong."""
        return []


@dataclass(frozen=True)
class InterruptorKeywords(EarlyStop):
    """`EarlyStop` of a collector in this process.

    Args:
        interruptor: its `collection_stopped()` is called after every step; True ends the batch with the frames that it
            has.
    """

    interruptor: Any = None

    @property
    def should_end(self) -> Callable[[], bool] | None:
        """See `EarlyStop`."""
        return None if self.interruptor is None else self.interruptor.collection_stopped

    def problems(self, output: BatchOutput) -> list[str]:
        """See `EarlyStop`."""
        if self.interruptor is None:
            return []
        problems = []
        if not callable(getattr(self.interruptor, "collection_stopped", None)):
            problems.append(f"interruptor={type(self.interruptor).__name__}: has no `collection_stopped`.")
        if output.return_same_td:
            problems.append("return_same_td=True with an interruptor: its batches have different numbers of frames.")
        return problems


@dataclass(frozen=True)
class PreemptionKeywords(EarlyStop):
    """`EarlyStop` of a collector with workers on this machine.

    Args:
        preemptive_threshold: for a sync collector: once this share of the workers, 0 to 1, has finished its part, the
            others end theirs with the frames that they have, at least one step. With `cat_results=-1` a batch then has
            fewer frames; a stacked one has `("collector", "mask")`, and zeros and -1 as `traj_ids` in empty places.
    """

    preemptive_threshold: float | None = option("collector.preemptive_threshold", None)

    @property
    def threshold(self) -> float | None:
        """See `EarlyStop`."""
        return self.preemptive_threshold

    def problems(self, output: BatchOutput) -> list[str]:
        """See `EarlyStop`."""
        share = self.preemptive_threshold
        if share is None:
            return []
        if output.is_concatenated:
            if output.return_same_td:
                return [f"return_same_td=True with preemptive_threshold={share}: use cat_results='stack'."]
            return []
        has_keyword = {"split_trajs": output.split_trajs, "replay_buffer": output.replay_buffer is not None}
        return [
            f"{name} with preemptive_threshold={share}: a stacked batch has places without a frame: use cat_results=-1."
            for name, is_set in has_keyword.items()
            if is_set
        ]
