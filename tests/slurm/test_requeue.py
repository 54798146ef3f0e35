"""Jobs that return to the queue: the run goes on where it was, and every batch is delivered once."""

import pytest
from cluster import GRACE_S
from machines import wait_until
from running import LAUNCHERS, SMALL, nightly

# Some seconds long, with the batches of `digest`.
_SLOW = [*SMALL, "env.step_s=0.003", "launcher.requeue=true"]


def _urgent_job(started):
    """Preempts all others, and ends."""
    cluster = started.cluster
    words = ["--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null"]
    urgent = cluster.login(["sbatch", *words, "--wrap=true"], cwd=cluster.shared).strip()
    wait_until(lambda: cluster.job_states(urgent) == ["COMPLETED"], GRACE_S + 120, "the urgent job to run")


def _requeue(started):
    started.cluster.login(["scontrol", "requeue", *started.jobs])


def _time_limit(started):
    """SLURM looks for it once a minute."""


def _crash(started):
    """Of the trainer's node: SLURM takes it out of the job, and a worker requeues the job."""
    started.wait_for("checkpoint", 2)
    started.cluster.crash("n1")


def _wait_for_next_start(started, life):
    (job,), cluster = started.jobs, started.cluster
    started.wait_until(lambda: "PENDING" in cluster.job_states(job), "the job to be pending")
    # SLURM makes a requeued job wait for two minutes.
    cluster.login(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    started.wait_until(lambda: len(started.events("resumed")) == life, "the job to start")


@pytest.mark.parametrize(
    ("launcher", "cut", "more"),
    [
        ("slurm", _urgent_job, []),
        nightly("slurm", _requeue, ["collector=multi_async", "collector.frames_per_batch=500"]),
        nightly("slurm", _time_limit, ["launcher.time=1", "env.step_s=0.02"]),
        nightly("slurm", _crash, ["collector.on_worker_failure=drop", "checkpoint.every_batches=1"]),
        nightly("submitit_delayed", _urgent_job, []),
    ],
)
def test_a_requeued_run_delivers_every_batch_once(cluster, run, digest, launcher, cut, more):
    started = run(*_SLOW, *LAUNCHERS[launcher], *more)
    started.wait_for_more(3)
    cut(started)
    _wait_for_next_start(started, 1)
    assert started.finish() == 0, started.output
    assert [line["batch"] for line in started.files.read_metrics()] == list(range(started.result["batches"]))
    assert started.result["frames"] == 10_000
    if "collector=multi_async" not in more:
        assert started.result["digest"] == digest
    assert set(started.states()) == {"COMPLETED"}


@pytest.mark.nightly
def test_a_job_ends_where_the_node_of_its_trainer_is_lost(run):
    started = run(*SMALL, "env.step_s=0.01", *LAUNCHERS["slurm"], "collector.on_worker_failure=drop")
    started.wait_for_more(2)
    started.cluster.crash("n1")
    assert started.finish() == 1, started.output
    assert "n1, the node of the trainer, is gone" in started.output
    assert started.states() == ["CANCELLED"]
