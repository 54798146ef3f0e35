"""The local launcher: a process for each worker, with its own log and threads, deaf to Ctrl-C."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from user_code import launched

from collectx.errors import LauncherError, WorkerTimeout
from collectx.place.local_launcher import LocalLauncher, allow_descriptors

pytestmark = pytest.mark.ci


def reports(launcher, count):
    """Returns what each of `count` workers finds around it."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        processes = [launcher.start(worker, (launched.report, (theirs, worker))) for worker in range(count)]
        found = sorted((ours.recv() for _ in processes), key=lambda each: each["name"])
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * count
    assert [each["name"] for each in found] == [*range(count)]
    assert [each["pid"] for each in found] == [process.pid for process in processes]
    return found


def test_each_worker_has_a_process_with_its_threads_and_its_log(tmp_path):
    before, launcher = dict(os.environ), LocalLauncher(num_threads=2, log_dir=tmp_path)
    found = reports(launcher, 2)
    assert {(each["num_threads"], each["omp"], each["sigint"]) for each in found} == {(2, "1", signal.SIG_IGN)}
    assert (tmp_path / "worker-0.log").read_text().startswith("out of ")
    assert "err of 1" in (tmp_path / "worker-1.log").read_text()
    assert launcher.describe(1) == f"worker 1 (log: {tmp_path}/worker-1.log)"
    assert LocalLauncher(1).describe(1) == "worker 1"
    of_gymnasium = {"PYGAME_HIDE_SUPPORT_PROMPT": "hide"}  # set by its import
    assert dict(os.environ) | of_gymnasium == before | of_gymnasium


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no core affinity")
def test_pinned_workers_share_out_the_cores_of_the_trainer():
    available = sorted(os.sched_getaffinity(0))
    cores = [each["cores"] for each in reports(LocalLauncher(1, pin_cores=True), 3)]
    assert cores == [{available[worker % len(available)]} for worker in range(3)]


def test_a_worker_starts_although_the_fork_server_is_killed_meanwhile(monkeypatch, fork_server_pid):
    assert reports(LocalLauncher(1), 1)
    server, read_signed = fork_server_pid(), forkserver.read_signed

    def kill_server(descriptor):
        monkeypatch.undo()
        os.kill(server, signal.SIGKILL)
        return read_signed(descriptor)

    # The worker's process id, for which the start waits.
    monkeypatch.setattr(forkserver, "read_signed", kill_server)
    os.kill(server, signal.SIGSTOP)
    assert reports(LocalLauncher(1), 1)
    assert fork_server_pid() != server


@pytest.mark.parametrize(
    "first",
    [
        "",
        pytest.param("import torch", marks=pytest.mark.nightly),
        pytest.param("threading.Thread(target=threading.Event().wait, daemon=True).start()", marks=pytest.mark.nightly),
    ],
)
def test_the_server_is_forked_from_a_process_that_has_done_nothing_but_import(tmp_path, first):
    """It holds no file of it, such as the lock of the run folder, and its workers' libraries have one thread."""
    script = f"""
import multiprocessing, os, sys, threading
from multiprocessing import forkserver

import psutil

from collectx.fork_server import start
from collectx.place.local_launcher import LocalLauncher

def look(path):
    import numpy, torch
    numpy.ones((500, 500)) @ numpy.ones((500, 500)), torch.ones(500, 500) @ torch.ones(500, 500)
    me = psutil.Process()
    files = [each.path for each in me.open_files()]
    print(me.cmdline()[-1] == path, os.environ["OMP_NUM_THREADS"], me.num_threads(), *files)
    # The worker's own server, not the trainer's.
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    process.start()
    process.join(50)
    print(process.exitcode, psutil.Process(forkserver._forkserver._forkserver_pid).ppid() == os.getpid())

if __name__ == "__main__":
    print("from here", end=" ")
    held = open("held", "w")
    {first}
    start.preload()
    start.warm_up()
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    process = LocalLauncher(1).start(0, (look, (sys.argv[0],)))
    process.join(100)
    print(process.exitcode, psutil.Process(forkserver._forkserver._forkserver_pid).ppid() == os.getpid())
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    ended = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.stdout.split() == ["from", "here", str(not first), "1", "1", "0", "True", "0", "True"], ended.stderr


def test_a_limit_of_open_files_that_is_too_low_is_an_error_that_says_what_to_do(monkeypatch):
    hard = psutil.Process().num_fds() + 332
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    expected = (
        rf"num_workers=100 needs .*the limit is {hard} \(ulimit -Hn\). Raise .*or use at most \d+ workers, with several"
    )
    with pytest.raises(LauncherError, match=expected):
        allow_descriptors(100)
    with pytest.raises(LauncherError, match=r"num_workers=200 needs .*\(2 per worker\)"):
        allow_descriptors(200, is_local=False)
    allow_descriptors(100, is_local=False)
    allow_descriptors(50)
    with pytest.raises(
        LauncherError, match=r"num_workers=50 needs .*\(8 per worker\).*use at most \d+ workers, with more envs each"
    ):
        allow_descriptors(50, is_served=True)


def test_workers_start_where_the_path_of_the_temporary_folder_is_long(tmp_path):
    """Too long for the socket of the fork server."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    script = """
from multiprocessing import forkserver, util
from collectx.fork_server.start import warm_up

warm_up()
print(util.get_temp_dir())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path(ended.stdout.strip()).exists()
    assert not list(folder.glob("pymp-*"))


@pytest.mark.parametrize("first", ["start.preload()", "import torch"], ids=["forked", "executed"])
def test_a_signal_during_the_start_of_the_fork_server_is_handled_here_and_ignored_there(first):
    script = f"""
import multiprocessing.util, os, signal, sys
from multiprocessing import forkserver
import psutil
from collectx.fork_server import start
from collectx.run.signals import RunStopped, Signals

{first}
spawn, fork, signals = multiprocessing.util.spawnv_passfds, start._fork_server, Signals()

def interrupted(start_process):
    def start_and_interrupt(*arguments):
        pid = start_process(*arguments)
        for process in (pid, os.getpid()):
            os.kill(process, signal.SIGINT)
            os.kill(process, signal.SIGTERM)
        return pid
    return start_and_interrupt

multiprocessing.util.spawnv_passfds, start._fork_server = interrupted(spawn), interrupted(fork)
try:
    with signals:
        with signals.hold():
            start.warm_up()
        print("lost")
except RunStopped:
    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    print("stopped", server.status() != psutil.STATUS_ZOMBIE)
    process = multiprocessing.get_context("forkserver").Process(target=print, args=("forked",))
    process.start()
    process.join()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (ended.stdout, ended.stderr) == ("stopped True\nforked\n", "")


def test_a_fork_server_that_imports_is_waited_for():
    script = """
from collectx.place.local_launcher import LocalLauncher

LocalLauncher(1, start_timeout_s=1.0).start(0, (print, ("forked", ))).join()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "forked\n", ended.stderr


def test_a_fork_server_that_hangs_is_an_error_that_names_the_timeout(fork_server_pid):
    assert reports(LocalLauncher(1), 1)
    server, launcher = fork_server_pid(), LocalLauncher(1, start_timeout_s=0.5)
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerTimeout, match=r"worker-7 was not forked within 0\.5 s .*start_timeout_s=0\.5"):
            launcher.start(7, (print, ()))
    finally:
        os.kill(server, signal.SIGCONT)
    for thread in threading.enumerate():
        if thread.name == "collectx-fork":
            thread.join(100)
    for process in multiprocessing.active_children():
        process.join(100)
    assert reports(LocalLauncher(1), 1)
