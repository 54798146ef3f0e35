"""Sites that differ: firewalls, banners, defaults in the environment, small arrays, commands that fail at times."""

import json
import os
import shutil
import signal
import sys

import pytest
from commands import COMMAND
from machines import wait_until
from running import ENDLESS, LAUNCHERS, SMALL, finish_requeued

from collectx.run import RunFolder

_N1_TO_N3 = [*LAUNCHERS["slurm"], "launcher.sbatch.nodelist='n[1-3]'"]
_ENV = """
import os
from pathlib import Path
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Path("seen").mkdir(exist_ok=True)
        seen = Path("seen", os.environ.get("SLURM_JOB_ID", "none"))
        if not seen.exists():
            seen.write_text(f"{os.environ.get('SET_UP')} {os.environ.get('AT_LOGIN')}")
        if Path("break").exists():
            raise ZeroDivisionError("the user's mistake")
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""
_OURS = [*ENDLESS, "env=gym", "env.entry_point=ours:Env", "env.step_s=0", "trainer=meter", "policy=random"]
_OURS = [word for word in _OURS if "step_s" not in word and "watcher" not in word and "trainer=custom" not in word]


def _write_env(folder):
    (folder / "ours.py").write_text(_ENV)


def _put_first(folder, name, text):
    """A script in front of SLURM's command of that name, which is `$real`; returns the new PATH."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / name).write_text(f"#!/bin/bash\nreal={shutil.which(name)} site={site}\n{text}\n")
    (site / name).chmod(0o755)
    return f"{site}:{os.environ['PATH']}"


def _job(cluster, job):
    """The fields of a job, as scontrol shows them."""
    words = cluster.login(["scontrol", "--oneliner", "show", "job", job]).splitlines()[0].split()
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.nightly
def test_a_crash_of_user_code_is_no_lost_node_where_a_firewall_drops_packets(cluster, run, tmp_path):
    _write_env(tmp_path)
    for node in ("n1", "n2", "n3"):
        cluster.drop_closed(node)
    once = ["collector.on_worker_failure=restart", "collector.max_restarts=1", "checkpoint.every_batches=1"]
    started = run(*_OURS, *_N1_TO_N3, *once, "launcher.requeue=true")
    joined = started.wait_for("worker_joined", 2)
    started.wait_for_more(10)  # of both
    hung = next(event for event in joined if event["worker"] == 0)
    cluster.on(hung["host"], ["kill", "-STOP", str(hung["pid"])])
    # The worker that hangs is killed, and replaced on its own node.
    assert started.wait_for("worker_joined", 3)[2]["host"] == hung["host"]
    gone = ["sh", "-c", f"kill -0 {hung['pid']} 2>&1 || echo gone"]
    wait_until(lambda: "gone" in cluster.on(hung["host"], gone), 60, "the end of the worker that hung")
    (tmp_path / "break").touch()
    assert started.finish() == 1, started.output
    assert "ZeroDivisionError: the user's mistake" in started.output
    assert not started.events("requeued")
    assert started.states() == ["FAILED"]
    assert _job(cluster, started.jobs[0])["Restarts"] == "0"
    # A node that is lost while SLURM completes its job there keeps the job's cores.
    wait_until(lambda: not cluster.jobs(), 60, "the job's end on all nodes")


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", ["slurm", "submitit", "submitit_delayed"])
def test_what_the_site_prints_and_sets_hides_no_job_and_overrides_no_option(cluster, run, tmp_path, launcher):
    _write_env(tmp_path)
    banner = 'echo "*** Welcome to ACME; your project has 1,234 core hours left ***"'
    path = _put_first(tmp_path, "sbatch", f'{banner}\n$real "$@"; status=$?; echo "See you."; exit $status')
    sets = {"PARTITION": "urgent", "TIMELIMIT": "1", "NO_REQUEUE": "1", "JOB_NAME": "theirs", "ARRAY_INX": "0-1"}
    sets |= {"EXPORT": "NONE", "WAIT": "1", "ACCOUNT": "acme"}
    hides = {"SQUEUE_PARTITION": "preempt", "SQUEUE_USERS": "nobody", "SCANCEL_PARTITION": "preempt"}
    site = [*(f"SBATCH_{name}={value}" for name, value in sets.items()), *(f"{k}={v}" for k, v in hides.items())]
    inside = ["env", f"PATH={path}", "AT_LOGIN=yes", *site]
    asked = ["launcher.partition=cpu", "launcher.time=30", "launcher.setup=['export SET_UP=5']"]
    # More workers than tasks of the largest array.
    asked += ["collector.num_workers=5"] if launcher == "submitit" else []
    started = run(*_OURS, *LAUNCHERS[launcher], *asked, inside=inside)
    joined = started.wait_for("worker_joined", 5 if launcher == "submitit" else 2)
    started.wait_for_more(1)
    for job in {event["job"] for event in joined}:
        fields = _job(cluster, job)
        assert (fields["Partition"], fields["TimeLimit"], fields["Account"]) == ("cpu", "00:30:00", "acme")
        assert fields["JobName"] == ("run-worker" if launcher == "submitit" else "run")
        assert fields["Requeue"] == ("0" if launcher == "submitit" else "1")
    # `launcher.setup` reaches the tasks; the environment of the login host does not, as the site has it.
    assert {file.read_text() for file in (tmp_path / "seen").iterdir()} == {"5 None"}
    words = [*inside, COMMAND]
    assert cluster.login([*words, "status", "run"], cwd=tmp_path).splitlines()[1].split()[:2] == ["run", "running"]
    assert "interrupted" in cluster.login([*words, "cancel", "run"], cwd=tmp_path, timeout=150)
    assert started.finish() == 130, started.output
    wait_until(lambda: not cluster.jobs(), 60, "all jobs to end")
    if launcher == "submitit":
        assert sorted(event["worker"] for event in joined) == list(range(5))
        assert sorted(event["job"].partition("_")[2] for event in joined) == ["0", "0", "1", "2", "3"]
        assert started.files.worker_log(4).exists()


