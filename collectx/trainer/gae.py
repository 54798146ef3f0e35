"""Generalised advantage estimation (Schulman et al. 2016, "High-Dimensional Continuous Control Using GAE")."""

from __future__ import annotations

import torch


def gae(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Advantages `[R, T]`.

    Args:
        reward, value, next_value: `[R, T]` float32; `next_value` is 0 where the frame terminated.
        done: `[R, T]` bool; nothing is carried over from the following frame.
    """
    delta = reward + gamma * next_value - value
    return discounted_sum(delta, (gamma * gae_lambda) * (~done))


def discounted_sum(term: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
    """`x[t] = term[t] + carry[t] * x[t + 1]`, with `x[T] = 0`, along the last dimension of `[R, T]`.

    Doubles the reach of every sum in each of log2(T) passes (Hillis & Steele 1986), because a loop over time would cost
    a few kernel launches per step. The products of `carry` may not be replaced by quotients: it is 0 at episodes' ends.
    """
    total, factor = term.clone(), carry.to(term.dtype)
    reach = 1
    while reach < term.shape[-1]:
        head = total[..., :-reach] + factor[..., :-reach] * total[..., reach:]
        total = torch.cat((head, total[..., -reach:]), -1)
        # Beyond the end there is nothing to carry.
        factor = torch.cat((factor[..., :-reach] * factor[..., reach:], torch.zeros_like(factor[..., -reach:])), -1)
        reach *= 2
    return total
