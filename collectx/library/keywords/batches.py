"""Keywords about the form of batches, trajectories, and batches that end early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectx.library.keywords.options import limited, option
from collectx.library.keywords.specs import Keywords
from collectx.replay.buffer import ReplayBuffer


@dataclass(frozen=True, kw_only=True)
class BatchOutput(Keywords):
    """The keywords that say in which form batches are delivered.

    Args:
        split_trajs: whether batches are `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch in this process; its result is delivered. `total_frames` counts the frames
            before it.
        cat_results: for a sync collector. None or "stack": the parts of its workers are stacked, `[workers, ...]`. An
            int: the parts are concatenated along that dimension.
        return_same_td: whether every batch is the same TensorDict with new values, as long as the shape is the same.
        zero_copy: whether batches are views of the transport's memory, valid until the next one is requested.
        track_traj_ids: whether batches have `("collector", "traj_ids")`.
        track_policy_version: whether batches have TorchRL's `policy_version` and `("next", "policy_version")`, besides
            `("collector", "policy_version")`, which they always have.
        replay_buffer: batches are written to it by its `extend`, for a sync collector part by part, and iteration
            returns None. See `start`. Workers of this machine write to a `collectx.ReplayBuffer` themselves, in the
            order in which they are ready, unless batches must be changed first (`postproc`, `track_...`,
            `extend_buffer`). `split_trajs` needs a buffer that stores trajectories.
        extend_buffer: False: the frames are written step by step, by `add`; with several envs, one of each at once.
        use_buffers: ignored (accepted for TorchRL compatibility): batches are written into memory allocated once.
        compact_obs: whether to leave out the observation below `next`, which within a trajectory is that of the next
            frame.
        check_finite: whether NaN or an infinity in an observation or a reward raises `ShapeError`, which names worker,
            env, key and step. Every batch is checked once, in its worker; batches of a user-defined `collector_class`
            are not. With False such values are delivered; returns in statistics leave out such rewards.
    """

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = False
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = None
    compact_obs: bool = False
    check_finite: bool = True

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.cat_results not in (None, "stack") and not isinstance(self.cat_results, int):
            problems.append(f"cat_results={self.cat_results!r}: must be 'stack' or a dimension, as 0 or -1.")
        if self.split_trajs and not self.track_traj_ids:
            problems.append("split_trajs=True with track_traj_ids=False: trajectories are distinguished by their ids.")
        if self.postproc is not None and not callable(self.postproc):
            problems.append(f"postproc={self.postproc!r}: must be callable.")
        buffer = type(self.replay_buffer).__name__
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            problems.append(f"replay_buffer={buffer}: has no `extend`.")
        elif not self.extend_buffer and not hasattr(self.replay_buffer, "add"):
            problems.append(
                f"extend_buffer={self.extend_buffer}: replay_buffer={buffer} has no `add`, which writes single frames."
            )
        if self.split_trajs and (isinstance(self.replay_buffer, ReplayBuffer) or not self.extend_buffer):
            problems.append(
                "split_trajs=True with a replay buffer of frames: padding would be stored as frames: remove "
                "split_trajs. SliceSampler samples within trajectories."
            )
        return problems

    @property
    def shared_buffer(self) -> ReplayBuffer | None:
        """The replay buffer, if workers may write to it themselves, because batches are stored unchanged."""
        is_changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        is_shared = isinstance(self.replay_buffer, ReplayBuffer) and self.extend_buffer and not is_changed
        return self.replay_buffer if is_shared else None

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are concatenated, not stacked."""
        return isinstance(self.cat_results, int)


@dataclass(frozen=True, kw_only=True)
class Assembly(Keywords):
    """The keywords about batches of complete trajectories.

    Args:
        trajs_per_batch: number of trajectories of a batch, in the order in which they ended; those left at the end of
            the run are dropped. With a replay buffer they are written there as soon as they end. None: batches have
            `frames_per_batch` frames.
        trajs_per_write: maximal number of trajectories that one write to the replay buffer has; None: no maximum.
        traj_format: "padded" or None: `[trajectories, longest]`, as with `split_trajs`; "cat": `[time]`, trajectories
            concatenated.
    """

    trajs_per_batch: int | None = option("collector.trajs_per_batch", None)
    trajs_per_write: int | None = limited(None, minimum=1)
    traj_format: str | None = option("collector.traj_format", None)

    def problems(self) -> list[str]:
        return super().problems() + [
            f"{name}={getattr(self, name)!r} without trajs_per_batch: give the number of trajectories of a batch."
            for name in ("trajs_per_write", "traj_format")
            if self.trajs_per_batch is None and getattr(self, name) is not None
        ]


@dataclass(frozen=True, kw_only=True)
class Interruptor(Keywords):
    """Ends a batch early in this process.

    Args:
        interruptor: its `collection_stopped()` is called after every step; True ends the batch with the frames that it
            has.
    """

    interruptor: Any = None

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.interruptor is not None and not callable(getattr(self.interruptor, "collection_stopped", None)):
            problems.append(f"interruptor={type(self.interruptor).__name__}: has no `collection_stopped`.")
        return problems


@dataclass(frozen=True, kw_only=True)
class Preemption(Keywords):
    """Ends a batch early in workers of this machine.

    Args:
        preemptive_threshold: for a sync collector: once this share of the workers, 0 to 1, has finished its part, the
            others end theirs with the frames that they have, at least one step. With `cat_results=-1` a batch then has
            fewer frames; a stacked one has `("collector", "mask")`, and zeros and -1 as `traj_ids` in empty places.
    """

    preemptive_threshold: float | None = option("collector.preemptive_threshold", None)
