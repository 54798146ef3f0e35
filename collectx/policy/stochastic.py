"""The trainable built-in policies (an encoder of the observation, a network, a head) and their actor.

The trainer's copy learns, the workers' copies act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

from collectx.batch import Key, Leaf, as_key
from collectx.env.action_masks import legal_actions, network_inputs
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, DataError, SpaceError
from collectx.policy.base import Actor, input_space
from collectx.policy.exploration import ExplorationType
from collectx.policy.fast_call import Acceleration, fast_callable
from collectx.policy.heads import Head, head_for

ACTION_LOG_PROB: Key = ("action_log_prob",)


class Flatten(nn.Module):
    """Converts `leaves` of the observation to a float32 row per env: Discrete parts become one-hot, others are
    flattened."""

    def __init__(self, spec: EnvSpec, leaves: Sequence[Leaf]):
        super().__init__()
        if not leaves:
            raise ConfigError(
                "networks need an observation, but the env returns none. Exclude fewer parts in env.exclude_keys, or "
                "use policy=random trainer=meter."
            )
        self._shapes = [leaf.shape for leaf in leaves]
        # Kept infos lack a space.
        parts = [input_space(spec.observation_space, leaf.key) if leaf in spec.inputs else None for leaf in leaves]
        self._choices = [(int(s.n), int(s.start)) if isinstance(s, spaces.Discrete) else None for s in parts]
        pairs = zip(self._shapes, self._choices, strict=True)
        self._widths = [math.prod(shape) if choice is None else choice[0] for shape, choice in pairs]
        self.num_outputs = sum(self._widths)
        # Whether the only leaf is already a float32 row.
        self.is_identity = len(leaves) == 1 and len(leaves[0].shape) == 1 and leaves[0].dtype == torch.float32

    @property
    def is_one_hot(self) -> torch.Tensor:
        """Which outputs belong to Discrete parts, `[num_outputs]` bool."""
        is_discrete = torch.tensor([choice is not None for choice in self._choices])
        return is_discrete.repeat_interleave(torch.tensor(self._widths))

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns `[..., num_outputs]` for a tensor `[..., *shape]` per leaf. Ignores tensors after those of the
        leaves, such as masks."""
        if self.is_identity:
            return observation[0]
        rows = []
        for tensor, shape, choice in zip(observation, self._shapes, self._choices, strict=False):
            if choice is not None:
                rows.append(one_hot(tensor, *choice))
            else:
                batch = tensor.shape[: tensor.ndim - len(shape)]
                rows.append(tensor.reshape(*batch, -1).float())
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)


def one_hot(values: torch.Tensor, num_values: int, start: int) -> torch.Tensor:
    """Returns `[..., num_values]` float32 for values of a Discrete space. Raises `DataError` for values outside."""
    try:
        return F.one_hot(values.to(torch.int64) - start, num_values).float()
    except RuntimeError as error:
        outside = values[(values < start) | (values >= start + num_values)].flatten().tolist()
        if not outside:
            raise
        raise DataError(
            f"the env returned the observation {int(outside[0])}, which is not in its space Discrete({num_values}, "
            f"start={start}). Return a value of the space, or declare a larger n or another start."
        ) from error


