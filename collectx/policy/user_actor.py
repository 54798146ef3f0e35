"""The actor over a user's policy.

Keys, shapes and casts are fixed when the actor is made, in the worker's process, by one forward on first observations
of the env (`EnvSpec.first`). How the policy is called: `collectx.policy.calls`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn.functional import one_hot

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, ShapeError
from collectx.policy.calls import Call, Outputs, key_names, make_call
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration
from collectx.policy.recurrent import StateSpec, find_states, spec_with_states
from collectx.policy.weights import FlatWeights
from collectx.random_state import preserve_random_state


class UserActor:
    """See `collectx.policy.base.Actor` for the attributes, `collectx.policy.make_actor` for the arguments.

    Raises:
        ConfigError: the policy reads keys that the env does not write, writes no action, has a state of unknown shape
            (`collectx.policy.recurrent`), or its distribution has no action of that exploration type.
        ShapeError: an action does not have the shape or the kind of dtype of the action space, or an output that
            overwrites an observation does not have its shape and dtype. `act` raises it for an output that has another
            shape than in the first call, or whose values its dtype cannot represent, and for an observation that the
            policy overwrites in a later call only.
    """

    leaves: tuple[Leaf, ...]

    def __init__(
        self,
        policy: Callable,
        spec: EnvSpec,
        device: torch.device,
        exploration_type: ExplorationType,
        is_trusted: bool = False,
    ):
        self.device = device
        self._policy = policy
        self._exploration_type = exploration_type
        self._is_trusted = is_trusted
        self.module: nn.Module | None = policy.to(device) if isinstance(policy, nn.Module) else None
        self.states: tuple[StateSpec, ...] = find_states(policy, spec, self._probe)
        self._probe(spec_with_states(spec, self.states))

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = self._call(observation)
        values = []
        for key, shape, dtype, is_reshaped, output in self._expected:
            value = outputs[key].reshape(shape) if is_reshaped else outputs[key]
            values.append(value if value.dtype is dtype and value.shape == shape else output.convert(value))
        if len(outputs) > len(values) and (late := self._not_overwritten.intersection(outputs)):
            raise ShapeError(
                f"the policy overwrites {key_names(late)}, which it did not in its first call: overwrite it in every "
                "call, or write it under another key."
            )
        return values

    def reset(self) -> None:
        pass

    def accelerate(self, acceleration: Acceleration) -> None:
        call = self._make_call(acceleration)
        graph = acceleration.capture(lambda *tensors: call(tensors))
        self._call = call if acceleration.cudagraph is None else lambda tensors: graph(*tensors)

    def _probe(self, spec: EnvSpec) -> tuple[Leaf, ...]:
        """Calls the policy once, on the first observations of `spec`. Sets `leaves`, which it returns, and how `act`
        calls the policy and converts its outputs."""
        first = [_first(leaf, spec).to(self.device) for leaf in spec.observation]
        versions = [tensor._version for tensor in first]
        outputs = self._call_once(self._new_call(spec, {}, Acceleration()), spec, first)
        # Observations that the policy changed in place, by their index.
        in_place = {
            leaf.key: i
            for i, (leaf, tensor, version) in enumerate(zip(spec.observation, first, versions, strict=True))
            if tensor._version != version and leaf.key not in outputs
        }
        for key, i in in_place.items():
            outputs[key] = first[i].reshape((*spec.policy_shape, *spec.observation[i].shape))
        records = _outputs(outputs, spec)
        self._make_call = partial(self._new_call, spec, in_place)
        self._call = self._make_call(Acceleration())  # a new one, as a call may keep what it was called with
        # Unpacking a tuple takes less time than reading the attributes of a record.
        self._expected = [(each.leaf.key, each.shape, each.leaf.dtype, each.is_reshaped, each) for each in records]
        self._not_overwritten = {leaf.key for leaf in spec.observation}.difference(outputs)
        self.leaves = tuple(each.leaf for each in records)
        return self.leaves

    def _new_call(self, spec: EnvSpec, in_place: dict[Key, int], acceleration: Acceleration) -> Call:
        """A call of the policy with observations of a group, `[E, *shape]`.

        Args:
            in_place: indices of the observations that the policy changes in place, which are outputs too.
        """
        acceleration = replace(acceleration, one_row=spec.is_single)
        call = make_call(self._policy, spec, self.device, self._exploration_type, acceleration, self._is_trusted)
        if in_place:
            call = _with_observations(call, in_place)
        shape = spec.policy_shape
        if shape == (spec.num_envs,):
            return call
        if not shape:
            return lambda observation: call([tensor[0] for tensor in observation])
        return lambda observation: call([tensor.unflatten(0, shape) for tensor in observation])

    def _call_once(self, call: Call, spec: EnvSpec, first: Sequence[torch.Tensor]) -> Outputs:
        kind = self._exploration_type
        # Not under inference mode: parameters that a lazy layer makes there could never be trained.
        with exploration(kind), torch.no_grad(), _without_side_effects(self.module, self.device):
            try:
                return call(first)
            except Exception as error:
                if isinstance(error, NotImplementedError) and f".{kind.value} " in str(error):
                    raise ConfigError(
                        [
                            f"exploration_type={kind.value}: the policy's distribution has none ({error}): "
                            "use random, mode, mean or deterministic."
                        ]
                    ) from error
                size = spec.policy_shape
                seen = ", ".join(f"{key_names([o.key])} {[*size, *o.shape]} {o.dtype}" for o in spec.observation)
                values = "first observations of the env" if spec.first else "zeros for observations"
                error.add_note(f"raised by the policy, which was called once with {values}: {seen}")
                raise


@dataclass(frozen=True)
class _Output:
    """An output of the policy.

    Attributes:
        shape: that `act` returns, with the group's dimensions.
        is_reshaped: whether the policy's own shape is another one: of envs in several dimensions, or an action with a
            last dimension of size 1.
        is_choice: whether the action is one-hot, and the policy returns its index, or a score for each action.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    is_reshaped: bool
    is_action: bool
    is_choice: bool = False

    def convert(self, value: torch.Tensor) -> torch.Tensor:
        """A later output in the dtype of the leaf. Raises ShapeError where that changes it."""
        dtype = self.leaf.dtype
        if self.is_choice:
            return _one_hot(value, self.leaf, self.shape)
        if value.shape != self.shape or not (self.is_action or torch.can_cast(value.dtype, dtype)):
            raise ShapeError(
                f"the policy returned {key_names([self.leaf.key])} of shape {list(value.shape)}, {value.dtype}, but of "
                f"shape {list(self.shape)}, {dtype} in its first call: an output has one shape and dtype."
            )
        return _cast(value, self.leaf) if self.is_action else value.to(dtype)


