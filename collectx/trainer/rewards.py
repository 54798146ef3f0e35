"""`trainer.normalize_rewards`: scales rewards to about the same size in every env, for the critic and its learning
rate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from collectx.policy.normalize import Moments
from collectx.trainer.returns import discounted_sum

# A trajectory whose end never arrives, such as that of a lost worker, is dropped after this number of others.
_MOST_TRAJECTORIES = 2**16


class RewardScale:
    """Divides rewards by a standard deviation, as Gymnasium's `NormalizeReward` does.

    The sum of a frame is its reward, plus `gamma` times the sum of the frame before it in the episode. Rewards are
    divided by the standard deviation of the sums of all frames up to and including their batch. Computes on the CPU, so
    that every device gives the same scale."""

    def __init__(self, gamma: float):
        self._gamma = gamma
        self._moments = Moments(1)
        # The sum of the newest frame of each unfinished trajectory, by id; the one with the oldest frame is first.
        self._sums: dict[int, float] = {}

    def __call__(self, reward: torch.Tensor, done: torch.Tensor, traj_ids: torch.Tensor) -> torch.Tensor:
        """Adds the frames of a batch to the statistics. Returns its scaled rewards, a new tensor `[R, T]` on their
        device.

        Args:
            reward, done: `[R, T]` float32 and bool; the last frame of a row may belong to an unfinished trajectory.
            traj_ids: `[R, T]` int64; the rows of a later batch may continue any trajectory.
        """
        sums, ids = reward.to("cpu", torch.float64, copy=True), traj_ids.cpu()
        before = [self._sums.pop(each, 0.0) for each in ids[:, 0].tolist()]
        sums[:, 0] += self._gamma * torch.tensor(before, dtype=torch.float64)
        carry = F.pad(self._gamma * (ids[:, 1:] == ids[:, :-1]).double(), (1, 0))
        sums = discounted_sum(sums.flip(1), carry.flip(1)).flip(1)
        last = zip(ids[:, -1].tolist(), sums[:, -1].tolist(), done[:, -1].tolist(), strict=True)
        self._sums |= {each: total for each, total, is_done in last if not is_done}
        for each in list(self._sums)[:-_MOST_TRAJECTORIES]:
            del self._sums[each]
        self._moments.add(sums.reshape(-1, 1))
        return reward * self._moments.scale().item()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data only."""
        return {"moments": self._moments.state_dict(), "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state["moments"])
        self._sums = dict(state["sums"])
