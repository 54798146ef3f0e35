"""Starts workers as processes of this machine, through a fork server that has the heavy imports done: importing torch,
tensordict and gymnasium takes seconds, forking from a process that has them takes milliseconds.

Called from the trainer's process. Knows nothing of RL: it starts copies of one entry.

    trainer --- fork server (imports once) --- worker 0
                                          \\--- worker 1 ...
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil

from collectx.launcher.base import Launcher

# Modules that the fork server imports when it starts.
PRELOAD = ["collectx.worker.preload"]
# Open files that a process's libraries may need, and for each worker.
_DESCRIPTORS, _WORKER_DESCRIPTORS = 256, 4
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def warm_up() -> None:
    """Starts the fork server, which then imports while the caller goes on. Does not block. Later calls do nothing.

    The pools of OpenMP and BLAS are sized when these libraries load, so the server, and with it every worker, loads
    them for one thread; `num_threads` of a worker sets torch's own.
    """
    saved = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def allow_descriptors(num_workers: int) -> None:
    """Lets this process, and the fork server if it runs already, have as many open files as so many more workers need:
    two connections each, and what tells that a process which was started here has ended. The system's hard limit stays.
    """
    import resource

    needed = psutil.Process().num_fds() + _DESCRIPTORS + _WORKER_DESCRIPTORS * num_workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):  # it has ended
            resource.prlimit(server._forkserver_pid, resource.RLIMIT_NOFILE, (soft, hard))


class LocalLauncher(Launcher):
    """Starts worker processes.

    Args:
        num_threads: torch's intra-op threads in each worker.
        pin_cores: worker i runs on the i-th core that this process may use, modulo their number, its env's threads too.
        log_dir: each worker's stdout and stderr go to `worker-<index>.log` there; None leaves them where they are.
    """

    is_local = True

    def __init__(self, num_threads: int, pin_cores: bool = False, log_dir: Path | None = None):
        super().__init__()
        self._num_threads = num_threads
        self._pin_cores = pin_cores
        self._log_dir = log_dir

    def describe(self, worker: int) -> str:
        log = self._log(worker)
        return f"worker {worker}" if log is None else f"worker {worker} (log: {log})"

    def _log(self, worker: int) -> Path | None:
        return None if self._log_dir is None else self._log_dir / f"worker-{worker}.log"

    def _core(self, worker: int) -> int | None:
        if not self._pin_cores or not hasattr(os, "sched_getaffinity"):
            return None
        cores = sorted(os.sched_getaffinity(0))
        return cores[worker % len(cores)]

    def process_setup(self, worker: int) -> dict[str, Any]:
        """What a worker's process gives `set_up_process`, as plain data."""
        log = self._log(worker)
        return {
            "num_threads": self._num_threads,
            "core": self._core(worker),
            "log": None if log is None else str(log),
            # Set by users in the package itself.
            "ignore_warnings": sys.modules["collectx"].filter_warnings_subprocess,
        }

    def start(self, worker: int, life: int) -> Any:
        """Starts a process; returns when it is forked. What it calls is pickled. It is not daemonic, as an env may have
        child processes."""
        warm_up()
        process = multiprocessing.get_context("forkserver").Process(
            target=_run,
            args=(*self._entry(worker, life), self.process_setup(worker)),
            name=f"collectx-worker-{worker}",
        )
        process.start()
        return process


def _run(function: Callable[..., None], arguments: tuple[Any, ...], process_setup: dict[str, Any]) -> None:
    _die_with_parent()
    set_up_process(**process_setup)
    try:
        function(*arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def set_up_process(num_threads: int, core: int | None, log: str | None, ignore_warnings: bool) -> None:
    """What every worker's process does first. See `LocalLauncher` for the arguments, and
    `collectx.filter_warnings_subprocess`."""
    if ignore_warnings:
        warnings.simplefilter("ignore")
    # A terminal's Ctrl-C and SIGHUP reach the whole process group; stopping is the trainer's to order.
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if core is not None:
        os.sched_setaffinity(0, {core})
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    import torch

    torch.set_num_threads(num_threads)


def _die_with_parent() -> None:
    """Asks Linux to kill this process when the fork server ends, which it does when the trainer ends, however that
    happens. Elsewhere a worker notices at its next grant that its trainer is gone."""
    # The server lives while anybody holds this pipe, and multiprocessing gives it to every worker too.
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
