"""The state of the global random generators of this process: those of torch (CPU), NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def save_generators(names: Sequence[str] = ("torch", "numpy", "python")) -> dict[str, Any]:
    """Returns a copy of their states, of some or of all, by name: tensors and plain data."""
    return {name: _GENERATORS[name][0]() for name in names}


def load_generators(saved: dict[str, Any]) -> None:
    """Restores those that were saved."""
    for name, state in saved.items():
        _GENERATORS[name][1](state)


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return name, torch.from_numpy(keys.view(np.int32)), *rest


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, keys.numpy().view(np.uint32), *rest))


_GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "numpy": (_numpy_state, _set_numpy_state),
    "python": (random.getstate, random.setstate),
}
