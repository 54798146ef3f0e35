"""Converts batches to the form that the user asked for, and writes them to a replay buffer. Used by `base.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from collectx.batch import POLICY_VERSION, TRAJ_IDS
from collectx.collector.trajectories import mask, split_trajectories
from collectx.replay.buffer import ReplayBuffer


@dataclass(frozen=True)
class BatchOutput:
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
            are not. A reward that is NaN is always an error.
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
        """Returns the problems of these values."""
        problems = []
        if self.cat_results not in (None, "stack") and not isinstance(self.cat_results, int):
            problems.append(f"cat_results={self.cat_results!r}: must be 'stack' or a dimension, as 0 or -1.")
        if self.split_trajs and not self.track_traj_ids:
            problems.append("split_trajs=True with track_traj_ids=False: trajectories are distinguished by their ids.")
        if self.postproc is not None and not callable(self.postproc):
            problems.append(f"postproc={self.postproc!r}: must be callable.")
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            problems.append(f"replay_buffer={type(self.replay_buffer).__name__}: has no `extend`.")
        elif not self.extend_buffer and not hasattr(self.replay_buffer, "add"):
            name = type(self.replay_buffer).__name__
            problems.append(
                f"extend_buffer={self.extend_buffer}: replay_buffer={name} has no `add`, which writes single frames."
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

    def deliver(self, batch: TensorDict, stacked: bool, steps: Sequence[int], masked: bool = False) -> Any:
        """Returns the batch in the form that the user asked for.

        Args:
            stacked: whether the first dimension of the batch is that of the workers.
            steps: for each part, how many steps are filled.
            masked: whether to add `("collector", "mask")` to a batch of stacked parts.
        """
        if not stacked and steps[0] < batch.shape[-1]:
            batch = batch[..., : steps[0]]
        if stacked and masked and not self.is_concatenated:
            mask(batch, steps)
        if self.track_policy_version:
            versions = batch[POLICY_VERSION]
            batch["policy_version"] = versions
            batch["next", "policy_version"] = versions.clone()
        if not self.track_traj_ids:
            del batch[TRAJ_IDS]
        if stacked and isinstance(self.cat_results, int):
            parts = zip(batch.unbind(0), steps, strict=True)
            batch = torch.cat([part[..., :filled] for part, filled in parts], self.cat_results)
        result: Any = split_trajectories(batch) if self.split_trajs else batch
        return result if self.postproc is None else self.postproc(result)

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are concatenated, not stacked."""
        return isinstance(self.cat_results, int)

    def write(self, batch: TensorDict, stacked: bool, steps: Sequence[int]) -> None:
        """Writes a batch to the replay buffer, part by part. As with TorchRL, an item is one frame; with several envs
        per worker, it is a row of frames.

        Args:
            stacked, steps: see `deliver`.
        """
        parts = batch.unbind(0) if stacked else (batch,)
        for part, filled in zip(parts, steps, strict=True):
            delivered = self.deliver(part, False, [filled])
            if self.extend_buffer:
                self.replay_buffer.extend(delivered)
                continue
            for step in delivered.unbind(-1):
                self.replay_buffer.add(step)
