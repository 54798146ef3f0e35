"""`policy.kind=random`: actions sampled from the action space; the observation is ignored.

Draws from torch's global generator, which the worker seeds, so equal seeds give equal actions. Actions are drawn for
many steps at once, because a single draw costs more than stepping a small env.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import nn

from collectx.batch import Leaf
from collectx.env.base import EnvSpec, steps_per_draw
from collectx.policy.fast_call import Acceleration
from collectx.policy.recurrent import StateSpec
from collectx.policy.spaces import subspace


class RandomActor:
    """Samples actions, always on the CPU. See `collectx.policy.base.Actor`."""

    module: nn.Module | None = None
    states: tuple[StateSpec, ...] = ()

    def __init__(self, spec: EnvSpec):
        self.device = torch.device("cpu")
        self.leaves: tuple[Leaf, ...] = spec.action
        self._spec = spec
        self._actions = _actions(spec)

    def reset(self) -> None:
        self._actions = _actions(self._spec)

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return next(self._actions)

    def accelerate(self, acceleration: Acceleration) -> None:
        pass


def _actions(spec: EnvSpec) -> Iterator[Sequence[torch.Tensor]]:
    """Endless random actions: for each step, one `[E, *shape]` tensor per action leaf."""
    if spec.draw is not None:
        return spec.draw()
    leaves = (_draws(subspace(spec.action_space, leaf.key), leaf, spec.num_envs) for leaf in spec.action)
    return zip(*leaves, strict=True)


def _draws(space: Space, leaf: Leaf, rows: int) -> Iterator[torch.Tensor]:
    """Endless samples `[rows, *leaf.shape]` of `space`."""
    size = (steps_per_draw(rows * math.prod(leaf.shape)), rows, *leaf.shape)
    copied: Space | None = None
    while True:
        if isinstance(space, spaces.Discrete):
            block = torch.randint(int(space.start), int(space.start + space.n), size)
        elif isinstance(space, spaces.MultiDiscrete):
            block = _integers(np.asarray(getattr(space, "start", 0)), np.asarray(space.nvec), size)
        elif isinstance(space, spaces.MultiBinary):
            block = torch.randint(0, 2, size)
        elif isinstance(space, spaces.Box):
            block = _box(space, size)
        else:
            # A user's space has its own `sample`; its generator is seeded from torch's.
            if copied is None:
                copied = copy.deepcopy(space)
                copied.seed(int(torch.randint(0, 2**31 - 1, ())))
            block = torch.as_tensor(np.stack([np.asarray(copied.sample()) for _ in range(rows)]))[None]
        yield from block.to(leaf.dtype).unbind(0)


def _integers(low: np.ndarray, count: np.ndarray, size: Sequence[int]) -> torch.Tensor:
    """Integers in `[low, low + count)`, elementwise. Double precision, so that rounding never gives `low + count`."""
    drawn = (torch.rand(size, dtype=torch.float64) * torch.as_tensor(count)).floor_().to(torch.int64)
    return drawn + torch.as_tensor(low, dtype=torch.int64)


def _box(space: spaces.Box, size: Sequence[int]) -> torch.Tensor:
    """Like `Box.sample`: uniform between two bounds, exponential from a single bound, normal without a bound."""
    if np.issubdtype(space.dtype, np.integer) and space.is_bounded():
        first = space.low.astype(np.int64)
        return _integers(first, space.high.astype(np.int64) - first + 1, size)
    low, high = torch.as_tensor(space.low).double(), torch.as_tensor(space.high).double()
    has_low, has_high = low.isfinite(), high.isfinite()
    drawn = torch.rand(size, dtype=torch.float64)
    if bool((has_low & has_high).all()):
        return low + drawn * (high - low)
    tail = -torch.log1p(-drawn)
    block = torch.where(has_low, low + tail, torch.where(has_high, high - tail, torch.randn(size, dtype=torch.float64)))
    return torch.where(has_low & has_high, low + drawn * (high - low), block)
