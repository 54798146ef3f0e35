"""A cluster with accounting: what its controller has forgotten is still known."""

from __future__ import annotations

import pytest
from cluster import Cluster
from machines import Unsupported
from running import COLLECTX, ENDLESS, Run


@pytest.fixture
def accounted():
    try:
        cluster = Cluster.up(num_nodes=1, accounting=True)
    except Unsupported as reason:
        pytest.skip(str(reason))
    with cluster:
        yield cluster


def test_status_knows_a_job_that_only_accounting_remembers(accounted, wait_until):
    small = ["collector.num_workers=1", "launcher=slurm", "launcher.wait=false"]
    going = Run(accounted, accounted.shared, [*ENDLESS, *small])
    assert going.finish() == 0, going.said
    (job,) = going.jobs
    going.wait_for_state(job, "RUNNING")
    accounted.login(["scancel", job])
    ask = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}"]
    wait_until(lambda: accounted.login(ask).split()[:1] == ["CANCELLED"], 90, "the job's end")
    wait_until(lambda: job not in accounted.login(["squeue", "--states=all"]), 120, "the controller to forget")
    table = accounted.login([COLLECTX, "status", "run"], cwd=going.cwd)
    assert f"job {job} ended as CANCELLED" in table
