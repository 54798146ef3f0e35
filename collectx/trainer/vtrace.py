"""V-trace targets (Espeholt et al. 2018, "IMPALA", section 4.1): values off-policy, for workers that lag behind."""

from __future__ import annotations

import torch

from collectx.trainer.gae import discounted_sum


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
    """Value targets `v` and policy-gradient advantages, both `[R, T]`, nothing differentiable.

    `v[t] = V[t] + delta[t] + gamma c[t] (v[t+1] - V[t+1])` with `delta[t] = rho[t] (r[t] + gamma V[t+1] - V[t])`; the
    advantage is `rho[t] (r[t] + gamma v[t+1] - V[t])`.

    Args:
        log_ratio: log pi(a|x) - log mu(a|x), learner over actor.
        reward, value, next_value, done: as for `gae`.
        rho_clip, c_clip: upper limits of the importance weights, of the target and of the trace.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), ratio.clamp(max=c_clip)
    delta = rho * (reward + gamma * next_value - value)
    correction = discounted_sum(delta, gamma * c * (~done))
    target = value + correction
    # v[t+1] - V[t+1], 0 where the following frame is of another episode or not in this batch.
    following = torch.zeros_like(correction)
    following[..., :-1] = correction[..., 1:]
    advantage = rho * (reward + gamma * (next_value + following * (~done)) - value)
    return target, advantage
