"""Data sets of complete episodes, which runs record with `trainer=record`.

    frames = collectx.data.load("outputs/2026-01-31/12-00-00-000000")

folder.py           the folder of a data set, spaces as JSON, and what the writers of all formats share
shard_writers.py    the formats memmap and parquet, which `load` reads
minari.py           the format of the library minari
lerobot.py          the layout v3.0 of the library lerobot

The trainer's process and `collectx export` write data sets; any process reads them. pyarrow and minari are imported
when a format that needs them is used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config.schema.trainer import DATA_PACKAGES
from collectx.data.folder import RecordedRun, Writer, begin, runs_of
from collectx.errors import ConfigError

if TYPE_CHECKING:
    from tensordict import TensorDict

# The class that writes each format.
FORMATS = {
    "memmap": "collectx.data.shard_writers:MemmapWriter",
    "parquet": "collectx.data.shard_writers:ParquetWriter",
    "minari": "collectx.data.minari:MinariWriter",
    "lerobot": "collectx.data.lerobot:LeRobotWriter",
}
READABLE = ("memmap", "parquet")


def writer_class(name: str) -> type[Writer]:
    """Returns the class that writes the format `name`.

    Raises:
        ConfigError: a package that the format needs is not installed.
    """
    module, _, attribute = FORMATS[name].partition(":")
    if missing := [package for package in DATA_PACKAGES[name] if importlib.util.find_spec(package) is None]:
        raise ConfigError(f"format={name} needs {missing[0]}. Install it: pip install 'collectx[record]'")
    return getattr(importlib.import_module(module), attribute)


def open_writer(path: Path, run: RecordedRun, position: int | None = None) -> Writer:
    """Opens the data set in the folder `path` for the episodes of a run; makes the folder.

    Args:
        position: on resume, the writer's `position` in the checkpoint; later episodes of the run are removed. None:
            the run begins, and the episodes of an earlier run with the same name are removed.

    Raises:
        ConfigError: the folder contains other files, or a data set with another format or other frames; the format
            cannot store the frames; or episodes that `position` counts are missing.
    """
    return begin(writer_class(run.format), path, run, position)


def data_set(path: str | os.PathLike[str]) -> Path:
    """Returns the folder of a data set: `path`, or `data` in the run folder `path`.

    Raises:
        ConfigError: the folder contains no data set.
    """
    for folder in (Path(path), Path(path, "data")):
        if (folder / "_runs").is_dir():
            return folder
    raise ConfigError(
        f"{path} contains no data set. Name a data set folder, or the folder of a run with trainer=record."
    )


def readable_runs(path: str | os.PathLike[str]) -> tuple[Path, list[RecordedRun]]:
    """Returns the folder of a data set that `load` can read, and its runs in the order in which they began.

    Raises:
        ConfigError: there is no data set, it contains no run, or `load` cannot read its format.
    """
    folder = data_set(path)
    runs = runs_of(folder)
    if not runs:
        raise ConfigError(f"{folder} contains no recorded episode. Record some with trainer=record.")
    if runs[0].format not in READABLE:
        theirs = {"minari": "minari.MinariDataset", "lerobot": "lerobot's LeRobotDataset"}[runs[0].format]
        raise ConfigError(
            f"{folder} uses format={runs[0].format}, but collectx only reads {' and '.join(READABLE)}. Read it with "
            f"{theirs}."
        )
    return folder, runs


def shards(path: str | os.PathLike[str]) -> Iterator[TensorDict]:
    """Yields the shards of a data set with the format memmap or parquet, in recorded order: frames `[time]`, whole
    episodes one after another. Shards of memmap are mapped files; do not write to them.

    Args:
        path: a data set, or the folder of a run that recorded to its own folder.

    Raises:
        ConfigError: there is no such data set, or a package is not installed.
    """
    folder, runs = readable_runs(path)
    for run in runs:
        yield from _shards_of(folder, run)


def _shards_of(folder: Path, run: RecordedRun) -> Iterator[TensorDict]:
    kind: Any = writer_class(run.format)
    for _, file in kind.files(folder, run):
        yield kind.read(file, run)


def episodes_of(frames: TensorDict) -> list[TensorDict]:
    """Returns the episodes of a shard, `[time]` each, which are views of its frames."""
    import torch

    _, lengths = torch.unique_consecutive(frames["collector", "traj_ids"], return_counts=True)
    return list(frames.split(lengths.tolist()))


def load(path: str | os.PathLike[str]) -> TensorDict:
    """Returns all frames of a data set with the format memmap or parquet, in memory, for offline training.

    Args:
        path: a data set, or the folder of a run that recorded to its own folder.

    Returns:
        `[frames]`, whole episodes one after another, in recorded order. The keys are those of batches
        (`collectx docs concepts`, "A batch") and `("collector", "episode")`, int64: the number of the episode in
        the data set, from 0.

    Raises:
        ConfigError: there is no such data set, it contains no episode, or a package is not installed.
    """
    import torch

    pieces = list(shards(path))
    if not pieces:
        raise ConfigError(f"{path} contains no recorded episode. Record some with trainer=record.")
    lengths = [len(episode) for piece in pieces for episode in episodes_of(piece)]
    frames: TensorDict = torch.cat(pieces)
    frames["collector", "episode"] = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return frames


def export(
    path: str | os.PathLike[str], target: str | os.PathLike[str], format: str, fps: int = 30, task: str = ""
) -> int:
    """Copies all episodes of a data set with the format memmap or parquet to the data set in the folder `target`.

    Args:
        path: a data set, or the folder of a run that recorded to its own folder.
        target: a new folder, or a data set of the same format, to which the episodes are added.
        format: "memmap", "parquet", "minari" or "lerobot".
        fps: frames per second, for "lerobot": frame i of an episode has the time i / `fps`.
        task: description of the task in words, for "lerobot".

    Returns:
        The number of copied episodes.

    Raises:
        ConfigError: there is no such data set; `target` contains other files, or a data set with another format or
            other frames; or `format` cannot store the frames, or needs a package that is not installed.
    """
    folder, runs = readable_runs(path)
    if folder.resolve() == Path(target).resolve():
        raise ConfigError(f"{target} is the data set to export. Choose another folder with output=FOLDER.")
    count = 0
    for run in runs:
        copied = replace(run, format=format, fps=fps, task=task, format_option="format", folder_option="output")
        with closing(open_writer(Path(target), copied)) as writer:
            for frames in _shards_of(folder, run):
                episodes = episodes_of(frames)
                writer.write(episodes)
                count += len(episodes)
    return count
