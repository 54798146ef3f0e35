"""Conversion between nested TensorDicts and leaves by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from collectx.batch import Key, Leaf
from collectx.errors import ShapeError

# Dtypes that numpy lacks, and the dtype of equal size whose bytes are copied instead.
_NUMPY_DTYPES = {torch.bfloat16: torch.int16}

# Keys that a sample has in addition to the keys of the frames.
_SAMPLE_KEYS = ("index", "priority_weight")


def flatten_batch(batch: TensorDictBase, count: int) -> tuple[dict[Key, Leaf], dict[Key, np.ndarray]]:
    """Returns the leaves of a batch of `count` frames, and their `[count, *shape]` arrays: views where the batch is
    contiguous, otherwise copies.

    Raises:
        ShapeError: the batch has no tensors, leaves that are not tensors, or keys that samples use.
    """
    leaves: dict[Key, Leaf] = {}
    frames: dict[Key, np.ndarray] = {}
    dims = batch.batch_dims
    for key, tensor in iter_leaves(batch):
        if not isinstance(tensor, torch.Tensor):
            raise ShapeError(f"{'.'.join(key)} is a {type(tensor).__name__}: a buffer stores tensors only")
        if key[0] in _SAMPLE_KEYS:
            raise ShapeError(f"the batch has the key {key[0]}, which is reserved for samples: remove it")
        leaves[key] = Leaf(key, tuple(tensor.shape[dims:]), tensor.dtype)
        frames[key] = as_array(tensor).reshape(count, *leaves[key].shape)
    if not leaves:
        raise ShapeError("the batch has no tensors to store")
    return leaves, frames


def iter_leaves(nested: Mapping[str, Any] | TensorDictBase, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yields the keys and values of nested mappings or TensorDicts."""
    for name, value in nested.items():
        if isinstance(value, Mapping | TensorDictBase):
            yield from iter_leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Converts a tensor to an array on the CPU; copies only from another device."""
    tensor = tensor.detach()
    numpy_dtype = _NUMPY_DTYPES.get(tensor.dtype)
    return (tensor if numpy_dtype is None else tensor.contiguous().view(numpy_dtype)).cpu().numpy()


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `as_array`."""
    tensor = torch.from_numpy(np.asarray(array))  # a numpy scalar is not an array
    return tensor.view(dtype) if dtype in _NUMPY_DTYPES else tensor
