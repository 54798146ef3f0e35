"""How a user's policy is called: which functions are called with which keys, and how their outputs are checked and
converted. The cheapest form that gives the same result is used:

    policy                                    steps
    modules of tensordict that only call      the functions, with tensors (`collectx.policy.tensor_modules`)
      functions or draw from distributions
    any other module of tensordict,           the policy, with a TensorDict of the observation's tensors and of its
      forward(td), forward(tensordict)          outputs of the frame before (`TensorDictStep`)
    anything else                             the policy, with the observation's tensors; it returns the action, or a
                                                tuple of the action and further outputs (`ArgumentsStep`)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torch.nn.functional import one_hot

from collectx.batch import Key, Leaf, as_key, nest, nested_dims
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, DataError
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration
from collectx.policy.tensor_modules import Step, is_private, reads_only_tensors, tensor_modules


class CallPlan:
    """Calls a policy with the observation of an env group.

    All values are in one list: the tensors of the observation, then the outputs of all steps, in order. `numbers` is
    the number of the value of each output.

    Args:
        steps: the calls, in order. A step that learns in its first call what it writes must be the only one.
        outputs: the outputs that `Actor.act` returns.
    """

    def __init__(self, steps: Sequence[Step], spec: EnvSpec, outputs: Sequence[Output] = ()):
        self._steps = steps
        self._outputs = outputs
        self._shape = None if spec.policy_shape == (spec.num_envs,) else spec.policy_shape
        numbers = {leaf.key: number for number, leaf in enumerate(spec.observation)}
        num_values = len(numbers)
        self._calls: list[tuple[Callable, int | None, list[int], bool, Step]] = []
        for step in steps:
            reads = [numbers[key] for key in step.reads]
            self._calls.append(
                (step.function, reads[0] if len(reads) == 1 else None, reads, len(step.writes) == 1, step)
            )
            numbers |= {key: num_values + place for place, key in enumerate(step.writes)}
            num_values += len(step.writes)
        keys = [output.leaf.key for output in outputs]
        if missing := [key for key in keys if key not in numbers]:
            raise missing_outputs(missing)
        self.numbers = [numbers[key] for key in keys]

    def run(self, observation: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Calls the policy; returns all values. `observation` is a tensor `[E, *shape]` per leaf of the env's
        observation."""
        if self._shape is None:
            values = [*observation]
        elif self._shape:
            values = [tensor.unflatten(0, self._shape) for tensor in observation]
        else:
            values = [tensor[0] for tensor in observation]
        for function, only, reads, writes_one, step in self._calls:
            result = function(*[values[number] for number in reads]) if only is None else function(values[only])
            if writes_one and isinstance(result, torch.Tensor):
                values.append(result)
            else:
                values += step.results(result)
        return values

    def written(self) -> list[Key]:
        """Returns the keys that the steps write, in order; a key that two steps write is there twice."""
        return [key for step in self._steps for key in step.writes]

    def describe(self) -> dict[str, Any]:
        """Returns the plan as plain data: the batch size of the policy's inputs (None: one dimension, the envs), the
        calls with the keys that they read and write, and the outputs that batches contain."""
        calls = [
            {"calls": each.name, "with": each.form, "reads": key_names(each.reads), "writes": key_names(each.writes)}
            for each in self._steps
        ]
        outputs = {key_names([leaf.key]): f"{[*leaf.shape]} {leaf.dtype}" for leaf in (o.leaf for o in self._outputs)}
        return {"batch_size": self._shape, "calls": calls, "outputs": outputs}


@dataclass(frozen=True)
class CallOptions:
    """How a policy may be called.

    Attributes:
        skip_signature_check: whether the policy is called with a TensorDict, whatever its signature and `in_keys` are.
        by_tensors: whether modules of tensordict may be called without a TensorDict.
    """

    device: torch.device
    exploration_type: ExplorationType
    skip_signature_check: bool
    by_tensors: bool = True
    acceleration: Acceleration = field(default_factory=Acceleration)


