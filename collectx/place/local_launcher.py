"""`launcher=local`: starts workers as processes of this machine, through the fork server (`collectx.fork_server`).

    trainer --- fork server (imports once) --- worker 0
                                          \\--- worker 1 ...

When the trainer ends, its workers end, and with each worker the processes that it started
(`collectx.fork_server.descendants`).
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

import psutil

from collectx import progress
from collectx.config.problem import counted, opt
from collectx.errors import LauncherError, WorkerTimeout
from collectx.fork_server import descendants
from collectx.fork_server.script import Inherited, usable_preparation
from collectx.fork_server.start import ONE_THREAD, warm_up
from collectx.place.launcher import AnyHandle, Entry, Launcher
from collectx.process import end_forks_by, keep_handlers
from collectx.transport.peer import Handle
from collectx.transport.tracebacks import write_on_signal

# File descriptors of libraries.
_DESCRIPTORS = 256
# File descriptors of all workers that are joining.
_JOINING = 32
# File descriptors of a worker's connections.
_CONNECTIONS = 2
# File descriptors of a worker with its process.
_WORKER_DESCRIPTORS = 4
# The pauses before another attempt to start a worker, if the fork server ended meanwhile.
_RETRY_S = (0.1, 1.0)


def descriptors(num_workers: int) -> int:
    """Returns how many file descriptors the trainer's process may need for local workers and its libraries."""
    return _DESCRIPTORS + _WORKER_DESCRIPTORS * num_workers


def check_descriptors(num_workers: int, is_local: bool = True, is_served: bool = False) -> None:
    """Checks the hard limit of open files of this process for `num_workers` more workers: two connections each, and two
    descriptors of its process, if it `is_local`; twice as many with an inference server. Raises `LauncherError` if the
    hard limit is too low for the workers, because gloo would abort this process later."""
    import resource

    used = psutil.Process().num_fds()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = (_WORKER_DESCRIPTORS if is_local else _CONNECTIONS) * (1 + is_served)
    if hard != resource.RLIM_INFINITY and hard < used + _JOINING + each * num_workers:
        fewer = max(1, (hard - used - _JOINING) // each)
        how = (
            f"more envs each ({opt('env.num_envs')})"
            if is_served
            else f"several processes each ({opt('collector.num_workers_per_collector')})"
        )
        raise LauncherError(
            f"{opt(f'collector.num_workers={num_workers}')} needs {used + _JOINING + each * num_workers} open files "
            f"({each} per worker), but the limit is {hard} (ulimit -Hn). Raise it (limits.conf, LimitNOFILE of a "
            f"service), or use at most {counted(fewer, 'worker')}, with {how}."
        )


def allow_descriptors(num_workers: int, is_local: bool = True, is_served: bool = False) -> None:
    """Raises the limit of open files of this process, and of the fork server if it runs, for `num_workers` more
    workers. Does not exceed the hard limit, see `check_descriptors`."""
    import resource

    check_descriptors(num_workers, is_local, is_served)
    needed = psutil.Process().num_fds() + descriptors(num_workers * (1 + is_served))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):  # the server has ended
            resource.prlimit(server._forkserver_pid, resource.RLIMIT_NOFILE, (soft, hard))


