"""The actor over a user's policy.

Keys, shapes and casts are fixed when the actor is made, in the worker's process, by one forward on first observations
of the env (`EnvSpec.first`). How the policy is called: `collectx.policy.calls`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, ShapeError
from collectx.policy.calls import Call, Outputs, key_names, make_call
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration, structure
from collectx.policy.recurrent import StateSpec, find_states, spec_with_states
from collectx.policy.tensor_modules import NotTensors
from collectx.policy.user_outputs import read_outputs
from collectx.policy.weights import FlatWeights
from collectx.random_state import preserve_random_state


class UserActor:
    """See `collectx.policy.base.Actor` for the attributes, `collectx.policy.make_actor` for the arguments.

    Raises:
        ConfigError: the policy reads keys that the env does not write, writes no action, has a state of unknown shape
            (`collectx.policy.recurrent`), or its distribution has no action of that exploration type.
        ShapeError: an action does not have the shape or the kind of dtype of the action space, or an output that
            overwrites an observation does not have its shape and dtype. `act` raises it for an output that is missing,
            has another shape than in the first call, or values that its dtype cannot represent, and for an observation
            that the policy overwrites in a later call only.
    """

    leaves: tuple[Leaf, ...]

    def __init__(
        self,
        policy: Callable,
        spec: EnvSpec,
        device: torch.device,
        exploration_type: ExplorationType,
        skip_signature_check: bool = False,
    ):
        self.device = device
        self._policy = policy
        self._exploration_type = exploration_type
        self._skip_signature_check = skip_signature_check
        self._by_tensors = True
        self.module: nn.Module | None = policy.to(device) if isinstance(policy, nn.Module) else None
        self.states: tuple[StateSpec, ...] = find_states(policy, spec, self._probe)
        self._probe(spec_with_states(spec, self.states))

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = self._call(observation)
        values = []
        try:
            for key, shape, dtype, is_reshaped, output in self._expected:
                value = outputs[key].reshape(shape) if is_reshaped else outputs[key]
                values.append(value if value.dtype is dtype and value.shape == shape else output.convert(value))
        except KeyError as error:
            missing = key_names(each[0] for each in self._expected if each[0] not in outputs)
            raise ShapeError(
                f"the policy wrote no {missing}, which it did in its first call: write the same keys in every call."
            ) from error
        if len(outputs) > len(values) and (late := self._not_overwritten.intersection(outputs)):
            raise ShapeError(
                f"the policy overwrites {key_names(late)}, which it did not in its first call: overwrite it in every "
                "call, or write it under another key."
            )
        return values

    def reset(self) -> None:
        pass

    def accelerate(self, acceleration: Acceleration) -> None:
        self._acceleration = acceleration
        call = self._make_call(acceleration)
        graph = acceleration.capture(lambda *tensors: call(tensors))
        self._call = call if acceleration.cudagraph is None else lambda tensors: graph(*tensors)
        self._structure = None if self.module is None else structure(self.module)

    def follow(self) -> None:
        """Acts with modules and hooks that were added or replaced since the last call. Newer tensors and other
        attributes take effect without it."""
        if self.module is not None and self._structure != structure(self.module):
            self.accelerate(self._acceleration)

    def _probe(self, spec: EnvSpec) -> tuple[Leaf, ...]:
        """Calls the policy once, on the first observations of `spec`. Sets `leaves`, which it returns, and how `act`
        calls the policy and converts its outputs."""
        first = [_first(leaf, spec).to(self.device) for leaf in spec.observation]
        versions = [tensor._version for tensor in first]
        try:
            outputs = self._call_once(self._new_call(spec, {}, Acceleration()), spec, first)
            is_redone = self._by_tensors and not all(isinstance(value, torch.Tensor) for value in outputs.values())
        except NotTensors:
            is_redone = True
        if is_redone:
            self._by_tensors = False
            return self._probe(spec)
        # Observations that the policy changed in place, by their index.
        in_place = {
            leaf.key: i
            for i, (leaf, tensor, version) in enumerate(zip(spec.observation, first, versions, strict=True))
            if tensor._version != version and leaf.key not in outputs
        }
        for key, i in in_place.items():
            outputs[key] = first[i].reshape((*spec.policy_shape, *spec.observation[i].shape))
        records = read_outputs(outputs, spec)
        self._make_call = partial(self._new_call, spec, in_place)
        self.accelerate(Acceleration())  # a new call, as one may keep what it was called with
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
        options = self._exploration_type, acceleration, self._skip_signature_check, self._by_tensors
        call = make_call(self._policy, spec, self.device, *options)
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


def _with_observations(call: Call, index: dict[Key, int]) -> Call:
    """`call`, with some of the observations among its outputs."""
    return lambda observation: {**{key: observation[i] for key, i in index.items()}, **call(observation)}


def _first(leaf: Leaf, spec: EnvSpec) -> torch.Tensor:
    """A copy of the first observation, or zeros, `[E, *shape]`."""
    first = spec.first.get(leaf.key)
    shape = (spec.num_envs, *leaf.shape)
    return torch.zeros(shape, dtype=leaf.dtype) if first is None else first.expand(shape).clone()


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
