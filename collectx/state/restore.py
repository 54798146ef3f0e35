"""Restores the state that `collectx.state.save` has saved, in envs of the same classes.

Imports nothing and calls no class that the state names: it changes the attributes of envs that were built and reset.
Where attributes shared an object, they share it again.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch

from collectx.errors import NotRestorable
from collectx.state.save import PLAIN, attributes_of, has_state_dict, name_of, unpack
from collectx.state.simulators import simulator_of

_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


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


def restore_bytes(value: Any, state: torch.Tensor, name: str) -> None:
    """As `restore`, with a state of `save_bytes`."""
    try:
        content = unpack(state)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise NotRestorable(f"{name}: the saved state cannot be read: {type(error).__name__}: {text}") from error
    restore(value, content, name)


def read(state: Any) -> Any:
    """Returns a copy of a value of `save` that holds no object but containers, arrays and tensors."""
    return _Reader().read(state, None, "the value")


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
        if type(saved) in PLAIN:
            return saved
        kind, content = saved
        if kind == "same":
            return self._objects[content]
        if kind == "constant":
            if name_of(current) != content:
                raise NotRestorable(f"{path} is {name_of(current)}, the saved env had {content}")
            return current
        if kind == "enum":
            return type(current)[content]
        if kind == "bytes":
            return content.numpy().tobytes()
        if kind == "scalar":
            return _array(content)[()]
        if kind == "tuple":
            items = self._items(content, current if isinstance(current, tuple) else (), path)
            return type(current)._make(items) if hasattr(current, "_make") else tuple(items)
        # Each object of the env stands for one saved object.
        if id(current) in self._used:
            current = None
        number = len(self._objects)
        self._objects.append(current)
        if kind == "set":
            value: Any = set(self._items(content, (), path))
        else:
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
        array = _array(content)
        is_same = isinstance(current, np.ndarray) and (current.shape, current.dtype) == (array.shape, array.dtype)
        if not is_same or not current.flags.writeable:
            return array.copy()
        current[...] = array
        return current

    def _read_tensor(self, content: torch.Tensor, current: Any, path: str) -> torch.Tensor:
        if not isinstance(current, torch.Tensor) or (current.shape, current.dtype) != (content.shape, content.dtype):
            return content.clone()
        # A tensor that was made in inference mode is changed in it only.
        with torch.inference_mode() if current.is_inference() else torch.no_grad():
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

    def _read_deque(self, content: Any, current: Any, path: str) -> deque:
        if not isinstance(current, deque):
            raise NotRestorable(f"{path} is {name_of(type(current))}, the saved env had a deque")
        return self._read_list(content, current, path)

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
        assert simulator is not None, f"{path} is {name_of(type(current))}"
        simulator.restore(current, self.read(content, None, path))
        return current

    def _read_state_dict(self, content: Any, current: Any, path: str) -> Any:
        if not has_state_dict(current):
            raise NotRestorable(f"{path} is {name_of(type(current))} without load_state_dict, which the saved env had")
        state, generator = content
        current.load_state_dict(self.read(state, None, path))
        inner = current.unwrapped
        if generator is not None:
            inner._np_random = self.read(generator, getattr(inner, "_np_random", None), path)
        return current

    def _read_object(self, content: dict[str, Any], current: Any, path: str) -> Any:
        attributes = vars(current) if isinstance(current, gymnasium.Space) else attributes_of(current)
        if current is None or attributes is None:
            raise NotRestorable(f"{path} is {name_of(type(current))}, the saved env had an object")
        for name, saved in content.items():
            before = attributes.get(name)
            value = self.read(saved, before, f"{path}.{name}")
            if value is not before or type(value) in PLAIN:
                object.__setattr__(current, name, value)
        return current


def _array(content: list[Any]) -> np.ndarray:
    dtype, shape, data = content
    return np.frombuffer(data.numpy().tobytes(), dtype).reshape(shape)
