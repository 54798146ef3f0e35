"""The memory of a batch: its leaves, their places in a slot, and the TensorDict that a user receives.

A slot is one flat run of bytes. It contains every leaf as a contiguous array of shape `[rows, steps, *shape]` (rows are
envs, steps are time), so a slot is one memcpy in shared memory and one message on a network:

    | observation | next.observation | action | next.reward | ... |      each starts on a 64-byte boundary
     [E, T, ...]    [E, T, ...]        [E, T, ...]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

Key = tuple[str, ...]

ALIGNMENT_BYTES = 64


def aligned(nbytes: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """Returns `nbytes`, rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


# Every batch contains these, as in TorchRL's collectors: done = terminated | truncated. The root ones describe the
# observation that the policy saw (always False, as no frame starts from a final state).
DONE_KEYS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
TRAJ_IDS: Key = ("collector", "traj_ids")
POLICY_VERSION: Key = ("collector", "policy_version")
# How many settings (`collectx.collector.worker_record`) the env had when it acted; in batches from the first one on.
SETTINGS_VERSION: Key = ("collector", "settings_version")
# The number of earlier frames in the trajectory; in batches with a time limit (`collectx/rollout/wrappers.py`).
STEP_COUNT: Key = ("step_count",)


@dataclass(frozen=True)
class Leaf:
    """One tensor of a frame: the nested key, the shape without batch dimensions, and the dtype."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype

    def under(self, prefix: str) -> Leaf:
        """Returns the same leaf with `prefix` before its key, as in `("next", "observation")`."""
        return Leaf((prefix, *self.key), self.shape, self.dtype)

    def to_json(self) -> list:
        """Returns key, shape and dtype as plain data."""
        return [list(self.key), list(self.shape), str(self.dtype).removeprefix("torch.")]

    @classmethod
    def from_json(cls, data: list) -> Leaf:
        """Reverses `to_json`."""
        return cls(tuple(data[0]), tuple(data[1]), getattr(torch, data[2]))


def is_numeric(dtype: np.dtype) -> bool:
    """Whether a batch can contain values of this dtype: numbers and booleans, but no complex numbers."""
    return dtype.kind in "biuf"


def is_integer(dtype: np.dtype) -> bool:
    """Whether values of this dtype are integers; booleans are not."""
    return dtype.kind in "iu"


def as_key(key: Any) -> Key:
    """Returns a TensorDict key, a name or a tuple, as a tuple."""
    return (key,) if isinstance(key, str) else tuple(key)


def clashes(names: Iterable[tuple[str, Key]]) -> dict[str, list[Key]]:
    """Returns the names that stand for several keys, as parts of a key may contain dots, each with these keys."""
    keys: dict[str, dict[Key, None]] = {}
    for name, key in names:
        keys.setdefault(name, {})[key] = None
    return {name: [*several] for name, several in keys.items() if len(several) > 1}


def nest(values: Mapping[Key, Any]) -> dict[str, Any]:
    """Returns nested dicts that contain the values at their keys."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        node = root
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value
    return root


# The reward of most envs.
REWARD = Leaf(("reward",), (1,), torch.float32)