def _outputs(outputs: Outputs, spec: EnvSpec) -> list[_Output]:
    """The records of a policy's first outputs, actions first.

    Raises:
        ConfigError, ShapeError: see `UserActor`.
    """
    actions = {leaf.key: leaf for leaf in spec.action}
    missing = [key for key in actions if key not in outputs]
    if missing:
        raise ConfigError(
            [
                f"the policy wrote {key_names(outputs)}, but not {key_names(missing)}, where the env looks for its "
                "action: change its out_keys."
            ]
        )
    size, dims = spec.policy_shape, len(spec.policy_shape)
    observed = {leaf.key: leaf for leaf in spec.observation}
    records = []
    for key in (*actions, *(key for key in outputs if key not in actions)):
        value, name, is_action = outputs[key], key_names([key]), key in actions
        if not isinstance(value, torch.Tensor):
            raise ShapeError(f"the policy returned a {type(value).__name__} for {name}, not a tensor")
        if value.shape[:dims] != size:
            raise ShapeError(
                f"the policy returned {name} of shape {list(value.shape)} for observations of batch size {list(size)}: "
                f"expected {[*size, '...']}"
            )
        shape = tuple(value.shape[dims:])
        leaf = actions.get(key, Leaf(key, shape, value.dtype))
        if is_action and _is_choice(value, shape, leaf, spec):
            whole = (size if dims <= 1 else (spec.num_envs,)) + leaf.shape
            _one_hot(value, leaf, whole)
            records.append(_Output(leaf, whole, False, True, is_choice=True))
            continue
        if shape not in (leaf.shape, (*leaf.shape, 1)):
            hint = " For a discrete action return its index (argmax), not logits or one-hot." if not leaf.shape else ""
            raise ShapeError(
                f"the policy returned {name} of shape {list(value.shape)}, but the action space demands "
                f"{[*size, *leaf.shape]}.{hint}"
            )
        if is_action:
            _cast(value, leaf)
        elif (seen := observed.get(key, leaf)) != leaf:
            raise ShapeError(
                f"the policy overwrites {name}, which the env observes as {list(seen.shape)} {seen.dtype}, with "
                f"{list(shape)} {leaf.dtype}: a batch has one shape and dtype for both: write it under another key."
            )
        is_reshaped = dims > 1 or shape != leaf.shape
        records.append(_Output(leaf, ((spec.num_envs,) if is_reshaped else size) + leaf.shape, is_reshaped, is_action))
    return records


