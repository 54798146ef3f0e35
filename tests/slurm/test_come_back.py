"""`collectx status`, `watch`, `logs` and `cancel` of a run on the cluster, from another terminal."""

import subprocess

import pytest
from commands import COMMAND
from machines import wait_until
from running import ENDLESS, LAUNCHERS


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("launcher", "states"),
    [("slurm", ["CANCELLED"]), ("submitit_delayed", ["CANCELLED"] * 2), ("submitit", ["COMPLETED"] * 2)],
)
def test_a_run_is_looked_at_followed_and_cancelled(cluster, run, launcher, states):
    left = [] if launcher == "submitit" else ["launcher.wait=false"]
    started = run(*ENDLESS, *LAUNCHERS[launcher], *left, "collector.worker_timeout_s=60")
    wait_until(lambda: started.num_batches > 5 or started.result, 300, "batches")
    jobs = sorted({event["job"] for event in started.events("worker_joined")})

    def collectx(*words):
        return cluster.login([COMMAND, *words], cwd=started.cwd, timeout=150)

    with open(started.cwd / "watched.txt", "w") as file:
        watching = cluster.start([COMMAND, "watch", "run"], cwd=started.cwd, stdout=file, stderr=subprocess.STDOUT)
    assert collectx("status", "run").splitlines()[1].split()[:2] == ["run", "running"]
    logged = collectx("logs", "run")
    assert ("job | " in logged) == (launcher != "submitit")
    wait_until(lambda: "frames" in (started.cwd / "watched.txt").read_text(), 60, "progress")
    assert "interrupted" in collectx("cancel", "run")
    assert watching.wait(60) == 130
    assert started.result["status"] == "interrupted"
    assert started.events("checkpoint")
    assert sorted(started.states(*jobs)) == states
    assert collectx("status", "run").splitlines()[1].split()[:2] == ["run", "interrupted"]
    assert "has already ended, so there is nothing to cancel" in collectx("cancel", "run")
