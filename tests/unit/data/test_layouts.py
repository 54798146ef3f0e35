"""The files of a data set in the layouts of other libraries, and the shards of our own."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx import data
from collectx.batch import POLICY_VERSION, TRAJ_IDS, Leaf, to_tensordict
from collectx.data import folder
from collectx.data.folder import RecordedRun, from_json, to_json
from collectx.errors import ConfigError

OBSERVATION, ACTION = Leaf(("observation",), (2,), torch.float32), Leaf(("action",), (), torch.int64)
SPEED = Leaf(("info", "speed"), (), torch.float64)
FLAGS = tuple(Leaf(("next", name), (1,), torch.bool) for name in ("done", "terminated", "truncated"))
NEXT = tuple(Leaf(("next", *leaf.key), leaf.shape, leaf.dtype) for leaf in (OBSERVATION, SPEED))
LEAVES = (
    *(OBSERVATION, SPEED, ACTION, *NEXT, Leaf(("next", "reward"), (1,), torch.float32), *FLAGS),
    *(Leaf(TRAJ_IDS, (), torch.int64), Leaf(POLICY_VERSION, (), torch.int64)),
)
RUN = RecordedRun(
    name="run-1",
    folder="runs/one",
    format="",
    seed=3,
    leaves=LEAVES,
    observation=(OBSERVATION, SPEED),
    inputs=(OBSERVATION,),
    action=(ACTION,),
    observation_space=spaces.Box(-1.0, 1.0, (2,)),
    action_space=spaces.Discrete(2),
    fps=20,
    task="walk",
)


def episode(number, length, is_truncated=False):
    """Returns an episode whose frame t has the numbers number + t / 4."""
    times = number + torch.arange(length + 1) / 4
    ends = torch.arange(length) == length - 1
    terminated, truncated = ends & (not is_truncated), ends & is_truncated
    observation = torch.stack([times, -times], -1)
    tensors = {
        OBSERVATION.key: observation[:-1],
        SPEED.key: times[:-1].double() * 8,
        ACTION.key: torch.arange(length) % 2,
        ("next", "observation"): observation[1:],
        ("next", "info", "speed"): times[1:].double() * 8,
        ("next", "reward"): times[1:, None] * 2,
        **{
            ("next", name): each[:, None]
            for name, each in {"done": ends, "terminated": terminated, "truncated": truncated}.items()
        },
        TRAJ_IDS: torch.full((length,), number),
        POLICY_VERSION: torch.arange(length) // 2,
    }
    return to_tensordict(tensors, [length])


def plain(value):
    """Rounds a value, and makes it one that JSON can hold."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in sorted(value.items())}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return plain(value.decode())
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def content(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        table = pq.read_table(path).to_pydict()
        return plain({name: table[name] for name in sorted(table)})
    if path.suffix == ".json":
        return plain(json.loads(path.read_text()))
    if path.suffix == ".arrow":
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
        return plain({name: table[name].to_pylist() for name in table.column_names})
    return None


@pytest.mark.parametrize("format", data.FORMATS)
def test_the_files_of_a_data_set(tmp_path, within, expected, format):
    """The data set was flushed three times; the last flush was taken back."""
    within(folder, "time", time=lambda: 7.0)
    run, path = replace(RUN, format=format), tmp_path / "set"
    writer, positions = data.open_writer(path, run), []
    for episodes in ([episode(0, 3), episode(1, 2, True)], [episode(2, 1)], [], [episode(3, 5)]):
        writer.write(episodes)
        positions.append(writer.position)
    writer.close()
    writer = data.open_writer(path, run, positions[1])
    positions.append(writer.position)
    writer.close()
    files = sorted(each for each in path.rglob("*") if each.is_file())
    found = {
        str(each.relative_to(path)): content(each)
        for each in files
        if each.suffix != ".memmap" and each.name != "meta.json"
    }
    for each in found.values():
        if isinstance(each, dict):
            for name in ("minari_version", "dataset_size", "code_permalink"):
                each.pop(name, None)
    expected(f"files-{format}", {"positions": positions, "files": found})
    if format in data.READABLE:
        frames = data.load(path)
        assert len(frames) == 6
        assert frames["collector", "episode"].tolist() == [0, 0, 0, 1, 1, 2]
        assert (
            frames.exclude(("collector", "episode")) == torch.cat([episode(0, 3), episode(1, 2, True), episode(2, 1)])
        ).all()
        assert data.export(path, tmp_path / "copy", "memmap") == 3
        assert (data.load(tmp_path / "copy") == frames).all()


IMAGE, STATE = (Leaf(("observation", *path), (2, 2)[: 2 - len(path)], torch.float32) for path in ((), ("state",)))


@pytest.mark.parametrize(
    ("format", "changes", "end"),
    [
        ("lerobot", {"observation": (IMAGE,)}, "Leave it out with env.exclude_keys, or use {0}=memmap."),
        ("lerobot", {"leaves": LEAVES[:4]}, "it needs one float32 reward for each step. Use {0}=memmap."),
        (
            "lerobot",
            {"observation": (OBSERVATION, STATE)},
            "(gymnasium.wrappers.TransformObservation), or use {0}=memmap.",
        ),
        ("minari", {"leaves": LEAVES[:4]}, "it needs one float32 reward for each step. Use {0}=memmap."),
        ("minari", {"action_space": spaces.Graph(spaces.Discrete(2), None)}, ", or use {0}=memmap or {0}=parquet."),
        ("parquet", {"observation": (Leaf(("empty",), (0,), torch.float32),)}, "env.exclude_keys, or use {0}=memmap."),
    ],
)
def test_a_refused_format_is_told_with_the_option_of_the_caller(tmp_path, format, changes, end):
    for option in ("trainer.format", "format"):
        run = replace(RUN, format=format, format_option=option, **changes)
        with pytest.raises(ConfigError) as raised:
            data.open_writer(tmp_path, run)
        (problem,) = raised.value.problems
        assert problem.startswith(f"{option}={format} cannot be used: ")
        assert problem.endswith(end.format(option))


def test_a_refused_folder_is_told_with_the_option_of_the_caller(tmp_path):
    run = replace(RUN, format="memmap")
    data.open_writer(tmp_path / "set", run).close()
    assert "_option" not in (tmp_path / "set" / "_runs" / "run-1.json").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    rule = r"do not belong to a data set\. Choose another folder with"
    with pytest.raises(ConfigError, match=rf"{rule} trainer\.dir\.$"):
        data.open_writer(tmp_path / "other", run)
    with pytest.raises(ConfigError, match=rf"{rule} output\.$"):
        data.export(tmp_path / "set", tmp_path / "other", "memmap")
    with pytest.raises(ConfigError, match=r"uses trainer\.format=memmap, not parquet\. Choose .* with trainer\.dir\.$"):
        data.open_writer(tmp_path / "set", replace(run, name="run-2", format="parquet"))


@pytest.mark.parametrize(
    ("space", "content"),
    [
        (spaces.Box(-1.0, 2.0, (2,), np.float32), {"low": -1.0, "high": 2.0, "shape": [2], "dtype": "float32"}),
        (
            spaces.Box(np.array([0, 1]), np.array([5, 5]), dtype=np.int64),
            {"low": [0, 1], "high": 5, "shape": [2], "dtype": "int64"},
        ),
        (spaces.Box(0.0, 1.0, (0,)), {"low": [], "high": [], "shape": [0], "dtype": "float32"}),
        (spaces.Discrete(3, start=-1), {"n": 3, "start": -1}),
        (spaces.MultiDiscrete([2, 3]), {"nvec": [2, 3], "start": [0, 0], "dtype": "int64"}),
        (spaces.MultiBinary(4), {"n": 4}),
        (spaces.MultiBinary([2, 3]), {"n": [2, 3]}),
        (spaces.Text(5), {"max_length": 5}),
        (spaces.Tuple([spaces.Discrete(2)]), {"parts": [{"kind": "Discrete", "n": 2, "start": 0}]}),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(1)}),
            {"parts": [["a", {"kind": "MultiBinary", "n": 1}], ["b", {"kind": "Discrete", "n": 2, "start": 0}]]},
        ),
    ],
)
def test_spaces_as_json(space, content):
    found = to_json(space)
    assert found.pop("kind") == type(space).__name__
    assert found == json.loads(json.dumps(found)) == content
    assert from_json(to_json(space)) == space
