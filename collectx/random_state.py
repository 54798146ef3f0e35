"""Preserves the global random state, and makes computations independent of the number of threads. Used in the trainer's
and in the workers' processes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

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
