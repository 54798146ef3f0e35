"""What a recurrent policy carries from one frame to the next: keys that it reads, and writes below `next`.

    h --policy--> next.h, which is h of the following frame, or, where a new episode begins, as at its first

Settled before the actor is made, in every process, so that a batch holds the state before each frame and after it. Must
not know envs; `collectx/rollout/recurrent_state.py` does the carrying.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError

# Whether an episode begins with this frame, `[1]` bool, as TorchRL's InitTracker has it.
IS_INIT = Leaf(("is_init",), (1,), torch.bool)

# Combinations of shapes that are tried.
_MOST_TRIES = 64


@dataclasses.dataclass(frozen=True)
class Carried:
    """A leaf that goes on from frame to frame.

    Attributes:
        leaf: at the root; it is below `next` as well.
        first: one env's, at the first frame of an episode; None: the env says.
        written: whether the policy writes it below `next`; otherwise it is zero there.
    """

    leaf: Leaf
    first: torch.Tensor | None
    written: bool


def seen_with(spec: EnvSpec, carried: Sequence[Carried]) -> EnvSpec:
    """What the policy sees: after all that the env observes, what the env does not."""
    first = {each.leaf: each.first[None] for each in carried if each.first is not None}
    if not first:
        return spec
    at_reset = {**spec.first, **{leaf.key: value for leaf, value in first.items()}}
    return dataclasses.replace(spec, observation=(*spec.observation, *first), first=at_reset)


def find_carried(policy: Any, spec: EnvSpec, writes: Callable[[EnvSpec], Sequence[Leaf]]) -> tuple[Carried, ...]:
    """What `policy` carries.

    A state that the env has (by TorchRL's `TensorDictPrimer`) begins as the env says; otherwise as the policy, or a
    module of it, says in `initial_state`, a dict of one env's tensors by key; otherwise with zeros, of the shape that
    the sizes of the recurrent layers in it allow.

    Args:
        writes: the leaves that the policy writes where it sees what such a spec has; raises where it cannot.

    Raises:
        ConfigError: the shape of a state is not to be found.
    """
    reads = [_key(key) for key in getattr(policy, "in_keys", None) or ()]
    below_next = {_key(key)[1:] for key in getattr(policy, "out_keys", None) or () if _key(key)[0] == "next"}
    theirs = {leaf.key: leaf for leaf in spec.observation}
    carried = [Carried(leaf, None, True) for key, leaf in theirs.items() if key in below_next]
    if IS_INIT.key in reads and IS_INIT.key not in theirs:
        carried.append(Carried(IS_INIT, torch.ones(1, dtype=torch.bool), False))
    given = _given(policy)
    unknown = []
    for key in dict.fromkeys(key for key in reads if key in below_next and key not in theirs):
        if key in given:
            carried.append(_begins(key, given[key]))
        else:
            unknown.append(key)
    return (*carried, *_tried(policy, spec, unknown, carried, writes))


def _tried(
    policy: Any,
    spec: EnvSpec,
    keys: Sequence[Key],
    others: Sequence[Carried],
    writes: Callable[[EnvSpec], Sequence[Leaf]],
) -> list[Carried]:
    """States of the shapes with which the policy can be called and which it gives back."""
    if not keys:
        return []
    why: Exception | None = None
    candidates = list(dict.fromkeys(_sizes(policy)))
    for shapes in itertools.islice(itertools.product(candidates, repeat=len(keys)), _MOST_TRIES):
        begun = [_begins(key, torch.zeros(shape)) for key, shape in zip(keys, shapes, strict=True)]
        try:
            written = set(writes(seen_with(spec, [*others, *begun])))
        except Exception as error:  # whatever a module says of a shape that is not its own
            why = error
            continue
        if all(each.leaf.under("next") in written for each in begun):
            return begun
    names = ", ".join(".".join(key) for key in keys)
    raise ConfigError(
        [
            f"the policy carries {names} through `next`, and no shape of it was found that the policy takes and gives "
            f"back (tried: {candidates or 'none, as it has no recurrent layer of torch'}): tell how it begins by an "
            f"attribute of the policy, initial_state = {{{names.split(', ')[0]!r}: torch.zeros(...)}}, for one env."
            + (f" Called with such shapes it last said: {why}" if why else "")
        ]
    ) from why


def _sizes(policy: Any) -> Iterator[tuple[int, ...]]:
    """Of one env's state, of the recurrent layers in `policy`."""
    for layer in policy.modules() if isinstance(policy, nn.Module) else ():
        if isinstance(layer, nn.RNNBase):
            yield (layer.num_layers * (2 if layer.bidirectional else 1), layer.hidden_size)
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            yield (layer.hidden_size,)


def _given(policy: Any) -> dict[Key, torch.Tensor]:
    found: dict[Key, torch.Tensor] = {}
    for module in policy.modules() if isinstance(policy, nn.Module) else (policy,):
        told = getattr(module, "initial_state", None)
        if isinstance(told, Mapping):
            found |= {_key(key): torch.as_tensor(value) for key, value in told.items()}
    return found


def _begins(key: Key, first: torch.Tensor) -> Carried:
    return Carried(Leaf(key, tuple(first.shape), first.dtype), first.detach().cpu(), True)


def _key(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)
