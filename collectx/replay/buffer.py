"""The replay buffer: what collectors and trainers call.

    worker --extend--> | ring in shared memory | --sample--> trainer
    worker --extend--> |    one lock for all   | <--update_priority--

Lives in every process that it is pickled to; all of them see the same frames.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import Key, Leaf, nest
from collectx.errors import ConfigError, ShapeError
from collectx.replay import checkpoint
from collectx.replay.memory import Lock, barrier
from collectx.replay.ring import Ring, as_array, as_tensor
from collectx.replay.sampler import Sampler, UniformSampler

# What a sample has besides the frames' own keys.
_ADDED = ("index", "priority_weight")


class ReplayBuffer:
    """The newest `capacity` frames, shared between processes.

    A buffer can be pickled to other processes, as an argument of one that is being started (forkserver or spawn) or
    through a pipe or queue of multiprocessing; each may write and sample. Writes exclude one another, and a sample
    never has half of one; a call blocks for as long as others copy their frames, and a process that is killed in the
    midst of it holds up nobody. Its unfinished batch is not in the buffer, nor are the old frames in whose place it
    was being written.

    Memory is taken as frames come, is anonymous, and ends with the last process that has the buffer.

    Args:
        capacity: frames that are kept; the oldest give way.
        sampler: how `sample` chooses; None: uniformly. It becomes the buffer's.
        batch_size: frames of a sample, where `sample` is not told.
        scratch_dir: a folder on whose disk the frames lie, memory-mapped, where they are more than fit in memory. None:
            they are in memory.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        capacity: int,
        *,
        sampler: Sampler | None = None,
        batch_size: int | None = None,
        scratch_dir: str | Path | None = None,
    ):
        given = {"capacity": capacity, "batch_size": 1 if batch_size is None else batch_size}
        sizes = {name: _whole(size) for name, size in given.items()}
        problems = [
            f"{name}={given[name]!r}: must be a whole number, at least 1: it counts frames."
            for name, size in sizes.items()
            if size < 1
        ]
        if scratch_dir is not None and not Path(scratch_dir).is_dir():
            problems.append(f"scratch_dir={scratch_dir} is no folder: make it, or use None.")
        if problems:
            raise ConfigError(problems)
        capacity = sizes["capacity"]
        self.batch_size = None if batch_size is None else sizes["batch_size"]
        self.sampler = UniformSampler() if sampler is None else sampler
        extra = self.sampler.nbytes(capacity)
        self._ring = Ring(capacity, extra, None if scratch_dir is None else Path(scratch_dir))
        self._lock = Lock()
        self._is_attached = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_is_attached": False}

    @property
    def capacity(self) -> int:
        """Frames that are kept."""
        return self._ring.capacity

    @property
    def write_count(self) -> int:
        """Frames that were ever written, by all processes."""
        return self._ring.end

    def __len__(self) -> int:
        """Frames that can be sampled."""
        with self._lock:
            return len(self._ring)

    def extend(self, batch: TensorDictBase) -> torch.Tensor:
        """Writes all frames of a batch, or none.

        Args:
            batch: `[time]`, `[envs, time]`, `[workers, envs, time]` or of any other batch dimensions, which become one.
                Copied before this returns, to the CPU. The first batch of all settles the frames' keys.

        Returns:
            The frames' numbers, `[frames]` int64, counted from the first frame ever written. A batch of more than
            `capacity` frames leaves only its last.

        Raises:
            ShapeError: keys, shapes or dtypes are not those of the frames in the buffer, cannot be stored, or lack what
                the sampler needs.
        """
        count = batch.numel()
        leaves, frames = _flatten(batch, count)
        with self._lock:
            first = self._ring.end
            if count == 0:
                return torch.arange(first, first)
            self._lay_out(leaves)
            with self._changing():
                before = self._ring.first
                self._ring.drop(count)
                self.sampler.dropped(before, self._ring.first - before)
                self._ring.write(frames, count)
                kept = min(count, self.capacity)
                self.sampler.written(first + count - kept, kept)
        return torch.arange(first, first + count)

    def add(self, frame: TensorDictBase) -> int:
        """Writes one frame, a TensorDict without batch dimensions, or one of each of several envs; returns the number
        of the first. See `extend`."""
        return int(self.extend(frame.unsqueeze(0))[0])

    def sample(self, batch_size: int | None = None) -> TensorDict:
        """Frames that the sampler chooses, in memory of the caller's own.

        Returns:
            `[batch_size]`, or what the sampler says (see `SliceSampler`), with the frames' keys and "index", int64:
            their numbers, for `update_priority`. A `PrioritizedSampler` adds "priority_weight".

        Raises:
            ValueError: there are no frames, or so many cannot be drawn.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None or size < 1:
            raise ValueError(f"batch_size={size}: give sample() or the buffer a number of frames, 1 or more.")
        with self._lock:
            index, extra = self._draw(size)
            restores = self._ring.num_restores
        frames = self._read(index)
        # `first` goes on before a frame's bytes are overwritten: all that are still there were read whole.
        barrier()
        if index.min() < self._ring.first or self._ring.num_restores != restores:
            with self._lock:
                index, extra = self._draw(size)
                frames = self._read(index)
        for key, array in {"index": index, **extra}.items():
            frames[(key,)] = torch.from_numpy(array)
        return _nest(frames, index.shape, [None, "time"] if index.ndim == 2 else None)

    def _draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        self._attach()
        if not len(self._ring):
            raise ValueError("the buffer is empty: write frames before a sample is taken")
        return self.sampler.draw(size)

    def __getitem__(self, index: torch.Tensor | slice | int | Sequence[int]) -> TensorDict:
        """Frames by their numbers, the caller's own.

        Args:
            index: numbers, `[*shape]` or one alone; the frames are `[*shape]`. A slice is of the frames that are there,
                in the order in which they were written: `[:]` are all. Bounds are numbers too; below 0 they count from
                the newest frame's end, as one number does.

        Raises:
            IndexError: one is not there, no longer or not yet. A slice leaves out what is not there.
        """
        with self._lock:
            self._attach()
            numbers = self._numbers(index)
            absent = numbers[~self._is_there(numbers)]
            if absent.size:
                raise IndexError(
                    f"frame {absent[0]} is not in the buffer: it has {self._ring.first} to {self._ring.end - 1}"
                )
            frames = self._read(numbers)
        return _nest(frames, numbers.shape)

    def _numbers(self, index: torch.Tensor | slice | int | Sequence[int]) -> np.ndarray:
        first, end = self._ring.first, self._ring.end
        if isinstance(index, slice):
            numbers = np.arange(*index.indices(end))
            return numbers[numbers >= first]
        if isinstance(index, int):
            return np.array(index + end if index < 0 else index)
        return torch.as_tensor(index).to("cpu", torch.int64).numpy()

    def update_priority(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        """Sets priorities, such as absolute temporal-difference errors.

        Args:
            index: numbers of frames, a sample's "index". Those that were overwritten meanwhile are left out.
            priority: as many, not negative.

        Raises:
            ValueError: the sampler has no priorities, or they are negative or not finite.
        """
        numbers = index.to("cpu", torch.int64).numpy().reshape(-1)
        values = priority.detach().to("cpu", torch.float64).numpy().reshape(-1)
        if len(numbers) != len(values):
            raise ValueError(f"{len(numbers)} frames and {len(values)} priorities: one for each is needed")
        with self._lock:
            self._attach()
            there = self._is_there(numbers)
            with self._changing():
                self.sampler.update(numbers[there], values[there])

    def state_dict(self) -> dict[str, Any]:
        """The frames, their priorities and the generator, as tensors and plain data; copied."""
        with self._lock:
            state = self._state()
            return state | {name: state[name].clone().to_dict() for name in ("frames", "sampler")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Becomes, for every process, what `state_dict()` was taken of. Another kind of sampler sees the frames as new.

        Raises:
            ValueError: the capacity is another.
            ShapeError: this buffer has frames of other keys already, or its sampler needs others.
        """
        if state["capacity"] != self.capacity:
            raise ValueError(f"capacity={self.capacity}: the state is of a buffer with capacity={state['capacity']}")
        tensors = dict(_walk(TensorDict(state["frames"]), ()))
        arrays = {key: as_array(tensor) for key, tensor in tensors.items()}
        with self._lock:
            if tensors:
                self._lay_out({key: Leaf(key, tuple(t.shape[1:]), t.dtype) for key, t in tensors.items()})
            self.sampler.random.bit_generator.state = state["random"]
            if not self._ring.is_laid_out():
                return
            with self._changing():
                self._ring.restore(state["first"], state["write_count"], arrays)
                self._ring.extra[:] = 0
                if tensors and state["kind"] == type(self.sampler).__name__:
                    self._ring.extra[:] = state["sampler"]["memory"].numpy()
                self.sampler.rebuild()

    def dumps(self, path: str | Path) -> None:
        """Writes `state_dict()` to the folder `path`, as raw bytes and JSON, and returns when it is on the disk; a copy
        of the frames in memory is not made. Other processes wait for as long. A crash at any point leaves the state
        that was saved there before, or the new one.

        Raises:
            OSError: it cannot be written, or the disk has too little space. What was saved before is still there.
        """
        with self._lock:
            checkpoint.save(self._state(), Path(path))

    def loads(self, path: str | Path) -> None:
        """`load_state_dict` of what `dumps` wrote, after sizes and checksums of all files were verified. Nothing is
        unpickled, whatever lies in the folder.

        Raises:
            FileNotFoundError: no buffer was saved there, or a file is missing.
            ValueError: a file is damaged, or `load_state_dict` refuses the state.
        """
        self.load_state_dict(checkpoint.load(Path(path)))

    def _state(self) -> dict[str, Any]:
        """`state_dict()`, over the buffer's own memory."""
        ring = self._ring
        is_laid_out = self._attach()
        frames = {leaf.key: as_tensor(ring.view(leaf.key), leaf.dtype) for leaf in ring.leaves}
        return {
            "capacity": ring.capacity,
            "first": ring.first,
            "write_count": ring.end,
            "kind": type(self.sampler).__name__,
            "random": self.sampler.random.bit_generator.state,
            "frames": _nest(frames, ()),
            "sampler": TensorDict({"memory": torch.from_numpy(ring.extra)} if is_laid_out else {}),
        }

    def _lay_out(self, leaves: Mapping[Key, Leaf]) -> None:
        self.sampler.check(leaves)
        self._ring.lay_out(leaves)

    def _attach(self) -> bool:
        """Makes this process see what others wrote; False while nobody has. Mends what a killed process left."""
        if not self._ring.is_laid_out():
            return False
        if not self._is_attached:
            self.sampler.attach(self._ring, self._ring.extra)
            self._is_attached = True
        if self._ring.is_changing:
            self.sampler.rebuild()
            self._ring.is_changing = False
        return True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._attach()
        self._ring.is_changing = True
        yield
        # Not after an exception: then too, something was left in the midst.
        self._ring.is_changing = False

    def _is_there(self, index: np.ndarray) -> np.ndarray:
        return (index >= self._ring.first) & (index < self._ring.end)

    def _read(self, index: np.ndarray) -> dict[Key, torch.Tensor]:
        leaves = self._ring.leaves
        arrays = self._ring.read(index, *(leaf.key for leaf in leaves))
        return {leaf.key: as_tensor(array, leaf.dtype) for leaf, array in zip(leaves, arrays, strict=True)}


