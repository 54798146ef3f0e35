"""Which losses of workers end a run, and what follows the others."""

import pytest

from collectx.collector.worker_record import FailureAction, FailurePolicy, WorkerRecord
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
