"""The state of the global random generators of this process: those of torch (CPU), NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from collectx.state.restore import read
from collectx.state.save import save

_ALL = ("torch", "numpy", "python")


def save_generators(names: Sequence[str] = _ALL) -> dict[str, Any]:
    """Returns a copy of their states, of some or of all, by name: tensors and plain data."""
    states: dict[str, Callable[[], Any]] = {
        "torch": torch.get_rng_state,
        "numpy": np.random.get_state,
        "python": random.getstate,
    }
    return {name: save(states[name](), name) for name in names}


def load_generators(saved: dict[str, Any]) -> None:
    """Restores those that were saved."""
    setters: dict[str, Callable[[Any], object]] = {
        "torch": torch.set_rng_state,
        "numpy": np.random.set_state,
        "python": random.setstate,
    }
    for name, state in saved.items():
        setters[name](read(state))
