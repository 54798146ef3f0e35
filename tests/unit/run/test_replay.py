"""The numbers of a run, read from its folder by who looks on. That they are right: `test_collection.py`."""

from __future__ import annotations

import math

from collectx.run import RunFolder, execute
from collectx.run.replay import Replay


def test_lines_are_taken_in_as_they_come_and_a_run_begun_anew_from_its_beginning(cfg, tmp_path):
    execute(cfg, tmp_path, [])
    folder = RunFolder(tmp_path)
    first, second, third, *_ = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.metrics.unlink()
    replay, seen = Replay(folder, 100), []
    assert not replay.update()
    for text in (first, second + third[:9], b"", third[9:]):
        with open(folder.metrics, "ab") as file:
            file.write(text)
        seen.append((replay.update(), replay.frames, math.isnan(replay.mean_return), replay.frames_per_s is None))
    assert seen == [
        (True, 20, True, True),
        (True, 40, False, False),
        (False, 40, False, False),
        (True, 60, False, False),
    ]
    folder.metrics.rename(tmp_path / "old")
    folder.metrics.write_bytes(first)
    assert replay.update()
    assert (replay.frames, replay.batches, replay.num_episodes, replay.total_frames) == (20, 1, 0, 100)
