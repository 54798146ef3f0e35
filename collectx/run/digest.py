"""Digests of delivered batches: one per batch, to find the first that differs, and one over all batches.

A batch digest covers the batch size, and the name, dtype, shape and bytes of every leaf, sorted by name. It does not
depend on time, device or contiguity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from tensordict import TensorDictBase
    from torch import Tensor

# Only digests of the same kind can be compared. XXH3 with 128 bits is ten times faster than SHA-256, but not a
# cryptographic hash.
_KIND = "xxh3"


class Digest:
    """Digests one batch after another. The header of keys, dtypes and shapes is computed only when they change: for
    small batches it takes longer than the bytes."""

    def __init__(self) -> None:
        self._chain = xxhash.xxh3_128()
        self._structure: list[tuple] = []
        self._head = b""
        self._order: list[int] = []

    def add(self, batch: TensorDictBase) -> str:
        """Digests `batch` and returns its digest, as `append` does."""
        return self.append(self.of(batch))

    def append(self, one: bytes) -> str:
        """Continues with the digest of one more batch, and returns it as text: "xxh3-" and 32 hexadecimal digits."""
        self._chain.update(one)
        return f"{_KIND}-{one.hex()}"

    def resume(self, digests: Iterable[str]) -> None:
        """Continues after the batches with these digests."""
        for text in digests:
            self._chain.update(bytes.fromhex(text.removeprefix(f"{_KIND}-")))

    @property
    def total(self) -> str:
        """The digest of all batches so far: equal only if every batch is equal, in the same order."""
        return f"{_KIND}-{self._chain.hexdigest()}"

    def of(self, batch: TensorDictBase) -> bytes:
        """Returns the digest of one batch. Blocks for about 0.05 ms, and 0.2 ms per MB, longer from a GPU."""
        structure: list[tuple] = [tuple(batch.batch_size)]
        leaves: list[Tensor] = []
        _collect((), batch, structure, leaves)
        if structure != self._structure:
            self._structure, keys = structure, [key for key, *_ in structure[1:]]
            self._order = sorted(range(len(leaves)), key=keys.__getitem__)
            self._head = repr([structure[0], *(structure[1 + index] for index in self._order)]).encode()
        hasher: Any = xxhash.xxh3_128(self._head)  # numpy arrays are buffers, a type that only Python 3.12 has
        for index in self._order:
            try:
                hasher.update(leaves[index].numpy())
            except (TypeError, RuntimeError, ValueError, BufferError):
                hasher.update(_copy(leaves[index]))
        return hasher.digest()


def _collect(prefix: tuple[str, ...], batch: TensorDictBase, structure: list[tuple], leaves: list[Tensor]) -> None:
    """Adds key, dtype and shape of every leaf to `structure`, and the leaf to `leaves`. Faster than
    `batch.items(True, True)`, which takes as long as hashing a small batch."""
    for key, value in batch.items():
        if not hasattr(value, "batch_size"):  # a tensor
            structure.append(((*prefix, key), value.dtype, value.shape))
            leaves.append(value)
        else:
            _collect((*prefix, key), value, structure, leaves)


def _copy(leaf: Tensor) -> np.ndarray:
    """Returns a copy of the bytes of a leaf that numpy cannot view: on a GPU, with a gradient, not contiguous, or of a
    dtype that numpy lacks."""
    import torch

    return leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
