"""Masks of legal actions, which tell the actions that an env allows for the observation that it has returned.

An env returns a mask as the entry `action_mask` of its Dict observation, as PettingZoo's and TorchRL's envs do, or of
the `info` of resets and steps, as Gymnasium's Taxi does. A mask contains a number for each value of the action; zero
means that the value is illegal.

    action                       mask
    Discrete(n), OneHot(n)       [n], or another shape with n numbers
    MultiDiscrete, MultiOneHot   [sum(nvec)]: the values of the first choice, then those of the second, and so on
    of a group of agents         [agents, n], or [agents, sum(nvec)], in the entry of the group

A batch contains the masks like any other observation, so trainers use the masks that the policy saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from torch import nn

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.env.observation import ACTION_MASK
from collectx.env.spaces import leave_out, parts_of
from collectx.env.torchrl.specs import choices_of
from collectx.errors import DataError, SpaceError


class LegalActions(nn.Module):
    """Reads masks of legal actions. It moves to a device like any module, and adds no entries to a state dict. Raises
    `SpaceError` if the mask does not fit the action space. `mask` is the leaf of `spec.observation` that contains the
    masks. `action` is the leaf of `spec.action` to which they belong; None: the first one."""

    _start: torch.Tensor
    _columns: torch.Tensor | None

    def __init__(self, spec: EnvSpec, mask: Leaf, action: Leaf | None = None):
        super().__init__()
        self.key, self._num_dims = mask.key, len(mask.shape)
        self._action = spec.action[0] if action is None else action
        counts, start, self._is_one_hot = _choices(spec, self._action)
        _check_shape(spec, mask, counts)
        self._choices, self._width = len(counts), int(counts.max())
        self.register_buffer("_start", torch.as_tensor(start, dtype=torch.int64), persistent=False)
        # A table has a row per choice, as wide as the widest choice. These are the columns of the flat table to which
        # a mask's numbers go; None: the mask already has the form of the table.
        inside = torch.arange(self._width) < torch.as_tensor(counts)[:, None]
        self.register_buffer("_columns", None if inside.all() else inside.flatten().nonzero()[:, 0], persistent=False)
        # In a ragged group, the policy also acts for final observations, whose actions are ignored.
        self._is_checked = not spec.ragged

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns, for masks `[..., *shape]`, whether each value of each choice is legal: `[..., choices, width]`
        bool."""
        legal = mask.bool()
        if self._num_dims > 1:
            legal = legal.flatten(-self._num_dims)
        if self._columns is not None:
            table = legal.new_zeros((*legal.shape[:-1], self._choices * self._width))
            legal = table.index_copy(-1, self._columns, legal)
        return legal.unflatten(-1, (self._choices, self._width))

    def check(self, legal: torch.Tensor) -> torch.Tensor:
        """Returns `legal`, a result of `forward`, if each choice of each env contains a legal value. Only checks on the
        CPU, because a check on another device would wait for it in every step. Raises `DataError` if an env allows no
        action; the message names the first one."""
        if self._is_checked and legal.device.type == "cpu" and not legal.any(-1).all():
            possible = legal.any(-1).all(-1).flatten()
            env = int((~possible).nonzero()[0])
            raise DataError(
                f"the mask {'.'.join(self.key)!r} of env {env} (of {len(possible)}) allows no action. Return a mask "
                "with a legal action for each observation that does not end its episode."
            )
        return legal

    def or_all(self, legal: torch.Tensor) -> torch.Tensor:
        """Returns `legal`, a result of `forward`; a choice without a legal value, as after an end, allows all."""
        return legal | ~legal.any(-1, keepdim=True)

    def restrict(self, raw: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
        """Returns logits or action values `[..., choices * width]`, with the lowest number for illegal actions, whose
        probability is then zero. `legal` is the result of `forward`."""
        return raw.masked_fill(~legal.flatten(-2), torch.finfo(raw.dtype).min)

    def draw(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns random legal actions, `[E, *shape of an action]`, for masks `[E, *shape of a mask]`. Raises
        `DataError` if an env has none."""
        chosen = uniform(self.check(self(mask))) + self._start
        if self._is_one_hot:
            chosen = F.one_hot(chosen, self._width).flatten(-2)
            chosen = chosen if self._columns is None else chosen[..., self._columns]
        return chosen.to(self._action.dtype).reshape(-1, *self._action.shape)


def mask_of(spec: EnvSpec, action: Leaf | None = None) -> Leaf | None:
    """Returns the leaf of the observation with the masks of an action; None if the env returns no masks. `action` is
    the leaf of the action; None: the first one."""
    group = () if spec.action_spec is None else (action or spec.action[0]).key[:-1]
    # The first one counts.
    keys = dict.fromkeys([(*group, ACTION_MASK), (ACTION_MASK,), ("info", ACTION_MASK)])
    found = (leaf for key in keys for leaf in spec.observation if leaf.key[: len(key)] == key)
    return next(found, None)


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
    found = [entry[ACTION_MASK] for entry in (observation, info) if isinstance(entry, Mapping) and ACTION_MASK in entry]
    mask = (np.asarray(found[0]) != 0).astype(np.int8).reshape(-1) if found else None
    if mask is not None and mask.size != _counts(space)[0].sum():
        mask = None  # an entry of that name which the configuration leaves out
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and mask is not None:
        return space.sample(tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask) if isinstance(space, spaces.Discrete) else space.sample()


def can_be_masked(space: Space | None) -> bool:
    """Whether an action, or a part of it, is a choice among some values."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(can_be_masked(part) for _, part in parts_of(space))
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def _choices(spec: EnvSpec, action: Leaf) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns three facts about an action: how many values each choice has, the first value of each choice, and
    whether the action is one-hot. The arrays are empty if the action does not consist of choices."""
    if spec.action_spec is None:
        return *_counts(spec.action_space), False
    counts, is_one_hot = choices_of(spec.action_spec[action.key], action)
    return counts, np.zeros(len(counts), np.int64), is_one_hot


def _check_shape(spec: EnvSpec, mask: Leaf, counts: np.ndarray) -> None:
    """Raises `SpaceError` unless a mask contains a row for choices among `counts` values, or a row for each agent."""
    if mask.key[-1] != ACTION_MASK:
        name = ".".join(mask.key[: mask.key.index(ACTION_MASK) + 1])
        raise SpaceError(
            f"{name!r} contains several arrays, such as {mask.key[-1]!r}, but a mask of legal actions is a single "
            "array. Join the arrays. If the entry is not such a mask, rename it, or "
            f"{leave_out(name.removeprefix('info.'))}."
        )
    dims = spec.nested_dims.get(mask.key[:-1], ())
    rows = math.prod(dims)
    sizes = {*counts.reshape(rows, -1).sum(1).tolist()} if len(counts) and len(counts) % rows == 0 else set()
    needed = [*dims, *sizes] if len(sizes) == 1 else []
    is_flat = len(counts) == 1 and math.prod(mask.shape) == counts[0]
    if needed and (is_flat or [*mask.shape] == needed):
        return
    needs = f"needs shape {needed}" if needed else "cannot be masked: only Discrete and MultiDiscrete can"
    advice = ""
    if len(counts) > 1 and math.prod(mask.shape) == math.prod(counts.tolist()):
        advice = f"To mask all combinations, use a single Discrete({math.prod(mask.shape)}) as the action space. "
    raise SpaceError(
        f"the action mask {'.'.join(mask.key)!r} has shape {[*mask.shape]}, but the action space "
        f"{spec.action_space} {needs}. {advice}If it is not an action mask, rename it, or "
        f"{leave_out('.'.join(mask.key).removeprefix('info.'))}."
    )


def _counts(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Returns `_choices` of a Gymnasium space, without the last part."""
    counts, start = np.zeros(0, np.int64), np.zeros(0)
    if isinstance(space, spaces.Discrete):
        counts, start = np.array([space.n]), np.array([space.start])
    elif isinstance(space, spaces.MultiDiscrete):
        counts, start = space.nvec.reshape(-1), np.reshape(space.start, -1)
    return counts, start
