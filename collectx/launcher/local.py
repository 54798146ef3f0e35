"""`launcher=local`: starts workers as processes of this machine, through a fork server that has imported torch,
tensordict and gymnasium: imports take seconds, a fork takes milliseconds.

    trainer --- fork server (imports once) --- worker 0
                                          \\--- worker 1 ...

`collectx run` imports in the trainer and forks the server from it (`preload`). A process that has already used torch
must not be forked, as threads and locks of libraries do not survive it: there, the server is a new Python that imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

from collectx import signal_handlers
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError, WorkerTimeout
from collectx.launcher.base import AnyHandle, Entry, Launcher
from collectx.launcher.inherited import Inherited
from collectx.launcher.script import usable_preparation
from collectx.transport.processes import Handle
from collectx.transport.tracebacks import write_on_signal

# Modules that the fork server imports when it starts.
PRELOAD = ["collectx.env.gym", "collectx.policy.mlp", "collectx.policy.user_actor", "collectx.worker.entry"]
# File descriptors that libraries may need, that workers need while they join, and that each worker needs: for its
# connections, and with those of its process.
_DESCRIPTORS, _JOINING, _CONNECTIONS, _WORKER_DESCRIPTORS = 256, 32, 2, 4
# Pauses before restarting a worker whose start was cut by the end of the fork server.
_RETRY_S = (0.1, 1.0)
# Bytes of the path of a Unix socket (104 on BSD, 108 on Linux), without `/pymp-xxxxxxxx/listener-xxxxxxxx`.
MAX_TEMPORARY_PATH = 103 - 32
# OpenMP and BLAS size their thread pools by these variables when they are loaded; `num_threads` sets torch's threads.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# The id of this process while the fork server can be forked from it.
_preloaded: list[int] = []
_spawn = util.spawnv_passfds


def _choose_socket_folder() -> None:
    """Has multiprocessing create its temporary folder, which has the fork server's socket: in `/tmp` where the path of
    `TMPDIR` is too long for a socket, as that of a SLURM job may be."""
    if len(os.fsencode(tempfile.gettempdir())) <= MAX_TEMPORARY_PATH:
        return
    long, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = long


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets environment variables inside the block."""
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def preload() -> None:
    """Imports what workers need, with one thread of NumPy's BLAS. The next `warm_up` then forks the server from this
    process. Does nothing where torch is imported already, or on other systems than Linux."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        with environment(OPENBLAS_NUM_THREADS="1"):
            for module in PRELOAD:
                import_module(module)
        reuse_imports()


def reuse_imports() -> None:
    """Has the next `warm_up` fork the server from this process, which has imported what workers need. Does nothing on
    other systems than Linux."""
    if sys.platform == "linux":
        _preloaded.append(os.getpid())


def warm_up() -> None:
    """Starts the fork server, which imports in the background unless `preload` has. Does not block. Later calls do
    nothing."""
    with environment(**_ONE_THREAD), _forked_if_preloaded():
        # The server of a worker uses the temporary folder of the trainer, and must not remove it.
        is_trainers = multiprocessing.parent_process() is None
        modules = [*PRELOAD, "collectx.launcher.fork_server"] if is_trainers else PRELOAD
        multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
        _choose_socket_folder()
        try:
            forkserver.ensure_running()
        except ChildProcessError:
            _forget_server()
            forkserver.ensure_running()
        _end_server_at_exit(os.getpid())


@contextlib.contextmanager
def _forked_if_preloaded() -> Iterator[None]:
    """Within the block, multiprocessing starts a process as a fork of this one, if `preload` has just imported here and
    no library has started a thread."""
    spawn = util.spawnv_passfds
    if _preloaded == [os.getpid()] and len(os.listdir("/proc/self/task")) == 1:
        util.spawnv_passfds = _fork_server  # type: ignore[assignment]
    _preloaded.clear()
    try:
        yield
    finally:
        util.spawnv_passfds = spawn


def _fork_server(path: bytes, arguments: Sequence[str], passed: Sequence[int]) -> int:
    """Starts `python -c COMMAND` as `multiprocessing.util.spawnv_passfds` does, without a new Python."""
    if not arguments[-1].startswith("from multiprocessing.forkserver import main"):
        return _spawn(path, arguments, passed)  # the resource tracker
    sys.stdout.flush()
    sys.stderr.flush()
    server = os.fork()
    if server == 0:
        try:
            atexit._clear()
            _renew_multiprocessing()
            _close_all_but(0, 1, 2, *passed)
            exec(arguments[-1], {})
        except Exception:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            os._exit(0)
    return server


def _renew_multiprocessing() -> None:
    """Gives this fork multiprocessing's state in a new Python. Its workers inherit this state, and their envs may start
    processes of their own: a lock that the trainer's thread holds while it forks would never be released."""
    util.spawnv_passfds = _spawn
    for state in (forkserver._forkserver, resource_tracker._resource_tracker):
        state.__init__()  # type: ignore[misc]


