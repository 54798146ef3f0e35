"""Which losses of workers end a run, and which settings are in force for whom."""

import pytest

from collectx.collector.worker_record import FailureAction, FailurePolicy, Settings, WorkerRecord
from collectx.errors import JobEnded, WorkerDied
from collectx.worker.spec import ProcessHistory

DIED, ENDED = WorkerDied, JobEnded


@pytest.mark.parametrize(
    ("mode", "error", "num_requeues", "num_others", "num_restarts", "action", "note"),
    [
        ("raise", DIED, 0, 3, 0, FailureAction.END_RUN, ""),
        ("restart", DIED, 0, 3, 2, FailureAction.RESTART, ""),
        (
            "restart",
            DIED,
            0,
            3,
            3,
            FailureAction.END_RUN,
            "worker 5 was not restarted, because the run has already used its 3 restarts",
        ),
        ("drop", DIED, 0, 2, 0, FailureAction.DROP, ""),
        ("drop", DIED, 0, 1, 0, FailureAction.END_RUN, "1 worker would be left, but collector.min_workers=2"),
        # A job that its scheduler has ended is no failure, for so many times; its restarts are counted apart.
        ("raise", ENDED, 1, 3, 0, FailureAction.REQUEUE, ""),
        ("restart", ENDED, 1, 3, 3, FailureAction.REQUEUE, ""),
        (
            "raise",
            ENDED,
            2,
            3,
            0,
            FailureAction.END_RUN,
            "worker 5 was not requeued again: its job was already requeued 2 times",
        ),
        (
            "restart",
            ENDED,
            2,
            3,
            0,
            FailureAction.RESTART,
            "already requeued 2 times. To allow more, raise launcher.max_requeues",
        ),
    ],
)
def test_what_follows_the_loss_of_a_worker(mode, error, num_requeues, num_others, num_restarts, action, note):
    worker, lost = WorkerRecord(5, ProcessHistory(num_requeues=num_requeues)), error("lost")
    policy = FailurePolicy(mode, max_restarts=3, min_workers=2, max_requeues=2)
    assert policy.decide(worker, lost, num_others, num_restarts) is action
    assert note in "".join(getattr(lost, "__notes__", []))
    assert bool(note) == hasattr(lost, "__notes__")


def test_without_requeues_a_job_that_has_ended_is_a_failure():
    worker = WorkerRecord(5)
    assert FailurePolicy("restart", 1).decide(worker, ENDED("lost"), 1, 0) is FailureAction.RESTART


# --- settings ---


def test_of_each_name_the_last_setting_is_in_force_in_the_order_in_which_they_were_made():
    settings = Settings()
    settings.add("call", "go", ["a"])
    settings.add("set_attr", "go", ["b", "c"])
    settings.add("call", "go", ["d"])
    assert settings.since(0, 3) == [("set_attr", "go", "c"), ("call", "go", "d")]
    assert settings.since(2, 0) == [("call", "go", "d")]
    assert settings.since(3, 0) == []
    again = Settings()
    again.load(settings.state())
    assert again.version == 3
    assert again.since(0, 2) == [("set_attr", "go", "b"), ("call", "go", "d")]
    assert again.in_force == settings.in_force


def test_a_withdrawn_setting_puts_the_last_confirmed_one_in_force_again():
    settings = Settings()
    first = settings.add("call", "go", ["a"])
    settings.add("set_attr", "go", ["b"])
    refused = [settings.add("call", "go", [each]) for each in "cd"]
    for setting in (*refused, refused[0]):
        settings.withdraw(setting)
    assert settings.since(0, 0) == [("call", "go", "a"), ("set_attr", "go", "b")]
    assert settings.version == 4
    settings.confirm(settings.add("call", "go", ["e"]))
    settings.withdraw(settings.in_force[-1])
    assert settings.since(0, 0) == [("set_attr", "go", "b")]
    assert first not in settings.in_force
