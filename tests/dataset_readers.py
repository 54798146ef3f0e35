"""Data sets as the library of each format reads them."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import minari
import numpy as np
import pyarrow.parquet as pq
from tensordict import TensorDict


class Episode(NamedTuple):
    """The steps of an episode. `last` is the observation after the last one; None where a format has none."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    version: np.ndarray
    last: np.ndarray | None

    def facts(self, has_last=True):
        """Comparable with other episodes."""
        values = self if has_last else self[:-1]
        return tuple((value.dtype.kind, value.shape, value.tobytes()) for value in values)


def split(ids, columns):
    """The episodes of successive frames."""
    ends = np.flatnonzero(np.diff(ids)) + 1
    parts = [np.split(column, ends) for column in columns]
    return [Episode(*part[:-1], part[-1][-1]) for part in zip(*parts, strict=True)] if len(ids) else []


def frames(td):
    """The columns of a TensorDict for `split`, flat."""
    names = ("observation", "action", ("next", "reward"), ("next", "terminated"), ("next", "truncated"))
    columns = [td[name].numpy() for name in (*names, ("collector", "policy_version"), ("next", "observation"))]
    return [column.reshape(len(column)) if column.ndim == 2 and column.shape[1] == 1 else column for column in columns]


def read_memmap(path):
    """Shard by shard, as users of TensorDict do; the runs in the order in which they began."""
    began = {file.stem: json.loads(file.read_text())["time"] for file in path.glob("_runs/*.json")}
    paths = sorted(path.glob("[!_]*"), key=lambda shard: (began[shard.name.rpartition("-")[0]], shard.name))
    shards = [TensorDict.load_memmap(shard) for shard in paths]
    return [each for shard in shards for each in split(shard["collector", "traj_ids"].numpy(), frames(shard))]


def read_parquet(path):
    """The folder as one table."""
    table = pq.read_table(path)
    names = ("observation", "action", "next.reward", "next.terminated", "next.truncated")
    columns = [table.column(name) for name in (*names, "collector.policy_version", "next.observation")]
    columns = [np.array(column.to_pylist(), kind(column)) for column in columns]
    runs = np.unique(table.column("run").to_pylist(), return_inverse=True)[1]
    return split(table.column("collector.traj_ids").to_numpy() + runs * 2**40, columns)


def kind(column):
    """The dtype of the numbers in a column of Arrow."""
    inner = getattr(column.type, "value_type", column.type)
    return np.dtype(inner.to_pandas_dtype())


def read_minari(path):
    """Reads a data set with MinariDataset."""
    return [
        Episode(
            each.observations[:-1],
            each.actions,
            each.rewards,
            each.terminations,
            each.truncations,
            each.infos["policy_version"][:-1],
            each.observations[-1],
        )
        for each in minari.MinariDataset(path / "data")
    ]


# The features of a frame, in the order of `Episode`.
LEROBOT_NAMES = ("observation.state", "action", "next.reward", "next.terminated", "next.truncated", "policy_version")


def read_lerobot(path):
    """Reads a data set as LeRobot's documents describe the layout v3.0: the frames of an episode by its indices into
    all files. LeRobot's own reader gives the same where it is installed (`tests/installs.py`)."""
    info = json.loads((path / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    rows = pq.read_table(path / "meta" / "episodes").to_pylist()[: info["total_episodes"]]
    tasks = pq.read_table(path / "meta" / "tasks.parquet").to_pandas() if rows and has_pandas() else None
    assert tasks is None or list(tasks.columns) == ["task_index"]
    found, index = [], 0
    for number, row in enumerate(rows):
        file = info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
        table = pq.read_table(path / file, filters=[("episode_index", "=", number)])
        assert (row["episode_index"], row["dataset_from_index"]) == (number, index)
        index += row["length"]
        assert row["dataset_to_index"] == index
        assert table.column("index").to_pylist() == [*range(index - row["length"], index)]
        assert table.column("frame_index").to_pylist() == [*range(row["length"])]
        times = np.arange(row["length"], dtype=np.float64) / info["fps"]
        assert np.allclose(table.column("timestamp").to_numpy(), times, atol=1e-4)
        columns = [np.array(table.column(name).to_pylist(), kind(table.column(name))) for name in LEROBOT_NAMES]
        for name, column in zip(LEROBOT_NAMES, columns, strict=True):
            feature = info["features"][name]
            assert (feature["dtype"], feature["shape"][0]) == (str(column.dtype), column[0].size)
        found.append(Episode(*columns, None))
    assert index == info["total_frames"]
    if found and find_spec("lerobot"):
        theirs = [each.facts(False) for each in read_by_lerobot(path)]
        assert theirs[: len(found)] == [each.facts(False) for each in found]
        # Of a flush that was interrupted, LeRobot reads the frames that are there already.
        is_whole = len({row["data/file_index"] for row in rows}) == len([*path.glob("data/*/*.parquet")])
        assert len(theirs) == len(found) or not is_whole
    return found


def read_by_lerobot(path):
    """Reads a data set with LeRobotDataset."""
    # LeRobot imports torchvision, for images alone. The wheel has kernels that torch for CPUs cannot load, and this
    # module needs them.
    sys.modules.setdefault("torchvision._meta_registrations", ModuleType("no kernels"))
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    rows = [*LeRobotDataset("collectx/test", root=path)]
    columns = [np.stack([row[name].numpy() for row in rows]) for name in LEROBOT_NAMES]
    return split(np.array([row["episode_index"] for row in rows]), [*columns, columns[0]])


def has_pandas():
    """Whether pandas is installed, by which LeRobot reads the tasks."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True


def check_statistics(path, episodes):
    """LeRobot's statistics of a data set are those of all frames."""
    statistics = json.loads((path / "meta" / "stats.json").read_text())["observation.state"]
    values = np.concatenate([each.observation for each in episodes]).astype(np.float64)
    for name in ("min", "max", "mean", "std"):
        assert np.allclose(statistics[name], getattr(values, name)(0), rtol=1e-6, atol=1e-6), name
    assert statistics["count"] == [len(values)]


READERS = {"memmap": read_memmap, "parquet": read_parquet, "minari": read_minari, "lerobot": read_lerobot}


def episodes(path: Path, format: str) -> list[Episode]:
    """All episodes of a data set, read by the format's own library; LeRobot's is `read_lerobot`."""
    return READERS[format](Path(path))
