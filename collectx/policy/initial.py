"""Initial weights that do not depend on the machine. Used where weights are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded() -> Iterator[None]:
    """Inside the block torch computes with one thread, as results of linear algebra (the QR decomposition of an
    orthogonal initialisation) may depend on the number of threads. If the block sets another number than one, it
    stays."""
    import torch

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
