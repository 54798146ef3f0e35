"""Faster calls of a policy's networks: without the cost of `nn.Module.__call__`, by `torch.compile` or by CUDA graphs.

At the batch sizes of acting, a 64x64 tanh network spends more time in Python's module machinery than in arithmetic: 22
microseconds as an `nn.Sequential` against 10 as a chain of kernels, which `fast_callable` returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as _module

Forward = Callable[..., Any]

_linear, _addmv = F.linear, torch.addmv

# The functions of activation layers, and those that overwrite their input.
_ELEMENTWISE: dict[type, Forward] = {
    nn.Tanh: torch.tanh,
    nn.ReLU: torch.relu,
    nn.Sigmoid: torch.sigmoid,
    nn.SiLU: F.silu,
}
_IN_PLACE: dict[type, Forward] = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_, nn.Sigmoid: torch.sigmoid_}


@dataclass(frozen=True)
class Acceleration:
    """Keyword arguments of `torch.compile` and of tensordict's `CudaGraphModule`; None: do not use it.

    Applied once per worker, when the weights are in their final memory: both may keep its addresses, to which newer
    weights are copied. `one_row` says whether the policy is called with the observation of one env, without a batch
    dimension."""

    compile: dict[str, Any] | None = None
    cudagraph: dict[str, Any] | None = None
    one_row: bool = False

    def compile_call(self, function: Any) -> Forward:
        """Returns a faster form of `function`, a module or another callable."""
        if self.compile is None:
            return fast_callable(function, self.one_row)
        return torch.compile(function, **self.compile)

    def capture(self, function: Forward) -> Forward:
        """Returns a form of `function`, which must take tensors, that records a CUDA graph after some calls, then
        replays it. Without `cudagraph`, returns `function`."""
        if self.cudagraph is None:
            return function
        from tensordict.nn import CudaGraphModule

        with warnings.catch_warnings():
            # CudaGraphModule removes TensorDict from PyTree, which only matters to functions that return TensorDicts.
            warnings.filterwarnings("ignore", "Tensordict is registered in PyTree")
            return CudaGraphModule(_recordable(function), **self.cudagraph)


def _recordable(function: Forward) -> Forward:
    """Returns `function` without the argument checks of distributions while it is recorded: the CPU would read their
    results, which a CUDA graph cannot do. The calls before the recording do check the arguments."""

    def call(*tensors: torch.Tensor) -> Any:
        if not torch.cuda.is_current_stream_capturing():
            return function(*tensors)
        try:
            with unchecked_distributions():
                return function(*tensors)
        except Exception as error:
            error.add_note(
                "raised while cudagraph_policy recorded the policy as a CUDA graph, when the CPU cannot read values "
                "from the GPU (`item`, `if`). Change the policy, or use cudagraph_policy=False."
            )
            raise

    return call


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Keeps distributions that are made in the block from reading their arguments, which no recorded graph can do,
    unless they are made with `validate_args=True`."""
    validates = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)


def fast_callable(module: Any, one_row: bool = False) -> Forward:
    """Returns a cheaper callable with the same result as `module`; `module` itself if there is none.

    A `Sequential` of known layers becomes a chain of kernels. For any other module, `forward` is called on a shadow: an
    object that shares the module's parameters, buffers and attributes, and whose layers are chains. Modules with hooks
    are called unchanged. Hooks and modules that are added or replaced later are ignored, except modules that `forward`
    itself replaces; see `structure`. `one_row`
    says whether inputs may lack a batch dimension. Linear layers then use a cheaper kernel, whose rounding differs."""
    if not isinstance(module, nn.Module):
        return module
    if _module._global_forward_hooks or _module._global_forward_pre_hooks or _module._global_backward_hooks:
        return module
    steps = _steps(module, one_row)
    if steps is not None:
        return _chain(steps)
    if hooked(module) or not _is_user_module(module):
        return module
    return _shadow(module, one_row).forward


def _fast_class(kind: type[nn.Module]) -> type:
    """Returns a class like `kind` whose instances are called by their attribute `_fast`, until a policy that is being
    called replaces a layer in them."""

    def replace(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, "_fast", MethodType(kind.forward, self))
        kind.__setattr__(self, name, value)

    methods = {"__call__": lambda self, x: self._fast(x), "__setattr__": replace}
    return type(f"_Fast{kind.__name__}", (kind,), {"__slots__": ("_fast",), **methods})


