"""Estimators of returns and advantages: functions of `[R, T]` tensors, with R independent rows of T consecutive
frames.

`trainer.normalize_rewards`: scales rewards to about the same size in every env, for the critic and its learning
rate.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from collectx.policy.normalize import Moments
from collectx.trainer.learners import ALONE, Learners


def gae(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Returns advantages `[R, T]` by generalised advantage estimation (Schulman et al. 2016, "High-Dimensional
    Continuous Control Using GAE").

    Args:
        reward, value, next_value: `[R, T]` float32; `next_value` is 0 where the frame terminated.
        done: `[R, T]` bool, True for the last frame of an episode, after which the sum does not continue.
    """
    delta = reward + gamma * next_value - value
    return discounted_sum(delta, (gamma * gae_lambda) * (~done))


def discounted_sum(term: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    """Returns `x[t] = term[t] + carry[t] * x[t + 1]`, with `x[T] = 0`, along the last dimension of `[R, T]`.

    Uses a parallel scan of log2(T) passes (Hillis & Steele 1986), because a loop over time launches several kernels per
    step. A quotient of cumulative products is impossible, as `carry` is 0 at the ends of episodes.
    """
    total, factor = term.clone(), carry.to(term.dtype)
    span = 1
    while span < term.shape[-1]:
        head = total[..., :-span] + factor[..., :-span] * total[..., span:]
        total = torch.cat((head, total[..., -span:]), -1)
        # Nothing is carried from beyond the last frame.
        factor = torch.cat((factor[..., :-span] * factor[..., span:], torch.zeros_like(factor[..., -span:])), -1)
        span *= 2
    return total


def vtrace(
    log_ratio: torch.Tensor,
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns V-trace value targets `v` and policy-gradient advantages, both `[R, T]` (Espeholt et al. 2018, "IMPALA",
    section 4.1). They correct for workers whose weights are older than the learner's. Call it without gradients.

    `v[t] = V[t] + delta[t] + gamma c[t] (v[t+1] - V[t+1])` with `delta[t] = rho[t] (r[t] + gamma V[t+1] - V[t])`; the
    advantage is `rho[t] (r[t] + gamma v[t+1] - V[t])`.

    Args:
        log_ratio: log pi(a|x) - log mu(a|x), `[R, T]`, of the learner's policy pi and the worker's mu.
        reward, value, next_value, done: as for `gae`.
        rho_clip, c_clip: maximum importance weights of the target and of the trace.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), ratio.clamp(max=c_clip)
    delta = rho * (reward + gamma * next_value - value)
    correction = discounted_sum(delta, gamma * c * (~done))
    target = value + correction
    # v[t+1] - V[t+1]; 0 where the following frame belongs to another episode or is not in this batch.
    following = torch.zeros_like(correction)
    following[..., :-1] = correction[..., 1:]
    advantage = rho * (reward + gamma * (next_value + following * (~done)) - value)
    return target, advantage


def nstep(
    reward: torch.Tensor, done: torch.Tensor, gamma: float, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums rewards over `num_steps` frames from each frame on; over fewer at the end of its episode or row. `reward`
    and `done` are `[R, T]`, float32 and bool.

    Returns:
        The discounted sum of rewards, and the discount of the value after it, both `[R, T]` float32; and the time index
        of the last of these frames, `[R, T]` int64.
    """
    steps = reward.shape[1]
    total, discount = reward.clone(), torch.full_like(reward, gamma)
    last = torch.arange(steps, device=reward.device).repeat(len(reward), 1)
    continues = torch.ones_like(done)
    for k in range(1, min(num_steps, steps)):
        # Frame t + k is in the episode of frame t if none of t ... t + k - 1 ended it.
        continues = continues[:, :-1] & ~done[:, k - 1 : -1]
        total[:, :-k] += continues * discount[:, :-k] * reward[:, k:]
        discount[:, :-k] *= torch.where(continues, gamma, 1.0)
        last[:, :-k] += continues
    return total, discount, last


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

    def __call__(
        self, reward: torch.Tensor, done: torch.Tensor, traj_ids: torch.Tensor, learners: Learners = ALONE
    ) -> torch.Tensor:
        """Adds the frames of a batch, and of the other learners' batches, to the statistics. Returns its scaled
        rewards, a new tensor `[R, T]` on their device.

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
        self._moments.add(learners.concatenate(sums.reshape(-1, 1)))
        return reward * self._moments.scale().item()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain data only."""
        return {"moments": self._moments.state_dict(), "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state["moments"])
        self._sums = dict(state["sums"])