class LocalLauncher(Launcher):
    """Starts workers as processes of this machine.

    Args:
        start_timeout_s: seconds that the fork server may take to fork a worker; `collector.start_timeout_s`.
        pin_cores: worker i runs on core i, modulo the cores that this process may use; so do its env's threads.
        log_dir: the folder for `worker-<index>.log`, which gets each worker's standard output and error; None: workers
            write where this process writes.
        prints_errors: whether a worker prints the traceback of an error that it has reported to the trainer.
    """

    is_local = True

    def __init__(
        self,
        num_threads: int,
        start_timeout_s: float = math.inf,
        pin_cores: bool = False,
        log_dir: Path | None = None,
        prints_errors: bool = True,
    ):
        super().__init__(None if log_dir is None else lambda worker: log_dir / f"{self._file_name(worker)}.log")
        self._num_threads = num_threads
        self._start_timeout_s = start_timeout_s
        self._pin_cores = pin_cores
        self._prints_errors = prints_errors

    def _file_name(self, worker: int) -> str:
        return self.name(worker).replace(" ", "-")

    def process_setup(self, worker: int) -> dict[str, Any]:
        """Returns the arguments of `set_up_process`, as plain data."""
        from collectx.env import mujoco_warnings

        cores = sorted(os.sched_getaffinity(0)) if self._pin_cores and hasattr(os, "sched_getaffinity") else []
        return {
            "num_threads": self._num_threads,
            "core": cores[(self.first_worker + worker) % len(cores)] if cores else None,
            "log": None if self._log is None else str(self._log(worker)),
            # A public attribute of the package.
            "ignore_warnings": sys.modules["collectx"].filter_warnings_subprocess,
            # This process has made an env, too. A worker's log must have the warnings of that worker.
            "shown_warnings": sorted(mujoco_warnings.shown) if self._log is None else [],
        }

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> Handle | None:
        """Starts a process, and blocks until it is forked. `entry` is pickled. The process is not daemonic, as an env
        may start child processes. Raises `LauncherError` if this process is daemonic, or `WorkerTimeout` if the fork
        server takes longer than `collector.start_timeout_s`."""
        if multiprocessing.current_process().daemon:
            raise LauncherError(
                f"{multiprocessing.current_process().name} is daemonic, as in multiprocessing.Pool, and Python lets no "
                f"daemonic process start others. Collect in this process, with {opt('collector=single')}, or start "
                "this process with concurrent.futures.ProcessPoolExecutor."
            )
        mark = descendants.new_mark()
        process: Any = multiprocessing.get_context("forkserver").Process(
            target=_run,
            args=(*entry, self.process_setup(worker), mark, self._prints_errors),
            name=f"collectx-{self._file_name(worker)}",
        )
        process.mark = mark
        inherited = Inherited(os.environ | ONE_THREAD)
        for pause_s in (*_RETRY_S, None):
            warm_up()
            try:
                self._fork(process, inherited)
                break
            except (EOFError, ConnectionError):
                # The fork server is being killed; when it has ended, multiprocessing starts another one.
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        return process

    def _fork(self, process: BaseProcess, inherited: Inherited) -> None:
        """Starts the process in a thread, because reading the fork server's reply has no timeout, and waits for the
        thread while the server imports. If this times out, the thread ends when the fork server replies or ends."""
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def start() -> None:
            try:
                with usable_preparation(inherited):
                    process.start()
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        thread = threading.Thread(target=start, name="collectx-fork", daemon=True)
        thread.start()
        timeout_s, server = self._start_timeout_s, cast("Any", forkserver._forkserver)._forkserver_pid
        cpu_s = progress.cpu_s(server)
        while True:
            try:
                error = ended.get(timeout=min(timeout_s, threading.TIMEOUT_MAX))
                break
            except Empty:
                # The server answers nobody while it imports.
                before_s, cpu_s = cpu_s, progress.cpu_s(server)
                if cpu_s - before_s > progress.LEAST_CPU * timeout_s:
                    continue
            option = opt("collector.start_timeout_s")
            raise WorkerTimeout(
                f"{process.name} was not forked within {timeout_s:g} s ({option}={timeout_s:g}): the fork server, "
                f"which first imports what workers need, is slow or hangs. If it is slow, raise {option}."
            )
        thread.join()
        if error is not None:
            raise error


def _run(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    process_setup: dict[str, Any],
    mark: int,
    prints_errors: bool,
) -> None:
    set_up_process(**process_setup)
    write_on_signal()
    _die_with_parent()
    try:
        with descendants.marked(mark):
            function(*arguments)
    except Exception as error:
        if prints_errors or not getattr(error, "is_reported", False):
            raise
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def set_up_process(
    num_threads: int, core: int | None, log: str | None, ignore_warnings: bool, shown_warnings: Sequence[str]
) -> None:
    """Sets up threads, core, signals, log and warnings of a worker's process; called first in it. For the arguments see
    `LocalLauncher`, `collectx.filter_warnings_subprocess` and `collectx.env.mujoco_warnings`."""
    if ignore_warnings:
        warnings.simplefilter("ignore")
    with contextlib.suppress(PermissionError):  # it leads a session
        os.setpgid(0, 0)
    # SIGHUP, and a scheduler's signals, may reach all processes; only the trainer stops workers and writes checkpoints.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    # So may the SIGTERM of `timeout` and of schedulers, while the trainer still writes a checkpoint.
    leave_signals_to_trainer(signal.SIGTERM)
    if core is not None:
        os.sched_setaffinity(0, {core})
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    import torch

    from collectx.env import mujoco_warnings

    torch.set_num_threads(num_threads)
    mujoco_warnings.shown.update(shown_warnings)


def leave_signals_to_trainer(*signums: int) -> None:
    """Ignores signals in this process, even if user code installs handlers (`collectx.process`): the process ends when
    the trainer closes its connection. Processes that an env forks keep the default action."""

    def ignore(signum: int, frame: object) -> None:
        """Not SIG_IGN, which the programs that an env starts would inherit."""

    for signum in signums:
        signal.signal(signum, ignore)
    end_forks_by(*signums)
    of_trainer = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    handlers = {signum: signal.getsignal(signum) for signum in of_trainer}
    ours: dict[int, Any] = {
        signum: handler for signum, handler in handlers.items() if handler in (ignore, signal.SIG_IGN)
    }
    keep_handlers(ours, lambda text: print(f"note: {text}", flush=True))


def _die_with_parent() -> None:
    """Makes Linux kill this process when the fork server ends; that ends with the trainer. On other systems, a worker
    notices at its next grant that the trainer is gone."""
    # The server lives while any process holds this pipe, which multiprocessing passes to every worker.
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    descendants.end_with_parent(signal.SIGKILL)
