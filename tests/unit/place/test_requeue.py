"""When a job puts itself back into the queue, and why not."""

import pytest
from composed_overrides import composed

from collectx.errors import LauncherError
from collectx.place.slurm import requeue

ENVIRONMENT = {"SLURM_JOB_ID": "7"}


def launcher(is_requeued=True):
    return composed(f"launcher=slurm launcher.requeue={str(is_requeued).lower()} launcher.max_requeues=3").launcher


@pytest.mark.parametrize(
    ("state", "restarts", "is_requeued", "why"),
    [
        ("RUNNING", 2, True, ""),
        ("CANCELLED", 0, True, "SLURM is ending job 7"),
        ("RUNNING", 3, True, "job 7 is not requeued: it was already requeued 3 times (launcher.max_requeues=3)"),
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


@pytest.mark.parametrize(
    ("words", "variables", "asked", "is_wanted"),
    [
        ("requeue=true", {}, [], True),
        ("requeue=false time=3", {}, [], False),
        ("time=3", {}, [], True),
        ("sbatch.time=3", {}, [], True),
        ("", {"SBATCH_TIMELIMIT": "3"}, [], True),
        ("", {}, [None], False),
        ("partition=spot", {}, ["spot"], True),
        ("partition=cpu", {"SBATCH_PARTITION": "spot"}, ["cpu"], False),
        ("partition=cpu sbatch.partition=spot", {}, ["spot"], True),
        ("", {"SBATCH_PARTITION": "spot"}, ["spot"], True),
        ("partition=unknown", {}, ["unknown"], False),
    ],
)
@pytest.mark.parametrize("kind", ["slurm", "submitit"])
def test_a_job_that_slurm_may_end_is_requeued(monkeypatch, kind, words, variables, asked, is_wanted):
    for name in ("SBATCH_TIMELIMIT", "SBATCH_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    questions = []

    def preempts(partition):
        questions.append(partition)
        if partition == "unknown":
            raise LauncherError("no such partition")
        return partition == "spot"

    cfg = composed(f"launcher={kind} {' '.join(f'launcher.{word}' for word in words.split())}")
    assert requeue.is_requeue_wanted(cfg.launcher, preempts) is is_wanted
    assert questions == asked


def test_each_part_of_a_job_may_be_preempted(monkeypatch):
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    words = "launcher.partition=cpu launcher.worker.partition=spot"
    for more, asked in (("", ["cpu", "spot"]), ("launcher.trainer.sbatch.partition=spot", ["spot"])):
        questions, cfg = [], composed(f"launcher=submitit_delayed collector=multi_async {words} {more}")
        assert requeue.is_requeue_wanted(cfg.launcher, lambda each: questions.append(each) or each == "spot")  # noqa: B023
        assert questions == asked
    assert requeue.job_id({"SLURM_JOB_ID": "7"}) == "7"
    assert requeue.job_id({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}) == "5_2"
    assert [requeue.num_requeues(each) for each in ({}, {"SLURM_RESTART_COUNT": "2"})] == [0, 2]
