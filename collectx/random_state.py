"""Saves, restores and preserves the global random state; makes computations independent of the number of threads."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def preserve_random_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restores the global random generators of Python, NumPy and torch at the end of the block.

    Args:
        devices: GPUs whose generators are restored as well.
    """
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Inside the block torch computes with one thread, as results of linear algebra (the QR decomposition of an
    orthogonal initialisation) may depend on the number of threads. If the block sets another number than one, it
    stays."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() == 1:
            torch.set_num_threads(before)


def save_generators(names: Sequence[str] = ("torch", "numpy", "python")) -> dict[str, Any]:
    """Returns a copy of the states of the global generators, of torch (CPU), NumPy and Python or of some of them, by
    name: tensors and plain data."""
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
