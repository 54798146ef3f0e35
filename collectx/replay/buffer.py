"""`ReplayBuffer`, which collectors write and trainers sample. All processes see the same frames.

worker --extend--> | ring in shared memory | --sample--> trainer
worker --extend--> |    one lock for all   | <--update_priority--

`Lock` protects a buffer; if the process that holds it dies, the kernel releases it.
"""

from __future__ import annotations

import fcntl
import numbers
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from collectx.batch import Key, Leaf, as_array, nest
from collectx.checkpoints import STATE, Checkpoint, Checkpoints
from collectx.config.problem import counted
from collectx.errors import ConfigError, DamagedFileError
from collectx.memory import anonymous_file, barrier
from collectx.replay.ring import Ring, flatten_batch, iter_leaves
from collectx.replay.sampler import Sampler, UniformSampler
from collectx.trajectories import filled

# Begins the names of the folders that `dumps` writes.
_SAVED = "replay-buffer-"


class ReplayBuffer:
    """A replay buffer of the newest `capacity` frames, shared between processes.

    Pass a buffer to other processes as an argument at their start (forkserver or spawn), or through a pipe or queue of
    `multiprocessing`. Every process may write and sample. One lock serialises writes, so calls block while another
    process copies frames, and a sample never contains a partly written frame. If a process is killed during a write,
    the lock is released; the buffer then lacks the batch that was being written, and the old frames that it was
    replacing. An observation of 1 KB or more that is also the next one of another frame is stored once. The shared
    memory is anonymous, grows as frames are written, and is freed when the last process closes
    the buffer.

    Args:
        capacity: maximum number of frames. New frames overwrite the oldest.
        sampler: how `sample` chooses frames; None: `UniformSampler()`. Do not share a sampler between buffers.
        batch_size: default of the argument of `sample`.
        scratch_dir: an existing folder in which a memory-mapped file stores the frames, if they do not fit in memory.
            None: they are in memory.

    Raises:
        ConfigError: an argument is out of range.

    Examples:
        >>> buffer = ReplayBuffer(1000)
        >>> with Collector(
        ...     lambda: gymnasium.make("CartPole-v1"), frames_per_batch=64, total_frames=64
        ... ) as collector:
        ...     for batch in collector:
        ...         index = buffer.extend(batch)
        >>> buffer.sample(16)["observation"].shape
        torch.Size([16, 4])
    """

    def __init__(
        self,
        capacity: int,
        *,
        sampler: Sampler | None = None,
        batch_size: int | None = None,
        scratch_dir: str | Path | None = None,
    ):
        sizes = {"capacity": capacity, "batch_size": 1 if batch_size is None else batch_size}
        problems = [
            f"{name}={size!r} must be an int, at least 1." for name, size in sizes.items() if not _is_count(size)
        ]
        if not isinstance(sampler, Sampler | None):
            problems.append(f"sampler={sampler!r} must be a Sampler, such as PrioritizedSampler().")
        if scratch_dir is not None and not Path(scratch_dir).is_dir():
            problems.append(f"scratch_dir={str(scratch_dir)!r} is not a folder. Create it, or use scratch_dir=None.")
        if problems:
            raise ConfigError(*problems)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.sampler = sampler or UniformSampler()
        folder = None if scratch_dir is None else Path(scratch_dir)
        self._ring = Ring(int(capacity), self.sampler.nbytes(int(capacity)), folder)
        self._lock = Lock()
        self._is_attached = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_is_attached": False}

    def __repr__(self) -> str:
        if "_ring" not in vars(self):  # the constructor has not ended
            return object.__repr__(self)
        # Without the lock, as a debugger shows objects while another process writes.
        frames = f"{len(self._ring):,} of {self.capacity:,} frames"
        return f"<{type(self).__name__}: {frames}, {type(self.sampler).__name__}>"

    @property
    def capacity(self) -> int:
        """Maximum number of frames."""
        return self._ring.capacity

    @property
    def nbytes(self) -> int:
        """Size of the shared memory in bytes, for `capacity` frames; before the first frame, the size of a header. An
        observation of 1 KB or more counts once, as it is also the next one of the frame before it; the last one of an
        episode takes more."""
        return self._ring.nbytes

    @property
    def write_count(self) -> int:
        """Number of frames written so far by all processes, including overwritten ones."""
        return self._ring.end

    def __iter__(self) -> Iterator[TensorDict]:
        """Raises TypeError; Python would otherwise call `buffer[0]`, `buffer[1]` and so on, whose frames may be
        overwritten."""
        raise TypeError("a ReplayBuffer cannot be iterated. Use buffer[:] for all its frames, or buffer.sample(size).")

    def __len__(self) -> int:
        """Returns the number of frames in the buffer, which can be sampled."""
        with self._lock:
            return len(self._ring)

    def extend(self, batch: TensorDictBase) -> torch.Tensor:
        """Writes the frames of a batch: all of them but its padding, whose `("collector", "mask")` is False, or none if
        it raises.

        Args:
            batch: frames with any batch dimensions, which are flattened, such as `[time]` or `[workers, envs, time]`.
                They are copied to the CPU before this returns. The first batch fixes the keys, shapes and dtypes of
                frames.

        Returns:
            The indices of the written frames, `[frames]` int64: their numbers among all frames ever written, from 0,
            not positions in a storage as in TorchRL. If the batch has more than `capacity` frames, only the last
            `capacity` are kept.

        Raises:
            DataError: keys, shapes or dtypes differ from those of the frames in the buffer or cannot be stored, or a
                key that the sampler needs is missing.
            TypeError: the batch is not a TensorDict.
        """
        _check_type(batch)
        if (is_filled := filled(batch)) is not None:
            batch = batch[is_filled]
        count = batch.batch_size.numel()  # `batch.numel()` is at least 1
        leaves, frames = flatten_batch(batch, count)
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
        """Writes one frame, a TensorDict without batch dimensions; or one frame of each of several envs. Returns the
        index of the first. Raises the errors of `extend`."""
        _check_type(frame)
        return int(self.extend(frame.unsqueeze(0))[0])

    def sample(self, batch_size: int | None = None) -> TensorDict:
        """Returns a copy of frames that the sampler chooses, on the CPU.

        Args:
            batch_size: number of frames; None: that of the constructor.

        Returns:
            `[batch_size]` (see `SliceSampler` for another shape) with the keys of the frames and "index", int64, for
            `update_priority`. A `PrioritizedSampler` adds "priority_weight".

        Raises:
            ValueError: the buffer is empty, or `batch_size` is missing or not supported by the sampler.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("sample() needs a batch size. Call sample(256), or create the buffer with batch_size=256.")
        if not _is_count(size):
            raise ValueError(f"batch_size={size!r} must be an int, at least 1.")
        size = int(size)
        with self._lock:
            index, extra = self._draw(size)
            restores = self._ring.num_restores
        frames = self._ring.frames(index)
        # A writer advances `first` before it overwrites bytes, so frames from `first` on were read completely.
        barrier()
        if index.min() < self._ring.first or self._ring.num_restores != restores:
            with self._lock:
                index, extra = self._draw(size)
                frames = self._ring.frames(index)
        frames |= {(key,): torch.from_numpy(array) for key, array in {"index": index, **extra}.items()}
        return TensorDict(nest(frames), index.shape, names=[None, "time"] if index.ndim == 2 else None)

    def _draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        self._attach()
        if not len(self._ring):
            raise ValueError("the buffer is empty. Write frames before you sample.")
        return self.sampler.draw(size)

    def __getitem__(self, index: torch.Tensor | slice | int | Sequence[int]) -> TensorDict:
        """Returns a copy of frames by their indices, on the CPU.

        Args:
            index: indices of `extend`, `[*shape]`, or an int; the result is `[*shape]`. A negative int counts from the
                newest frame. A slice selects the frames in the buffer between two indices, in the order in which they
                were written: `[:]` selects all.

        Raises:
            IndexError: a frame was overwritten, or is not written yet. Slices skip such frames.
            TypeError: the indices are not integers, as with a mask.
        """
        with self._lock:
            self._attach()
            if isinstance(index, slice):
                start, stop, step = index.indices(self._ring.end)
                # Skips overwritten frames, which may be many more than those in the buffer.
                if step > 0:
                    start += -(-max(0, self._ring.first - start) // step) * step
                else:
                    stop = max(stop, self._ring.first - 1)
                indices = np.arange(start, stop, step)
            elif isinstance(index, numbers.Integral) and not isinstance(index, bool):
                indices = np.array(index + self._ring.end if index < 0 else index)
            else:
                if isinstance(index, str | tuple):
                    raise TypeError(
                        "a ReplayBuffer is indexed by frames, as in buffer[:10]. For one key of all frames: "
                        f"buffer[:][{index!r}]"
                    )
                given = torch.as_tensor(index)
                if given.numel() and (given.dtype == torch.bool or given.dtype.is_floating_point):
                    raise TypeError(
                        f"indices must be integers, such as those that extend() returns, but these are {given.dtype}"
                    )
                indices = given.to("cpu", torch.int64).numpy()
            absent = indices[~self._ring.contains(indices)]
            if absent.size:
                contains = (
                    f"contains the frames {self._ring.first} to {self._ring.end - 1}" if len(self._ring) else "is empty"
                )
                raise IndexError(f"frame {absent[0]} is not in the buffer, which {contains}")
            frames = self._ring.frames(indices)
        return TensorDict(nest(frames), indices.shape)

    def update_priority(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        """Sets priorities, such as absolute temporal-difference errors.

        Args:
            index: the "index" of a sample. Frames that were overwritten meanwhile are ignored.
            priority: a value, at least 0, for each index.

        Raises:
            ValueError: the sampler does not use priorities, or a priority is negative or not finite.
        """
        indices = torch.as_tensor(index).to("cpu", torch.int64).numpy().reshape(-1)
        values = torch.as_tensor(priority).detach().to("cpu", torch.float64).numpy().reshape(-1)
        if len(indices) != len(values):
            raise ValueError(
                f"got {counted(len(values), 'priority', 'priorities')} for {counted(len(indices), 'frame')}. Pass "
                "one priority per frame."
            )
        with self._lock:
            is_present = self._ring.contains(indices)
            with self._changing():
                self.sampler.update(indices[is_present], values[is_present])

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the frames, their priorities and the state of the random generator, in tensors and plain
        data."""
        with self.frozen_state() as state:
            return state | {name: TensorDict(state[name]).clone().to_dict() for name in ("frames", "pools", "sampler")}

    @contextmanager
    def frozen_state(self) -> Iterator[dict[str, Any]]:
        """Yields `state_dict()` as views of the buffer's memory. Within the block no process changes them: processes
        that write or sample wait for its end."""
        with self._lock:
            ring = self._ring
            is_laid_out = self._attach()
            frames, pools = ring.views()
            yield {
                "capacity": ring.capacity,
                "first": ring.first,
                "write_count": ring.end,
                "kind": type(self.sampler).__name__,
                "random": self.sampler.random.bit_generator.state,
                "sampler": {"memory": torch.from_numpy(ring.extra)} if is_laid_out else {},
                "frames": nest(frames),
                "pools": {
                    "values": nest({key: values for key, (values, _) in pools.items()}),
                    "places": nest({key: places for key, (_, places) in pools.items()}),
                },
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a result of `state_dict`, for all processes. If that buffer's capacity was larger, restores the
        newest frames. If it had another type of sampler, all frames count as new.

        Raises:
            DataError: this buffer already contains frames with other keys, or its sampler needs others.
        """
        tensors = dict(iter_leaves(state["frames"]))
        arrays = {key: as_array(tensor) for key, tensor in tensors.items()}
        values, places = (dict(iter_leaves(state["pools"][name])) for name in ("values", "places"))
        pools = {key: (values[key], places[key]) for key in values}
        leaves = {key: Leaf(key, tuple(t.shape[1:]), t.dtype) for key, t in (tensors | values).items()}
        leaves |= {("next", *key): leaves[key].under("next") for key in pools}
        with self._lock:
            if leaves:
                self._lay_out(leaves)
            self.sampler.random.bit_generator.state = state["random"]
            if not self._ring.is_laid_out():
                return
            with self._changing():
                self._ring.restore(state["first"], state["write_count"], arrays, pools, state["capacity"])
                self._ring.extra[:] = 0
                if leaves and state["kind"] == type(self.sampler).__name__:
                    self.sampler.restore(state["sampler"]["memory"].numpy(), state["capacity"])
                self.sampler.rebuild()

    def dumps(self, path: str | Path) -> None:
        """Saves the buffer to a new folder below `path`, without copying the frames in memory, and removes the folder
        of the previous call. Blocks until the data is on the disk; writes and samples of other processes wait until
        then. After a crash at any point, `loads` restores either the previous state or the new one.

        Raises:
            OSError: writing failed, for example for lack of space. The previous state is still there.
        """
        saved = Checkpoints(Path(path), prefix=_SAVED)
        with self.frozen_state() as state:
            number = max(map(saved.number, saved.all()), default=0) + 1
            saved.write(number, {}, {STATE: state})

    def loads(self, path: str | Path) -> None:
        """Restores a state that `dumps` saved, after verifying sizes and digests of all files. Executes no code.

        Raises:
            FileNotFoundError: the folder contains no saved buffer.
            ValueError: a file is damaged or missing, or `load_state_dict` raises it.
        """
        folders = Checkpoints(Path(path), prefix=_SAVED).all()
        if not folders:
            raise FileNotFoundError(
                f"{path} contains no replay buffer (no folder {_SAVED}*). If an earlier version of collectx saved one "
                "there, load it with that version, and write it with torch.save(buffer.state_dict(), file)."
            )
        try:
            state = Checkpoint(folders[-1]).load(mmap=True)
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{error.problems[0]}. Restore the folder from a copy, or save the buffer again."
            ) from error
        self.load_state_dict(state)

    def _lay_out(self, leaves: Mapping[Key, Leaf]) -> None:
        self.sampler.check(leaves)
        self._ring.lay_out(leaves)

    def _attach(self) -> bool:
        """Maps the frames that other processes wrote, and repairs the sampler's memory if a process was killed while it
        changed that memory. Returns False if no process has written frames yet."""
        if not self._ring.is_laid_out():
            return False
        if not self._is_attached:
            self.sampler.attach(self._ring, self._ring.extra)
            self._is_attached = True
        if self._ring.is_changing:
            self._ring.repair()
            self.sampler.rebuild()
            self._ring.is_changing = False
        return True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._attach()
        self._ring.is_changing = True
        yield
        # Stays True after an exception: the change is incomplete, and `_attach` repairs it.
        self._ring.is_changing = False


def _check_type(batch: object) -> None:
    if not is_tensor_collection(batch):
        shape = "tensordict.TensorDict(data, batch_size=[frames])"
        raise TypeError(
            f"a replay buffer stores TensorDicts, not values of type {type(batch).__name__}. Convert them: {shape}"
        )


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number, at least 1; also a NumPy number or a float such as 1e6."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and value >= 1 and float(value).is_integer()


class Lock:
    """A lock between processes and between their threads, as a context manager. The kernel releases it when its holder
    dies.

    It is a POSIX record lock, because other kinds belong to duplicated descriptors and forked processes too. Closing
    any descriptor of the file releases it; so the file has no other purpose, and a process has one `Lock` object per
    file, however often the lock is unpickled.
    """

    def __init__(self) -> None:
        descriptor = anonymous_file("replay")
        with _guard:
            self._init(descriptor)

    def _init(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()
        weakref.finalize(self, os.close, descriptor)
        _locks[_identity(descriptor)] = self

    def __reduce__(self) -> Any:
        return _unpickle_lock, (reduction.DupFd(self._descriptor),)

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()


# The locks of this process, by device and inode.
_locks: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _unpickle_lock(sent: Any) -> Lock:
    descriptor = sent.detach()
    with _guard:
        lock = _locks.get(_identity(descriptor))
        if lock is None:
            lock = Lock.__new__(Lock)
            lock._init(descriptor)
            return lock
    with lock._threads:  # closing the descriptor would release the lock
        os.close(descriptor)
    return lock


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
