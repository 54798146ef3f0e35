"""When checkpoints are written and what they cost; what a run continues from."""

import math
import os
import re
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from collectx.checkpoints import Checkpoints, read_manifest
from collectx.config.schema.run import CheckpointOptions
from collectx.errors import ConfigError
from collectx.run import Status, checkpointer, execute
from collectx.run.checkpointer import Checkpointer
from collectx.run.context import RunContext
from collectx.run.folder.result import ResultBuilder
from collectx.run.resume import ResumePoint
from collectx.run.signals import RunStopped, Signals
from collectx.run.statistics import Statistics


class Run:
    """A checkpointer over a collector that is idle or not; `cost_s` is what a write takes on the injected clock."""

    def __init__(self, monkeypatch, cfg, folder, signals, evaluator=None, **options):
        self.now_s, self.cost_s, self.fill_s, self.events, self.workers = 0.0, 0.0, 0.0, [], {}
        monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        folder.metrics.touch()
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.collector = SimpleNamespace(
            policy_version=1, num_batches=0, wait_until_filled=self._fill, state=self._save
        )
        self.trainer = SimpleNamespace()
        self.record, self.signals = ResultBuilder(cfg, signals), signals
        cfg = replace(cfg, checkpoint=CheckpointOptions(**{"every_min": None, **options}))
        context = RunContext(cfg, folder, signals, self.record, lambda name, **fields: self.events.append(name))
        self.checkpointer = Checkpointer(context, self.collector, self.trainer, evaluator)

    def _fill(self):
        self.now_s += self.fill_s

    def _save(self, wait_for_workers):
        self.now_s += self.cost_s
        return {"workers": self.workers}

    def batch(self, seconds=0.0):
        """Delivers a batch; returns the new events."""
        self.now_s += seconds
        self.record.statistics.batches += 1
        self.collector.num_batches += 1
        before = len(self.events)
        self.checkpointer.before_batch()
        return self.events[before:]


@pytest.fixture
def start(monkeypatch, cfg, folder):
    with Signals() as signals:
        yield lambda **options: Run(monkeypatch, cfg, folder, signals, **options)


def test_due_by_batches(start):
    run = start(every_batches=3)
    assert [len(run.batch()) for _ in range(7)] == [0, 0, 1, 0, 0, 1, 0]


def test_nothing_is_saved_of_a_collector_that_is_a_batch_ahead(start):
    run = start(every_batches=1)
    assert run.batch() == ["checkpoint"]
    run.collector.num_batches += 1
    assert run.batch() == ["checkpoint_failed"]
    assert [path.name for path in run.checkpoints.all()] == ["000000001"]


def test_due_by_time_and_postponed_where_it_would_cost_more_than_a_hundredth(start):
    run = start(every_min=1)
    assert [len(run.batch(seconds)) for seconds in (59, 1, 59, 1)] == [0, 1, 0, 1]
    run.cost_s, run.fill_s = 2.0, 9.0
    assert len(run.batch(60)) == 1
    assert [len(run.batch(seconds)) for seconds in (199, 1)] == [0, 1]
    assert run.record.statistics.checkpoint_s == 4.0
    # The interval is as before once a checkpoint is cheap.
    run.cost_s = 0.0
    assert len(run.batch(200)) == 1
    assert [len(run.batch(seconds)) for seconds in (59, 1)] == [0, 1]


def test_a_request_is_met_once(start):
    run = start()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert [run.batch(), run.batch()] == [["checkpoint"], []]


def test_a_request_before_the_first_batch_is_met_after_it(start):
    run = start()
    os.kill(os.getpid(), signal.SIGUSR1)
    run.checkpointer.before_batch()
    assert [run.batch(), run.batch()] == [["checkpoint"], []]


def test_a_failing_write_is_an_event(start, monkeypatch):
    run = start(every_batches=1)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left")))
        assert run.batch() == ["checkpoint_failed"]
    assert run.batch() == ["checkpoint"]


def test_a_hook_that_raises_leaves_a_complete_checkpoint(start):
    run = start(every_batches=1)
    run.trainer.checkpoint_written = lambda: 1 / 0
    assert [run.batch(), run.batch()] == [["checkpoint", "checkpoint_hook_failed"]] * 2
    assert [path.name for path in run.checkpoints.all()] == ["000000001", "000000002"]


def test_a_failed_checkpoint_is_tried_again_after_a_minute(start, monkeypatch):
    run = start(every_min=10)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left")))
        assert run.batch(600) == ["checkpoint_failed"]
        assert run.batch(59) == []
        assert run.batch(1) == ["checkpoint_failed"]
    assert [run.batch(60), run.batch(599), run.batch(1)] == [["checkpoint"], [], ["checkpoint"]]


def test_large_envs_are_told_once(start, monkeypatch):
    run = start(every_batches=1)
    monkeypatch.setattr(checkpointer, "_LARGE_ENVS", 100)
    run.workers = {worker: {"rollout": {"envs": torch.zeros(45)}} for worker in range(2)}
    assert run.batch() == ["checkpoint"]
    run.workers[2] = {"rollout": {"envs": torch.zeros(10)}}
    assert run.batch() == ["envs_large", "checkpoint"]
    assert run.batch() == ["checkpoint"]