def batch_leaves(
    observation: Iterable[Leaf],
    actor: Iterable[Leaf],
    omitted: Collection[Key] = (),
    next_only: Iterable[Leaf] = (REWARD,),
) -> tuple[Leaf, ...]:
    """Returns all leaves of a batch: `observation` at the root and below `next`, the outputs of `actor`, flags, ids and
    versions. An output that overwrites an observation, at the root or below `next`, shares its leaf. Raises
    `ValueError` if two leaves share a key, or one's key is a prefix of another's.

    Args:
        omitted: the keys of observations that the batch does not contain below `next`.
        next_only: what the env writes only below `next`, such as rewards.
    """
    observation, actor = tuple(observation), tuple(actor)
    flags = tuple(Leaf(key, (1,), torch.bool) for key in DONE_KEYS)
    following = [leaf.under("next") for leaf in observation if leaf.key not in omitted]
    leaves = (
        *observation,
        *(leaf for leaf in actor if leaf not in observation),
        *flags,
        *(leaf for leaf in following if leaf not in actor),
        *(leaf.under("next") for leaf in next_only),
        *(leaf.under("next") for leaf in flags),
        Leaf(TRAJ_IDS, (), torch.int64),
        Leaf(POLICY_VERSION, (), torch.int64),
    )
    seen: set[Key] = set()
    for leaf in leaves:
        if leaf.key in seen:
            raise ValueError(f"the batch contains the key {'.'.join(leaf.key)!r} twice. Rename one.")
        seen.add(leaf.key)
    for key in seen:
        for end in range(1, len(key)):
            if key[:end] in seen:
                parent, inner = ".".join(key[:end]), ".".join(key)
                raise ValueError(f"the key {parent!r} is a tensor, but also the parent of {inner!r}. Rename one.")
    return leaves


@functools.cache
def same_size_integer(dtype: torch.dtype) -> torch.dtype | None:
    """Returns the integer dtype of the same size as a dtype that numpy lacks, such as bfloat16; None for a dtype that
    numpy knows."""
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return None


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor as a CPU array, of `same_size_integer` if numpy lacks its dtype. Copies only from another
    device."""
    dtype = same_size_integer(tensor.dtype)
    return (tensor if dtype is None else tensor.view(dtype)).numpy(force=True)


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns the array of `as_array` as a tensor of `dtype` that shares its memory."""
    tensor = torch.from_numpy(np.asarray(array))  # a numpy scalar is not an array
    return tensor if same_size_integer(dtype) is None else tensor.view(dtype)


class Layout:
    """The place of each leaf in a slot of `rows x steps` frames.

    Attributes:
        leaves: the leaves, in the order of their offsets.
        rows, steps: the two leading dimensions of every leaf.
        nbytes: the size of a slot, a multiple of `ALIGNMENT_BYTES`.
    """

    def __init__(self, leaves: Sequence[Leaf], rows: int, steps: int):
        self.leaves = tuple(leaves)
        self.rows = rows
        self.steps = steps
        self._offsets: list[int] = []
        self._row_nbytes: list[int] = []
        offset = 0
        for leaf in self.leaves:
            self._offsets.append(offset)
            row_nbytes = steps * math.prod(leaf.shape) * leaf.dtype.itemsize
            self._row_nbytes.append(row_nbytes)
            offset += aligned(rows * row_nbytes)
        self.nbytes = offset

    def runs(self, first: int, rows: int) -> list[slice]:
        """Returns where the `rows` rows from `first` on lie in a slot: one byte range per leaf."""
        offsets = zip(self._offsets, self._row_nbytes, strict=True)
        return [slice(start + first * nbytes, start + (first + rows) * nbytes) for start, nbytes in offsets]

    def slot(self, memory: torch.Tensor) -> Slot:
        """Returns the leaves as views of `memory`, a contiguous uint8 tensor of `nbytes`. The caller keeps
        ownership."""
        return Slot(self.tensors(memory, (self.rows, self.steps)))

    def tensors(self, memory: torch.Tensor, batch_size: tuple[int, ...]) -> dict[Key, torch.Tensor]:
        """Returns the leaves as `[*batch_size, *shape]` views of `memory`; `batch_size` reshapes `[rows, steps]`."""
        if memory.dtype != torch.uint8 or memory.numel() != self.nbytes:
            raise ValueError(f"a slot needs {self.nbytes} uint8, got {memory.numel()} {memory.dtype}")
        # One view per dtype and one per leaf: this runs for every batch, and each view costs a microsecond.
        typed = {dtype: memory.view(dtype) for dtype in {leaf.dtype for leaf in self.leaves}}
        tensors = {}
        for leaf, offset in zip(self.leaves, self._offsets, strict=True):
            shape = batch_size + leaf.shape
            flat = typed[leaf.dtype]
            start = flat.storage_offset() + offset // leaf.dtype.itemsize
            tensors[leaf.key] = flat.as_strided(shape, _strides(shape), start)
        return tensors