def make_steps(policy: Callable, spec: EnvSpec, options: CallOptions, written: Sequence[Key] = ()) -> list[Step]:
    """Returns the steps that call `policy` with a tensor `[*spec.policy_shape, *shape]` per leaf of the observation.
    `written` are the keys that an earlier plan of the policy wrote; empty: a step may learn them in its first call."""
    observed = [leaf.key for leaf in spec.observation]
    if not options.skip_signature_check and not takes_tensordict(policy):
        return [ArgumentsStep(policy, spec, options, written)]
    reads = [] if options.skip_signature_check else [as_key(key) for key in getattr(policy, "in_keys", ())]
    unknown = [key for key in reads if not any(seen[: len(key)] == key for seen in observed)]
    if unknown:
        raise ConfigError(
            f"the policy reads {_quoted(unknown)}, but the env only writes {_quoted(observed)}. Change the policy's "
            "in_keys."
        )
    if options.by_tensors:
        steps = tensor_modules(policy, spec.policy_shape, options.exploration_type, options.acceleration)
        if steps is not None and reads_only_tensors(steps, observed):
            return steps
    return [TensorDictStep(policy, spec, options, written)]


def takes_tensordict(policy: Callable) -> bool:
    """Whether `policy` takes a TensorDict: it is a module of tensordict, or its only argument is named `tensordict` or
    `td`, or is annotated as a TensorDict."""
    if isinstance(policy, TensorDictModuleBase):
        return True
    parameters = _parameters(policy)
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    type_name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameters[0].name in ("tensordict", "td") or "TensorDict" in type_name


class ArgumentsStep(Step):
    """Calls a policy with tensors, or nested dicts of tensors. The policy returns the action, or a tuple or list of the
    actions and further outputs, which get the names `output1`, ... as in TorchRL. Outputs may be Python numbers and
    NumPy arrays.

    The arguments are, whichever fits first: the parts of the observation, if the policy's parameters have their names;
    a nested dict of all inputs (`EnvSpec.inputs`), if there are several and the policy has one parameter; the inputs
    one by one.
    """

    form = "arguments"

    def __init__(self, policy: Callable, spec: EnvSpec, options: CallOptions, written: Sequence[Key]):
        arguments = _arguments(policy, spec)
        reads = [key for each in arguments for key in (each.values() if isinstance(each, dict) else (each,))]
        forward = options.acceleration.compile_call(policy)
        if any(isinstance(each, dict) for each in arguments):
            forward = _taking_dicts(forward, arguments, reads)
        super().__init__(policy, forward, reads, written)
        self._actions = [leaf.key for leaf in spec.action]
        self._device = options.device

    def results(self, result: Any) -> Sequence[torch.Tensor]:
        num_actions, returned = len(self._actions), type(result).__name__
        # A list of numbers is one action; a tuple contains several outputs.
        if num_actions == 1 and isinstance(result, list) and result and all(isinstance(n, _NUMBERS) for n in result):
            result = torch.tensor(result, device=self._device)
        if isinstance(result, torch.Tensor | np.ndarray | _NUMBERS):
            result = (result,)
        if isinstance(result, tuple | list):
            result = [
                torch.tensor(each, device=self._device) if isinstance(each, np.ndarray | _NUMBERS) else each
                for each in result
            ]
        if not isinstance(result, tuple | list) or len(result) < num_actions:
            form = "a tensor" if num_actions == 1 else f"a tuple of {num_actions} tensors"
            raise DataError(
                f"the policy returned {'None' if result is None else f'a value of type {returned}'}, but must return "
                f"the action ({key_names(self._actions)}) as {form}. A module that writes into a TensorDict declares "
                "its out_keys."
            )
        if not self.writes:
            self.writes = [*self._actions, *((f"output{i}",) for i in range(1, len(result) - num_actions + 1))]
        if len(result) < len(self.writes):
            raise missing_outputs(self.writes[len(result) :])
        return result[: len(self.writes)]