def _close_all_but(*kept: int) -> None:
    """Closes what other descriptors refer to, such as the lock of the run folder; their numbers stay in use, because
    objects that were copied with this process may close them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            if int(name) not in kept:
                os.fstat(int(name))
                os.dup2(nowhere, int(name))


def _forget_server() -> None:
    """Forgets a fork server that is no child of this process: it is that of the process from which this one was forked,
    and ends with it. Its temporary folder is not used either, unless multiprocessing has made this process."""
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server.__init__()
    if multiprocessing.parent_process() is None:
        multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


@functools.cache
def _end_server_at_exit(trainer: int) -> None:
    """Has the exit of this process end the fork server at once, also while it imports: it would end by itself
    afterwards, and keep the standard output open until then. Not while processes are left that it has forked."""

    def end() -> None:
        server: Any = forkserver._forkserver
        # A process that was forked from this one may run its exit handlers.
        if os.getpid() == trainer and server._forkserver_pid is not None and not multiprocessing.active_children():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
                os.waitpid(server._forkserver_pid, 0)

    atexit.register(end)


def descriptors(num_workers: int) -> int:
    """Returns how many file descriptors the trainer's process may need for local workers and its libraries."""
    return _DESCRIPTORS + _WORKER_DESCRIPTORS * num_workers


