"""Saves the state of envs as tensors and plain data; `collectx.state.restore` restores it.

    env with state_dict and load_state_dict    what they return, and the env's generator
    any other object                           its attributes, and those of all objects that it holds

Attributes may be numbers, text, containers, numpy arrays, tensors, generators, spaces, objects of Python classes, and
the simulators of MuJoCo and the Arcade Learning Environment, whose state their interfaces return, and Gymnasium's
AsyncVectorEnv, whose processes do. Functions, classes
and modules count as constants. An object that keeps its state elsewhere, as those of Box2D do, cannot be saved:
`NotRestorable` names it.
"""

from __future__ import annotations

import enum
import functools
import io
import random
import types
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from collectx.errors import NotRestorable, text_of
from collectx.state.simulators import simulator_of

PLAIN = (bool, int, float, str, type(None))
_CONSTANTS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.EllipsisType,
    weakref.ReferenceType,
    type,
    functools.partial,
    range,
    slice,
    np.dtype,
    torch.dtype,
    torch.device,
    EnvSpec,
    Path,
)
_ENVS = (gymnasium.Env, gymnasium.vector.VectorEnv)
# Attributes of their objects name things of the process, such as descriptors.
_OF_PROCESS = ("asyncio", "concurrent", "ctypes", "multiprocessing", "selectors", "socket", "subprocess", "threading")


def save(value: Any, name: str) -> Any:
    """Returns a copy of the state of `value`: an env, or a container of envs and arrays, called `name` in messages. The
    copy is of tensors and plain data, which `torch.load(weights_only=True)` reads.

    Raises:
        NotRestorable: an object keeps its state where it cannot be read, or reading it raises an error.
    """
    with _not_restorable(name):
        return _Writer().write(value, name)


def save_bytes(value: Any, name: str) -> torch.Tensor:
    """Returns what `save` returns as one tensor of bytes, uint8, for `restore_bytes`: whatever an env holds, a state
    around that of its env can be written to a file and read.

    Raises:
        NotRestorable: as `save` does, or the copy cannot be written.
    """
    content = save(value, name)
    with _not_restorable(name):
        return pack(content)


def pack(content: Any) -> torch.Tensor:
    """Writes tensors and plain data to one tensor of bytes, uint8."""
    file = io.BytesIO()
    torch.save(content, file)
    return _bytes(file.getvalue())


def unpack(saved: torch.Tensor) -> Any:
    """The inverse of `pack`. Raises an error where the content is neither tensors nor plain data."""
    return torch.load(io.BytesIO(saved.numpy().tobytes()), weights_only=True)


def reason_not_saved(value: Any, name: str) -> str | None:
    """Why the state of `value` cannot be saved, or not be read afterwards; None if it can. An error of a `state_dict`
    of the value's, which may not have been reset, does not count."""
    try:
        saved = save_bytes(value, name)
        with _not_restorable(name):
            unpack(saved)
    except _StateDictError:
        return None
    except NotRestorable as error:
        return str(error)
    return None


class _StateDictError(NotRestorable):
    """A `state_dict` raises an error."""


@contextmanager
def _not_restorable(name: str) -> Iterator[None]:
    """Raises every error of the block as `NotRestorable`: what an env's objects do is not known."""
    try:
        yield
    except NotRestorable:
        raise
    except Exception as error:
        raise NotRestorable(_refusal(name, error)) from error


def _refusal(name: str, error: Exception) -> str:
    first = text_of(error).strip().partition("\n")[0]
    return f"{name} cannot be saved: {type(error).__name__}: {first}"


def has_state_dict(value: Any) -> bool:
    names = ("state_dict", "load_state_dict")
    return isinstance(value, _ENVS) and all(callable(getattr(type(value), name, None)) for name in names)


