"""Calls modules of tensordict and TorchRL with tensors, because passing a TensorDict takes longer than a small network.

A `TensorDictModule` becomes its inner module, a sequence the list of its parts. The forward of a module that draws or
changes actions, such as the last module of a `ProbabilisticActor`, is called with a dict in place of the TensorDict.
All other modules are called with a TensorDict (`collectx.policy.call_plan`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
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
from collectx.errors import DataError
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration, hooked

_SEQUENTIAL = (TensorDictSequential.forward, ProbabilisticTensorDictSequential.forward)
# Classes of TorchRL whose forward only reads and writes tensors of a TensorDict, and reads its shape.
_ON_VALUES = ("QValueModule", "EGreedyModule", "AdditiveGaussianModule")
# Attributes that make a probabilistic module do more than draw one sample with torch's generator.
_SAMPLER_OPTIONS = ("num_samples", "_generator", "_generator_key")


class NotTensors(DataError):
    """A module returned something other than a tensor per out_key, which only tensordict can interpret."""


class Step:
    """A call of a policy, or of one of its modules, with tensors.

    Attributes:
        function: takes the tensors of `reads`. Returns a tensor if it writes one key, otherwise a value for `results`.
        writes: the keys of its outputs, in order. Empty: the first call tells them.
    """

    form = "tensors"

    def __init__(self, called: Any, function: Callable, reads: Sequence[Key], writes: Sequence[Key]):
        self.name = getattr(called, "__qualname__", type(called).__name__)
        self.function, self.reads, self.writes = function, reads, writes

    def results(self, result: Any) -> Sequence[torch.Tensor]:
        """Returns the outputs in a result of the function: a tensor per key of `writes`."""
        if not isinstance(result, tuple) or len(result) != len(self.writes):
            raise NotTensors(f"a module of the policy returned {type(result).__name__} for {len(self.writes)} out_keys")
        return result


def tensor_modules(
    module: Any, shape: tuple[int, ...], exploration_type: ExplorationType, acceleration: Acceleration
) -> list[Step] | None:
    """Returns the steps that call `module`; None if it must be called with a TensorDict. `shape` is the batch size of
    the observations."""
    if not _is_library_module(module) or hooked(module):
        return None
    forward = type(module).forward
    if forward is TensorDictModule.forward:
        options = ("_kwargs", "_get_kwargs", "method", "method_kwargs")
        if any(getattr(module, name, None) for name in options) or module.inplace is not True:
            return None
        reads, writes = ([as_key(key) for key in keys] for keys in (module.in_keys, module.out_keys))
        return [Step(module.module, acceleration.compile_call(module.module), reads, writes)]
    if isinstance(module, TensorDictSequential) and forward in _SEQUENTIAL:
        if module.partial_tolerant or module._select_before_return or module.inplace is not None:
            return None
        if not getattr(module, "_requires_sample", True):
            return None
        parts = [tensor_modules(child, shape, exploration_type, acceleration) for child in module._module_iter()]
        return None if None in parts else [step for steps in parts for step in steps or ()]
    if isinstance(module, ProbabilisticTensorDictModule):
        forward = _probabilistic(module, exploration_type)
    elif not (type(module).__name__ in _ON_VALUES and all(isinstance(key, str) for key in module.in_keys)):
        forward = None
    return None if forward is None else [_with_values(module, forward, exploration_type, shape)]


def _is_library_module(module: Any) -> bool:
    """Whether an object is a module of tensordict or TorchRL. Does not import torchrl."""
    return isinstance(module, nn.Module) and type(module).__module__.startswith(("tensordict.", "torchrl."))


def _probabilistic(module: Any, exploration_type: ExplorationType) -> Callable | None:
    """Returns the forward of a probabilistic module, if that writes one sample, drawn with torch's generator; otherwise
    None."""
    kind = module.distribution_class
    is_plain = isinstance(kind, type) and issubclass(kind, Distribution) and not issubclass(kind, CompositeDistribution)
    if not is_plain or any(getattr(module, name, None) is not None for name in _SAMPLER_OPTIONS):
        return None
    cls = type(module)
    if cls is not ProbabilisticTensorDictModule and cls.__name__ != "SafeProbabilisticModule":
        return None
    # TorchRL's class uses its own forward for random samples with their log-probabilities, otherwise tensordict's.
    is_random = exploration_type is ExplorationType.RANDOM and module.return_log_prob
    return (cls if is_random else ProbabilisticTensorDictModule).forward


def _with_values(module: Any, forward: Callable, exploration_type: ExplorationType, shape: tuple[int, ...]) -> Step:
    """Returns a step that calls `forward` with a dict in place of a TensorDict, and without tensordict's decorators,
    which expect one."""
    forward = inspect.unwrap(forward)
    reads, writes = [*module.in_keys], [*module.out_keys]

    def call(*tensors: torch.Tensor) -> Any:
        values = _Values(zip(reads, tensors, strict=True))
        values.shape = shape
        with exploration(exploration_type):
            forward(module, values)
        results = tuple([values[name] for name in writes if name in values])
        return results[0] if len(writes) == 1 else results

    return Step(module, call, [as_key(name) for name in reads], [as_key(name) for name in writes])


class _Values(dict[Any, torch.Tensor]):
    """A dict with the methods and attributes of a TensorDict that the modules use."""

    shape: tuple[int, ...]
    set = dict.__setitem__


def reads_only_tensors(steps: Sequence[Step], observed: Collection[Key]) -> bool:
    """Whether no step reads a nested TensorDict."""
    known = set(observed)
    for step in steps:
        if not known.issuperset(step.reads):
            return False
        known.update(step.writes)
    return True


def is_private(key: Key) -> bool:
    """Whether batches omit the key, as in TorchRL: a part of it begins with an underscore."""
    return any(part.startswith("_") for part in key)
