"""Keeps the frames of long unfinished episodes in files, so that the memory of a recording run does not grow.

    <data set>/_unfinished/<run>/<trajectory id>/<number of the entry>    the bytes of one entry of the frames

Files are only appended to. A checkpoint records their lengths, and a resumed run truncates them to these.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from tensordict import TensorDictBase

from collectx.batch import TRAJ_IDS, Leaf, to_tensordict
from collectx.checkpoints import sync
from collectx.data.folder import RecordedRun
from collectx.errors import ConfigError

_EMPTY = torch.empty(0, dtype=torch.uint8)


class UnfinishedEpisodes:
    """The frames of long unfinished episodes, in files. Only one process at a time may use it. Raises `ConfigError` if
    frames that the checkpoint counts are missing. `lengths` is the number of frames of each episode, by trajectory id,
    at the checkpoint; empty for a new run. Removes all other frames."""

    def __init__(self, path: Path, run: RecordedRun, lengths: Mapping[int, int]):
        self._run = run
        self._path = path.absolute() / "_unfinished" / run.name
        self._lengths = dict(lengths)
        self._unsynced: set[int] = set()
        # Episodes that ended since the last checkpoint, which counts their frames; and those that ended before it.
        self._ended: list[int] = []
        self._ended_before: list[int] = []
        for folder in self._path.glob("*"):
            if int(folder.name) not in self._lengths:
                shutil.rmtree(folder)
        for index, length in self._lengths.items():
            for file, leaf in self._files(index):
                size = length * _nbytes(leaf)
                if not file.exists() or file.stat().st_size < size:
                    raise ConfigError(
                        f"{file} is damaged: it contains fewer frames than the {length} that the checkpoint counts. "
                        "Restore it from a copy, or start a new run."
                    )
                os.truncate(file, size)

    def append(self, frames: TensorDictBase) -> None:
        """Adds frames of one episode, `[time]`, on the CPU."""
        index = int(frames[TRAJ_IDS][0])
        for file, leaf in self._files(index):
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "ab") as opened:
                opened.write(frames[leaf.key].contiguous().view(-1).view(torch.uint8).numpy().data)
        self._lengths[index] = self._lengths.get(index, 0) + len(frames)
        self._unsynced.add(index)

    @property
    def indices(self) -> list[int]:
        """The trajectory ids of the episodes."""
        return [*self._lengths]

    def read(self, index: int) -> TensorDictBase:
        """Returns all frames of an episode, `[time]`, as mapped files; do not write to them."""
        length = self._lengths[index]
        tensors = {}
        for file, leaf in self._files(index):
            size = length * _nbytes(leaf)
            flat = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8) if size else _EMPTY
            tensors[leaf.key] = flat.view(leaf.dtype).view(length, *leaf.shape)
        return to_tensordict(tensors, [length], dims=self._run.dims)

    def completed(self, frames: TensorDictBase) -> TensorDictBase | None:
        """Returns all frames of the episode that ends with `frames`; None if no earlier frames of it are stored
        here."""
        index = int(frames[TRAJ_IDS][0])
        if index not in self._lengths:
            return None
        self.append(frames)
        return self.read(index)

    def end(self, index: int) -> None:
        """Removes an episode that was recorded. Its files stay until the second checkpoint after this."""
        del self._lengths[index]
        self._unsynced.discard(index)
        self._ended.append(index)

    def state(self) -> dict[int, int]:
        """Returns the argument `lengths` for a checkpoint. Blocks until the frames are on the disk."""
        for index in self._unsynced:
            for file, _ in self._files(index):
                sync(file)
            sync(self._path / str(index))
        self._unsynced.clear()
        return dict(self._lengths)

    def checkpoint_written(self) -> None:
        """Removes the files of episodes that ended before the previous checkpoint."""
        folders = {index: self._path / str(index) for index in self._ended_before}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        # A network file system keeps what a reader has open: such a folder is removed after a later checkpoint.
        left = [index for index, folder in folders.items() if folder.exists()]
        self._ended_before, self._ended = left + self._ended, []

    def _files(self, index: int) -> list[tuple[Path, Leaf]]:
        folder = self._path / str(index)
        return [(folder / str(number), leaf) for number, leaf in enumerate(self._run.leaves)]


def _nbytes(leaf: Leaf) -> int:
    return leaf.dtype.itemsize * torch.Size(leaf.shape).numel()
