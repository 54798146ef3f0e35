"""`policy.kind=squashed_NAME`: the network of `policy.kind=NAME`, with a Gaussian that tanh squashes into the bounds of
a Box.

The `sac` trainer trains it (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from gymnasium import spaces

from collectx.config.registry import implementation
from collectx.config.schema.policy import SquashedMlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import SpaceError
from collectx.policy.heads import Head
from collectx.policy.stochastic import StochasticPolicy

# The bounds of the logarithm of a standard deviation, as in the authors' implementation.
_LOG_STD = (-20.0, 2.0)


class SquashedGaussian(Head):
    """A Gaussian with independent components, squashed by tanh and scaled to the bounds of `space`. `raw` contains the
    means, then the logarithms of the standard deviations. There is no `evaluate`, as an action close to a bound does
    not tell from which number it was squashed."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, space: spaces.Box, dtype: torch.dtype):
        super().__init__()
        self._shape, self._dtype = space.shape, dtype
        size = math.prod(space.shape)
        self.num_inputs = 2 * size
        for name in ("low", "high"):
            bound = torch.as_tensor(getattr(space, name).reshape(size), dtype=dtype)
            self.register_buffer(name, bound, persistent=False)
        self._offset = 0.5 * math.log(2 * math.pi) * size + float((self.high - self.low).div(2).log().sum())

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = raw.chunk(2, -1)
        log_std = log_std.clamp(*_LOG_STD)
        noise = torch.randn_like(mean)
        x = torch.addcmul(mean, noise, log_std.exp())
        # log(1 - tanh(x)**2), in a form that does not lose digits.
        squashed = 2 * (math.log(2) - x - F.softplus(-2 * x))
        log_prob = -(0.5 * noise * noise + log_std + squashed).sum(-1) - self._offset
        return self._action(x), log_prob

    def mode(self, raw: torch.Tensor) -> torch.Tensor:
        """Returns the squashed mean, which the field calls the deterministic action."""
        return self._action(raw.chunk(2, -1)[0])

    def _action(self, x: torch.Tensor) -> torch.Tensor:
        # Rounding could lead beyond a bound.
        flat = torch.lerp(self.low, self.high, (x.tanh().to(self._dtype) + 1) / 2).clamp(self.low, self.high)
        return flat if len(self._shape) == 1 else flat.reshape(*flat.shape[:-1], *self._shape)


class SquashedPolicy(StochasticPolicy):
    """A policy of bounded actions.

    `sac` can also train a user's module with `observation_keys` and `rsample` like those of this class.
    """

    def make_head(self, spec: EnvSpec) -> Head:
        space = spec.action_space
        assert isinstance(space, spaces.Box)
        return SquashedGaussian(space, spec.action[0].dtype)

    def rsample(self, observation: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns sampled actions `[B, *shape]` and their log-probabilities `[B]` for a tensor `[B, *shape]` per key of
        `observation_keys`; both are differentiable."""
        return self.head.sample(self(observation))


def build(cfg: SquashedMlpPolicyConfig, spec: EnvSpec) -> StochasticPolicy:
    """Returns the network of `cfg`, on the CPU. See `build` of the kind without `squashed_`. Raises `SpaceError` if
    the action space is not a Box of floats with finite bounds."""
    network = cfg.kind.removeprefix("squashed_")
    space = spec.action_space
    is_floats = isinstance(space, spaces.Box) and spec.action[0].dtype.is_floating_point
    if not isinstance(space, spaces.Box) or not is_floats or not space.is_bounded():
        advice = "Leave out wrappers that remove the bounds, such as ClipAction, or use" if is_floats else "Use"
        raise SpaceError(
            f"policy={cfg.kind} needs a Box of floats with finite bounds as action space, but the env's is {space}. "
            f"{advice} trainer=ppo policy={network}."
        )
    return implementation("policy", network)(cfg, spec, SquashedPolicy)
