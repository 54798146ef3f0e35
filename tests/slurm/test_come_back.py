"""`collectx status`, `watch`, `logs` and `cancel` of a run on the cluster, from another terminal."""

import re
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


# Another user, who may read all files.
_AS_ANOTHER = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


@pytest.mark.nightly
def test_a_job_that_cannot_be_cancelled_is_named_at_once(cluster, run):
    """Another user's, and one whose controller is down."""
    started = run(*ENDLESS, *LAUNCHERS["slurm"], "launcher.wait=false", "collector.worker_timeout_s=60")
    wait_until(lambda: started.num_batches > 5 or started.result, 300, "batches")

    def cancel(*words):
        """Returns the status of the command, and what it has written."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = cluster.start([*words, COMMAND, "cancel", "run"], cwd=started.cwd, **pipes)
        said, _ = command.communicate(timeout=120)
        return command.returncode, said

    status, said = cancel(*_AS_ANOTHER)
    assert status == 1
    assert "did not end within" not in said
    assert re.search(r"could not end every job: .*(Access|permission) denied", said), said
    cluster.login(["scontrol", "shutdown", "slurmctld"])
    try:
        status, said = cancel()
    finally:
        cluster.start_controller()
    assert status == 1
    assert "did not end within" not in said
    assert re.search(r"could not end every job: .*[Cc]ontroller", said), said
    assert not started.result
    assert "interrupted" in cancel()[1]
