"""`policy.kind=random`, and `RandomPolicy`: actions sampled from the action space; among the legal actions, if the env
observes masks of these (`collectx.env.action_masks`).

Actions are drawn with torch's global generator, which the worker seeds, so the same seed gives the same actions. They
are drawn for many steps at once, because a draw takes longer than a step of a small env.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import Leaf
from collectx.env.action_masks import LegalActions, mask_of
from collectx.env.base import EnvSpec, steps_per_draw
from collectx.policy.base import Actor, action_space

if TYPE_CHECKING:
    from tensordict import NestedKey, TensorDictBase


class RandomPolicy:
    """A policy that writes random actions into a TensorDict. A collector with this policy draws the actions itself,
    and only legal ones if the env observes a mask of them.

    Args:
        action_spec: a TorchRL spec or a Gymnasium space, from which actions are drawn. None: a collector with this
            policy sets it to the action spec of its env.
        action_key: the key of the action; ignored if `action_spec` contains keys.
    """

    def __init__(self, action_spec: Any = None, action_key: NestedKey = "action"):
        self.action_spec = action_spec
        self.action_key = action_key

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        """Writes an action into `td`, and returns `td`. `td` may only have the batch dimensions that `action_spec`
        has.

        Raises:
            RuntimeError: `action_spec` is None.
        """
        from tensordict import TensorDictBase

        if self.action_spec is None:
            raise RuntimeError(
                "this RandomPolicy cannot be called, because it has no action_spec. Create it with "
                "RandomPolicy(action_spec), or pass it to a collector."
            )
        if hasattr(self.action_spec, "rand"):
            action = self.action_spec.rand()
        else:
            action = self.action_spec.sample()
        return td.update(action) if isinstance(action, TensorDictBase) else td.set(self.action_key, action)


class RandomActor(Actor):
    """Samples actions, always on the CPU; see `collectx.policy.base.Actor`."""

    def __init__(self, spec: EnvSpec):
        self.device = torch.device("cpu")
        self.leaves: tuple[Leaf, ...] = spec.action
        self._spec = spec
        self.reset()

    def reset(self) -> None:
        spec = self._spec
        self._actions: Iterator[Sequence[torch.Tensor]] = spec.draw() if spec.draw else _SpaceDraws(spec)

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return next(self._actions)


class LegalRandomActor(RandomActor):
    """Samples among the legal actions.

    Args:
        masks: the mask of each leaf of the action; None: the leaf has none.
    """

    def __init__(self, spec: EnvSpec, masks: Sequence[Leaf | None]):
        super().__init__(spec)
        # For each mask: the index of its leaf of the action, its own in the observation, and its reader.
        self._readers = [
            (i, spec.observation.index(mask), LegalActions(spec, mask, leaf).to(spec.device or self.device))
            for i, (mask, leaf) in enumerate(zip(masks, spec.action, strict=True))
            if mask is not None
        ]
        self._draws_others = None in masks

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        actions: list[Any] = [*next(self._actions)] if self._draws_others else [None] * len(self._readers)
        for i, mask, legal in self._readers:
            actions[i] = legal.draw(observation[mask])
        return actions


def random_actor(spec: EnvSpec) -> RandomActor:
    """Returns the actor for random actions of an env group.

    Raises:
        SpaceError: a mask of legal actions does not fit its action.
    """
    masks = [mask_of(spec, leaf) for leaf in spec.action]
    return LegalRandomActor(spec, masks) if any(masks) else RandomActor(spec)


class _SpaceDraws(Iterator[Sequence[torch.Tensor]]):
    """An endless iterator of samples of the action space: a tensor `[E, *shape]` per leaf."""

    def __init__(self, spec: EnvSpec):
        self.__setstate__([_LeafDraws(spec, leaf) for leaf in spec.action])

    def __getstate__(self) -> list[_LeafDraws]:
        return self._parts

    def __setstate__(self, parts: list[_LeafDraws]) -> None:
        self._parts = parts
        self._actions = zip(*parts, strict=True)

    def __next__(self) -> Sequence[torch.Tensor]:
        return next(self._actions)


class _LeafDraws:
    """Yields samples `[E, *leaf.shape]` of a leaf's part of the action space without end, one per step."""

    def __init__(self, spec: EnvSpec, leaf: Leaf):
        self._space = action_space(spec.action_space, leaf.key)
        self._leaf = leaf
        self._rows = spec.num_envs
        self._num_steps = steps_per_draw(self._rows * math.prod(leaf.shape))
        # A copy of a user's space with a `sample` of its own.
        self._copied: Space | None = None
        self._left: Iterator[torch.Tensor] = iter(())

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield from self._left
            self._left = iter(self._draw().to(self._leaf.dtype).unbind(0))

    def __getstate__(self) -> dict[str, Any]:
        left = [*copy.copy(self._left)]
        # In one tensor, because a small tensor takes more bytes than its numbers.
        return vars(self) | {"_left": torch.stack(left) if left else torch.empty(0)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _left=iter(state["_left"].unbind(0)))

    def _draw(self) -> torch.Tensor:
        space, size = self._space, (self._num_steps, self._rows, *self._leaf.shape)
        if isinstance(space, spaces.Discrete):
            return torch.randint(int(space.start), int(space.start + space.n), size)
        if isinstance(space, spaces.MultiDiscrete):
            return _integers(np.asarray(getattr(space, "start", 0)), np.asarray(space.nvec), size)
        if isinstance(space, spaces.MultiBinary):
            return torch.randint(0, 2, size)
        if isinstance(space, spaces.Box):
            return _box(space, size)
        if self._copied is None:
            # torch's generator seeds that of the space.
            self._copied = copy.deepcopy(space)
            self._copied.seed(int(torch.randint(0, 2**31 - 1, ())))
        return torch.as_tensor(np.stack([np.asarray(self._copied.sample()) for _ in range(self._rows)]))[None]


def _integers(low: np.ndarray, count: np.ndarray, size: Sequence[int]) -> torch.Tensor:
    """Returns integers in `[low, low + count)`, elementwise. Draws float64, so that rounding never gives
    `low + count`."""
    drawn = (torch.rand(size, dtype=torch.float64) * torch.as_tensor(count)).floor_().to(torch.int64)
    return drawn + torch.as_tensor(low, dtype=torch.int64)


def _box(space: spaces.Box, size: Sequence[int]) -> torch.Tensor:
    """Returns samples with the distributions of `Box.sample`: uniform between two bounds, exponential from a single
    bound, normal without a bound."""
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
