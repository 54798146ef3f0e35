"""The layout v3.0 of LeRobot's data sets, without videos, written with pyarrow.

    data/chunk-000/file-000.parquet             frames: observation.state, action, next.reward, ... and their indices
    meta/episodes/chunk-000/file-000.parquet    a row for each episode: length, files, first and last index, statistics
    meta/info.json                              version, number of episodes and frames, the entries of a frame
    meta/stats.json                             statistics over all frames
    meta/tasks.parquet                          the text of each task

A flush adds a file of frames, then a file of episodes, then updates `info.json`, which counts them. LeRobot's reader
reads all files of frames. So if a process is killed within a flush, the reader also returns those episodes of the flush
whose frames are on the disk, until the run is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from collectx.batch import POLICY_VERSION, Key, as_array
from collectx.data.folder import RecordedRun, SequentialWriter, clash_problems, empty_problems
from collectx.data.shard_writers import column

_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_CHUNK_FILES = 1000
_STATISTIC_NAMES = ("min", "max", "mean", "std", "count")
# pandas' name of the column with the row names of a table.
_INDEX = "__index_level_0__"


class LeRobotWriter(SequentialWriter):
    """Writes LeRobot's layout; see the module's docstring. The timestamps of an episode are 0, 1 / fps, 2 / fps, ..."""

    def __init__(self, path: Path, run: RecordedRun):
        super().__init__(path, run)
        self._info = self.path / "meta" / "info.json"
        self._features = _features(run)

    def open(self) -> None:
        super().open()
        self._tasks: list[str] = self._read("meta/tasks.parquet").get(_INDEX, [])
        if self._info.exists():
            self.position = json.loads(self._info.read_bytes())["total_episodes"]

    @classmethod
    def refusals(cls, run: RecordedRun) -> list[str]:
        option = run.format_option
        problems = [] if run.has_usual_reward else [f"it needs one float32 reward for each step. Use {option}=memmap."]
        for leaf in (*run.observation, *run.action):
            if len(leaf.shape) > 1:
                rule = f"it only stores vectors, but {'.'.join(leaf.key)} has shape {list(leaf.shape)}"
                problems.append(f"{rule}. Leave it out with env.exclude_keys, or use {option}=memmap.")
        return problems + empty_problems(run) + clash_problems(run, _names(run))

    def write(self, episodes: Sequence[TensorDictBase]) -> None:
        import pyarrow as pa

        if not episodes:
            return
        chunk, file = divmod(self._files, _CHUNK_FILES)
        place = {"chunk_index": chunk, "file_index": file}
        task = self._task_index()
        frames, rows = [], []
        for number, episode in enumerate(episodes, self.position):
            length = len(episode)
            steps = np.arange(length)
            values = {name: as_array(episode[key]) for name, (key, _) in self._features.items() if key}
            values |= {
                "timestamp": (steps / self.run.fps).astype(np.float32),
                "frame_index": steps,
                "episode_index": np.full(length, number),
                "index": self._frames + steps,
                "task_index": np.full(length, task),
            }
            frames.append({name: each.reshape(length, -1) for name, each in values.items()})
            statistics = {name: _statistics_of(each) for name, each in frames[-1].items()}
            self._merge(statistics)
            rows.append(
                {"episode_index": number, "tasks": [self.run.task], "length": length}
                | {f"{kind}/{name}": value for kind in ("data", "meta/episodes") for name, value in place.items()}
                | {"dataset_from_index": self._frames, "dataset_to_index": self._frames + length}
                | {f"stats/{name}/{what}": each[what].tolist() for name, each in statistics.items() for what in each}
            )
            self._frames += length
        columns = {name: column(np.concatenate([each[name] for each in frames])) for name in frames[0]}
        self._write_table(f"data/{_FILE}".format(**place), pa.table(columns))
        self._write_table(f"meta/episodes/{_FILE}".format(**place), pa.Table.from_pylist(rows))
        self._files += 1
        self._write_statistics()
        self._write_info(self.position + len(episodes), self._frames)
        self.position += len(episodes)

    def rewind(self, position: int) -> None:
        """See `Writer.rewind`. Also removes the files of a flush that a killed process did not complete."""
        self._statistics: dict[str, dict[str, np.ndarray]] = {}
        self._frames, self._files = 0, 0
        folder, keep = self.path / "meta" / "episodes", set()
        for file in sorted(folder.glob("*/*.parquet")):
            rows = self._read(file)
            if rows["episode_index"][0] < position:
                keep.add(file.relative_to(folder))
                self._frames, self._files = rows["dataset_to_index"][-1], self._files + 1
                for row in range(len(rows["length"])):
                    self._merge(
                        {
                            name: {what: np.asarray(rows[f"stats/{name}/{what}"][row]) for what in _STATISTIC_NAMES}
                            for name in self._features
                        }
                    )
        self._write_statistics()
        self._write_info(position, self._frames)
        for part in (folder, self.path / "data"):
            for file in part.glob("*/*.parquet"):
                if file.relative_to(part) not in keep:
                    self.discard(file)
        self.position = position

    def _merge(self, statistics: dict[str, dict[str, np.ndarray]]) -> None:
        for name, new in statistics.items():
            old = self._statistics.get(name)
            if old is None:
                self._statistics[name] = new
                continue
            counts = old["count"], new["count"]
            total = counts[0] + counts[1]
            mean = (counts[0] * old["mean"] + counts[1] * new["mean"]) / total
            squares = sum(
                count * (each["std"] ** 2 + (each["mean"] - mean) ** 2)
                for count, each in zip(counts, (old, new), strict=True)
            )
            self._statistics[name] = {
                "min": np.minimum(old["min"], new["min"]),
                "max": np.maximum(old["max"], new["max"]),
                "mean": mean,
                "std": np.sqrt(squares / total),
                "count": total,
            }

    def _task_index(self) -> int:
        """Returns the index of the run's task. Adds a new task to the table of tasks."""
        import pyarrow as pa

        if self.run.task not in self._tasks:
            self._tasks.append(self.run.task)
            table = pa.table({"task_index": [*range(len(self._tasks))], _INDEX: self._tasks})
            names = [
                {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
                for name, field, kind, numpy in (
                    ("task_index", "task_index", "int64", "int64"),
                    (None, _INDEX, "unicode", "object"),
                )
            ]
            pandas = {"index_columns": [_INDEX], "column_indexes": [], "columns": names, "pandas_version": "2.0.0"}
            table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
            self._write_table("meta/tasks.parquet", table)
        return self._tasks.index(self.run.task)

    def _write_info(self, episodes: int, frames: int) -> None:
        features = {
            name: {"dtype": dtype, "shape": [width], "names": None}
            for name, (_, (dtype, width)) in self._features.items()
        }
        content = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": episodes,
            "total_frames": frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self.run.fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": f"data/{_FILE}",
            "video_path": None,
            "features": features,
        }
        self.write_json(self._info, content)

    def _write_statistics(self) -> None:
        content = {
            name: {what: value.tolist() for what, value in each.items()} for name, each in self._statistics.items()
        }
        self.write_json(self.path / "meta" / "stats.json", content)

    def _write_table(self, name: str, table: Any) -> None:
        import pyarrow.parquet as pq

        self.publish(self.path / name, lambda path: pq.write_table(table, path))

    def _read(self, file: str | Path) -> dict[str, list]:
        """Returns the columns of a table; empty if the file does not exist."""
        import pyarrow.parquet as pq

        path = self.path / file
        return pq.read_table(path).to_pydict() if path.exists() else {}