class StochasticPolicy(nn.Module):
    """A policy that samples actions and computes their log-probability, for the `ppo` and `impala` trainers.

    They can train a user's module too if it has `evaluate` and `observation_keys` and its actor writes
    `("action_log_prob",)`.

    Attributes:
        observation_keys: keys of the tensors that `evaluate` takes, in order; names or tuples of names. If there are
            masks, theirs is the last key.
        legal: the reader of masks of legal actions; None without masks.
        encode: computes the input of `body` from the observation tensors; ignores masks.
        body: computes features, `[..., num_features]`.
        head: computes actions from the features, after the linear layer `out`.
    """

    def __init__(self, spec: EnvSpec, encode: nn.Module, body: nn.Sequential, num_features: int):
        super().__init__()
        if len(spec.action) != 1:
            raise SpaceError(
                f"the built-in policies write a single action, but the action space {spec.action_space} has "
                f"{len(spec.action)} parts. Use policy=custom or policy=random."
            )
        self.observation_keys = tuple(leaf.key for leaf in network_inputs(spec))
        self.num_features = num_features
        self.encode = encode
        self.legal = legal_actions(spec)
        if self.legal is not None:
            self.observation_keys += (self.legal.key,)
        self.body = body
        self.head = self.make_head(spec)
        self.out = nn.Linear(num_features, self.head.num_inputs)
        initialize(self.body, math.sqrt(2))
        # A nearly uniform first policy: see Andrychowicz et al. 2021, "What Matters in On-Policy RL?", section 3.2.
        initialize(self.out, 0.01)

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the input of the head, `[B, head.num_inputs]`, for a tensor `[B, *shape]` per key of
        `observation_keys`."""
        raw = self.out(self.body(self.encode(observation)))
        if self.legal is None:
            return raw
        # Trainers also pass next observations, which may be final ones without legal actions.
        return self.legal.restrict(raw, self.legal.or_all(self.legal(observation[-1])))

    def make_head(self, spec: EnvSpec) -> Head:
        """Returns the head for the action space of `spec`. Raises `SpaceError` if none supports it."""
        return head_for(spec.action_space, spec.action[0])

    @property
    def update_statistics(self) -> Callable[[Sequence[torch.Tensor]], None] | None:
        """A function that adds observations, in the form of `forward`, to the statistics for their normalisation, in
        place; None without `policy.normalize_observations`."""
        return getattr(self.encode, "update", None)

    def evaluate(self, observation: Sequence[torch.Tensor], action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the log-probability of `action`, `[B, *shape]`, and the entropy, both `[B]` and differentiable."""
        return self.head.evaluate(self(observation), action)


class StochasticActor(Actor):
    """Acts with a `StochasticPolicy`. Writes log-probabilities only with the exploration type RANDOM.

    See `collectx.policy.base.Actor` for the attributes.
    """

    def __init__(self, policy: StochasticPolicy, spec: EnvSpec, device: torch.device, exploration: ExplorationType):
        self.module: nn.Module | None = policy.to(device)
        self.device = device
        self._random = exploration is ExplorationType.RANDOM
        self.leaves: tuple[Leaf, ...] = spec.action
        if self._random:
            self.leaves += (Leaf(ACTION_LOG_PROB, (), torch.float32),)
        observed = [leaf.key for leaf in spec.observation]
        indices = [observed.index(as_key(key)) for key in policy.observation_keys]
        # The indices of the encoder's inputs; None if the network takes the first leaf unchanged, without the encoder.
        is_identity = getattr(policy.encode, "is_identity", False) and indices == [0]
        self._indices = None if is_identity else indices
        self._encode: Callable = policy.encode.forward
        self._network = nn.Sequential(*policy.body, policy.out)
        self._forward = fast_callable(self._network)
        self._sample = policy.head.sample
        self._mode = policy.head.mode

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._indices is None:
            x = observation[0]
        else:
            x = self._encode([observation[i] for i in self._indices])
        raw = self._forward(x)
        return self._sample(raw) if self._random else (self._mode(raw),)

    def accelerate(self, acceleration: Acceleration) -> None:
        self._forward = acceleration.capture(acceleration.compile_call(self._network))


class MaskedActor(StochasticActor):
    """`StochasticActor` for an env with masks of legal actions."""

    def __init__(self, policy: StochasticPolicy, *arguments: Any):
        super().__init__(policy, *arguments)
        assert policy.legal is not None
        self._legal = policy.legal

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        assert self._indices is not None
        seen = [observation[i] for i in self._indices]
        legal = self._legal.check(self._legal(seen[-1]))
        raw = self._legal.restrict(self._forward(self._encode(seen)), legal)
        return self._sample(raw) if self._random else (self._mode(raw),)


def initialize(module: nn.Module, gain: float) -> None:
    """Sets orthogonal weights (Saxe et al. 2014) and zero biases in every linear and convolution layer of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
