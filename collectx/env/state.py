"""Saves the state of a user's env as tensors and plain data, and restores it in another env of the same class.

    env with state_dict and load_state_dict    what they return, and the env's generator
    any other object                           its attributes, and those of all objects that it holds

Attributes may be numbers, text, containers, numpy arrays, tensors, generators, spaces, objects of Python classes, and
the simulators of MuJoCo and the Arcade Learning Environment, whose state their interfaces return. Functions, classes
and modules count as constants. An object that keeps its state elsewhere, as those of Box2D do, cannot be saved:
`NotRestorable` names it.

`restore` imports nothing and calls no class that the state names: it changes the attributes of an env that was built
and reset. Where attributes shared an object, they share it again.
"""

from __future__ import annotations

import enum
import functools
import random
import types
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from collectx.env.simulators import simulator_of
from collectx.errors import CollectxError

_PLAIN = (bool, int, float, str, type(None))
_CONSTANTS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    np.dtype,
    torch.dtype,
    torch.device,
    EnvSpec,
    Path,
)
_ENVS = (gymnasium.Env, gymnasium.vector.VectorEnv)
# Attributes of their objects name things of the process, such as descriptors.
_OF_PROCESS = ("asyncio", "concurrent", "ctypes", "multiprocessing", "selectors", "socket", "subprocess", "threading")
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class NotRestorable(CollectxError):
    """The state of an env cannot be saved, or does not fit the env that is to be restored; the message says why."""


def save(value: Any, name: str) -> Any:
    """Returns a copy of the state of `value`: an env, or a container of envs and arrays, called `name` in messages. The
    copy is of tensors and plain data, which `torch.load(weights_only=True)` reads.

    Raises:
        NotRestorable: an object keeps its state where it cannot be read.
    """
    return _Writer().write(value, name)


def restore(value: Any, state: Any, name: str) -> None:
    """Changes `value`, whose envs were built as the saved ones were and reset, to `state`.

    Raises:
        NotRestorable: the state is of other envs. The envs must be reset then.
    """
    try:
        _Reader().read(state, value, name)
    except NotRestorable:
        raise
    except Exception as error:
        raise NotRestorable(f"{name}: the saved state does not fit: {type(error).__name__}: {error}") from error


def _has_state_dict(value: Any) -> bool:
    names = ("state_dict", "load_state_dict")
    return isinstance(value, _ENVS) and all(callable(getattr(type(value), name, None)) for name in names)


