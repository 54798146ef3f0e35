"""The folder of a data set, and what the writers of all formats share.

    <data set>/_runs/<run>.json    a run that recorded to it: its seed, frame keys, and env spaces
    <data set>/_new/               files being written; a killed process leaves them behind
    <data set>/_unfinished/        frames of long episodes that have not ended, see `collectx/trainer/record.py`
    <data set>/...                 episodes, in the form of the format

A flush writes files to `_new`, and moves them when they are on the disk. So a killed process leaves complete episodes
that the library of the format can read: those of all earlier flushes, and all or none of the last one.

Converts Gymnasium's spaces to and from JSON, for the files of runs in a data set.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from tensordict import TensorDictBase

from collectx.batch import REWARD, Key, Leaf, clashes
from collectx.checkpoints import sync
from collectx.config.problem import counted
from collectx.errors import ConfigError

_LEAVES = ("leaves", "observation", "inputs", "action")
_SPACES = ("observation_space", "action_space")


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run that records to a data set.

    Attributes:
        name: the run's id; the name of its file in `_runs`, and the beginning of the names of its shards.
        seed: the seed of the run; with the trajectory id, it identifies an episode.
        dims: batch dimensions of nested TensorDicts after time, by key.
        observation, inputs, action, observation_space, action_space: see `collectx.env.base.EnvSpec`.
        fps, task: see `conf/trainer/record.yaml`.
        time: the time at which it began, in seconds since 1970.
        first: number of episodes that a `SequentialWriter` found in the data set.
        format_option, folder_option: the options of the format and of the data set's folder, for messages: those of
            a run, or those of `collectx export`. Not saved.
    """

    name: str
    folder: str
    format: str
    seed: int
    leaves: tuple[Leaf, ...]
    observation: tuple[Leaf, ...]
    inputs: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: Space
    action_space: Space
    dims: Mapping[Key, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    fps: int = 30
    task: str = ""
    time: float = 0.0
    first: int = 0
    format_option: str = "trainer.format"
    folder_option: str = "trainer.dir"

    @property
    def has_usual_reward(self) -> bool:
        """Whether the only reward of a frame is one float32 number."""
        return REWARD.under("next") in self.leaves

    def to_json(self) -> dict[str, Any]:
        """Returns the run as plain data."""
        content = {name: value for name, value in vars(self).items() if not name.endswith("_option")}
        content |= {name: [leaf.to_json() for leaf in content[name]] for name in _LEAVES}
        content |= {name: to_json(content[name]) for name in _SPACES}
        return content | {"dims": [[list(key), list(shape)] for key, shape in self.dims.items()]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RecordedRun:
        """Reverses `to_json`."""
        content = content | {name: tuple(map(Leaf.from_json, content[name])) for name in _LEAVES}
        content |= {name: from_json(content[name]) for name in _SPACES}
        return cls(**content | {"dims": {tuple(key): tuple(shape) for key, shape in content["dims"]}})


def runs_of(path: Path) -> list[RecordedRun]:
    """Returns the runs that have recorded to a data set, in the order in which they began."""
    files = (path / "_runs").glob("*.json")
    return sorted((RecordedRun.from_json(json.loads(file.read_bytes())) for file in files), key=lambda run: run.time)


class Writer(ABC):
    """Writes whole episodes of one run to a data set. All methods block for the disk. `position` is the number of the
    run's shards (`ShardWriter`), or of episodes in the data set (`SequentialWriter`); `rewind` takes such a number."""

    def __init__(self, path: Path, run: RecordedRun):
        self.path = path.absolute()
        self.run = run
        self.position = 0

    @classmethod
    def refusals(cls, run: RecordedRun) -> list[str]:
        """Returns a message, with advice, for each part of the run's frames that the format cannot store."""
        return []

    @abstractmethod
    def open(self) -> None:
        """Sets `position` to that of the data set. Called first."""

    @abstractmethod
    def write(self, episodes: Sequence[TensorDictBase]) -> None:
        """Adds episodes, `[time]` each, on the CPU: all of them, or none if this raises or the process is killed."""

    @abstractmethod
    def rewind(self, position: int) -> None:
        """Removes what was written after `position`, which must be at most the current one."""

    def close(self) -> None:
        """Releases the data set. Idempotent."""
        with contextlib.suppress(OSError):  # another run may be writing
            (self.path / "_new").rmdir()

    def publish(self, target: Path, make: Callable[[Path], object]) -> None:
        """Replaces the file or folder `target` by what `make` writes to the path that it gets. After a crash, `target`
        is the old one or the new one."""
        temporary = self.path / "_new" / f"{self.run.name}-{target.name}"
        temporary.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        make(temporary)
        self.move(temporary, target)

    def move(self, source: Path, target: Path) -> None:
        """Moves a file or folder from `_new` to its place, after it is on the disk."""
        for each in (*source.rglob("*"), source):
            sync(each)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            self.discard(target)
        source.replace(target)
        sync(target.parent)

    def discard(self, target: Path) -> None:
        """Removes a file or folder atomically."""
        waste = self.path / "_new" / f"{self.run.name}-waste"
        waste.parent.mkdir(parents=True, exist_ok=True)
        _remove(waste)
        target.replace(waste)
        _remove(waste)

    def write_json(self, target: Path, content: Mapping[str, Any]) -> None:
        """Replaces a JSON file."""
        self.publish(target, lambda path: path.write_text(json.dumps(content, indent=1)))


class SequentialWriter(Writer):
    """A writer for a format that numbers episodes over the whole data set, so that only one run may record at a time.
    Its `position` is the number of episodes in the data set.
    """

    _lock: Any = None

    def open(self) -> None:
        """Locks the data set. Raises `ConfigError` if another run is recording to the data set."""
        self._lock = open(self.path / "_lock", "w")  # noqa: SIM115, closed by close()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            option = self.run.format_option
            raise ConfigError(
                f"{self.path} is in use: another run is recording to it, and {option}={self.run.format} allows only "
                f"one at a time. Wait until it ends, or use {option}=memmap or {option}=parquet."
            ) from error
        except OSError:
            pass  # a file system without locks

    def close(self) -> None:
        super().close()
        if self._lock is not None:
            self._lock.close()


def begin(kind: type[Writer], path: Path, run: RecordedRun, position: int | None) -> Writer:
    """Opens a data set with the writer class `kind`; see `collectx.data.open_writer`."""
    if problems := kind.refusals(run):
        raise ConfigError(*[f"{run.format_option}={run.format} cannot be used: {text}" for text in problems])
    path.mkdir(parents=True, exist_ok=True)
    known = {each.name: each for each in runs_of(path)}
    names = {each.name for each in path.iterdir()}
    elsewhere = f"Choose another folder with {run.folder_option}."
    if names and not names & {"_runs", "_new", "_lock"}:
        raise ConfigError(f"{path} contains files that do not belong to a data set. {elsewhere}")
    if run.name in known:
        _check_copy(path, run, known[run.name])
    if position is None and [*known] == [run.name]:
        # The data set only contains the episodes of this run, which begins again, or of the run that it replaces.
        for each in (*path.glob(f"{run.name}-*"), *(path / name for name in ("data", "meta", "_new", "_runs"))):
            _remove(each)
        known = {}
    for other in known.values():
        if other.name != run.name or position is not None:
            _check_equal(path, run, other)
    writer = kind(path, run)
    try:
        writer.open()
        earlier, end = known.get(run.name), writer.position
        if isinstance(writer, SequentialWriter):
            first = end if earlier is None else earlier.first
            later = [each for each in known.values() if earlier and each.time > earlier.time and each.first < end]
            start = first if position is None else position
            if later and start < end:
                rule = (
                    f"later episodes, of {later[-1].folder}, follow those of {run.folder}, so these cannot be replaced"
                )
                advice = elsewhere if position is None else "Start a new run instead of resuming this one."
                raise ConfigError(f"cannot record to {path}: {rule}. {advice}")
        else:
            first, start = 0, position or 0
        if start > end:
            raise ConfigError(
                f"cannot continue to record to {path}: {counted(start, 'episode')} were recorded before the "
                f"checkpoint, but the data set only contains {end}. Restore the data set, or start a new run."
            )
        writer.rewind(start)
        began = earlier.time if earlier is not None and position is not None else time.time()
        writer.run = replace(run, time=began, first=first)
        writer.write_json(path / "_runs" / f"{run.name}.json", writer.run.to_json())
    except BaseException:
        writer.close()
        raise
    return writer


def _check_copy(path: Path, run: RecordedRun, other: RecordedRun) -> None:
    """Raises `ConfigError` if the run's folder is a copy of the one from which `other` recorded to the data set."""
    if run.folder == other.folder or path.absolute().is_relative_to(run.folder):
        return
    try:
        found = json.loads(Path(other.folder, "snapshot", "meta.json").read_bytes()).get("id")
    except (OSError, ValueError, AttributeError):
        return
    if found == run.name:
        raise ConfigError(
            f"{run.folder} is a copy of {other.folder}, whose episodes in {path} it would replace. Start a new run in "
            "another folder."
        )


def _check_equal(path: Path, run: RecordedRun, other: RecordedRun) -> None:
    """Raises `ConfigError` if a run of the data set uses another format, or other frames."""
    if other.format != run.format:
        raise ConfigError(
            f"the data set in {path} uses {run.format_option}={other.format}, not {run.format}. Choose another folder "
            f"with {run.folder_option}."
        )
    ours, theirs = ({leaf.key: f"{list(leaf.shape)} {leaf.dtype}" for leaf in each.leaves} for each in (run, other))
    if different := [key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key)]:
        mine, its = (each.get(different[0], "missing") for each in (ours, theirs))
        rule = f"{'.'.join(different[0])} is {mine} in this run, and {its} in {other.folder}"
        raise ConfigError(
            f"all runs in {path} must record the same keys, but {rule}. Choose another folder with {run.folder_option}."
        )


def empty_problems(run: RecordedRun) -> list[str]:
    """Returns messages for a format that cannot store arrays without numbers, if the run's frames contain some."""
    return [
        f"it cannot store {'.'.join(leaf.key)}, whose shape {list(leaf.shape)} has no numbers. Leave it out with "
        f"env.exclude_keys, or use {run.format_option}=memmap."
        for leaf in (*run.observation, *run.action)
        if 0 in leaf.shape
    ]


def clash_problems(run: RecordedRun, names: Iterable[tuple[str, Key]]) -> list[str]:
    """Returns messages for a format in which each entry of `run` needs its own name, if several entries share one."""
    return [
        f"{' and '.join(str(key) if key else 'its own column' for key in keys)} would both be called {name!r}. Rename "
        f"a part of the observation (gymnasium.wrappers.TransformObservation), or use {run.format_option}=memmap."
        for name, keys in clashes(names).items()
    ]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(spaces.Dict, spaces.Tuple, spaces.Box, spaces.Discrete),
        *(spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text),
    )
}