def _whole(value: Any) -> int:
    """A whole number as an int, also one of numpy's or written as 1e6; 0 where it is something else."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return int(value) if is_number and float(value).is_integer() else 0


def _flatten(batch: TensorDictBase, count: int) -> tuple[dict[Key, Leaf], dict[Key, np.ndarray]]:
    """The leaves of a batch, and their `[count, *shape]` arrays, over the batch's memory where it is contiguous."""
    leaves: dict[Key, Leaf] = {}
    frames: dict[Key, np.ndarray] = {}
    dims = batch.batch_dims
    for key, tensor in _walk(batch, ()):
        if not isinstance(tensor, torch.Tensor):
            raise ShapeError(f"{'.'.join(key)} is a {type(tensor).__name__}: a buffer stores tensors only")
        if key[0] in _ADDED:
            raise ShapeError(f"the batch has the key {key[0]}, which samples have for their own: leave it out")
        leaves[key] = Leaf(key, tuple(tensor.shape[dims:]), tensor.dtype)
        frames[key] = as_array(tensor).reshape(count, *leaves[key].shape)
    if not leaves:
        raise ShapeError("the batch has no tensors: there is nothing to store")
    return leaves, frames


def _walk(batch: TensorDictBase, prefix: Key) -> Iterator[tuple[Key, Any]]:
    for name, value in batch.items():
        if isinstance(value, TensorDictBase):
            yield from _walk(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _nest(
    tensors: Mapping[Key, torch.Tensor], shape: tuple[int, ...], names: list[str | None] | None = None
) -> TensorDict:
    return TensorDict(nest(tensors), batch_size=shape, names=names)