def check_descriptors(num_workers: int, is_local: bool = True) -> None:
    """Checks the hard limit of open files of this process for `num_workers` more workers: two connections each, and two
    descriptors of its process, if it `is_local`.

    Raises:
        LauncherError: the hard limit is too low for the workers; gloo would abort this process.
    """
    import resource

    used = psutil.Process().num_fds()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = _WORKER_DESCRIPTORS if is_local else _CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < used + _JOINING + each * num_workers:
        fewer = max(1, (hard - used - _JOINING) // each)
        raise LauncherError(
            f"collector.num_workers={num_workers} needs {used + descriptors(num_workers)} open files ({each} for each "
            f"worker), and this process may have {hard} (ulimit -Hn): raise that limit (limits.conf, LimitNOFILE of a "
            f"service), or use {fewer} workers of several processes (collector.num_workers_per_collector)."
        )


def allow_descriptors(num_workers: int, is_local: bool = True) -> None:
    """Raises the limit of open files of this process, and of the fork server if it runs, for `num_workers` more
    workers. Does not exceed the hard limit, see `check_descriptors`."""
    import resource

    check_descriptors(num_workers, is_local)
    needed = psutil.Process().num_fds() + descriptors(num_workers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):  # the server has ended
            resource.prlimit(server._forkserver_pid, resource.RLIMIT_NOFILE, (soft, hard))


def build(cfg: RunConfig, log_dir: Path | None) -> LocalLauncher:
    """See `collectx.config.registry`."""
    prints_errors = log_dir is not None or cfg.collector.on_worker_failure != "raise"
    return LocalLauncher(
        cfg.launcher.num_threads, cfg.collector.start_timeout_s, cfg.launcher.pin_cores, log_dir, prints_errors
    )


class LocalLauncher(Launcher):
    """Starts worker processes.

    Args:
        num_threads: torch's intra-op threads in each worker.
        start_timeout_s: how long the fork server may take to fork a worker; `collector.start_timeout_s`.
        pin_cores: worker i runs on core i, modulo the cores that this process may use; so do its env's threads.
        log_dir: the folder for `worker-<index>.log` with each worker's stdout and stderr; None: as this process.
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
        return self.names.get(worker, f"worker {worker}").replace(" ", "-")

    def process_setup(self, worker: int) -> dict[str, Any]:
        """The arguments of `set_up_process`, as plain data."""
        from collectx.env import mujoco_warnings

        cores = sorted(os.sched_getaffinity(0)) if self._pin_cores and hasattr(os, "sched_getaffinity") else []
        return {
            "num_threads": self._num_threads,
            "core": cores[worker % len(cores)] if cores else None,
            "log": None if self._log is None else str(self._log(worker)),
            # A public attribute of the package.
            "ignore_warnings": sys.modules["collectx"].filter_warnings_subprocess,
            # This process has made an env, too. A worker's log must have the warnings of that worker.
            "shown_warnings": sorted(mujoco_warnings.shown) if self._log is None else [],
        }

    def start(self, worker: int, entry: Entry, restarts: int = 0, previous: AnyHandle | None = None) -> Handle | None:
        """Starts a process; returns when it is forked. What it calls is pickled. It is not daemonic, as an env may have
        child processes.

        Raises:
            LauncherError: this process is daemonic.
            WorkerTimeout: the fork server takes longer than `collector.start_timeout_s`.
        """
        if multiprocessing.current_process().daemon:
            raise LauncherError(
                f"{multiprocessing.current_process().name} is a daemonic process, as those of multiprocessing.Pool "
                "are, and Python lets it start no other process: collect in it (Collector, collector=single), or use "
                "concurrent.futures.ProcessPoolExecutor, whose processes may start others."
            )
        process = multiprocessing.get_context("forkserver").Process(
            target=_run,
            args=(*entry, self.process_setup(worker), self._prints_errors),
            name=f"collectx-{self._file_name(worker)}",
        )
        inherited = Inherited(os.environ | _ONE_THREAD)
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
        """Blocks for the fork server, in a thread: reading its reply has no timeout. If this times out, the thread ends
        when the fork server replies or ends."""
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
        try:
            error = ended.get(timeout=min(self._start_timeout_s, threading.TIMEOUT_MAX))
        except Empty:
            timeout_s = self._start_timeout_s
            raise WorkerTimeout(
                f"{process.name} was not forked within {timeout_s:g} s (collector.start_timeout_s={timeout_s:g}): the "
                "fork server, a process of this machine that imports what workers need, hangs or has not started yet."
            ) from None
        thread.join()
        if error is not None:
            raise error


def _run(
    function: Callable[..., None], arguments: tuple[Any, ...], process_setup: dict[str, Any], prints_errors: bool
) -> None:
    set_up_process(**process_setup)
    write_on_signal()
    _die_with_parent()
    try:
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
    """Called first in every worker's process. See `LocalLauncher` for the arguments,
    `collectx.filter_warnings_subprocess` and `collectx.env.mujoco_warnings`."""
    if ignore_warnings:
        warnings.simplefilter("ignore")
    # A terminal's Ctrl-C and SIGHUP reach the whole process group, a scheduler's SIGUSR1 all processes of a job; only
    # the trainer stops workers and writes checkpoints.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    # So does SIGTERM of `timeout` and of schedulers, while the trainer still writes a checkpoint.
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
    """Ignores signals in this process, which ends when the trainer closes its connection, also after user code has
    installed handlers (`signal_handlers`). Processes that an env forks keep the default action."""
    worker = os.getpid()

    def ignore(signum: int, frame: object) -> None:
        if os.getpid() != worker:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    for signum in signums:
        signal.signal(signum, ignore)
    of_trainer = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    handlers = {signum: signal.getsignal(signum) for signum in of_trainer}
    ours: dict[int, Any] = {
        signum: handler for signum, handler in handlers.items() if handler in (ignore, signal.SIG_IGN)
    }
    signal_handlers.keep(ours, lambda text: print(f"note: {text}", flush=True))


def _die_with_parent() -> None:
    """Makes Linux kill this process when the fork server ends, which ends with the trainer. On other systems a worker
    notices at its next grant that the trainer is gone."""
    # The server lives while any process holds this pipe, which multiprocessing passes to every worker.
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
