"""Digests of delivered batches: one per batch, so that the first difference can be named, and one chained over all.

A batch's digest covers its batch size, and of every leaf, in the order of its name: name, dtype, shape and bytes. It
covers neither time nor device nor whether the memory was contiguous. Called by the collection in the trainer's process
(`trainer.digest`) and by `collectx reproduce`. Must not know envs, policies or workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from tensordict import TensorDictBase
    from torch import Tensor

# Digests of one kind only can be compared. XXH3 with 128 bits is ten times as quick as SHA-256. It is no protection
# against somebody who wants two batches to have the same digest.
_KIND = "xxh3"


class Digest:
    """Digests batch after batch. What follows from keys, dtypes and shapes is computed when they change: for small
    batches it takes longer than the bytes."""

    def __init__(self) -> None:
        self._chain = xxhash.xxh3_128()
        self._structure: list[tuple] = []
        self._head = b""
        self._order: list[int] = []

    def add(self, batch: TensorDictBase) -> str:
        """Digests `batch` (blocks for about 0.05 ms, and 0.2 ms per MB, longer from a GPU) and returns its own digest:
        "xxh3-" and 32 hexadecimal digits."""
        one = self._of(batch)
        self._chain.update(one)
        return f"{_KIND}-{one.hex()}"

    @property
    def total(self) -> str:
        """Digest of all batches so far, as that of one: equal only if every batch was, in the same order."""
        return f"{_KIND}-{self._chain.hexdigest()}"

    def _of(self, batch: TensorDictBase) -> bytes:
        structure: list[tuple] = [tuple(batch.batch_size)]
        leaves: list[Tensor] = []
        _collect((), batch, structure, leaves)
        if structure != self._structure:
            self._structure, keys = structure, [key for key, *_ in structure[1:]]
            self._order = sorted(range(len(leaves)), key=keys.__getitem__)
            self._head = repr([structure[0], *(structure[1 + index] for index in self._order)]).encode()
        hasher: Any = xxhash.xxh3_128(self._head)  # numpy's arrays are buffers, which only Python 3.12 can declare
        for index in self._order:
            try:
                hasher.update(leaves[index].numpy())
            except (TypeError, RuntimeError, ValueError, BufferError):
                hasher.update(_copy(leaves[index]))
        return hasher.digest()


def digest_of(batch: TensorDictBase) -> bytes:
    """The digest of one batch, 16 bytes."""
    return Digest()._of(batch)


def _collect(prefix: tuple[str, ...], batch: TensorDictBase, structure: list[tuple], leaves: list[Tensor]) -> None:
    """Adds key, dtype and shape of every leaf to `structure`, and the leaf to `leaves`. `batch.items(True, True)` takes
    as long as the bytes of a small batch."""
    for key, value in batch.items():
        if not hasattr(value, "batch_size"):  # a tensor
            structure.append(((*prefix, key), value.dtype, value.shape))
            leaves.append(value)
        else:
            _collect((*prefix, key), value, structure, leaves)


def _copy(leaf: Tensor) -> np.ndarray:
    """The bytes of a leaf that cannot be hashed as it is: on a GPU, with a gradient, not contiguous, or of a dtype that
    numpy lacks."""
    import torch

    return leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