_FAST_CLASSES: dict[type, type] = {kind: _fast_class(kind) for kind in (nn.Sequential, nn.Linear)}


def _is_user_module(module: nn.Module) -> bool:
    """Whether `module` uses the usual `__call__`, and is not of a class of torch, which may inspect its children."""
    kind = type(module)
    return kind.__call__ is nn.Module.__call__ and not kind.__module__.startswith(("torch.", "tensordict."))


def _shadow(module: nn.Module, one_row: bool) -> Any:
    """Returns an object with the attributes of `module`, whose children are cheaper callables where possible."""
    cheaper: dict[str, Any] = {}
    for name, child in module._modules.items():
        if child is None or hooked(child):
            continue
        steps = _steps(child, one_row) if type(child) in _FAST_CLASSES else None
        if steps is not None:
            light: Any = object.__new__(_FAST_CLASSES[type(child)])
            object.__setattr__(light, "__dict__", child.__dict__)
            object.__setattr__(light, "_fast", _chain(steps))
            cheaper[name] = light
        elif _is_user_module(child) and (shadow := _shadow(child, one_row)) is not child:
            cheaper[name] = shadow
    if not cheaper:
        return module
    kind: Any = type(module)
    try:
        # Shares all attributes. Class attributes hide children, which are found only by `Module.__getattr__`.
        shadow_kind: Any = type(kind)(kind.__name__, (kind,), cheaper)
        shadow = object.__new__(shadow_kind)
    except TypeError:  # a class that cannot be derived from in this way
        return module
    object.__setattr__(shadow, "__dict__", module.__dict__)

    def replace(self: Any, name: str, value: Any) -> None:
        """Shows a child that `forward` replaces."""
        if name in shadow_kind.__dict__:
            delattr(shadow_kind, name)
        kind.__setattr__(self, name, value)

    shadow_kind.__setattr__ = replace
    return shadow


def _steps(module: nn.Module, one_row: bool) -> list[Forward] | None:
    """Returns the kernels of which `module` consists; None if the module itself must be called."""
    if hooked(module):
        return None
    kind = type(module)
    if isinstance(module, nn.Sequential) and kind is nn.Sequential:
        steps: list[Forward] = []
        linear = None  # the layer before, whose result has no other reader, so that an activation may overwrite it
        for layer in module:
            activation = _IN_PLACE.get(type(layer))
            if linear is not None and activation is not None and not hooked(layer):
                steps[-1] = _linear_step(linear, activation, one_row)
                linear = None
                continue
            inner = _steps(layer, one_row)
            steps += [layer] if inner is None else inner
            linear = layer if type(layer) is nn.Linear and inner is not None else None
        return steps
    if kind is nn.Linear:
        return [_linear_step(module, None, one_row)]
    if kind in _ELEMENTWISE and not getattr(module, "inplace", False):
        return [_ELEMENTWISE[kind]]
    return [] if kind is nn.Identity else None


def _linear_step(layer: nn.Module, activation: Forward | None, one_row: bool) -> Forward:
    parameters: dict[str, Any] = layer._parameters

    def one_row_linear(x: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters["weight"], parameters["bias"]
        # For one row, `F.linear` needs two kernels: a product and a sum.
        return _linear(x, weight, bias) if x.ndim > 1 or bias is None else _addmv(bias, weight, x)

    if one_row:
        return one_row_linear if activation is None else lambda x: activation(one_row_linear(x))
    if activation is None:
        return lambda x: _linear(x, parameters["weight"], parameters["bias"])
    return lambda x: activation(_linear(x, parameters["weight"], parameters["bias"]))


def _chain(steps: list[Forward]) -> Forward:
    if len(steps) == 1:
        return steps[0]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x

    return forward


def structure(module: nn.Module) -> list[tuple[Any, ...]]:
    """Returns all modules below `module` and the numbers of their hooks. The result differs after a module was
    replaced, or a hook was added or removed."""
    # The modules, not their ids: a new module may get the id of one that was freed.
    return [
        (each, each.__dict__.get("module"), len(each._forward_hooks), len(each._forward_pre_hooks))
        for each in module.modules()
    ]


def hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