def to_json(space: Space) -> dict[str, Any]:
    """Returns a space that collectx can store (see `collectx/env/spaces.py`) as plain data."""
    content: dict[str, Any] = {"kind": type(space).__name__}
    if isinstance(space, spaces.Dict):
        return content | {"parts": [[name, to_json(part)] for name, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return content | {"parts": [to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {name: _short(getattr(space, name)) for name in ("low", "high")}
        return content | bounds | {"shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return content | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return content | {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return content | {"n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.Text):
        return content | {"max_length": space.max_length}
    raise TypeError(f"{space} cannot be stored")


def _short(bound: np.ndarray) -> Any:
    """Returns all numbers of a bound; if they are equal, a single number."""
    is_uniform = bound.size > 0 and (bound == bound.flat[0]).all()
    return bound.flat[0].item() if is_uniform else bound.tolist()


def from_json(content: dict[str, Any]) -> Space:
    """Reverses `to_json`."""
    cls = _CLASSES[content["kind"]]
    values = {name: value for name, value in content.items() if name != "kind"}
    if cls is spaces.Dict:
        return spaces.Dict(OrderedDict((name, from_json(part)) for name, part in values["parts"]))
    if cls is spaces.Tuple:
        return spaces.Tuple([from_json(part) for part in values["parts"]])
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"]).type
    if cls is spaces.Box:
        values |= {name: np.full(values["shape"], values[name], values["dtype"]) for name in ("low", "high")}
    return cls(**values)