@pytest.mark.parametrize("metric", ["won", "mean_return"])
def test_the_best_checkpoint_by_a_metric_is_kept(start, metric):
    run = start(every_batches=1, keep_best=metric, keep=1)
    statistics = run.record.statistics
    for value in (math.nan, 0.5, 0.9, 0.2, 0.3):
        if metric == "won":
            statistics.metrics = {} if math.isnan(value) else {"won": value}
        else:
            statistics.mean_return = value
        run.batch()
    assert read_manifest(run.checkpoints.best())["score"] == 0.9
    assert [run.checkpoints.number(path) for path in run.checkpoints.all()] == [3, 5]


def test_the_checkpoint_of_the_best_evaluated_weights_is_kept(start):
    """Each evaluation is due with a checkpoint, which stays until the result is there, whatever `keep` says."""
    evaluator = SimpleNamespace(last_batches=0, open=[])
    evaluator.state = lambda: [{"batches": batches} for batches in evaluator.open]
    run = start(keep_best="eval/won", keep=1, evaluator=evaluator)

    def numbers():
        return [run.checkpoints.number(path) for path in run.checkpoints.all()]

    for batches in range(1, 9):
        if batches % 2 == 0:
            evaluator.last_batches = batches
            evaluator.open.append(batches)
        assert run.batch() == ["checkpoint"] * (batches % 2 == 0)
        if batches == 5:
            assert numbers() == [2, 4]
            for each, score in ((2, 0.9), (4, 0.2)):
                evaluator.on_result({"batches": each, "mean_return": 0.0, "metrics": {"won": score}})
                evaluator.open.remove(each)
    assert numbers() == [2, 6, 8]
    # The evaluation of the last weights ends before their checkpoint is written.
    evaluator.on_result({"batches": 9, "mean_return": 0.0, "metrics": {"won": 1.0}})
    run.record.statistics.batches = run.collector.num_batches = 9
    evaluator.open.clear()
    run.checkpointer.write()
    assert numbers() == [9]
    assert read_manifest(run.checkpoints.best())["score"] == 1.0


@pytest.mark.parametrize("presses", [1, 2])
def test_a_signal_while_a_checkpoint_is_written_ends_the_run_after_it(start, monkeypatch, presses):
    run, write = start(every_batches=1), Checkpoints.write

    def interrupted(*arguments):
        for _ in range(presses):
            os.kill(os.getpid(), signal.SIGTERM)
        return write(*arguments)

    monkeypatch.setattr(Checkpoints, "write", interrupted)
    run.signals.defer(100.0, lambda: None)
    with pytest.raises(RunStopped, match="SIGTERM"):
        run.batch()
    assert run.events == ["checkpoint"]
    assert [path.name for path in run.checkpoints.all()] == ["000000001"]
    assert run.checkpoints.newest(lambda found: found)[1] == []


def test_a_second_signal_ends_the_wait_for_workers(start):
    run = start(every_batches=1)

    def interrupted():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    run.collector.wait_until_filled = interrupted
    run.signals.defer(100.0, lambda: None)
    with pytest.raises(RunStopped, match="SIGTERM"):
        run.batch()
    assert run.events == []


def test_statistics_continue(batch_info):
    old, new = Statistics(100), Statistics(100)
    old.add(batch_info(0, {"returns": [2.0]}, version=3), 10.0)
    old.checkpoint_s = 0.5
    new.load(old.state(), 50.0)
    # The start of the process and its first batch do not count in the rate.
    new.add(batch_info(1, {"returns": [4.0]}), 90.0)
    assert (new.rate, new.frames_per_s) == (None, None)
    new.add(batch_info(2), 91.0)
    assert (new.frames, new.rate, new.frames_per_s) == (30, 10.0, 10.0)
    assert (new.num_episodes, new.mean_return, new.checkpoint_s, new.version) == (2, 3.0, 0.5, 0)


@pytest.fixture
def ended(cfg, folder):
    """The folder of a run that has ended after 5 batches, with a checkpoint."""
    assert execute(cfg, folder.path, []).status is Status.COMPLETED
    return folder


def test_a_folder_is_rewound_to_its_checkpoint(cfg, ended):
    lines = ended.metrics.read_bytes()
    with open(ended.metrics, "ab") as file:
        file.write(lines.splitlines(keepends=True)[-1].replace(b'"batch":4', b'"batch":5') + b'{"half')
    point, later = ResumePoint(ended, cfg), ended.checkpoints / "000000009"
    later.mkdir()
    point.rewind(ended)
    assert (ended.metrics.read_bytes(), later.exists()) == (lines, False)
    with Signals() as signals:
        record = ResultBuilder(cfg, signals)
    point.load_record(record)
    assert record.digest.total == ended.read_result()["digest"]


@pytest.mark.parametrize(
    "damage", [lambda lines: lines[:-1], lambda lines: [*lines[:-1], re.sub(rb"xxh3-\w+", b"xxh3-z", lines[-1])]]
)
def test_lines_that_are_missing_or_altered_are_reported(cfg, ended, damage):
    ended.metrics.write_bytes(b"".join(damage(ended.metrics.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ConfigError, match=rf"no checkpoint in {ended.checkpoints} can be used. Restore") as caught:
        ResumePoint(ended, cfg)
    problem = rf"\n{ended.metrics}:? .*(4 batches.*, but the checkpoint {ended.checkpoints}/000000005|line 5: its)"
    assert re.search(problem, str(caught.value))
