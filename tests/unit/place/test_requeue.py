"""When a job puts itself back into the queue, and why not."""

import pytest
from composed_overrides import composed

from collectx.place.slurm import requeue

ENVIRONMENT = {"SLURM_JOB_ID": "7"}


def launcher(is_requeued=True):
    return composed(f"launcher=slurm launcher.requeue={str(is_requeued).lower()} launcher.max_requeues=3").launcher


@pytest.mark.parametrize(
    ("state", "restarts", "is_requeued", "why"),
    [
        ("RUNNING", 2, True, ""),
        ("CANCELLED", 0, True, "SLURM ends job 7"),
        ("RUNNING", 3, True, "job 7 is not requeued: it was requeued launcher.max_requeues=3 times"),
        ("RUNNING", 0, False, "job 7 is not requeued (launcher.requeue=false)"),
    ],
)
def test_a_job_is_requeued_while_it_runs(queue, state, restarts, is_requeued, why):
    queue.states = {"7": state}
    environment = ENVIRONMENT | {"SLURM_RESTART_COUNT": str(restarts)}
    assert requeue.requeue(launcher(is_requeued), environment) == why
    assert queue.states.get("7") == (state if why else "PENDING")


def test_an_error_of_slurm_is_the_reason(queue):
    queue.error = "Unable to contact slurm controller"
    assert requeue.requeue(launcher(), ENVIRONMENT) == f"job 7 is not requeued: {queue.error}"


@pytest.mark.parametrize(
    ("node", "state", "is_requeued", "end"),
    [
        ("n9", "RUNNING", True, "requeued"),
        ("n9", "RUNNING", False, "cancelled"),
        ("n1", "RUNNING", True, ""),
        ("n9", "COMPLETING", True, ""),
    ],
)
def test_a_job_that_has_lost_the_node_of_its_trainer_ends(queue, node, state, is_requeued, end):
    queue.states = {"7": state}
    assert requeue.end_after_loss(node, launcher(is_requeued), ENVIRONMENT) == end
    assert queue.states["7"] == {"requeued": "PENDING", "cancelled": "CANCELLED", "": state}[end]
