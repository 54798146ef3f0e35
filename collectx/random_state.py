"""Preserves the global random state. Used in the trainer's and in the workers' processes."""

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