def test_a_sweep_is_arrays_that_slurm_accepts_and_the_rest_is_submitted_by_a_second_command(cluster, run, tmp_path):
    """The jobs are held: one is released, runs to its end, and the others are cancelled."""
    refuse = 'echo "sbatch: error: AssocMaxSubmitJobLimit" >&2; echo "sbatch: error: Batch job submission failed: '
    refuse += "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\" >&2; exit 1"
    once = f"if [ -e $site/once ]; then {refuse}; fi; touch $site/once"
    path = _put_first(tmp_path, "sbatch", f'{once}; exec $real "$@"')
    sweep = ["launcher=slurm", "launcher.nodes=1", "launcher.wait=false", "launcher.sbatch={hold: true}", "-m"]
    sweep += ["seed=range(6)"]
    first = run(*SMALL, *sweep, inside=["env", f"PATH={path}"])
    assert first.finish() == 1, first.output
    assert "2 of 6 runs were not submitted: " in first.output
    assert "allows no more jobs at a time" in first.output
    assert "launcher.account" not in first.output
    assert [job.partition("_")[2] for job in first.jobs] == ["0", "1", "2", "3"]
    second = run(*SMALL, *sweep)
    assert second.finish() == 0, second.output
    assert [job.partition("_")[2] for job in second.jobs] == ["0", "1"]
    assert len(cluster.squeue("--array", "--format=%i")) == 6
    cluster.login(["scontrol", "release", second.jobs[-1]])
    wait_until((tmp_path / "sweep" / "seed=5" / "result.json").exists, 300, "the end of the released point")
    assert second.status() == [*["queued"] * 5, "completed"]
    assert "1 of 6 runs has already ended" in cluster.login([COMMAND, "cancel", "sweep"], cwd=tmp_path, timeout=150)
    wait_until(lambda: not cluster.jobs(), 60, "all jobs to end")


@pytest.mark.nightly
def test_a_job_whose_node_could_not_start_it_says_what_to_do(cluster, run):
    flag = cluster.shared / "prolog_fails"
    flag.touch()
    try:
        started = run(*SMALL, *LAUNCHERS["slurm"], "launcher.requeue=true")
        started.wait_until(lambda: "launch failed requeued held" in started.output, "the job to be held")
    finally:
        flag.unlink()
    assert "run `scontrol release`" in started.output
    started.interrupt(signal.SIGINT)
    assert started.output.count(f"job {started.jobs[0]}: job {started.jobs[0]}") == 0


@pytest.mark.nightly
def test_commands_that_fail_at_times_lose_no_message_no_requeue_and_a_completed_run_stays_so(cluster, run, tmp_path):
    """scontrol fails twice, and is ended with the steps of the job that it requeues. The last task ends before it
    joins."""
    fails = 'if [ "$2" = hostnames ] && [ "$(ls $site/failed* 2>/dev/null | wc -l)" -lt 2 ]; then '
    fails += "mktemp $site/failed.XXXX; echo 'scontrol: error: busy' >&2; exit 1; fi"
    requeues = 'if [ "$1" = requeue ]; then $real "$@"; kill -TERM $$; fi'
    path = _put_first(tmp_path, "scontrol", f'{fails}\n{requeues}\nexec $real "$@"')
    python, pids = tmp_path / "python", tmp_path / "pids"
    last = 'if [ "$SLURM_PROCID" = 2 ] && [ ! -e pids ]; then echo $SLURMD_NODENAME $PPID $$ > pids.new; '
    last += "mv pids.new pids; exec sleep 1000; fi"
    python.write_text(f'#!/bin/bash\n{last}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    slow = [*SMALL, "env.step_s=0.003", "collector.on_worker_failure=drop", "collector.start_timeout_s=1000"]
    setup = f"launcher.setup=['export PATH={path}']"
    started = run(*slow, *_N1_TO_N3, f"launcher.python={python}", setup, "launcher.requeue=true")
    started.wait_until(pids.exists, "the last task begins")
    node, *processes = pids.read_text().split()
    cluster.on(node, ["kill", "-KILL", *processes])
    (lost,) = started.wait_for("worker_failed", 1)
    assert f"worker 1 (task 2 on {node} is gone: srun says 'Killed'" in lost["message"]
    started.wait_for_more(1)
    (job,) = started.jobs
    cluster.login(["scancel", "--signal=TERM", job])
    assert finish_requeued(started) == 0, started.output
    assert [event["reason"] for event in started.events("requeued")] == ["interrupted by SIGTERM"]
    assert "not requeued" not in started.output
    assert started.states() == ["COMPLETED"]
    result = started.files.result.read_text()
    assert json.loads(result)["status"] == "completed"
    cluster.login(["scontrol", "requeue", job])
    # SLURM refuses to start a job in the second in which it has ended.
    cluster.login(["scontrol", "update", f"JobId={job}", "StartTime=now+5seconds"])
    wait_until(lambda: cluster.job_states(job) == ["COMPLETED"], 120, "the job to end")
    assert _job(cluster, job)["Restarts"] == "2"
    assert started.files.result.read_text() == result
    assert "has nothing to do" in RunFolder(started.files.path).log("job").read_text()
