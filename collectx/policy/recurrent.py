"""The state that a recurrent policy passes from one frame to the next: keys that it reads, and writes below `next`.

    h --policy--> next.h, which is h of the following frame, or the initial h where a new episode begins

The states are found in every process before the actor is made, so a batch contains the state before and after each
frame. The rollout passes the state on (`collectx/rollout/wrappers.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from collectx.batch import Key, Leaf, as_key
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError

# Whether an episode begins with this frame; the leaf of TorchRL's InitTracker.
IS_INIT = Leaf(("is_init",), (1,), torch.bool)

_MAX_TRIES = 64


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """One leaf of a policy's state.

    Attributes:
        leaf: the leaf at the root of a batch; batches also contain it below `next`.
        initial: the value of one env at the first frame of an episode; None: the env observes the state.
        is_written: whether the policy writes it below `next`, where it is otherwise zero.
    """

    leaf: Leaf
    initial: torch.Tensor | None
    is_written: bool


def spec_with_states(spec: EnvSpec, states: Sequence[StateSpec]) -> EnvSpec:
    """Returns the spec as the policy sees it: the states that the env does not observe are the last observation
    leaves."""
    initial = {state.leaf: state.initial[None] for state in states if state.initial is not None}
    if not initial:
        return spec
    example = {**spec.example_observation, **{leaf.key: value for leaf, value in initial.items()}}
    return dataclasses.replace(spec, observation=(*spec.observation, *initial), example_observation=example)


def find_states(policy: Any, spec: EnvSpec, probe: Callable[[EnvSpec], Sequence[Leaf]]) -> tuple[StateSpec, ...]:
    """Returns the states of `policy`. The initial value of a state is the first of:

    - the env's observation with this key (TorchRL's `TensorDictPrimer`),
    - its entry in the attribute `initial_state` of the policy or of one of its modules, a dict from keys to tensors of
      one env,
    - zeros, of a shape that fits the policy's recurrent layers.

    `probe` calls the policy with observations of a spec, and returns the leaves that it writes; raises if the call
    fails. Raises `ConfigError` if no shape was found that fits a state.
    """
    reads = [as_key(key) for key in getattr(policy, "in_keys", None) or ()]
    below_next = {as_key(key)[1:] for key in getattr(policy, "out_keys", None) or () if as_key(key)[0] == "next"}
    observed = {leaf.key: leaf for leaf in spec.observation}
    states = [StateSpec(leaf, None, True) for key, leaf in observed.items() if key in below_next]
    if IS_INIT.key in reads and IS_INIT.key not in observed:
        states.append(StateSpec(IS_INIT, torch.ones(1, dtype=torch.bool), False))
    initial = _initial_states(policy)
    unknown = []
    for key in dict.fromkeys(key for key in reads if key in below_next and key not in observed):
        if key in initial:
            states.append(_state(key, initial[key]))
        else:
            unknown.append(key)
    return (*states, *_try_shapes(policy, spec, unknown, states, probe))


def _try_shapes(
    policy: Any,
    spec: EnvSpec,
    keys: Sequence[Key],
    others: Sequence[StateSpec],
    probe: Callable[[EnvSpec], Sequence[Leaf]],
) -> list[StateSpec]:
    """Returns states with the first shapes that the policy accepts and returns."""
    if not keys:
        return []
    last_error: Exception | None = None
    candidates = list(dict.fromkeys(_state_shapes(policy)))
    for shapes in itertools.islice(itertools.product(candidates, repeat=len(keys)), _MAX_TRIES):
        states = [_state(key, torch.zeros(shape)) for key, shape in zip(keys, shapes, strict=True)]
        try:
            written = set(probe(spec_with_states(spec, [*others, *states])))
        except Exception as error:  # modules raise anything for a wrong shape
            last_error = error
            continue
        if all(state.leaf.under("next") in written for state in states):
            return states
    names = ", ".join(".".join(key) for key in keys)
    listed = ", ".join(map(str, candidates))
    tried = f"none of the shapes {listed} fits" if candidates else "the policy contains no recurrent layer of torch"
    raise ConfigError(
        f"the shape of the policy's recurrent state {names} is unknown: {tried}. Set the initial value for one env as "
        f"an attribute of the policy: initial_state = {{{names.split(', ')[0]!r}: torch.zeros(...)}}."
        + (f" The last error was: {last_error}" if last_error else "")
    ) from last_error


def _state_shapes(policy: Any) -> Iterator[tuple[int, ...]]:
    """Yields the shapes that the state of one env may have, by the recurrent layers of `policy`."""
    for layer in policy.modules() if isinstance(policy, nn.Module) else ():
        if isinstance(layer, nn.RNNBase):
            yield (layer.num_layers * (2 if layer.bidirectional else 1), layer.hidden_size)
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            yield (layer.hidden_size,)


def _initial_states(policy: Any) -> dict[Key, torch.Tensor]:
    initial: dict[Key, torch.Tensor] = {}
    for module in policy.modules() if isinstance(policy, nn.Module) else (policy,):
        attribute = getattr(module, "initial_state", None)
        if isinstance(attribute, Mapping):
            initial |= {as_key(key): torch.as_tensor(value) for key, value in attribute.items()}
    return initial


def _state(key: Key, initial: torch.Tensor) -> StateSpec:
    return StateSpec(Leaf(key, tuple(initial.shape), initial.dtype), initial.detach().cpu(), True)
