"""Values of both ends of every frame, with one forward where frames are consecutive."""

from __future__ import annotations

import torch

from collectx.trainer.critic import Critic
from collectx.trainer.rows import Rows, flat


@torch.no_grad()
def values_of(critic: Critic, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Values `[R, T]` of the observations and of the next observations.

    Within an episode the next observation is the following frame's observation, so only the last step and the ends of
    episodes need a forward of their own. A terminated frame's next value is 0; a truncated one's is that of its true
    final observation (Pardo et al. 2018, "Time Limits in Reinforcement Learning").
    """
    shape = rows.reward.shape
    value = critic(flat(rows.observation)).view(shape)
    apart = rows.done.clone()
    apart[:, -1] = True
    where = apart.flatten().nonzero().squeeze(-1)
    next_value = torch.roll(value, -1, 1)
    next_value.view(-1)[where] = critic([tensor[where] for tensor in flat(rows.next_observation)])
    return value, next_value.masked_fill_(rows.terminated, 0.0)
