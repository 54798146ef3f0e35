"""How batches are handed over: to the user, or to a replay buffer."""

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
    """How batches are handed over.

    Args:
        split_trajs: a batch is `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch, in this process; what it returns is delivered. Where it changes how many
            frames there are, `total_frames` still counts what was collected.
        cat_results: of a sync collector: None or "stack": the parts of its workers are `[workers, ...]`; 0, -1, ...:
            they are concatenated along that dimension of a part.
        return_same_td: every batch is the same TensorDict with new values, where it has the shape of the one before.
        zero_copy: batches are views of the transport's memory, valid until the next is asked for.
        track_traj_ids: whether batches have `("collector", "traj_ids")`.
        track_policy_version: batches have `policy_version` and `("next", "policy_version")`, as TorchRL's, beside
            `("collector", "policy_version")`, which they always have.
        replay_buffer: batches go there, by its `extend`, of a sync collector part by part, and iteration gives None in
            their place. See `start`. Workers of this machine write to a `collectx.ReplayBuffer` themselves, in the
            order in which they are ready, unless batches are to be changed before (`postproc`, `track_...`,
            `extend_buffer`). `split_trajs` goes with buffers of whole rows alone.
        extend_buffer: False: the frames go there step by step, by `add`; where there are several envs, one of each.
        use_buffers: is not looked at: batches are always written into memory that is allocated once.
        compact_obs: batches have no observation below `next`, which is the next frame's where a trajectory goes on.
        check_finite: NaN or an infinity in an observation or a reward raises `ShapeError`, which names worker, env, key
            and step. Every batch is checked once, in its worker; batches of a `collector_class` of your own are not.
            A reward that is NaN is always an error.
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
        """What is wrong."""
        found = []
        if self.cat_results not in (None, "stack") and not isinstance(self.cat_results, int):
            found.append(f"cat_results={self.cat_results!r}: must be 'stack' or a dimension, as 0 or -1.")
        if self.split_trajs and not self.track_traj_ids:
            found.append("split_trajs=True with track_traj_ids=False: trajectories are known by their ids.")
        if self.postproc is not None and not callable(self.postproc):
            found.append(f"postproc={self.postproc!r} cannot be called.")
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            found.append(f"replay_buffer={type(self.replay_buffer).__name__}: has no `extend`.")
        elif not self.extend_buffer and not hasattr(self.replay_buffer, "add"):
            name = type(self.replay_buffer).__name__
            found.append(f"extend_buffer={self.extend_buffer}: replay_buffer={name} has no `add`, frame by frame.")
        if self.split_trajs and (isinstance(self.replay_buffer, ReplayBuffer) or not self.extend_buffer):
            found.append(
                "split_trajs=True with a replay buffer of frames: padding is none: leave it out; SliceSampler draws "
                "within trajectories."
            )
        return found

    @property
    def shared_buffer(self) -> ReplayBuffer | None:
        """The replay buffer, if workers may write their batches there as they are."""
        changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        shared = isinstance(self.replay_buffer, ReplayBuffer) and self.extend_buffer and not changed
        return self.replay_buffer if shared else None

    def deliver(self, batch: TensorDict, stacked: bool, steps: Sequence[int], masked: bool = False) -> Any:
        """The batch as it is wanted.

        Args:
            stacked: whether its first dimension is that of the workers.
            steps: how many of each part are filled.
            masked: whether to add `("collector", "mask")` where parts are stacked.
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
        handed: Any = split_trajectories(batch) if self.split_trajs else batch
        return handed if self.postproc is None else self.postproc(handed)

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are put one after the other."""
        return isinstance(self.cat_results, int)

    def write(self, batch: TensorDict, stacked: bool, steps: Sequence[int]) -> None:
        """Puts a batch into the replay buffer, the part of each worker by itself, so that an item is a frame (with
        several envs in a worker, a row of frames), as where TorchRL's workers write.

        Args:
            stacked, steps: see `deliver`.
        """
        parts = batch.unbind(0) if stacked else (batch,)
        for part, filled in zip(parts, steps, strict=True):
            handed = self.deliver(part, False, [filled])
            if self.extend_buffer:
                self.replay_buffer.extend(handed)
                continue
            for step in handed.unbind(-1):
                self.replay_buffer.add(step)
