"""The numbers of a run, read from its folder by who looks on: the same as in the trainer's own process."""

from __future__ import annotations

import json
import math
from pathlib import Path

from collectx.run.folder import RunFolder
from collectx.run.replay import Replay


def line(batch: int, **changes) -> dict:
    part = {
        "worker": batch % 2,
        "lag": 1,
        "frames": 32,
        "env_s": 0.5,
        "policy_s": 0.25,
        "wait_s": 0.125,
        "send_s": 0.125,
    }
    values = {"batch": batch, "time": 100.0 + batch, "frames": 32 * (batch + 1), "batch_frames": 32}
    values |= {"frames_per_s": None if batch == 0 else 32.0, "waited_s": 0.5, "version": batch, "lag": 1.0}
    return values | {"episodes": 2, "mean_return": 7.0, "workers": [part]} | changes


def append(folder: RunFolder, *lines: dict) -> None:
    with open(folder.metrics, "a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)


def test_lines_are_taken_in_as_they_come(tmp_path: Path):
    folder = RunFolder(tmp_path)
    replay = Replay(folder, 320)
    assert not replay.update()
    append(folder, line(0, mean_return=None, episodes=0))
    assert replay.update()
    assert (replay.frames, replay.batches, replay.num_episodes) == (32, 1, 0)
    assert math.isnan(replay.mean_return)
    assert replay.frames_per_s is None
    append(folder, line(1), line(2, scalars={"loss": 0.5}))
    with open(folder.metrics, "a") as file:
        file.write('{"batch": 3, "ti')
    assert replay.update()
    assert not replay.update()
    assert (replay.frames, replay.batches, replay.num_episodes, replay.mean_return) == (96, 3, 4, 7.0)
    assert (replay.frames_per_s, replay.rate, replay.version, replay.scalars) == (32.0, 32.0, 2, {"loss": 0.5})
    assert (replay.workers[0].frames, replay.workers[0].env_s, replay.workers[1].frames) == (64, 1.0, 32)
    assert replay.workers[1].shares() == (0.5, 0.25, 0.125, 0.125)


def test_a_run_begun_anew_is_read_from_its_beginning(tmp_path: Path):
    folder = RunFolder(tmp_path)
    replay = Replay(folder, 320)
    append(folder, line(0), line(1))
    assert replay.update()
    folder.metrics.rename(tmp_path / "old")
    append(folder, line(0))
    assert replay.update()
    assert (replay.frames, replay.batches, replay.total_frames) == (32, 1, 320)