class _Writer:
    """Converts objects to `[kind, content]`, and values of `PLAIN` to themselves. Mutable objects are numbered in the
    order in which they are met; one that is met again is written as its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        # Keeps every object alive, so that no two have the same id.
        self._objects: list[Any] = []

    def write(self, value: Any, path: str) -> Any:
        if type(value) in PLAIN:
            return value
        if is_constant(value):
            return ["constant", name_of(value)]
        if isinstance(value, enum.Enum):
            return ["enum", value.name]
        if isinstance(value, bytes):
            return ["bytes", _bytes(value)]
        if isinstance(value, np.generic):
            return ["scalar", _array(np.asarray(value), path)]
        if isinstance(value, tuple):
            return ["tuple", self._items(value, path)]
        if id(value) in self._numbers:
            return ["same", self._numbers[id(value)]]
        self._numbers[id(value)] = len(self._objects)
        self._objects.append(value)
        try:
            return self._write_mutable(value, path)
        except (NotRestorable, RecursionError):
            raise
        except Exception as error:
            raise NotRestorable(_refusal(path, error)) from error

    def _write_mutable(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, np.ndarray):
            return ["array", _array(value, path)]
        if isinstance(value, torch.Tensor):
            return ["tensor", value.detach().clone()]
        if isinstance(value, dict):
            items = [[self.write(key, path), self.write(item, f"{path}[{key!r}]")] for key, item in value.items()]
            return ["dict", items]
        if isinstance(value, list | deque):
            return ["deque" if isinstance(value, deque) else "list", self._items(value, path)]
        if isinstance(value, set):
            return ["set", self._items(sorted(value, key=repr), path)]
        if isinstance(value, np.random.Generator):
            return ["generator", self.write(value.bit_generator.state, path)]
        if isinstance(value, np.random.RandomState | random.Random | torch.Generator):
            get_state = value.getstate if isinstance(value, random.Random) else value.get_state
            return ["random", self.write(get_state(), path)]
        if isinstance(value, gymnasium.Space):
            return ["object", self._space(value, path)]
        if (simulator := simulator_of(value)) is not None:
            return ["simulator", self.write(simulator.save(value), path)]
        if has_state_dict(value):
            generator = getattr(value.unwrapped, "_np_random", None)
            try:
                state = value.state_dict()
            except Exception as error:
                raise _StateDictError(_refusal(f"{path}.state_dict", error)) from error
            return ["state_dict", [self.write(state, path), self.write(generator, path)]]
        attributes = attributes_of(value)
        if attributes is None:
            raise NotRestorable(f"{path} is of type {name_of(type(value))}, whose state cannot be read")
        if isinstance(value, _ENVS):
            path = type(value).__name__
        return ["object", {name: self.write(each, f"{path}.{name}") for name, each in attributes.items()}]

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.write(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _space(self, space: gymnasium.Space, path: str) -> dict[str, Any]:
        """The generators of a space and of its parts; the bounds do not change."""
        kinds = (gymnasium.Space, np.random.Generator, dict, tuple, list)
        parts = {name: part for name, part in vars(space).items() if isinstance(part, kinds)}
        return {name: self.write(part, f"{path}.{name}") for name, part in parts.items()}


class _Empty:
    """An object without any storage but its attributes."""


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of a Python class; None if it may have other state."""
    if type(value).__module__.partition(".")[0] in _OF_PROCESS:
        return None
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    if type(value).__basicsize__ - 8 * len(slots) > _Empty.__basicsize__ or not (slots or hasattr(value, "__dict__")):
        return None
    return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in slots if hasattr(value, name)}


def _slots(kind: type) -> list[str]:
    names = kind.__dict__.get("__slots__", ())
    names = [names] if isinstance(names, str) else names
    return [
        f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANTS) or _is_spec(value)


def _is_spec(value: Any) -> bool:
    """Whether it is one of TorchRL's specs."""
    return type(value).__module__ == "torchrl.data.tensor_specs"


def name_of(value: Any) -> str:
    if isinstance(value, weakref.ReferenceType) or _is_spec(value):
        value = type(value)
    if isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    return repr(value) if name is None else f"{getattr(value, '__module__', '')}.{name}"


def _array(array: np.ndarray, path: str) -> list[Any]:
    if array.dtype.hasobject:
        raise NotRestorable(f"{path} is an array of Python objects")
    return [array.dtype.str, list(array.shape), _bytes(array.tobytes())]


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
