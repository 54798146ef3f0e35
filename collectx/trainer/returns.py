"""Estimators of returns and advantages: functions of `[R, T]` tensors, with R independent rows of T consecutive
frames."""

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