def _names(run: RecordedRun) -> list[tuple[str, Key]]:
    """Returns the names of actions and observations by LeRobot's convention, with their keys in a batch."""
    names = [(".".join(leaf.key), leaf.key) for leaf in run.action]
    for leaf in run.observation:
        name = ".".join(leaf.key)
        if name == "observation":
            name = "observation.state"
        elif not name.startswith(("observation.", "info.")):
            name = f"observation.{name}"
        names.append((name, leaf.key))
    return names


def _features(run: RecordedRun) -> dict[str, tuple[Key, tuple[str, int]]]:
    """Returns the entries of a frame by name: the key in a batch (empty for timestamps and indices), dtype and size."""
    leaves = {leaf.key: leaf for leaf in run.leaves}
    keys = dict(_names(run))
    keys |= {f"next.{name}": ("next", name) for name in ("reward", "terminated", "truncated", "done")}
    keys["policy_version"] = POLICY_VERSION
    features: dict[str, tuple[Key, tuple[str, int]]] = {
        name: (key, (str(leaves[key].dtype).removeprefix("torch."), int(np.prod(leaves[key].shape, initial=1))))
        for name, key in keys.items()
    }
    times = {"timestamp": "float32"} | dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    return features | {name: ((), (dtype, 1)) for name, dtype in times.items()}


def _statistics_of(values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the statistics of one feature of an episode, `[frames, numbers]`."""
    values = values.astype(np.float64)
    found = {what: getattr(values, what)(axis=0) for what in _STATISTIC_NAMES[:-1]}
    return found | {"count": np.array([len(values)])}
