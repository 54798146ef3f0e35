"""The state of the global random generators of this process: those of torch (CPU), NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

_ALL = ("torch", "numpy", "python")


def save_generators(names: Sequence[str] = _ALL) -> dict[str, Any]:
    """Returns a copy of their states, of some or of all, by name: tensors and plain data."""
    states: dict[str, Callable[[], Any]] = {
        "torch": torch.get_rng_state,
        "numpy": np.random.get_state,
        "python": random.getstate,
    }
    return {name: _plain(states[name]()) for name in names}


def load_generators(saved: dict[str, Any]) -> None:
    """Restores those that were saved."""
    setters: dict[str, Callable[[Any], object]] = {
        "torch": torch.set_rng_state,
        "numpy": np.random.set_state,
        "python": random.setstate,
    }
    for name, state in saved.items():
        setters[name](_read(state))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ["tuple", [_plain(each) for each in value]]
    if isinstance(value, np.ndarray):
        return ["array", [value.dtype.str, list(value.shape), torch.from_numpy(value.copy().view(np.uint8))]]
    return ["tensor", value] if isinstance(value, torch.Tensor) else value


def _read(value: Any) -> Any:
    """The inverse of `_plain`."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "tuple":
        return tuple(map(_read, content))
    if kind == "array":
        dtype, shape, data = content
        return np.frombuffer(data.numpy().tobytes(), dtype).reshape(shape)
    return content
