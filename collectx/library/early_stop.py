"""Batches that end before they have all their frames: the keywords for them.

Called in the trainer's process, by `collectx.library.keywords`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Early:
    """When a batch ends before it has all its frames: never."""

    @property
    def asked(self) -> Callable[[], bool] | None:
        """Called after every step, whether the batch is to end."""
        return None

    @property
    def threshold(self) -> float | None:
        """The share of the workers for which a batch waits."""
        return None

    def problems(self, kind: str, output: Any) -> list[str]:
        """What is wrong.

        Args:
            kind: of the collector.
            output: a `collectx.library.keywords.BatchOutput`.
        """
        return []


@dataclass(frozen=True)
class Interrupted(Early):
    """`Early` of a collector in this process.

    Args:
        interruptor: its `collection_stopped()` is called after every step; where it says True, the batch is delivered
            with the frames that it has.
    """

    interruptor: Any = None

    @property
    def asked(self) -> Callable[[], bool] | None:
        """See `Early`."""
        return None if self.interruptor is None else self.interruptor.collection_stopped

    def problems(self, kind: str, output: Any) -> list[str]:
        """See `Early`."""
        if self.interruptor is None:
            return []
        found = []
        if not callable(getattr(self.interruptor, "collection_stopped", None)):
            found.append(f"interruptor={type(self.interruptor).__name__}: has no `collection_stopped`.")
        if output.return_same_td:
            found.append("return_same_td=True with an interruptor: its batches have different numbers of frames.")
        return found


@dataclass(frozen=True)
class Preempted(Early):
    """`Early` of a collector with workers on this machine.

    Args:
        preemptive_threshold: of a sync collector: once this share of the workers, 0 to 1, has finished, the others end
            their parts with the frames that they have, at least one step. With `cat_results=-1` a batch then has fewer
            frames; stacked it has `("collector", "mask")`, and zeros and -1 as `traj_ids` where there is no frame.
    """

    preemptive_threshold: float | None = None

    @property
    def threshold(self) -> float | None:
        """See `Early`."""
        return self.preemptive_threshold

    def problems(self, kind: str, output: Any) -> list[str]:
        """See `Early`."""
        share = self.preemptive_threshold
        if share is None:
            return []
        found = []
        if kind != "multi_sync":
            found.append(f"preemptive_threshold={share}: an async batch comes from one worker, and waits for no other.")
        if not 0 <= share <= 1:
            found.append(f"preemptive_threshold={share}: must be from 0 to 1, a share of the workers.")
        if output.return_same_td and output.is_concatenated:
            found.append(f"return_same_td=True with preemptive_threshold={share}: use cat_results='stack'.")
        wanted = {
            "split_trajs": output.split_trajs,
            "replay_buffer": output.replay_buffer is not None,
        }
        return found + [
            f"{name} with preemptive_threshold={share}: a stacked batch has places without a frame: use cat_results=-1."
            for name, is_wanted in wanted.items()
            if is_wanted and not output.is_concatenated
        ]
