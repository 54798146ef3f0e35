"""Evaluations during a run, by a process of their own."""

import csv
import signal

import pytest
import torch
from composed_overrides import composed

from collectx.policy.flat_weights import FlatWeights
from collectx.run import RunFolder, Status, execute
from collectx.run.after.trained import build
from collectx.run.context import RunContext
from collectx.run.evaluator import Evaluator
from collectx.run.folder.result import ResultBuilder
from collectx.run.signals import Signals

LINE = "eval.every_batches=2 eval.episodes=2 policy.hidden_sizes=[4] env=counting"


@pytest.fixture
def evaluator(folder):
    made = []

    def start(line=LINE):
        cfg = composed(line)
        policy, _, _ = build(cfg)
        flat = torch.empty(FlatWeights(policy).nbytes, dtype=torch.uint8)
        FlatWeights(policy).write(flat)
        seen, signals = [], Signals()
        log = lambda name, **fields: seen.append((name, fields))  # noqa: E731
        context = RunContext(cfg, folder, signals, ResultBuilder(cfg, signals), log)
        one = Evaluator(context, flat.clone)
        one.statistics, one.signals, one.seen = context.statistics, signals, seen
        made.append(one)
        return one

    yield start
    for one in made:
        one.close()


def deliver(evaluator, batches):
    evaluator.statistics.batches, evaluator.statistics.frames = batches, 10 * batches
    evaluator.before_batch()


def test_every_second_batch_is_evaluated_once_and_the_trainer_waits_if_three_are_open(evaluator):
    one = evaluator(f"{LINE} env.step_s=0.05")
    for batches in (1, 2, 2, 4):
        deliver(one, batches)
    assert not one.seen  # the trainer goes on while the first is evaluated, and the second waits
    for batches in (5, 6, 7):
        deliver(one, batches)
    one.statistics.batches, one.statistics.frames = 8, 80  # due when the trainer ends the run
    one.wait()
    results = [one.result() for _ in range(5)]
    assert [result and result["batches"] for result in results] == [2, 4, 6, 8, None]
    assert [result["frames"] for result in results[:4]] == [20, 40, 60, 80]
    assert [fields["batches"] for name, fields in one.seen if name == "evaluated"] == [2, 4, 6, 8]
    waits = [(fields["frames"], fields["timeout_s"]) for name, fields in one.seen if name == "evaluation_awaited"]
    assert waits[0] == ([20, 40], None)
    assert {timeout_s for _, timeout_s in waits[1:]} == {60.0}
    assert len({result["mean_return"] for result in results[:4]}) == 1


def test_evaluations_without_a_line_are_made_again_after_a_stop(evaluator):
    one = evaluator(f"{LINE} env.step_s=0.05")
    for batches in (2, 4):
        deliver(one, batches)
    state = one.state()
    assert [(each["batches"], each["frames"]) for each in state] == [(2, 20), (4, 40)]
    one.signals.last = signal.SIGTERM  # a signal: neither the next one nor the end of the run waits
    for batches in (6, 8):
        deliver(one, batches)
    one.wait()
    one.close()
    assert one.seen == [("evaluations_left", {"batches": [2, 4, 6, 8], "frames": [20, 40, 60, 80]})]
    again = evaluator()
    again.load(state)
    again.wait()
    assert again.result()["batches"] == 2
    assert [each["batches"] for each in again.state()] == [4]
    assert again.result()["batches"] == 4
    assert again.state() == []


def test_an_error_ends_the_evaluations_and_is_told_once(evaluator):
    one = evaluator(f"{LINE} eval.max_frames_per_episode=1")
    for batches in (2, 4):
        deliver(one, batches)
        one.wait()
        assert one.result() is None
    ((name, fields),) = [each for each in one.seen if each[0] != "evaluation_awaited"]
    assert name == "evaluation_failed"
    assert "EpisodeTooLongError" in fields["message"]
    assert "evaluator" in fields["message"]


def test_close_ends_an_evaluation_that_runs(evaluator):
    one = evaluator("eval.every_batches=1 env=counting env.step_s=0.5 policy.hidden_sizes=[4]")
    deliver(one, 1)
    one.close()
    assert (one.seen, one.result()) == ([("evaluations_left", {"batches": [1], "frames": [10]})], None)


def test_a_long_evaluation_is_not_waited_for(evaluator):
    one = evaluator(
        "eval.every_batches=1 env=counting env.step_s=0.5 policy.hidden_sizes=[4] eval.close_timeout_s=0.01"
    )
    deliver(one, 1)
    one.wait()
    ((name, fields),) = one.seen
    assert name == "evaluation_failed"
    assert fields["message"].startswith("it did not end within 0.01 s (eval.close_timeout_s)")


def test_a_run_waits_for_its_last_evaluation_and_logs_it(tmp_path):
    words = "collector=single launcher=inline trainer=meter collector.frames_per_batch=32 collector.total_frames=64"
    assert execute(composed(f"{words} logger=csv {LINE}"), tmp_path, []).status is Status.COMPLETED
    files = RunFolder(tmp_path)
    (found,) = [event for event in files.read_events() if event["event"] == "evaluated"]
    assert (found["batches"], found["frames"]) == (2, 64)
    *_, last = csv.DictReader(files.progress.read_text().splitlines())
    assert (float(last["eval/mean_return"]), int(last["step"])) == (found["mean_return"], 64)