_NUMBERS = int | float | np.generic


def _arguments(policy: Callable, spec: EnvSpec) -> list[Key | dict[Key, Key]]:
    """Returns what each argument is: the key of a tensor; or for a nested dict of tensors, their keys by those in the
    dict."""
    observed = [leaf.key for leaf in spec.observation]
    parameters = [parameter.name for parameter in _parameters(policy)]
    if parameters and {key[0] for key in observed}.issuperset(parameters):
        return [
            (name,) if (name,) in observed else {key[1:]: key for key in observed if key[0] == name}
            for name in parameters
        ]
    inputs = [leaf.key for leaf in spec.inputs]
    if len(inputs) > 1 and len(parameters) == 1:
        skipped = 0 if isinstance(spec.observation_space, spaces.Dict) else 1
        return [{key[skipped:]: key for key in inputs}]
    return [*inputs]


def _taking_dicts(forward: Callable, arguments: Sequence[Key | dict[Key, Key]], reads: Sequence[Key]) -> Callable:
    """Returns a function that takes a tensor per key of `reads`, and calls `forward` with the dicts of `arguments`."""

    def call(*tensors: torch.Tensor) -> Any:
        values = dict(zip(reads, tensors, strict=True))
        return forward(
            *[
                nest({inner: values[key] for inner, key in each.items()}) if isinstance(each, dict) else values[each]
                for each in arguments
            ]
        )

    return call


def _parameters(policy: Callable) -> list[inspect.Parameter]:
    """Returns the positional parameters without defaults; if all have defaults, the first one."""
    try:
        signature = inspect.signature(policy.forward if isinstance(policy, nn.Module) else policy)
    except (ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in signature.parameters.values() if p.kind in kinds]
    return [p for p in positional if p.default is inspect.Parameter.empty] or positional[:1]


class TensorDictStep(Step):
    """Calls a policy with a TensorDict, into which it writes its outputs; or it returns another.

    Uses one TensorDict for all frames: some policies keep values in it (`_ou_prev_noise`), and setting its observation
    takes half the time of making a new one. With a CUDA graph, makes a new one, because a graph cannot pass values on.
    """

    form = "a TensorDict"

    def __init__(self, policy: Callable, spec: EnvSpec, options: CallOptions, written: Sequence[Key]):
        super().__init__(policy, self._call, [leaf.key for leaf in spec.observation], written)
        acceleration = options.acceleration
        self._policy = policy if acceleration.compile is None else acceleration.compile_call(policy)
        self._exploration_type = options.exploration_type
        self._keeps_outputs = acceleration.cudagraph is None
        self._size = spec.policy_shape
        self._device = spec.data_device if options.device.type == "cpu" else options.device
        self._nested_dims = nested_dims(spec.nested_dims, spec.observation)
        self._actions = [leaf.key for leaf in spec.action]
        self._names = [key[0] if len(key) == 1 else key for key in self.reads]
        self._index = {key: place for place, key in enumerate(self.reads)}
        self._data: TensorDict | None = None

    def _call(self, *observation: torch.Tensor) -> TensorDict:
        data = self._data
        if data is None or not self._keeps_outputs:
            self._data = data = TensorDict({}, batch_size=self._size, device=self._device)
            for nested, dims in self._nested_dims.items():
                data.set(nested, TensorDict({}, batch_size=self._size + dims, device=self._device))
        self._observation = observation
        for name, tensor in zip(self._names, observation, strict=True):
            data.set(name, tensor)
        with exploration(self._exploration_type):
            result = self._policy(data)
        if result is None or result is data:
            return data
        if isinstance(result, torch.Tensor | np.ndarray | _NUMBERS | tuple | list):
            raise DataError(
                f"the policy was called with a TensorDict, but returned a value of type {type(result).__name__}. Write "
                f"{key_names(self._actions)} into the TensorDict, or call the parameter 'observation' to get a tensor."
            )
        return data.update(result)

    def results(self, result: TensorDict) -> Sequence[torch.Tensor]:
        index, observation, outputs = self._index, self._observation, {}
        for name, value in result.items(include_nested=True, leaves_only=True):
            key = as_key(name)
            # An observation is an output if the policy replaced its tensor.
            if key in index and value is observation[index[key]]:
                continue
            if isinstance(value, torch.Tensor) and not is_private(key):
                outputs[key] = value
        for key in self._actions:
            # Deleted, so that a call that writes no action does not repeat this one.
            if key in outputs:
                result.del_(key)
        writes = self.writes = self.writes or [*outputs]
        if len(outputs) > len(writes) and (late := index.keys() & outputs.keys() - set(writes)):
            raise DataError(
                f"the policy overwrote {_quoted(late)}, but not in its first call. Overwrite it in every call, or "
                "write it under another key."
            )
        try:
            return [outputs[key] for key in writes]
        except KeyError as error:
            raise missing_outputs(key for key in writes if key not in outputs) from error


