"""Frames as Q-learning wants them, on their way to a replay buffer.

Used in the trainer's process, or, pickled, in the workers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from collectx.batch import Key
from collectx.replay import ReplayBuffer
from collectx.trainer.nstep import nstep


@dataclass(frozen=True)
class NstepFrames:
    """Writes what is learnt of batches to `buffer`."""

    buffer: ReplayBuffer
    observation_keys: Sequence[Key]
    gamma: float
    num_steps: int

    def extend(self, batch: TensorDict) -> torch.Tensor:
        """Takes a batch, `[..., time]`. See `ReplayBuffer.extend`."""
        return self.buffer.extend(self.learnt(batch))

    def learnt(self, batch: TensorDict) -> TensorDict:
        """Of each frame of a batch, `[rows, time]`: the observation, the action, and, of the `num_steps` frames from
        there on, the "return", the last "next", and the "discount" of its value, 0 where that frame terminated."""
        keys = self.observation_keys
        rows = batch.select("action", "next", *keys).reshape(-1, batch.batch_size[-1])
        reward, done, terminated = (rows["next", name].squeeze(-1) for name in ("reward", "done", "terminated"))
        total, discount, last = nstep(reward, done, self.gamma, self.num_steps)
        row = torch.arange(len(rows), device=last.device)[:, None]
        learnt = rows.select("action", *keys)
        learnt["return"] = total
        # A truncated frame's next observation is the true final one, and worth what it is worth.
        learnt["discount"] = discount * ~terminated[row, last]
        for key in keys:
            learnt["next", *key] = rows["next", *key][row, last]
        return learnt