class _Writer:
    """Converts objects to `[kind, content]`, and values of `_PLAIN` to themselves. Mutable objects are numbered in the
    order in which they are met; one that is met again is written as its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        # Keeps every object alive, so that no two have the same id.
        self._objects: list[Any] = []

    def write(self, value: Any, path: str) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _CONSTANTS):
            return ["constant", _name(value)]
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
        return self._write_mutable(value, path)

    def _write_mutable(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, np.ndarray):
            return ["array", _array(value, path)]
        if isinstance(value, torch.Tensor):
            return ["tensor", value.detach().clone()]
        if isinstance(value, dict):
            items = [[self.write(key, path), self.write(item, f"{path}[{key!r}]")] for key, item in value.items()]
            return ["dict", items]
        if isinstance(value, list | deque):
            return ["list", self._items(value, path)]
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
        if _has_state_dict(value):
            generator = getattr(value.unwrapped, "_np_random", None)
            return ["state_dict", [self.write(value.state_dict(), path), self.write(generator, path)]]
        attributes = _attributes(value)
        if attributes is None:
            raise NotRestorable(f"{path} is of type {_name(type(value))}, whose state cannot be read")
        return ["object", {name: self.write(each, f"{path}.{name}") for name, each in attributes.items()}]

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.write(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _space(self, space: gymnasium.Space, path: str) -> dict[str, Any]:
        """The generators of a space and of its parts; the bounds do not change."""
        kinds = (gymnasium.Space, np.random.Generator, dict, tuple, list)
        parts = {name: part for name, part in vars(space).items() if isinstance(part, kinds)}
        return {name: self.write(part, f"{path}.{name}") for name, part in parts.items()}


class _Reader:
    """The inverse of `_Writer`. Changes mutable objects of the env in place, so that whatever else refers to them sees
    the change."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._used: set[int] = set()

    def read(self, saved: Any, current: Any, path: str) -> Any:
        """Returns the value that was saved.

        Args:
            current: what the env has in its place.
        """
        if type(saved) in _PLAIN:
            return saved
        kind, content = saved
        if kind == "same":
            return self._objects[content]
        if kind == "constant":
            if _name(current) != content:
                raise NotRestorable(f"{path} is {_name(current)}, the saved env had {content}")
            return current
        if kind == "enum":
            return type(current)[content]
        if kind == "bytes":
            return content.numpy().tobytes()
        if kind == "scalar":
            return _from_array(content)[()]
        if kind == "tuple":
            items = self._items(content, current if isinstance(current, tuple) else (), path)
            return type(current)._make(items) if hasattr(current, "_make") else tuple(items)
        # Each object of the env stands for one saved object.
        if id(current) in self._used:
            current = None
        number = len(self._objects)
        self._objects.append(current)
        value = getattr(self, f"_read_{kind}")(content, current, path)
        self._objects[number] = value
        self._used.add(id(value))
        return value

    def _items(self, saved: list[Any], current: Any, path: str) -> list[Any]:
        counterparts = [*current] if len(current) == len(saved) else [None] * len(saved)
        return [
            self.read(item, other, f"{path}[{index}]")
            for index, (item, other) in enumerate(zip(saved, counterparts, strict=True))
        ]

    def _read_array(self, content: Any, current: Any, path: str) -> np.ndarray:
        array = _from_array(content)
        is_same = isinstance(current, np.ndarray) and (current.shape, current.dtype) == (array.shape, array.dtype)
        if not is_same or not current.flags.writeable:
            return array.copy()
        current[...] = array
        return current

    def _read_tensor(self, content: torch.Tensor, current: Any, path: str) -> torch.Tensor:
        if not isinstance(current, torch.Tensor) or (current.shape, current.dtype) != (content.shape, content.dtype):
            return content.clone()
        with torch.no_grad():
            return current.copy_(content)

    def _read_dict(self, content: Any, current: Any, path: str) -> dict:
        result = current if isinstance(current, dict) else {}
        self._objects[-1] = result
        before = dict(result)
        keys = [self.read(key, None, path) for key, _ in content]
        items = [
            self.read(item, before.get(key), f"{path}[{key!r}]") for key, (_, item) in zip(keys, content, strict=True)
        ]
        result.clear()
        result.update(zip(keys, items, strict=True))
        return result

    def _read_set(self, content: Any, current: Any, path: str) -> set:
        return set(self._items(content, (), path))

    def _read_list(self, content: Any, current: Any, path: str) -> Any:
        result = current if isinstance(current, list | deque) else []
        self._objects[-1] = result
        items = self._items(content, result, path)
        result.clear()
        result.extend(items)
        return result

    def _read_generator(self, content: Any, current: Any, path: str) -> np.random.Generator:
        state = self.read(content, None, path)
        name = state["bit_generator"]
        if not isinstance(current, np.random.Generator) or type(current.bit_generator).__name__ != name:
            if name not in _BIT_GENERATORS:
                raise NotRestorable(f"{path} is a generator of type {name}, which the env does not have")
            current = np.random.Generator(getattr(np.random, name)())
        current.bit_generator.state = state
        return current

    def _read_random(self, content: Any, current: Any, path: str) -> Any:
        set_state = current.setstate if isinstance(current, random.Random) else current.set_state
        set_state(self.read(content, None, path))
        return current

    def _read_simulator(self, content: Any, current: Any, path: str) -> Any:
        simulator = simulator_of(current)
        assert simulator is not None, f"{path} is {_name(type(current))}"
        simulator.restore(current, self.read(content, None, path))
        return current

    def _read_state_dict(self, content: Any, current: Any, path: str) -> Any:
        if not _has_state_dict(current):
            raise NotRestorable(f"{path} is {_name(type(current))} without load_state_dict, which the saved env had")
        state, generator = content
        current.load_state_dict(self.read(state, None, path))
        inner = current.unwrapped
        if generator is not None:
            inner._np_random = self.read(generator, getattr(inner, "_np_random", None), path)
        return current

    def _read_object(self, content: dict[str, Any], current: Any, path: str) -> Any:
        attributes = vars(current) if isinstance(current, gymnasium.Space) else _attributes(current)
        if current is None or attributes is None:
            raise NotRestorable(f"{path} is {_name(type(current))}, the saved env had an object")
        for name, saved in content.items():
            before = attributes.get(name)
            value = self.read(saved, before, f"{path}.{name}")
            if value is not before or type(value) in _PLAIN:
                object.__setattr__(current, name, value)
        return current


class _Empty:
    """An object without any storage but its attributes."""


def _attributes(value: Any) -> dict[str, Any] | None:
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


def _name(value: Any) -> str:
    if isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    return repr(value) if name is None else f"{getattr(value, '__module__', '')}.{name}"


def _array(array: np.ndarray, path: str) -> list[Any]:
    if array.dtype.hasobject:
        raise NotRestorable(f"{path} is an array of Python objects")
    return [array.dtype.str, list(array.shape), _bytes(array.tobytes())]


def _from_array(content: list[Any]) -> np.ndarray:
    dtype, shape, data = content
    return np.frombuffer(data.numpy().tobytes(), dtype).reshape(shape)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
