"""Plain data, which every transport can send and checkpoints can contain: reading it executes no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from collectx.batch import is_numeric

# The only key of a dict that stands for a NumPy array, because `torch.load(weights_only=True)` refuses arrays.
_ARRAY = "\0array"


def packed(value: Any) -> Any:
    """Returns a copy of a value as plain data: numbers, strings, None, tensors on the CPU, and dicts, lists and tuples
    of these. NumPy's arrays and numbers become tensors; `unpacked` restores them. Raises `TypeError` if the value is,
    or contains, something else."""
    if isinstance(value, np.ndarray | np.generic) and is_numeric(value.dtype):
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: packed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(packed, value))
    if type(value) in (bool, int, float, str, type(None)):
        return value
    raise TypeError(
        f"{value!r:.100}, of type {type(value).__name__}, cannot be sent to or from workers. Use numbers, strings, "
        "None, tensors, arrays of numbers, and lists, tuples and dicts of these, with strings or integers as keys."
    )


def unpacked(value: Any) -> Any:
    """Returns the value that `packed` copied. A 0-dimensional array becomes a NumPy number."""
    if isinstance(value, dict):
        return value[_ARRAY].numpy()[()] if value.keys() == {_ARRAY} else {key: unpacked(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return type(value)(map(unpacked, value))
    return value
