"""Handles of workers that are no processes of this machine."""

import contextlib
import os
import signal
import threading

import pytest
from composed_overrides import composed

from collectx.errors import LauncherError
from collectx.place.launcher import RemoteHandle
from collectx.place.slurm import job, log_watcher


def test_a_handle_says_its_end_once_and_leaves_no_descriptor():
    handle = RemoteHandle()
    descriptors = (handle.sentinel, handle._end)
    handle.finish(3)
    handle.finish(4)
    assert (handle.exitcode, os.read(handle.sentinel, 2)) == (3, b"\0")
    files = {os.fstat(each).st_ino for each in descriptors}
    del handle
    for descriptor in descriptors:  # which another file may have by now
        with contextlib.suppress(OSError):
            assert os.fstat(descriptor).st_ino not in files


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


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", {3}), ("1,3-5", {1, 3, 4, 5}), ("0-0", {0}), ("2-1", set()), ("1-2,2-3", {1, 2, 3})]
)
def test_numbers_of_tasks(text, numbers):
    assert log_watcher._numbers(text) == numbers


LINES = [
    "collectx: task 1 on n1: status 128",
    "collectx: task 2 on n2: status 129",
    "srun: error: n2: tasks 2-3: Killed",
    "srun: error: n2: task 3: Exited with exit code 1",
    "srun: error: n3: task 4: Exited with exit code 137",
    "srun: error: Node failure on n4",
    "srun: error: n9: task 1: Killed",
    "anything else",
]


@pytest.mark.parametrize(("first", "nodes"), [(1, "n1 n2 n2 n3 n4 n4"), (0, "n1 n2 n2 n3 n4 n4")])
def test_the_ends_of_tasks_in_the_log_of_their_job(monkeypatch, tmp_path, expected, first, nodes):
    """srun's numbers begin with those of the trainer, or of a part of the job."""
    monkeypatch.setattr(job.commands, "hostnames", lambda names: [names])
    watched = log_watcher.LogWatcher(tmp_path / "log", 0, nodes.split, first)
    handles, rows = [watched._task(worker) for worker in range(6)], []
    for line in LINES:
        before = [handle.text for handle in handles]
        assert watched._take(line)
        new = {n: [each.exitcode, each.text] for n, each in enumerate(handles) if each.text != before[n]}
        rows.append([line, new])
    expected(f"log-{first}", rows)

    def refuse(names):
        raise LauncherError("no answer")

    monkeypatch.setattr(job.commands, "hostnames", refuse)
    assert not watched._take("srun: error: Node failure on n1")


@pytest.mark.parametrize("group", [None, 1])
def test_the_steps_of_replacements_and_of_kills(monkeypatch, tmp_path, expected, group):
    cfg = composed("launcher=slurm launcher.srun.mpi=none launcher.container=/c.sif").launcher
    part, lost = "" if group is None else "_HET_GROUP_1", set()
    environment = {f"SLURM_JOB_NODELIST{part}": "n1,n2,n3", f"SLURM_TASKS_PER_NODE{part}": "1,2,1", "SLURM_JOB_ID": "7"}
    environment |= {f"SLURM_CPUS_PER_TASK{part}": "2"}
    monkeypatch.setattr(job.commands, "hostnames", lambda names: names.split(","))
    monkeypatch.setattr(job.nodes, "seems_lost", lambda node: node in lost)
    launcher = job.JobTasksLauncher(
        cfg,
        command=["work"],
        environment=environment,
        job_log=tmp_path,
        log_begin=0,
        log=lambda worker: tmp_path,
        run="/run",
        group=group,
    )
    homes = [launcher.node_of(worker) for worker in range(4)]
    nodes = {}
    for lost_nodes in ([], ["n1"], ["n2", "n3"], ["n1", "n2", "n3"]):
        lost.clear()
        lost.update(lost_nodes)
        for worker in range(3):
            found = [launcher._step(worker, restarts) for restarts in (1, 2, 3, 4)]
            chosen = [word for words in found for word in words if word.startswith("--nodelist=")]
            nodes[f"worker {worker} without {lost_nodes}"] = " ".join(word[11:] for word in chosen)
    lost.clear()
    words = [" ".join(launcher._step(1, 1)), " ".join(launcher._kill(1)[:-3])]
    expected(f"steps-{group}", {"homes": homes, "nodes": nodes, "words": words})
    lost.update(homes)
    with pytest.raises(LauncherError, match=f"worker 1 may still be running on {homes[1]}, which does not answer"):
        launcher._kill(1)
