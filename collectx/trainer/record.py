"""`trainer.kind=record`: writes the collected episodes to a data set, and learns nothing.

    batch -> Assembler: unfinished episodes | ended ones -> every `flush_every_frames`: the writer of the format
                        the long ones -> files (trainer/record.py) -> when they end: the writer, one by one

Before a checkpoint, all ended episodes are written. It contains the frames of the unfinished episodes in memory, the
lengths of those in files, and the position in the data set. A resumed run removes later episodes of this run from the
data set, and collects them again.

Keeps the frames of long unfinished episodes in files, so that the memory of a recording run does not grow.

    <data set>/_unfinished/<run>/<trajectory id>/<number of the entry>    the bytes of one entry of the frames

Files are only appended to. A checkpoint records their lengths, and a resumed run truncates them to these.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from collectx import data
from collectx.batch import TRAJ_IDS, Leaf, as_key, batch_leaves, to_tensordict
from collectx.checkpoints import sync
from collectx.config.schema.trainer import RecordTrainerConfig
from collectx.data.folder import RecordedRun, Writer
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.trainer.base import BatchCollection
from collectx.trajectories import Assembler


class RecordTrainer:
    """Writes episodes to a data set; see the module's docstring."""

    def __init__(
        self, cfg: RecordTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device
    ):
        self._cfg = cfg
        self._run = RecordedRun(
            name="",
            folder="",
            format=cfg.format,
            seed=seed,
            leaves=batch_leaves(spec.observation, spec.action, next_only=spec.next_only_leaves),
            observation=spec.observation,
            inputs=spec.inputs,
            action=spec.action,
            observation_space=spec.observation_space,
            action_space=spec.action_space,
            fps=cfg.fps,
            task=cfg.task,
        )
        if problems := data.writer_class(cfg.format).refusals(self._run):
            raise ConfigError(*[f"trainer.format={cfg.format} cannot be used: {text}" for text in problems])
        self._assembler = Assembler(1, "cat", ends_with_batch=False)
        self._ended: list[TensorDictBase] = []
        self._writer: Writer | None = None
        self._long: UnfinishedEpisodes
        self._state: dict[str, Any] = {}

    def train(self, collection: BatchCollection) -> None:
        """Writes episodes until the collection is exhausted, and the last ones even if it raises."""
        num_frames = 0
        try:
            for batch in collection:
                if self._writer is None:
                    self._writer = self._open(batch, collection.folder, collection.run_id)
                self._assembler.add(batch)
                ended = self._assembler.take_ended()
                self._ended += ended
                num_frames += sum(map(len, ended))
                if num_frames >= self._cfg.flush_every_frames:
                    self._flush()
                    num_frames = 0
                if self._assembler.num_unfinished > self._cfg.flush_every_frames:
                    # Only long ones, because each episode takes a file per entry.
                    for frames in self._assembler.take_unfinished(max(1, self._cfg.flush_every_frames // 10)):
                        self._long.append(_on_cpu(frames))
        finally:
            if self._writer is not None:
                with closing(self._writer):
                    self._state = self.state_dict()
                    if self._cfg.partial_episodes:
                        # After the state was taken, so that a run that continues completes these episodes.
                        self._ended = self._assembler.unfinished()
                        self._flush()
                        for index in self._long.indices:
                            self._writer.write([self._long.read(index)])
                self._writer = None

    def state_dict(self) -> dict:
        """Writes all ended episodes; returns the position in the data set, and the unfinished episodes."""
        if self._writer is None:
            return self._state
        self._flush()
        position, name = self._writer.position, self._writer.run.name
        return {
            "run": name,
            "position": position,
            "episodes": self._assembler.state(),
            "long_episodes": self._long.state(),
        }

    def checkpoint_written(self) -> None:
        """Removes files that only older checkpoints needed."""
        if hasattr(self, "_long"):
            self._long.checkpoint_written()

    def load_state_dict(self, state: dict) -> None:
        self._state = state
        self._assembler.load(state["episodes"])

    def _flush(self) -> None:
        assert self._writer is not None
        short = []
        for frames in map(_on_cpu, self._ended):
            if (episode := self._long.completed(frames)) is None:
                short.append(frames)
            else:
                self._writer.write(short)
                self._writer.write([episode])
                self._long.end(int(frames[TRAJ_IDS][0]))
                short = []
        self._writer.write(short)
        self._ended = []

    def _open(self, batch: TensorDictBase, folder: Path, run_id: str) -> Writer:
        """Opens the data set for the run in `folder`, whose batches contain the entries of `batch`."""
        size = batch.batch_dims
        leaves = {key: batch[key] for key in batch.keys(include_nested=True, leaves_only=True)}
        nested = [(key, part) for key, part in batch.items(True) if isinstance(part, TensorDictBase)]
        run = replace(
            self._run,
            name=self._state.get("run") or run_id,
            folder=str(folder),
            leaves=tuple(Leaf(as_key(key), tuple(leaf.shape[size:]), leaf.dtype) for key, leaf in leaves.items()),
            dims={as_key(key): tuple(part.shape[size:]) for key, part in nested if part.ndim > size},
        )
        path = folder / "data" if self._cfg.dir is None else Path(self._cfg.dir).expanduser()
        writer = data.open_writer(path, run, self._state.get("position"))
        try:
            self._long = UnfinishedEpisodes(path, run, self._state.get("long_episodes", {}))
        except BaseException:
            writer.close()
            raise
        return writer


def _on_cpu(frames: TensorDictBase) -> TensorDictBase:
    return frames if frames.device is None or frames.device.type == "cpu" else frames.cpu()


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
