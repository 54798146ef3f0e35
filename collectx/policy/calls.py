"""How a user's policy is called: a function from observation tensors to outputs by key, in the cheapest form.

    policy                                    call
    modules of tensordict's that only call    the functions in turn, with tensors (`collectx.policy.tensor_modules`)
      functions or draw from distributions
    any other module of tensordict's,         the policy, with a TensorDict of the observation's tensors and of its
      forward(td), forward(tensordict)          outputs of the frame before
    anything else                             the policy, with the observation's tensors; it returns the action, or a
                                                tuple of the action and further outputs

Used by the actor over it (`collectx.policy.user_actor`), in the worker's process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import nn

from collectx.batch import Key, as_key, nest, nested_dims
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, ShapeError
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration
from collectx.policy.tensor_modules import Call, Outputs, call_modules, is_private, reads_only_tensors, tensor_modules


def make_call(
    policy: Callable,
    spec: EnvSpec,
    device: torch.device,
    exploration_type: ExplorationType,
    acceleration: Acceleration,
    skip_signature_check: bool,
    by_tensors: bool,
) -> Call:
    """A function that calls `policy` with one tensor `[*spec.policy_shape, *shape]` per leaf of `spec.observation`.

    Args:
        skip_signature_check: the policy is called with a TensorDict, whatever its signature and its keys.
        by_tensors: modules of tensordict may be called without a TensorDict.

    Raises:
        ConfigError: the policy reads keys that the env does not write.
    """
    index = {leaf.key: i for i, leaf in enumerate(spec.observation)}
    if not skip_signature_check and not takes_tensordict(policy):
        return call_with_tensors(policy, spec, device, acceleration)
    reads = [] if skip_signature_check else [as_key(key) for key in getattr(policy, "in_keys", ())]
    unknown = [key for key in reads if key not in index and not any(seen[: len(key)] == key for seen in index)]
    if unknown:
        raise ConfigError(
            [f"the policy reads {key_names(unknown)}, but the env writes {key_names(index)}: change its in_keys."]
        )
    modules = tensor_modules(policy, spec.policy_shape, exploration_type, acceleration) if by_tensors else None
    if modules is not None and reads_only_tensors(modules, set(index)):
        return call_modules(modules, index)
    compiled = policy if acceleration.compile is None else acceleration.compile_call(policy)
    keeps_outputs = acceleration.cudagraph is None
    data_device = spec.data_device if device.type == "cpu" else device
    return call_with_tensordict(compiled, spec, data_device, exploration_type, keeps_outputs)


def takes_tensordict(policy: Callable) -> bool:
    """Whether `policy` is called with a TensorDict: it is a module of tensordict's, or its only argument is named
    `tensordict` or `td`, or is annotated as a TensorDict."""
    if isinstance(policy, TensorDictModuleBase):
        return True
    parameters = _parameters(policy)
    if len(parameters) != 1:
        return False
    annotation = parameters[0].annotation
    type_name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameters[0].name in ("tensordict", "td") or "TensorDict" in type_name


def call_with_tensors(policy: Callable, spec: EnvSpec, device: torch.device, acceleration: Acceleration) -> Call:
    """A policy from observation tensors to the action. Outputs after the action are `output1`, ... Outputs may be
    Python's numbers and NumPy's arrays.

    Its arguments are, in this order: the parts of the observation that have their names; a nested dict of all inputs
    (`EnvSpec.inputs`), for a policy with one argument and an env with several inputs; the inputs.
    """
    forward = acceleration.compile_call(policy)
    keys = names = [leaf.key for leaf in spec.action]
    arguments = _arguments(policy, spec)

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        nonlocal names
        result = forward(*[take(observation) for take in arguments])
        if isinstance(result, torch.Tensor):
            result = (result,)
        else:
            result = _tensors(result, len(keys), device)
        if not isinstance(result, tuple | list) or len(result) < len(keys):
            raise ShapeError(
                f"a policy without out_keys has to return the env's action ({key_names(keys)}) as "
                f"{'a tensor' if len(keys) == 1 else f'a tuple of {len(keys)} tensors'}, got {type(result).__name__}"
            )
        if len(result) != len(names):
            # TorchRL's names for further outputs.
            names = [*keys, *((f"output{i}",) for i in range(1, len(result) - len(keys) + 1))]
        return dict(zip(names, result, strict=True))

    return call


def _arguments(policy: Callable, spec: EnvSpec) -> list[Callable[[Sequence[torch.Tensor]], Any]]:
    """What takes each argument of a policy without keys from the observation's tensors."""
    index = {leaf.key: i for i, leaf in enumerate(spec.observation)}
    names = [parameter.name for parameter in _parameters(policy)]
    if names and {key[0] for key in index}.issuperset(names):
        return [_take({key[1:]: i for key, i in index.items() if key[0] == name}) for name in names]
    inputs = [leaf.key for leaf in spec.inputs]
    if len(inputs) > 1 and len(names) == 1:
        skipped = 0 if isinstance(spec.observation_space, spaces.Dict) else 1
        return [_take({key[skipped:]: index[key] for key in inputs})]
    return [itemgetter(index[key]) for key in inputs]


