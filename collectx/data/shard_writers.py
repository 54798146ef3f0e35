"""The formats memmap and parquet, in which every flush of a run writes a shard of whole episodes. Several runs may
record to a data set at the same time.

    memmap    <run>-<number>/           a memory-mapped TensorDict: TensorDict.load_memmap(shard)
    parquet   <run>-<number>.parquet    a table: pyarrow.parquet.read_table(data set) reads all shards

The columns of a table are `run`, `seed`, and one for every entry of a frame, such as `next.observation`. An entry is a
number, a list of the numbers of an array, or the bytes of an image. The file of the run in `_runs` contains the shapes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import as_array, as_tensor, to_tensordict
from collectx.data.folder import RecordedRun, Writer, clash_problems, empty_problems


class ShardWriter(Writer):
    """Writes a shard in each call of `write`. Its `position` is the number of the run's shards."""

    suffix = ""

    def open(self) -> None:
        self.position = max((number + 1 for number, _ in self.files(self.path, self.run)), default=0)

    @classmethod
    def files(cls, path: Path, run: RecordedRun) -> list[tuple[int, Path]]:
        """Returns the shards of a run with their numbers, the oldest first."""
        found = sorted(path.glob(f"{run.name}-{'[0-9]' * 6}{cls.suffix}"))
        return [(int(file.name.removesuffix(cls.suffix).rpartition("-")[2]), file) for file in found]

    def write(self, episodes: Sequence[TensorDictBase]) -> None:
        if episodes:
            # A single episode may be larger than the memory, so it is not copied.
            frames: Any = torch.cat(list(episodes)) if len(episodes) > 1 else episodes[0]
            target = self.path / f"{self.run.name}-{self.position:06d}{self.suffix}"
            self.publish(target, lambda path: self.save(path, frames))
            self.position += 1

    def rewind(self, position: int) -> None:
        for number, file in reversed(self.files(self.path, self.run)):
            if number >= position:
                self.discard(file)
        self.position = position

    @abstractmethod
    def save(self, path: Path, frames: TensorDict) -> None:
        """Writes a shard."""

    @classmethod
    @abstractmethod
    def read(cls, path: Path, run: RecordedRun) -> TensorDict:
        """Returns the frames of a shard, `[time]`."""


class MemmapWriter(ShardWriter):
    """Writes memory-mapped TensorDicts; see the module's docstring."""

    def save(self, path: Path, frames: TensorDict) -> None:
        # Frames of another data set have files already.
        frames.memmap(str(path), copy_existing=True)

    @classmethod
    def read(cls, path: Path, run: RecordedRun) -> TensorDict:
        return TensorDict.load_memmap(str(path))


class ParquetWriter(ShardWriter):
    """Writes Parquet tables; see the module's docstring."""

    suffix = ".parquet"

    @classmethod
    def refusals(cls, run: RecordedRun) -> list[str]:
        columns = [("run", ()), ("seed", ()), *((".".join(leaf.key), leaf.key) for leaf in run.leaves)]
        return empty_problems(run) + clash_problems(run, columns)

    def save(self, path: Path, frames: TensorDict) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = len(frames)
        run = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), [self.run.name])
        columns = {"run": run, "seed": pa.array(np.full(size, self.run.seed))}
        columns |= {".".join(leaf.key): column(as_array(frames[leaf.key])) for leaf in self.run.leaves}
        pq.write_table(pa.table(columns), path)

    @classmethod
    def read(cls, path: Path, run: RecordedRun) -> TensorDict:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        tensors = {}
        for leaf in run.leaves:
            values = table.column(".".join(leaf.key)).combine_chunks()
            # Copied, because torch needs writable memory.
            if pa.types.is_fixed_size_binary(values.type):
                array = np.frombuffer(b"".join(values.to_pylist()), np.uint8).copy()
            else:
                array = np.array((values if math.prod(leaf.shape) == 1 else values.flatten()).to_numpy(False))
            tensors[leaf.key] = as_tensor(array, leaf.dtype).reshape(len(table), *leaf.shape)
        return to_tensordict(tensors, [len(table)], dims=run.dims)


def column(values: np.ndarray) -> Any:
    """Returns values `[frames, *shape]` as an Arrow array: of numbers if a frame has one, of bytes for images,
    otherwise of lists of numbers."""
    import pyarrow as pa

    if values.dtype == np.uint8 and values.ndim > 2:
        # Twenty times faster than a list.
        kind, content = pa.binary(math.prod(values.shape[1:])), pa.py_buffer(np.ascontiguousarray(values))
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, content])
    flat = pa.array(values.reshape(-1))
    size = math.prod(values.shape[1:])
    return flat if size == 1 else pa.FixedSizeListArray.from_arrays(flat, size)
