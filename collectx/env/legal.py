"""Masks of legal actions, which tell the actions that an env allows for the observation that it has returned.

An env returns a mask as the entry `action_mask` of its Dict observation, as PettingZoo's and TorchRL's envs do, or of
`info`, if `env.info_keys` keeps it. A mask contains a number for each value of the action; zero means that the value is
illegal.

    action space     mask
    Discrete(n)      [n]
    MultiDiscrete    [sum(nvec)]: the values of the first choice, then those of the second, and so on

A batch contains the masks like any other observation, so trainers use the masks that the policy saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import nn

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ShapeError, SpaceError

_NAME = "action_mask"
# The possible keys of the mask; the first one in the observation counts.
MASK_KEYS: tuple[Key, ...] = ((_NAME,), ("info", _NAME))


class LegalActions(nn.Module):
    """Reads masks of legal actions. It moves to a device like any module, and adds no entries to a state dict.

    Args:
        mask: the leaf of `spec.observation` that contains the masks.

    Attributes:
        key: the key of the masks.

    Raises:
        SpaceError: the mask does not fit the action space.
    """

    _start: torch.Tensor
    _columns: torch.Tensor | None

    def __init__(self, spec: EnvSpec, mask: Leaf):
        super().__init__()
        self.key = mask.key
        space, (counts, start) = spec.action_space, _counts(spec.action_space)
        if not fits(spec, mask):
            needs = f"needs [{counts.sum()}]" if len(counts) else "can have none, unlike Discrete and MultiDiscrete"
            option = "env.info_keys" if mask.key[0] == "info" else f"env.exclude_keys=[{_NAME}]"
            raise SpaceError(
                f"{'.'.join(mask.key)}, a mask of legal actions, has the shape {[*mask.shape]}, but the action space "
                f"{space} {needs}. Fix the shape. If the entry is no such mask, rename it, or leave it out ({option})"
            )
        self._action = spec.action[0]
        self._choices, self._width = len(counts), int(counts.max())
        self.register_buffer("_start", torch.as_tensor(start, dtype=torch.int64), persistent=False)
        # Where the numbers of a mask go in a table of choices, whose rows have the width of the widest choice; None:
        # the mask has the form of this table.
        inside = torch.arange(self._width) < torch.as_tensor(counts)[:, None]
        self.register_buffer("_columns", None if inside.all() else inside.flatten().nonzero()[:, 0], persistent=False)
        # In a ragged group, the policy also acts for final observations, whose actions are ignored.
        self._is_checked = not spec.ragged

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns, for masks `[..., size]`, whether each value of each choice is legal: `[..., choices, width]`
        bool."""
        legal = mask.bool()
        if self._columns is not None:
            table = legal.new_zeros((*legal.shape[:-1], self._choices * self._width))
            legal = table.index_copy(-1, self._columns, legal)
        return legal.unflatten(-1, (self._choices, self._width))

    def check(self, legal: torch.Tensor) -> torch.Tensor:
        """Returns `legal`, a result of `forward`, if each choice of each env contains a legal value. Only checks on the
        CPU, because a check on another device would wait for it in every step.

        Raises:
            ShapeError: an env allows no action; the message names the first one.
        """
        if self._is_checked and legal.device.type == "cpu" and not legal.any(-1).all():
            possible = legal.any(-1).all(-1).flatten()
            env = int((~possible).nonzero()[0])
            raise ShapeError(
                f"env {env} of {len(possible)}: {'.'.join(self.key)} allows no action. Return a mask with a legal "
                "action for each observation that does not end its episode"
            )
        return legal

    def or_all(self, legal: torch.Tensor) -> torch.Tensor:
        """Returns `legal`, a result of `forward`, with all values of a choice legal if none is, as after the end of an
        episode."""
        return legal | ~legal.any(-1, keepdim=True)

    def restrict(self, raw: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
        """Returns logits or action values `[..., choices * width]`, with the lowest number for illegal actions, whose
        probability is then zero.

        Args:
            legal: the result of `forward`.
        """
        return raw.masked_fill(~legal.flatten(-2), torch.finfo(raw.dtype).min)

    def draw(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns random legal actions `[E, *shape]` for masks `[E, size]`. Raises `ShapeError` if an env has none."""
        chosen = uniform(self.check(self(mask))) + self._start
        return chosen.to(self._action.dtype).reshape(-1, *self._action.shape)


def mask_of(spec: EnvSpec) -> Leaf | None:
    """Returns the leaf of the observation with the masks; None if the env returns no masks."""
    found = (leaf for key in MASK_KEYS for leaf in spec.observation if leaf.key[: len(key)] == key)
    return next(found, None)


def fits(spec: EnvSpec, mask: Leaf) -> bool:
    """Whether a mask contains a number for each value of the action."""
    return mask.key in MASK_KEYS and mask.shape == (_counts(spec.action_space)[0].sum(),)


def network_inputs(spec: EnvSpec) -> tuple[Leaf, ...]:
    """Returns `EnvSpec.inputs` without the masks."""
    return tuple(leaf for leaf in spec.inputs if leaf != mask_of(spec))


def legal_actions(spec: EnvSpec) -> LegalActions | None:
    """Returns the reader of an env's masks; None if the env returns no masks. Raises `SpaceError`, see
    `LegalActions`."""
    mask = mask_of(spec)
    return None if mask is None else LegalActions(spec, mask)


def is_legal(raw: torch.Tensor) -> torch.Tensor:
    """Returns which entries of a result of `LegalActions.restrict` belong to legal actions, bool."""
    return raw > torch.finfo(raw.dtype).min


def uniform(legal: torch.Tensor) -> torch.Tensor:
    """Returns the index of a random true entry along the last dimension, int64, drawn with torch's generator; 0 if none
    is true."""
    return torch.rand(legal.shape, device=legal.device).masked_fill_(~legal, -1.0).argmax(-1)


def sample(space: Space, observation: Any, info: Mapping) -> Any:
    """Returns a random action for a Gymnasium env, or actions for a vector env, in the form of `space.sample()`. They
    are legal if the action of an env is Discrete, or MultiDiscrete with one dimension."""
    found = [entry[_NAME] for entry in (observation, info) if isinstance(entry, Mapping) and _NAME in entry]
    mask = (np.asarray(found[0]) != 0).astype(np.int8).reshape(-1) if found else None
    if mask is not None and mask.size != _counts(space)[0].sum():
        mask = None  # an entry of that name which the configuration leaves out
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and mask is not None:
        return space.sample(tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask) if isinstance(space, spaces.Discrete) else space.sample()


def _counts(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of values of each choice, and the first value of each; empty arrays for other spaces."""
    counts, start = np.zeros(0, np.int64), np.zeros(0)
    if isinstance(space, spaces.Discrete):
        counts, start = np.array([space.n]), np.array([space.start])
    elif isinstance(space, spaces.MultiDiscrete):
        counts, start = space.nvec.reshape(-1), np.reshape(space.start, -1)
    return counts, start
