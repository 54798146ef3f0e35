"""Distinguishes installed packages from user code.

Imports tensordict without torch's compiler until something compiles.

On import, tensordict (0.14) calls two functions of `torch.compiler`, which import `torch._dynamo`: that takes as long
as torch itself, and 70 MB, in the trainer, in the fork server and in each worker that starts without it.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from types import ModuleType
from typing import Any

_FOLDERS = frozenset(("site-packages", "dist-packages"))
_PATHS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def is_installed(path: str | PurePath) -> bool:
    """Whether a file belongs to the standard library or to an installed package.

    Packages may be in several folders: the environment's, the ones of the interpreter that made it
    (`python -m venv --system-site-packages`), the user's (`pip install --user`), and the ones of a cluster's modules
    (PYTHONPATH). The source of an editable package counts as the user's.
    """
    path = PurePath(path)
    return not _FOLDERS.isdisjoint(path.parts) or any(map(path.is_relative_to, _PATHS))


_FUNCTIONS = ("allow_in_graph", "assume_constant_result")
# The objects that tensordict marked for the compiler, each after the function that marks it.
_marked: list[tuple[Callable[[Any], Any], Any]] = []


def install() -> None:
    """Makes the next import of tensordict skip the compiler, and the next import of the compiler catch up on the marks
    of tensordict. Does nothing once tensordict is imported."""
    if "tensordict" not in sys.modules:
        sys.meta_path.insert(0, _Around("tensordict", _import_tensordict))
        sys.meta_path.insert(0, _Around("torch._dynamo", _import_compiler))


class _Around(MetaPathFinder):
    """Makes `execute` run the next import of module `name`. It is called with the function that would otherwise execute
    the module, and the module."""

    def __init__(self, name: str, execute: Callable[[Callable[[ModuleType], None], ModuleType], None]):
        self._name = name
        self._execute = execute
        self._is_finding = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._is_finding:
            return None
        self._is_finding = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_finding = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._run, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _run(self, original: Callable[[ModuleType], None], module: ModuleType) -> None:
        # Not in `find_spec`, which is also called to ask whether the module exists.
        sys.meta_path.remove(self)
        self._execute(original, module)


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
    """Stands in for `original`, a function of torch.compiler that returns its argument."""
    if "torch._dynamo" in sys.modules:
        return original(function)
    _marked.append((original, function))
    return function


def _import_compiler(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    for mark, function in _marked:
        mark(function)
