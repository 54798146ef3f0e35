"""Initial weights that do not depend on the machine.

Called wherever a module of this package makes weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded() -> Iterator[None]:
    """Inside the block torch computes with one thread: linear algebra with another number of threads, as the QR
    decomposition of an orthogonal initialisation, may differ in its last bits. A number other than
    one that is set inside the block stays."""
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