def _is_choice(value: torch.Tensor, shape: tuple[int, ...], leaf: Leaf, spec: EnvSpec) -> bool:
    """Whether `value`, of this shape for each env, is the index of a one-hot action or a score for each action."""
    if spec.action_spec is None or type(spec.action_spec[leaf.key]).__name__ != "OneHot":
        return False
    if value.is_floating_point():
        return shape == leaf.shape
    return shape in ((), (1,)) and shape != leaf.shape and value.dtype is not torch.bool


def _one_hot(value: torch.Tensor, leaf: Leaf, shape: tuple[int, ...]) -> torch.Tensor:
    """The one-hot action of an index, or of the largest score; `shape` includes the group's dimensions.

    Raises:
        ShapeError: a score is NaN, or there is no action with that index.
    """
    (num_actions,) = leaf.shape
    name = key_names([leaf.key])
    if value.is_floating_point():
        if value.isnan().any():
            raise ShapeError(f"the policy returned {name} with a NaN among the scores of the {num_actions} actions")
        value = value.argmax(-1)
    elif value.numel() and not 0 <= value.min() <= value.max() < num_actions:
        raise ShapeError(
            f"the policy returned {name} with the indices {value.unique().tolist()}, but there are {num_actions} "
            "actions, numbered from 0"
        )
    return one_hot(value.long(), num_actions).reshape(shape).to(leaf.dtype)


def _with_observations(call: Call, index: dict[Key, int]) -> Call:
    """`call`, with some of the observations among its outputs."""
    return lambda observation: {**{key: observation[i] for key, i in index.items()}, **call(observation)}


def _first(leaf: Leaf, spec: EnvSpec) -> torch.Tensor:
    """A copy of the first observation, or zeros, `[E, *shape]`."""
    first = spec.first.get(leaf.key)
    shape = (spec.num_envs, *leaf.shape)
    return torch.zeros(shape, dtype=leaf.dtype) if first is None else first.expand(shape).clone()


def _cast(value: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """An action in the leaf's dtype. Floating-point actions are rounded to its precision.

    Raises:
        ShapeError: an integer or bool dtype cannot represent a value.
    """
    cast = value.to(leaf.dtype)
    if leaf.dtype.is_floating_point or torch.promote_types(value.dtype, leaf.dtype) == leaf.dtype:
        return cast
    back = cast.to(value.dtype)
    if not torch.equal(back, value):
        wrong = value[back != value][0].item()
        raise ShapeError(
            f"the policy returned {key_names([leaf.key])} as {value.dtype} with the value {wrong}, but the action "
            f"space demands {leaf.dtype}, which has no such value: round it, or return the index of the action."
        )
    return cast


@contextlib.contextmanager
def _without_side_effects(module: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Restores the module's tensors and the random state after the block."""
    try:
        weights = FlatWeights(module)
    except ValueError:  # lazy parameters do not exist before the block
        weights = FlatWeights(None)
    saved = torch.empty(weights.nbytes, dtype=torch.uint8)
    weights.write(saved)
    with preserve_random_state([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            weights.read(saved)
