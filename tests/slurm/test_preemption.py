"""A job of the partition `urgent` preempts a run: SLURM sends SIGTERM, waits for `GRACE_S`, then kills and requeues.

Promised today: the run stops in an orderly way within the time of grace. That the trainer saves a checkpoint, is
requeued and goes on from there is not implemented; tests of it belong here.
"""

from __future__ import annotations

import pytest
from machines import wait_until
from running import ENDLESS, LAUNCHERS
from settings import GRACE_S, URGENT

pytestmark = pytest.mark.nightly


@pytest.fixture
def preempt(cluster):
    """`preempt()` submits an urgent job that needs all nodes, and waits until it has run."""

    def submit():
        words = ["--parsable", f"--partition={URGENT}", "--nodes=4", "--exclusive", "--output=/dev/null"]
        urgent = cluster.login(["sbatch", *words, "--wrap=true"], cwd=cluster.shared).strip()
        wait_until(lambda: cluster.job_state(urgent) == "COMPLETED", GRACE_S + 120, "the urgent job to run")

    return submit


_SCRIPT = """#!/bin/sh
srun sh -c 'trap "echo $SLURM_JOB_ID >> signalled" TERM; while :; do sleep 1; done'
"""


def test_slurm_signals_and_requeues_a_job_that_is_alive_after_the_time_of_grace(cluster, preempt, tmp_path):
    (tmp_path / "job.sh").write_text(_SCRIPT)
    words = ["--parsable", "--nodes=1", "--output=/dev/null"]
    jobs = [
        cluster.login(["sbatch", *words, requeue, "job.sh"], cwd=tmp_path).strip()
        for requeue in ("--requeue", "--no-requeue")
    ]
    for job in jobs:
        wait_until(lambda job=job: cluster.job_state(job) == "RUNNING", 60, f"{job} to run")
    preempt()
    assert [cluster.job_state(job) for job in jobs] == ["PENDING", "PREEMPTED"]
    assert set((tmp_path / "signalled").read_text().split()) == set(jobs)
    assert "Restarts=1" in cluster.login(["scontrol", "show", "job", jobs[0]])


def test_a_run_stops_in_an_orderly_way(run, preempt):
    started = run(*ENDLESS, *LAUNCHERS["slurm"])
    started.wait_for_more()
    preempt()
    assert started.finish() == 130, started.output
    assert started.result["status"] == "interrupted"
    assert started.result["exit_reason"] == "interrupted by SIGTERM"
    assert len(started.batches()) * 300 == started.result["frames"]


@pytest.mark.xfail(
    strict=True,
    reason="the trainer ends on SIGTERM, within the time of grace: for SLURM the job has FAILED, and is not requeued",
)
def test_a_run_with_requeue_is_requeued(run, preempt):
    started = run(*ENDLESS, *LAUNCHERS["slurm"], "launcher.requeue=true")
    started.wait_for_more()
    preempt()
    (job,) = started.jobs
    assert started.cluster.job_state(job) == "PENDING"
