"""Imports tensordict without torch's compiler until something compiles.

When tensordict (0.14) is imported, it calls two functions of `torch.compiler`, which import `torch._dynamo`: that takes
as long as torch itself, and 70 MB, in the trainer, in the fork server and in each worker that is started alone.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FUNCTIONS = ("allow_in_graph", "assume_constant_result")
# What tensordict has marked for the compiler: the functions that mark, and their arguments.
_marked: list[tuple[Callable[[Any], Any], Any]] = []


def install() -> None:
    """Makes the next import of tensordict one without the compiler, and the next import of the compiler one that gets
    what tensordict has marked. Has no effect once tensordict is imported."""
    if "tensordict" not in sys.modules:
        sys.meta_path.insert(0, _Around("tensordict", _import_tensordict))
        sys.meta_path.insert(0, _Around("torch._dynamo", _import_compiler))


class _Around(MetaPathFinder):
    """Once replaces how the module `name` is executed by `execute`, whose arguments are the original and the module."""

    def __init__(self, name: str, execute: Callable[[Callable[[ModuleType], None], ModuleType], None]):
        self._name = name
        self._execute = execute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute(original, module)  # type: ignore[method-assign]
        return spec


def _import_tensordict(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    import torch.compiler

    originals = {name: getattr(torch.compiler, name) for name in _FUNCTIONS}
    try:
        for name, original in originals.items():
            setattr(torch.compiler, name, partial(_mark, original))
        execute(module)
    finally:
        for name, original in originals.items():
            setattr(torch.compiler, name, original)


def _mark(original: Callable[[Any], Any], function: Any) -> Any:
    """Stands for `original`, a function of torch.compiler that returns its argument."""
    if "torch._dynamo" in sys.modules:
        return original(function)
    _marked.append((original, function))
    return function


def _import_compiler(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    for mark, function in _marked:
        mark(function)
