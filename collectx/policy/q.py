"""`policy.kind=q_NAME`: the network of `policy.kind=NAME`, with action values as outputs.

The `dqn` trainer trains them; they act epsilon-greedily. Epsilon is a buffer of the module, so it is published with the
weights.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces

from collectx.config.registry import implementation
from collectx.config.schema.policy import TrainablePolicyConfig
from collectx.env.action_masks import is_legal, uniform
from collectx.env.base import EnvSpec
from collectx.errors import SpaceError
from collectx.policy.heads import Categorical, Head
from collectx.policy.stochastic import StochasticPolicy


class EpsilonGreedy(Categorical):
    """Chooses a uniformly random action with probability epsilon, otherwise the action with the highest value.
    `epsilon` is `[]` float32, 1 at first; it does not affect `mode`."""

    epsilon: torch.Tensor

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.register_buffer("epsilon", torch.ones(()))

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = raw.argmax(-1)
        uniform = torch.randint_like(best, self.num_inputs)
        index = torch.where(torch.rand_like(raw[..., 0]) < self.epsilon, uniform, best)
        return self._action(index), self._log_prob(index == best, self.num_inputs)

    def evaluate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best, count = raw.argmax(-1), self._count(raw)
        log_prob = self._log_prob(self.index(action) == best, count)
        of_best, of_other = self._log_prob(True, count), self._log_prob(False, count)
        others = (count - 1) * torch.special.xlogy(of_other.exp(), of_other.exp())
        return log_prob, (-(of_best * of_best.exp()) - others).expand(log_prob.shape)

    def index(self, action: torch.Tensor) -> torch.Tensor:
        """Returns the index of the network's output for each `action`, int64."""
        return action.to(torch.int64) - self._start

    def _log_prob(self, is_best: torch.Tensor | bool, count: torch.Tensor | int) -> torch.Tensor:
        return (self.epsilon / count + (1 - self.epsilon) * is_best).log()

    def _count(self, raw: torch.Tensor) -> torch.Tensor | int:
        """Returns the number of actions among which a random one is drawn."""
        return self.num_inputs


class LegalEpsilonGreedy(EpsilonGreedy):
    """`EpsilonGreedy` among the legal actions."""

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = raw.argmax(-1)
        index = torch.where(torch.rand_like(raw[..., 0]) < self.epsilon, uniform(is_legal(raw)), best)
        return self._action(index), self._log_prob(index == best, self._count(raw))

    def _count(self, raw: torch.Tensor) -> torch.Tensor | int:
        return is_legal(raw).sum(-1)


class QPolicy(StochasticPolicy):
    """A network of action values, and the epsilon-greedy policy over them. `forward` returns the values,
    `[B, actions]`.

    `dqn` can also train a user's module with `observation_keys`, `forward`, `epsilon` and `index` like those of this
    class.
    """

    def make_head(self, spec: EnvSpec) -> Head:
        space = spec.action_space
        assert isinstance(space, spaces.Discrete)
        kind = EpsilonGreedy if self.legal is None else LegalEpsilonGreedy
        return kind(np.array([space.n]), np.array(space.start), spec.action[0])

    @property
    def epsilon(self) -> torch.Tensor:
        """The probability of a random action, `[]` float32; write it in place."""
        return cast(EpsilonGreedy, self.head).epsilon

    def index(self, action: torch.Tensor) -> torch.Tensor:
        """Returns the column of `forward` for each `action`, `[B]` int64."""
        return cast(EpsilonGreedy, self.head).index(action)


def build(cfg: TrainablePolicyConfig, spec: EnvSpec) -> StochasticPolicy:
    """Returns the network of `cfg`, on the CPU. See `build` of the kind without `q_`. Raises `SpaceError` if the action
    space is not Discrete."""
    network = cfg.kind.removeprefix("q_")
    if not isinstance(spec.action_space, spaces.Discrete):
        raise SpaceError(
            f"policy={cfg.kind} needs a Discrete action space, but the env's is {spec.action_space}. Use trainer=ppo "
            f"policy={network}, or an env with discrete actions."
        )
    return implementation("policy", network)(cfg, spec, QPolicy)