@functools.cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


class Slot:
    """The leaves of one batch, as `[rows, steps, *shape]` tensors in the transport's memory."""

    def __init__(self, tensors: dict[Key, torch.Tensor]):
        self.tensors = tensors

    def narrow(self, start: int, rows: int) -> Slot:
        """Returns a view of `rows` rows from `start` on, such as one worker's part of a joined slot."""
        return Slot({key: tensor.narrow(0, start, rows) for key, tensor in self.tensors.items()})

    def until(self, steps: int) -> Slot:
        """Returns a view of the first `steps` steps."""
        return Slot({key: tensor.narrow(1, 0, steps) for key, tensor in self.tensors.items()})

    def arrays(self) -> dict[Key, np.ndarray]:
        """Returns the leaves as numpy arrays that share the memory; see `as_array`."""
        return {key: as_array(tensor) for key, tensor in self.tensors.items()}


_T = TypeVar("_T")


class PerSlot(dict[int, _T]):
    """What a worker needs for each slot that it fills, by slot number: made when it is first needed, and kept for the
    last `LIMIT` slots."""

    LIMIT = 64

    def __init__(self, make: Callable[[int], _T]):
        self._make = make

    def __missing__(self, slot: int) -> _T:
        if len(self) == self.LIMIT:
            del self[next(iter(self))]
        self[slot] = value = self._make(slot)
        return value


def nested_dims(dims: Mapping[Key, tuple[int, ...]], leaves: Collection[Leaf]) -> dict[Key, tuple[int, ...]]:
    """Returns the additional batch dimensions of nested TensorDicts in a batch, by key, at the root and below `next`:
    the entries of `dims` with which the shapes of all leaves below their key begin."""
    found: dict[Key, tuple[int, ...]] = {}
    for key, shape in (*dims.items(), *((("next", *key), shape) for key, shape in dims.items())):
        within = [leaf.shape for leaf in leaves if leaf.key[: len(key)] == key]
        if within and all(each[: len(shape)] == shape for each in within):
            found[key] = shape
    return found


def to_tensordict(
    tensors: dict[Key, torch.Tensor],
    batch_size: Sequence[int],
    device: torch.device | None = None,
    dims: Mapping[Key, tuple[int, ...]] = MappingProxyType({}),
) -> TensorDict:
    """Returns a TensorDict of `tensors`, each `[*batch_size, *shape]`; the last batch dimension is named "time". A
    tensor is copied only if it is not on `device`.

    Args:
        batch_size: for example `[steps]`, `[rows, steps]`, `[workers, rows, steps]`.
        dims: batch dimensions of nested TensorDicts after `batch_size`, by key; see `nested_dims`.
    """
    if device is not None:
        tensors = {key: tensor.to(device) for key, tensor in tensors.items()}
    return _build(nest(tensors), torch.Size(batch_size), device, dims)


def _build(
    nested: dict,
    batch_size: torch.Size,
    device: torch.device | None,
    dims: Mapping[Key, tuple[int, ...]],
    key: Key = (),
    outer: tuple[int, ...] = (),
) -> TensorDict:
    """Returns the TensorDict at `key` of a batch; `outer` are its extra dimensions."""
    from tensordict import TensorDict

    extra = dims.get(key, outer)
    children = {
        name: _build(value, batch_size, device, dims, (*key, name), extra) if isinstance(value, dict) else value
        for name, value in nested.items()
    }
    names = [*[None] * (len(batch_size) - 1), "time", *[None] * len(extra)]
    return TensorDict(children, batch_size=batch_size + extra, names=names, device=device)
