"""Evaluations during a run, by a process of their own."""

import csv
from types import SimpleNamespace

import pytest
import torch
from composed_overrides import composed

from collectx.policy.flat_weights import FlatWeights
from collectx.run import RunFolder, Status, execute
from collectx.run.after.trained import build
from collectx.run.evaluator import Evaluator

LINE = "eval.every_batches=2 eval.episodes=2 policy.hidden_sizes=[4] env=counting"


@pytest.fixture
def evaluator(folder):
    made = []

    def start(line=LINE, pending=None, batches=0):
        cfg = composed(line)
        policy, _, _ = build(cfg)
        flat = torch.empty(FlatWeights(policy).nbytes, dtype=torch.uint8)
        FlatWeights(policy).write(flat)
        statistics, events = SimpleNamespace(batches=batches, frames=0), []
        one = Evaluator(
            cfg,
            folder,
            statistics,
            flat.clone,
            lambda name, **fields: events.append((name, fields)),
            lambda text: events.append(("said", text)),
            pending,
        )
        one.statistics, one.seen = statistics, events
        made.append(one)
        return one

    yield start
    for one in made:
        one.close()


def deliver(evaluator, batches):
    evaluator.statistics.batches, evaluator.statistics.frames = batches, 10 * batches
    evaluator.request()
    evaluator.make_room()


def test_every_second_batch_is_evaluated_once_however_long_it_takes(evaluator):
    one = evaluator()
    for batches in range(1, 8):
        deliver(one, batches)
        deliver(one, batches)
    one.wait()
    results = [one.result() for _ in range(4)]
    assert [result and (result["batches"], result["frames"]) for result in results] == [(2, 20), (4, 40), (6, 60), None]
    assert [name for name, _ in one.seen if name != "said"] == ["evaluated"] * 3
    assert results[0]["mean_return"] == results[1]["mean_return"] > 0


def test_evaluations_without_a_result_are_made_by_the_next_evaluator(evaluator):
    """A checkpoint contains the weights; an evaluation counts as made when its result was reported."""
    one = evaluator()
    deliver(one, 2)
    one.wait()
    one.result()
    deliver(one, 4)
    deliver(one, 5)
    state = one.state()
    assert [(each["batches"], each["frames"]) for each in state] == [(4, 40)]
    two = evaluator(pending=state, batches=5)
    two.wait()
    assert two.result()["batches"] == 4
    assert two.state() == []
    # A checkpoint of a version without this state may lack the evaluation of its batch.
    three = evaluator(batches=4)
    three.request()
    assert [each["batches"] for each in three.state()] == [4]


def test_an_error_ends_the_evaluations_and_is_told_once(evaluator):
    one = evaluator(f"{LINE} eval.max_frames_per_episode=1")
    for batches in (2, 4):
        deliver(one, batches)
        one.wait()
        assert one.result() is None
    ((name, fields),) = one.seen
    assert name == "evaluation_failed"
    assert "EpisodeTooLongError" in fields["message"]
    assert "evaluator" in fields["message"]


def test_close_ends_an_evaluation_that_runs_without_a_word(evaluator):
    one = evaluator("eval.every_batches=1 env=counting env.step_s=0.5 policy.hidden_sizes=[4]")
    deliver(one, 1)
    one.close()
    assert (one.seen, one.result()) == ([], None)


def test_a_wait_for_a_long_evaluation_is_said_and_limited(evaluator):
    one = evaluator("eval.every_batches=1 env=counting env.step_s=0.5 policy.hidden_sizes=[4] eval.close_timeout_s=1.5")
    deliver(one, 1)
    one.wait()
    (_, said), (name, fields) = one.seen
    assert said == "waiting for the evaluation after 10 frames (up to 1.5 s, eval.close_timeout_s)"
    assert name == "evaluation_failed"
    assert fields["message"].startswith("it did not end within 1.5 s (eval.close_timeout_s)")


def test_a_run_waits_for_its_last_evaluation_and_logs_it(tmp_path):
    words = "collector=single launcher=inline trainer=meter collector.frames_per_batch=32 collector.total_frames=64"
    assert execute(composed(f"{words} logger=csv {LINE}"), tmp_path, []).status is Status.COMPLETED
    files = RunFolder(tmp_path)
    (found,) = [event for event in files.read_events() if event["event"] == "evaluated"]
    assert (found["batches"], found["frames"]) == (2, 64)
    *_, last = csv.DictReader(files.progress.read_text().splitlines())
    assert (float(last["eval/mean_return"]), int(last["step"])) == (found["mean_return"], 64)