def missing_outputs(keys: Iterable[Key]) -> DataError:
    """Returns the error of a later call that lacks outputs of the first one."""
    return DataError(
        f"the policy did not write {_quoted(keys)}, as it did in its first call. Write the same keys in every call."
    )


def key_names(keys: Iterable[Key]) -> str:
    """Returns keys as text for messages."""
    return ", ".join(".".join(key) for key in keys) or "nothing"


def _quoted(keys: Iterable[Key]) -> str:
    return " and ".join(repr(".".join(key)) for key in keys) or "nothing"


@dataclass(frozen=True)
class Output:
    """An output of the policy.

    Attributes:
        shape: the shape that `act` returns, with the dimensions of the group.
        is_reshaped: whether the policy returns a different shape: one with several dimensions of envs, or an action
            with more or fewer last dimensions of size 1.
        is_choice: whether the action is one-hot, and the policy returns its index, or a score for each action.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    is_action: bool
    is_reshaped: bool = False
    is_choice: bool = False

    def convert(self, value: torch.Tensor) -> torch.Tensor:
        """Returns an output of a later call in the dtype of the leaf. Raises `DataError` if its shape differs, or the
        conversion changes an action."""
        dtype = self.leaf.dtype
        if self.is_choice:
            return _one_hot(value, self.leaf, self.shape)
        if self.is_reshaped:
            value = value.reshape(self.shape)
        if value.shape != self.shape or not (self.is_action or torch.can_cast(value.dtype, dtype)):
            raise DataError(
                f"the policy returned {_quoted([self.leaf.key])} with shape {list(value.shape)}, {value.dtype}, but "
                f"with shape {list(self.shape)}, {dtype} in its first call. Return the same shape and dtype in every "
                "call."
            )
        return _cast(value, self.leaf) if self.is_action else value.to(dtype)


def read_outputs(outputs: Mapping[Key, torch.Tensor], spec: EnvSpec) -> list[Output]:
    """Returns the `Output`s of a policy from those of its first call, actions first."""
    actions = {leaf.key: leaf for leaf in spec.action}
    missing = [key for key in actions if key not in outputs]
    if missing:
        raise ConfigError(
            f"the env takes its action from {_quoted(missing)}, but the policy wrote {_quoted(outputs)}. Change "
            "the policy's out_keys."
        )
    size, dims = spec.policy_shape, len(spec.policy_shape)
    observed = {leaf.key: leaf for leaf in spec.observation}
    records = []
    for key in (*actions, *(key for key in outputs if key not in actions)):
        value, name, is_action = outputs[key], _quoted([key]), key in actions
        if not isinstance(value, torch.Tensor):
            raise DataError(
                f"the policy returned a value of type {type(value).__name__} as {name}, but must return a tensor"
            )
        if value.shape[:dims] != size:
            raise DataError(
                f"the policy returned {name} with shape {list(value.shape)} for observations of batch size "
                f"{list(size)}. Return a tensor of shape [{', '.join(map(str, size))}, ...]."
            )
        shape = tuple(value.shape[dims:])
        leaf = actions.get(key, Leaf(key, shape, value.dtype))
        if is_action and _is_choice(value, shape, leaf, spec):
            batch_shape = (size if dims <= 1 else (spec.num_envs,)) + leaf.shape
            _one_hot(value, leaf, batch_shape)
            records.append(Output(leaf, batch_shape, is_action=True, is_choice=True))
            continue
        if _without_last_ones(shape) != _without_last_ones(leaf.shape):
            hint = "" if leaf.shape else " For a discrete action, return its index (argmax), not logits or one-hot."
            if dims == 0 and value.ndim > len(leaf.shape):
                hint += " The observation of one env has no env dimension; num_envs=1 adds it."
            raise DataError(
                f"the policy returned {name} with shape {list(value.shape)}, but the action space requires shape "
                f"{[*size, *leaf.shape]}.{hint}"
            )
        if is_action:
            _cast(value, leaf)
        elif (seen := observed.get(key, leaf)) != leaf:
            raise DataError(
                f"the policy writes {name} with shape {list(shape)}, {leaf.dtype}, but the env writes it with shape "
                f"{list(seen.shape)}, {seen.dtype}, and a batch can only store one of the two. Write the policy's "
                "output under another key."
            )
        is_reshaped = dims > 1 or shape != leaf.shape
        records.append(Output(leaf, ((spec.num_envs,) if is_reshaped else size) + leaf.shape, is_action, is_reshaped))
    return records


def _without_last_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape[-1:] == (1,):
        shape = shape[:-1]
    return shape


def _is_choice(value: torch.Tensor, shape: tuple[int, ...], leaf: Leaf, spec: EnvSpec) -> bool:
    """Whether `value`, of this shape for each env, is the index of a one-hot action or a score for each action."""
    if spec.action_spec is None or type(spec.action_spec[leaf.key]).__name__ != "OneHot":
        return False
    if value.is_floating_point():
        return shape == leaf.shape
    return shape in ((), (1,)) and shape != leaf.shape and value.dtype is not torch.bool


def _one_hot(value: torch.Tensor, leaf: Leaf, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns the one-hot action of an index, or of the largest score; `shape` includes the group's dimensions."""
    (num_actions,) = leaf.shape
    name = _quoted([leaf.key])
    if value.is_floating_point():
        if value.isnan().any():
            raise DataError(
                f"the policy returned NaN as {name}, among the scores of the {num_actions} actions. Its weights or "
                "its inputs may contain NaN."
            )
        value = value.argmax(-1)
    elif value.numel() and not 0 <= value.min() <= value.max() < num_actions:
        raise DataError(
            f"the policy returned {value.unique().tolist()} as {name}, but the {num_actions} actions are numbered from "
            f"0 to {num_actions - 1}"
        )
    return one_hot(value.long(), num_actions).reshape(shape).to(leaf.dtype)


def _cast(value: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """Returns an action in the dtype of the leaf. Rounds floating-point actions to its precision; raises `DataError`
    if the dtype cannot represent another action."""
    cast = value.to(leaf.dtype)
    if leaf.dtype.is_floating_point or torch.promote_types(value.dtype, leaf.dtype) == leaf.dtype:
        return cast
    back = cast.to(value.dtype)
    if not torch.equal(back, value):
        wrong = value[back != value][0].item()
        advice = "Round it, or return the index of the action."
        if wrong != wrong:
            advice = "The weights or the inputs of the policy may contain NaN."
        elif not value.is_floating_point() and leaf.dtype is not torch.bool:
            limits = torch.iinfo(leaf.dtype)
            advice = (
                f"Clamp it to the range from {limits.min} to {limits.max}, or give the action spec the dtype "
                f"{value.dtype}."
            )
        raise DataError(
            f"the policy returned {wrong} ({value.dtype}) as {_quoted([leaf.key])}, but the action space requires "
            f"{leaf.dtype}, which cannot represent this value. {advice}"
        )
    return cast
