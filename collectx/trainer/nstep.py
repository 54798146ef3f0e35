"""Returns over several frames, for values that are learnt from single ones."""

from __future__ import annotations

import torch


def nstep(
    reward: torch.Tensor, done: torch.Tensor, gamma: float, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `num_steps` frames from each one on gave, or as many as there are up to the end of its episode or row.

    Args:
        reward, done: `[R, T]`, float32 and bool; rows are independent, time runs along the second dimension.

    Returns:
        The discounted sum of rewards and the discount of what comes after it, both `[R, T]` float32; and the last of
        these frames, `[R, T]` int64, an index into T.
    """
    steps = reward.shape[1]
    total, discount = reward.clone(), torch.full_like(reward, gamma)
    last = torch.arange(steps, device=reward.device).repeat(len(reward), 1)
    goes_on = torch.ones_like(done)
    for k in range(1, min(num_steps, steps)):
        # Frame t goes on to frame t + k if none of t ... t + k - 1 ended an episode.
        goes_on = goes_on[:, :-1] & ~done[:, k - 1 : -1]
        total[:, :-k] += goes_on * discount[:, :-k] * reward[:, k:]
        discount[:, :-k] *= torch.where(goes_on, gamma, 1.0)
        last[:, :-k] += goes_on
    return total, discount, last
