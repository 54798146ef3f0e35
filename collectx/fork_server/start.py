"""Python's fork server, which forks workers after importing torch, tensordict and gymnasium: imports take seconds, a
fork takes milliseconds.

`collectx run` imports in the trainer and forks the server from it (`preload`). A process that has already used torch
must not be forked, as threads and locks of libraries would not survive: its server is a new Python that imports again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from collectx.fork_server import descendants

# Modules that the fork server imports when it starts.
PRELOAD = ["collectx.env.gym", "collectx.policy.mlp", "collectx.policy.user_actor", "collectx.worker.entry"]
# Maximum bytes of the temporary folder's path. A Unix socket's path has at most 103 (on BSD; 107 on Linux), of which
# `/pymp-xxxxxxxx/listener-xxxxxxxx` takes 32.
MAX_TEMPORARY_PATH = 103 - 32
# OpenMP and BLAS read the size of their thread pools from these variables when they are loaded; `num_threads` sets
# torch's threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Contains the id of this process while the fork server can be forked from it.
_preloaded: list[int] = []
# Lets one block of `environment` at a time restore what it found: the evaluator's thread starts processes too.
_environment_lock = threading.RLock()
_spawn = util.spawnv_passfds


def _choose_socket_folder() -> None:
    """Makes multiprocessing create its temporary folder, which contains the fork server's socket, in `/tmp` if the path
    of `TMPDIR` is too long for a socket, as in some SLURM jobs."""
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
    with _environment_lock:
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
    """Imports the modules that workers need, with one thread for NumPy's BLAS. The next `warm_up` then forks the server
    from this process. Does nothing if torch is already imported, or on systems other than Linux."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        with environment(OPENBLAS_NUM_THREADS="1"):
            for module in PRELOAD:
                import_module(module)
        reuse_imports()


def reuse_imports() -> None:
    """Makes the next `warm_up` fork the server from this process, which has imported the modules that workers need.
    Does nothing on systems other than Linux."""
    if sys.platform == "linux":
        _preloaded[:] = [os.getpid()]


def warm_up() -> None:
    """Starts the fork server, which imports in the background unless `preload` did. Does not block. Later calls do
    nothing."""
    variables = {**ONE_THREAD, descendants.VARIABLE: str(descendants.own_marks()[0])}
    with environment(**variables), _forked_if_preloaded():
        # A worker's server uses the trainer's temporary folder, and must not remove it.
        is_in_trainer = multiprocessing.parent_process() is None
        hydra = ["hydra.core.utils"] * ("hydra.core.utils" in sys.modules)
        modules = [*PRELOAD, *hydra, "collectx.fork_server.end"]
        modules += ["collectx.fork_server.last_import"] * is_in_trainer
        multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
        _choose_socket_folder()
        _start_resource_tracker()
        with _blocked_signals():
            try:
                forkserver.ensure_running()
            except ChildProcessError:
                _forget_server()
                forkserver.ensure_running()
        _end_server_at_exit(os.getpid())


def _start_resource_tracker() -> None:
    """Starts multiprocessing's resource tracker without its warnings. It removes the semaphores of vector envs whose
    worker was killed, and would print at the end of the run that they were leaked, for which its user can do
    nothing."""
    others = os.environ.get("PYTHONWARNINGS")
    without = ",".join(filter(None, [others, "ignore:resource_tracker:UserWarning"]))
    with environment(PYTHONWARNINGS=without), _blocked_signals():
        resource_tracker.ensure_running()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Blocks `descendants.SENT_TO_ALL` in this thread within the block: processes that start in it inherit this, and do
    not end while they still import. This process handles a signal that comes meanwhile at the end of the block."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, descendants.SENT_TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


@contextlib.contextmanager
def _forked_if_preloaded() -> Iterator[None]:
    """Within the block, multiprocessing starts the server as a fork of this process, if `preload` just imported here
    and no library has started a thread."""
    spawn = util.spawnv_passfds
    if _preloaded == [os.getpid()] and len(os.listdir("/proc/self/task")) == 1:
        util.spawnv_passfds = _fork_server  # type: ignore[assignment]
    _preloaded.clear()
    try:
        yield
    finally:
        util.spawnv_passfds = spawn


def _fork_server(path: bytes, arguments: Sequence[str], passed: Sequence[int]) -> int:
    """Runs `python -c COMMAND` like `multiprocessing.util.spawnv_passfds`, but in a fork instead of a new Python."""
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
    """Resets multiprocessing in this fork to its state in a new Python. Workers inherit this state, and their envs may
    start processes of their own: a lock held by a trainer's thread during the fork would never be released."""
    util.spawnv_passfds = _spawn
    for state in (forkserver._forkserver, resource_tracker._resource_tracker):
        state.__init__()  # type: ignore[misc]


def _close_all_but(*kept: int) -> None:
    """Closes the files of all other descriptors, such as the run folder's lock. The numbers stay in use, because
    objects that were copied with this process may close them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing
            if int(name) not in kept:
                os.fstat(int(name))
                os.dup2(nowhere, int(name))


def _forget_server() -> None:
    """Forgets a fork server that is not a child of this process: it belongs to the process from which this one was
    forked, and ends with that process, as this one closes its end of the pipe. Its temporary folder is not used either,
    unless multiprocessing started this process."""
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is None:
        return
    os.close(server._forkserver_alive_fd)
    server.__init__()
    if multiprocessing.parent_process() is None:
        multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


@functools.cache
def _end_server_at_exit(trainer: int) -> None:
    """Makes the exit of this process end the fork server at once, even while it imports: by itself it would end later,
    and keep standard output open until then. Does not end it while processes that it forked are left. A fork of this
    process does not keep the server alive."""

    def end() -> None:
        server: Any = forkserver._forkserver
        # A fork of this process may run its exit handlers.
        if os.getpid() == trainer and server._forkserver_pid is not None and not multiprocessing.active_children():
            descendants.end([descendants.own_marks()])
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
                os.waitpid(server._forkserver_pid, 0)

    atexit.register(end)
    os.register_at_fork(after_in_child=_forget_server)
