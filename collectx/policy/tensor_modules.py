"""Calls modules of tensordict and TorchRL with tensors, as passing a TensorDict costs more than a small network.

A `TensorDictModule` becomes its inner module, a sequence the list of its parts. The forward of a module that draws or
changes actions, such as the last one of a `ProbabilisticActor`, is called with a dict in place of the TensorDict. All
other modules are called with a TensorDict by `collectx.policy.calls`. Used in the worker's process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Distribution

from collectx.batch import Key, as_key
from collectx.errors import ShapeError
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration, hooked

Outputs = dict[Key, torch.Tensor]
Call = Callable[[Sequence[torch.Tensor]], Outputs]

_SEQUENTIAL = (TensorDictSequential.forward, ProbabilisticTensorDictSequential.forward)
# Classes of TorchRL whose forward reads and writes tensors of a TensorDict and reads its shape, and nothing else.
_ON_VALUES = ("QValueModule", "EGreedyModule", "AdditiveGaussianModule")
# Attributes with which a probabilistic module does more than draw one sample with torch's generator.
_SAMPLER_OPTIONS = ("num_samples", "_generator", "_generator_key")

# A function of tensors, with the keys that it reads and writes.
TensorModule = tuple[Callable, list[Key], list[Key]]


def tensor_modules(
    module: Any, shape: tuple[int, ...], exploration_type: ExplorationType, acceleration: Acceleration
) -> list[TensorModule] | None:
    """Returns the functions that `module` calls in turn; None if it has to be called with a TensorDict.

    Args:
        shape: the batch size of the observations.
    """
    if not _is_librarys(module) or hooked(module):
        return None
    forward = type(module).forward
    if forward is TensorDictModule.forward:
        options = ("_kwargs", "_get_kwargs", "method", "method_kwargs")
        if any(getattr(module, name, None) for name in options) or module.inplace is not True:
            return None
        keys = [as_key(k) for k in module.in_keys], [as_key(k) for k in module.out_keys]
        return [(acceleration.compile_call(module.module), *keys)]
    if isinstance(module, TensorDictSequential) and forward in _SEQUENTIAL:
        if module.partial_tolerant or module._select_before_return or module.inplace is not None:
            return None
        if not getattr(module, "_requires_sample", True):
            return None
        inner = [tensor_modules(child, shape, exploration_type, acceleration) for child in module._module_iter()]
        return None if None in inner else [each for modules in inner for each in modules or ()]
    if isinstance(module, ProbabilisticTensorDictModule):
        forward = _probabilistic(module, exploration_type)
    elif not (type(module).__name__ in _ON_VALUES and all(isinstance(key, str) for key in module.in_keys)):
        forward = None
    return None if forward is None else [_with_values(module, forward, exploration_type, shape)]


def _is_librarys(module: Any) -> bool:
    """Whether it is a module of tensordict or of TorchRL; torchrl is not imported."""
    return isinstance(module, nn.Module) and type(module).__module__.startswith(("tensordict.", "torchrl."))


def _probabilistic(module: Any, exploration_type: ExplorationType) -> Callable | None:
    """The forward of a probabilistic module that writes one sample, which it draws with torch's generator."""
    kind = module.distribution_class
    is_plain = isinstance(kind, type) and issubclass(kind, Distribution) and not issubclass(kind, CompositeDistribution)
    if not is_plain or any(getattr(module, name, None) is not None for name in _SAMPLER_OPTIONS):
        return None
    cls = type(module)
    if cls is not ProbabilisticTensorDictModule and cls.__name__ != "SafeProbabilisticModule":
        return None
    # The forward of TorchRL's class serves random samples with their log-probabilities, and otherwise calls the other.
    is_random = exploration_type is ExplorationType.RANDOM and module.return_log_prob
    return (cls if is_random else ProbabilisticTensorDictModule).forward


def _with_values(
    module: Any, forward: Callable, exploration_type: ExplorationType, shape: tuple[int, ...]
) -> TensorModule:
    """A function that calls `forward` with a dict in place of a TensorDict, and without tensordict's decorators, which
    expect one."""
    forward = inspect.unwrap(forward)
    reads, writes = [*module.in_keys], [*module.out_keys]

    def call(*tensors: torch.Tensor) -> Any:
        values = _Values(zip(reads, tensors, strict=True))
        values.shape = shape
        with exploration(exploration_type):
            forward(module, values)
        results = tuple([values[name] for name in writes if name in values])
        return results[0] if len(writes) == 1 else results

    return call, [as_key(name) for name in reads], [as_key(name) for name in writes]


class NotTensors(ShapeError):
    """A module returned neither a tensor nor a tuple of one for each of its out_keys: only tensordict can read that."""


class _Values(dict[Any, torch.Tensor]):
    """A dict with those methods and attributes of a TensorDict that the modules use."""

    shape: tuple[int, ...]
    set = dict.__setitem__


def reads_only_tensors(modules: list[TensorModule], known: set[Key]) -> bool:
    """False where a module reads a whole nested TensorDict."""
    for _, reads, writes in modules:
        if not known.issuperset(reads):
            return False
        known.update(writes)
    return True


def call_modules(modules: list[TensorModule], index: dict[Key, int]) -> Call:
    """Calls functions of tensors in turn, without a TensorDict.

    Args:
        index: of each leaf in the observation.
    """
    if len(modules) == 1 and len(modules[0][2]) == 1:
        forward, reads, (written,) = modules[0]
        indices = [index[key] for key in reads]
        if len(indices) == 1:
            (only,) = indices
            return lambda observation: {written: forward(observation[only])}
        return lambda observation: {written: forward(*[observation[i] for i in indices])}

    def call(observation: Sequence[torch.Tensor]) -> Outputs:
        values = {key: observation[i] for key, i in index.items()}
        outputs: Outputs = {}
        for forward, reads, writes in modules:
            result = forward(*[values[key] for key in reads])
            if isinstance(result, torch.Tensor):
                result = (result,)
            elif not isinstance(result, tuple) or len(result) != len(writes):
                raise NotTensors(f"a module of the policy returned {type(result).__name__} for {len(writes)} out_keys")
            outputs.update(zip(writes, result, strict=True))
            values.update(outputs)
        return {key: value for key, value in outputs.items() if not is_private(key)}

    return call


def is_private(key: Key) -> bool:
    """Whether the key is omitted from batches, as in TorchRL."""
    return any(part.startswith("_") for part in key)
