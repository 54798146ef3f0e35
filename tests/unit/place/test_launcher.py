"""Handles of workers that are no processes of this machine."""

import contextlib
import os
import signal
import threading

import pytest
from composed_overrides import composed

from collectx.place.launcher import RemoteHandle
from collectx.place.slurm import job


def test_a_handle_says_its_end_once_and_leaves_no_descriptor():
    handle = RemoteHandle()
    pipe = os.readlink(f"/proc/self/fd/{handle.sentinel}")  # the name of both its ends
    handle.finish(3)
    handle.finish(4)
    assert (handle.exitcode, os.read(handle.sentinel, 2)) == (3, b"\0")
    del handle
    left = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            left.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    assert pipe not in left


def test_a_handle_waits_only_for_an_end_that_is_known_at_once_and_then_frees_the_worker():
    stopped = []
    placed = set()
    handle = RemoteHandle(lambda handle, signum: stopped.append(signum), lambda handle: bool(placed))
    handle.join(1000)
    placed.add(handle)
    handle.join(0.01)
    assert stopped == []
    handle.terminate()
    handle.finish(0)
    handle.join(1000)
    handle.kill()
    assert stopped == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
    RemoteHandle().kill()  # ends with the trainer's connection


class Process:
    """What `subprocess.Popen` makes; a test says when it ends."""

    def __init__(self, words, **options):
        self.words, self.options, self.signals, self.ended = words, options, [], threading.Event()

    def send_signal(self, signum):
        self.signals.append(signum)

    def wait(self):
        assert self.ended.wait(60)
        return 3


def test_a_step_is_an_srun_that_ctrl_c_does_not_reach(within, tmp_path, wait_until):
    """It is sent what the handle is told to send, and its output is in the log."""
    started = []

    def popen(words, **options):
        started.append(Process(words, **options))
        return started[-1]

    within(job, "subprocess", Popen=popen)
    handle = job.start_step(lambda: ["srun", "hostname"], tmp_path / "log")
    wait_until(lambda: started)
    (process,) = started
    assert process.words == ["srun", "hostname"]
    assert process.options["start_new_session"]
    assert process.options["stdout"] is process.options["stderr"]
    assert (process.options["stdout"].name, process.options["stdin"]) == (str(tmp_path / "log"), job.subprocess.DEVNULL)
    assert handle.exitcode is None
    handle.terminate()
    process.ended.set()
    wait_until(lambda: handle.exitcode is not None)
    assert (process.signals, handle.exitcode, handle.text) == ([signal.SIGTERM], 3, "its srun ended with status 3")


STEP = {"SLURM_STEP_NODELIST": "n1,n2", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
JOB = {"SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_TASKS_PER_NODE": "1,2,1"}
PART = {"SLURM_JOB_NODELIST_HET_GROUP_1": "g1,g2", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1,3"}


@pytest.mark.parametrize(
    ("environment", "part", "nodes"),
    [
        (JOB, "", ["n1", "n2", "n2", "n3"]),
        (JOB | STEP, "", ["n1", "n1", "n2"]),
        (JOB | STEP | PART, "_HET_GROUP_1", ["g1", "g2", "g2", "g2"]),
        ({"SLURM_JOB_NODELIST": "n1,n2"}, "", ["n1"]),
        ({"SLURM_JOB_NODELIST": "n1,n2", "SLURM_TASKS_PER_NODE": "0,0"}, "", ["n1", "n2"]),
    ],
)
def test_the_node_of_each_task(monkeypatch, environment, part, nodes):
    monkeypatch.setattr(job.commands, "hostnames", lambda names: names.split(","))
    assert job.layout(environment, part) == nodes


def test_a_replacement_stays_in_the_part_of_the_job_that_the_workers_have(monkeypatch, tmp_path):
    monkeypatch.setattr(job.commands, "hostnames", lambda names: names.split(","))
    monkeypatch.setattr(job, "seems_lost", lambda node: False)
    started = []
    monkeypatch.setattr(job, "start_step", lambda command, log: started.append(command()))
    launcher = job.JobTasksLauncher(
        composed("launcher=slurm launcher.srun.mpi=none launcher.container=/c.sif").launcher,
        command=["work"],
        environment=PART | {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "2"},
        job_log=tmp_path / "log",
        log_begin=0,
        log=lambda worker: tmp_path,
        run="/run",
        group=1,
    )
    launcher.start(1, (print, ()), 1)
    (words,) = started
    assert {"--het-group=1", "--nodelist=g2", "--cpus-per-task=2", "--mpi=none", "--container=/c.sif"} <= {*words}
