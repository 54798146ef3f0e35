"""Frames of long episodes in files, and how a data set's files are replaced."""

import errno
import os
import shutil
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from collectx.batch import TRAJ_IDS, Leaf, to_tensordict
from collectx.data import folder
from collectx.data.folder import RecordedRun, begin
from collectx.data.minari import MinariWriter
from collectx.data.shard_writers import MemmapWriter
from collectx.errors import ConfigError
from collectx.run.folder import layout
from collectx.trainer import record as unfinished
from collectx.trainer.record import UnfinishedEpisodes

OBSERVATION = Leaf(("observation",), (3,), torch.float32)
FLAG = Leaf(("flag",), (), torch.bool)
LEAVES = (OBSERVATION, FLAG, Leaf(TRAJ_IDS, (), torch.int64))
RUN = RecordedRun(
    name="first-1",
    folder="first",
    format="memmap",
    seed=0,
    leaves=LEAVES,
    observation=(OBSERVATION,),
    inputs=(),
    action=(FLAG,),
    observation_space=spaces.Box(-1.0, 1.0, (3,)),
    action_space=spaces.Discrete(2),
)


def frames(index, count, start=0):
    observation = torch.arange(start, start + count).float().repeat_interleave(3).view(count, 3)
    flag = torch.arange(start, start + count) % 3 == 0
    return to_tensordict({OBSERVATION.key: observation, FLAG.key: flag, TRAJ_IDS: torch.full((count,), index)}, [count])


def test_a_resumed_run_has_the_frames_of_its_checkpoint(tmp_path):
    episodes = UnfinishedEpisodes(tmp_path, RUN, {})
    episodes.append(frames(7, 5))
    saved = episodes.state()
    episodes.append(frames(7, 3, start=5))
    episodes.append(frames(8, 2))

    resumed = UnfinishedEpisodes(tmp_path, RUN, saved)
    assert resumed.indices == [7]
    assert (resumed.read(7) == frames(7, 5)).all()
    with pytest.raises(ConfigError, match=r"contains fewer frames than the 6 that the checkpoint counts\. Restore it"):
        UnfinishedEpisodes(tmp_path, RUN, {7: 6})


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_lets_a_run_record(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    writer = MinariWriter(tmp_path, RUN)
    writer.open()
    writer.close()
    monkeypatch.setattr(layout, "_call", refuse)
    handle, is_acquired = layout.acquire(tmp_path / "lock")
    layout.release(handle)
    assert is_acquired


def test_a_folder_that_cannot_be_removed_is_removed_after_a_later_checkpoint(tmp_path, within):
    episodes = UnfinishedEpisodes(tmp_path, RUN, {})
    for index in (7, 8):
        episodes.append(frames(index, 5))
        episodes.end(index)
    episodes.checkpoint_written()
    folders = [tmp_path / "_unfinished" / RUN.name / str(index) for index in (7, 8)]
    remove, busy = shutil.rmtree, folders[:1]  # as on a network file system while a reader has a file open
    within(unfinished, "shutil", rmtree=lambda path, **options: path in busy or remove(path, **options))
    for _ in range(2):
        episodes.checkpoint_written()
        assert [folder.exists() for folder in folders] == [True, False]
    busy.clear()
    episodes.checkpoint_written()
    assert not folders[0].exists()


def test_an_ended_episode_stays_for_two_checkpoints(tmp_path):
    episodes = UnfinishedEpisodes(tmp_path, RUN, {})
    episodes.append(frames(7, 5))
    saved = episodes.state()
    episodes.checkpoint_written()
    episodes.end(7)
    # Checkpoints that could not be written do not count.
    for _ in range(3):
        episodes.state()
    episodes.checkpoint_written()
    assert (UnfinishedEpisodes(tmp_path, RUN, saved).read(7) == frames(7, 5)).all()
    episodes.state()
    episodes.checkpoint_written()
    with pytest.raises(ConfigError, match="fewer frames than the 5"):
        UnfinishedEpisodes(tmp_path, RUN, saved)


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_replaced_or_discarded_leaves_nothing(tmp_path, is_folder):
    def make(path):
        if is_folder:
            path.mkdir()
        (path / "file" if is_folder else path).write_text("new")

    writer = MemmapWriter(tmp_path, RUN)
    for _ in range(2):
        writer.publish(tmp_path / "target", make)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["_new", *["file"] * is_folder, "target"]
    writer.discard(tmp_path / "target")
    writer.close()
    assert [*tmp_path.iterdir()] == []


def test_the_runs_of_a_data_set_are_in_the_order_in_which_they_began(tmp_path, within):
    times = iter((1.0, 2.0, 3.0, 4.0, 5.0))
    within(folder, "time", time=lambda: next(times))

    def runs(name, position):
        begin(MemmapWriter, tmp_path, replace(RUN, name=name, folder=name), position).close()
        return [(run.name, run.time) for run in folder.runs_of(tmp_path)]

    assert runs("a", None) == [("a", 1.0)]
    assert runs("b", None) == [("a", 1.0), ("b", 2.0)]
    assert runs("a", 0) == [("a", 1.0), ("b", 2.0)]  # resumed
    assert runs("c", 0) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]  # to a data set that does not know it
    (tmp_path / "_runs" / "b.json").unlink()
    assert runs("b", None) == [("a", 1.0), ("c", 3.0), ("b", 4.0)]
