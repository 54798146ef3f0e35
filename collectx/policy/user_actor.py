"""The actor over a user's policy.

A call of the policy with first observations of the env (`EnvSpec.example_observation`), when the actor is made, fixes
keys, shapes and casts. `collectx.policy.call_plan` decides how the policy is called.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from collectx.batch import Key, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.base import Actor
from collectx.policy.call_plan import CallOptions, CallPlan, Output, key_names, make_steps, read_outputs
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration, structure
from collectx.policy.flat_weights import FlatWeights
from collectx.policy.recurrent import StateSpec, find_states, spec_with_states
from collectx.policy.tensor_modules import NotTensors, is_private
from collectx.random_state import preserve_random_state

# What torch says of a linear layer with an input of another size; the second, of a single row.
_MISFITS = (
    r"shapes cannot be multiplied \(\d+x(?P<gets>\d+) and (?P<takes>\d+)x",
    r"mat \(\d+x(?P<takes>\d+)\), vec \((?P<gets>\d+)\)",
)


class UserActor(Actor):
    """Acts with a user's policy. See `collectx.policy.base.Actor` for the other attributes, and
    `collectx.policy.make_actor` for the arguments. `plan` is how the policy is called; `plan.describe()` returns it as
    plain data.

    Raises:
        ConfigError: the policy reads keys that the env does not write, writes no action, needs a state of unknown shape
            (`collectx.policy.recurrent`), or its distribution does not support the exploration type.
        DataError: the shape or dtype of an action does not fit the action space, or an output overwrites an
            observation of another shape or dtype. Also from `act`: an output is missing, its shape has changed since
            the first call, its dtype cannot represent a value, or the policy overwrites an observation that it did not
            overwrite before.
    """

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
        self._options = CallOptions(device, exploration_type, skip_signature_check)
        self.module: nn.Module | None = policy.to(device) if isinstance(policy, nn.Module) else None
        self.states: tuple[StateSpec, ...] = find_states(policy, spec, self._probe)
        self._probe(spec_with_states(spec, self.states))

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        values = self._run(observation)
        outputs = []
        for number, shape, dtype, output in self._expected:
            value = values[number]
            outputs.append(value if value.dtype is dtype and value.shape == shape else output.convert(value))
        return outputs

    def accelerate(self, acceleration: Acceleration) -> None:
        self._acceleration = acceleration
        self.plan = plan = self._new_plan(self._spec, acceleration, self._written, self._outputs)
        graph = acceleration.capture(lambda *tensors: plan.run(tensors))
        self._run = plan.run if acceleration.cudagraph is None else lambda tensors: graph(*tensors)
        # Tuples, because unpacking one takes less time than reading attributes. The dtype None makes `act` always
        # convert scores, which may have the dtype of the one-hot action.
        numbered = zip(plan.numbers, self._outputs, strict=True)
        self._expected = [
            (number, each.shape, None if each.is_choice else each.leaf.dtype, each) for number, each in numbered
        ]
        self._structure = None if self.module is None else structure(self.module)

    def follow(self) -> None:
        """Follows modules and hooks that were added or replaced since the last call."""
        if self.module is not None and self._structure != structure(self.module):
            self.accelerate(self._acceleration)

    def _probe(self, spec: EnvSpec) -> tuple[Leaf, ...]:
        """Calls the policy once, with first observations of `spec`. Sets the plan and `leaves`, and returns
        `leaves`."""
        first = [_first(leaf, spec).to(self.device) for leaf in spec.observation]
        versions = [tensor._version for tensor in first]
        plan = self._new_plan(spec, Acceleration(), (), ())
        try:
            values = self._call_once(plan, spec, first)
            outputs = dict(zip(plan.written(), values[len(first) :], strict=True))
            is_redone = self._options.by_tensors and not all(
                isinstance(value, torch.Tensor) for value in outputs.values()
            )
        except NotTensors:
            is_redone = True
        if is_redone:
            self._options = replace(self._options, by_tensors=False)
            return self._probe(spec)
        public = {key: value for key, value in outputs.items() if not is_private(key)}
        # Observations that the policy changed in place are outputs too.
        in_place = {
            leaf.key: value
            for leaf, tensor, version, value in zip(spec.observation, first, versions, values, strict=False)
            if tensor._version != version and leaf.key not in outputs
        }
        self._spec, self._written, self._outputs = spec, [*public], read_outputs(public | in_place, spec)
        self.accelerate(Acceleration())  # a new plan, as one may keep what it was called with
        self.leaves = tuple(each.leaf for each in self._outputs)
        return self.leaves

    def _new_plan(
        self, spec: EnvSpec, acceleration: Acceleration, written: Sequence[Key], outputs: Sequence[Output]
    ) -> CallPlan:
        options = replace(self._options, acceleration=replace(acceleration, one_row=spec.is_single))
        return CallPlan(make_steps(self._policy, spec, options, written), spec, outputs)

    def _dtypes_note(self, spec: EnvSpec) -> str | None:
        """Returns a note if the policy's weights have another float dtype than all observations."""
        weights = () if self.module is None else (*self.module.parameters(), *self.module.buffers())
        floats = {each.dtype for each in weights if each.dtype.is_floating_point}
        seen = {each.dtype for each in spec.observation if each.dtype.is_floating_point}
        if not floats or not seen or floats & seen:
            return None
        (weight, *_), (observed, *_) = sorted(map(str, floats)), sorted(map(str, seen))
        return (
            f"the policy's weights are {weight}, but its observations {observed}. Convert the weights with "
            f"policy.to({observed}), or the observation in the policy. torch.set_default_dtype decides what new "
            "weights are."
        )

    def _call_once(self, plan: CallPlan, spec: EnvSpec, first: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        kind = self._options.exploration_type
        # Not under inference mode, because parameters that a lazy layer makes there cannot be trained.
        with exploration(kind), torch.no_grad(), _without_side_effects(self.module, self.device):
            try:
                return plan.run(first)
            except Exception as error:
                if isinstance(error, NotImplementedError) and f".{kind.value} " in str(error):
                    raise ConfigError(
                        f"exploration_type={kind.value} cannot be used: the policy's distribution does not support it "
                        f"({error}). Use random, mode, mean or deterministic."
                    ) from error
                size = spec.policy_shape
                seen = ", ".join(f"{key_names([o.key])} {[*size, *o.shape]} {o.dtype}" for o in spec.observation)
                values = "the first observations of the env" if spec.example_observation else "zeros for observations"
                error.add_note(f"raised when the policy was called once with {values}: {seen}")
                for sizes in filter(None, (re.search(pattern, str(error)) for pattern in _MISFITS)):
                    error.add_note(f"a layer takes {sizes['takes']} features, but gets {sizes['gets']}")
                if note := self._dtypes_note(spec):
                    error.add_note(note)
                if isinstance(error, TypeError) and "required positional argument" in str(error):
                    error.add_note("Arguments are observations, by their order or names. For others, declare in_keys.")
                raise


def _first(leaf: Leaf, spec: EnvSpec) -> torch.Tensor:
    """Returns a copy of a leaf's first observation, `[E, *shape]`; zeros without one."""
    example = spec.example_observation.get(leaf.key)
    shape = (spec.num_envs, *leaf.shape)
    return torch.zeros(shape, dtype=leaf.dtype) if example is None else example.expand(shape).clone()


@contextlib.contextmanager
def _without_side_effects(module: nn.Module | None, device: torch.device) -> Iterator[None]:
    """Restores the module's tensors and the states of the global generators after the block."""
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