def _take(index: dict[Key, int]) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Takes one tensor, or a nested dict of several."""
    if () in index:
        return itemgetter(index[()])
    return lambda observation: nest({key: observation[i] for key, i in index.items()})


def call_with_tensordict(
    policy: Callable,
    spec: EnvSpec,
    device: torch.device | None,
    exploration_type: ExplorationType,
    keeps_outputs: bool,
) -> Call:
    """A policy that takes a TensorDict, and writes its outputs into it or returns them.

    Args:
        device: of the TensorDict.
        keeps_outputs: whether the policy finds its other outputs of the call before in the TensorDict. A CUDA graph
            cannot pass them on.
    """
    index = {leaf.key: i for i, leaf in enumerate(spec.observation)}
    keys = [key[0] if len(key) == 1 else key for key in index]
    actions = [leaf.key for leaf in spec.action]
    size, dims = spec.policy_shape, nested_dims(spec.nested_dims, spec.observation)
    data: TensorDict | None = None

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        # One TensorDict for all frames: some policies keep values in it (`_ou_prev_noise`), and setting its observation
        # takes half the time of making a new one.
        nonlocal data
        if data is None or not keeps_outputs:
            data = TensorDict({}, batch_size=size, device=device)
            for nested, shape in dims.items():
                data.set(nested, TensorDict({}, batch_size=size + shape, device=device))
        for key, tensor in zip(keys, observation, strict=True):
            data.set(key, tensor)
        with exploration(exploration_type):
            result = policy(data)
        if result is not None and result is not data:
            data.update(result)
        outputs = {}
        for name, value in data.items(include_nested=True, leaves_only=True):
            output_key = as_key(name)
            if not isinstance(value, torch.Tensor) or is_private(output_key):
                continue
            # An observation is an output where the policy replaced its tensor.
            if output_key not in index or value is not observation[index[output_key]]:
                outputs[output_key] = value
        for action in actions:
            # Otherwise a policy that writes none in the next call would repeat this one.
            if action in outputs:
                data.del_(action)
        return outputs

    return call


def _tensors(result: Any, num_actions: int, device: torch.device) -> Any:
    """The result of a policy without keys, Python's numbers and NumPy's arrays as tensors. A list of numbers is one
    action; a tuple has several outputs."""
    if isinstance(result, _NUMBERS) or (num_actions == 1 and isinstance(result, list) and _are_numbers(result)):
        return (torch.tensor(result, device=device),)
    if isinstance(result, tuple | list):
        return [torch.tensor(each, device=device) if isinstance(each, _NUMBERS) else each for each in result]
    return result


_NUMBERS = (int, float, np.generic, np.ndarray)


def _are_numbers(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, int | float | np.generic) for each in values)


def key_names(keys: Iterable[Key]) -> str:
    """Keys as text for messages."""
    return ", ".join(".".join(key) for key in keys) or "nothing"


def _parameters(policy: Callable) -> list[inspect.Parameter]:
    """The positional parameters without defaults; the first one where all have defaults."""
    try:
        signature = inspect.signature(policy.forward if isinstance(policy, nn.Module) else policy)
    except (ValueError, TypeError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in signature.parameters.values() if p.kind in kinds]
    return [p for p in positional if p.default is inspect.Parameter.empty] or positional[:1]
