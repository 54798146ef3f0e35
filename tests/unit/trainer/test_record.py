"""When recorded episodes are written, and what of them waits in memory or in files."""

from types import SimpleNamespace

import pytest
import torch
from configurations import counting, start

from collectx import data
from collectx import env as envs
from collectx.config.registry import group_from_dict
from collectx.trainer.record import RecordTrainer


class Writer:
    """Notes the lengths of the episodes of each write."""

    def __init__(self, run, calls, position):
        self.run, self.calls, self.position = run, calls, position or 0

    def write(self, episodes):
        if episodes:
            self.calls.append([len(each) for each in episodes])
            self.position += len(episodes)

    def close(self):
        self.calls.append("closed")


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Returns a function that records batches of two counters, which end after `first` and after `first` + 1 frames. It
    returns what was written, with the number of each batch, and the trainer."""
    opened = []

    def run(flush, first=5, partial=False, size=12, num_batches=6):
        calls, env = [], counting(2, episode_length=first)
        monkeypatch.setattr(
            data, "open_writer", lambda path, run, position: opened.append(run) or Writer(run, calls, position)
        )
        values = {"kind": "record", "format": "memmap", "flush_every_frames": flush, "partial_episodes": partial}
        cfg = group_from_dict("trainer", values | {"dir": str(tmp_path / "set")})
        trainer = RecordTrainer(cfg, None, envs.read_spec(env), 7, torch.device("cpu"))

        def batches():
            with start("single", "inline", env, frames_per_batch=size, total_frames=size * num_batches) as collector:
                for number, batch in enumerate(collector):
                    calls.append(f"batch {number}")
                    yield batch

        class Collection(SimpleNamespace):
            def __iter__(self):
                return batches()

        trainer.train(Collection(folder=tmp_path / "run", run_id="0123456789abcdef"))
        return calls, trainer, opened[-1]

    return run


CASES = {
    "each batch": {"flush": 1},
    "as many as a batch ends": {"flush": 11},
    "more than a batch ends": {"flush": 12},
    "at the end": {"flush": 1000},
    "at the end, with parts": {"flush": 1000, "partial": True},
    "long ones": {"flush": 10, "first": 20},
    "long ones, with parts": {"flush": 10, "first": 20, "partial": True},
    "long ones of some frames": {"flush": 50, "first": 20},
    "none": {"flush": 10, "num_batches": 1, "first": 100},
}


def test_when_episodes_are_written(record, expected):
    """The lengths of episodes after each batch; the position, and lengths in files, at the end."""
    rows = {}
    for name, options in CASES.items():
        calls, trainer, run = record(**options)
        state = trainer.state_dict()
        rows[name] = [calls, state["position"], state["long_episodes"]]
        assert (run.seed, run.folder.rpartition("/")[2], run.name) == (7, "run", "0123456789abcdef")
    expected("record", rows)
