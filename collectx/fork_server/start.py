"""Python's fork server, which forks workers. It has imported torch, tensordict and gymnasium: imports take seconds, a
fork takes milliseconds.

`collectx run` imports in the trainer and forks the server from it (`preload`). A process that has already used torch
must not be forked, as threads and locks of libraries do not survive it: there, the server is a new Python that imports.
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
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from collectx.fork_server import descendants

# Modules that the fork server imports when it starts.
PRELOAD = ["collectx.env.gym", "collectx.policy.mlp", "collectx.policy.user_actor", "collectx.worker.entry"]
# Bytes of the path of a Unix socket (104 on BSD, 108 on Linux), without `/pymp-xxxxxxxx/listener-xxxxxxxx`.
MAX_TEMPORARY_PATH = 103 - 32
# OpenMP and BLAS size their thread pools by these variables when they are loaded; `num_threads` sets torch's threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
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
    variables = {**ONE_THREAD, descendants.VARIABLE: str(descendants.own_marks()[0])}
    with environment(**variables), _forked_if_preloaded():
        # The server of a worker uses the temporary folder of the trainer, and must not remove it.
        is_trainers = multiprocessing.parent_process() is None
        modules = [*PRELOAD, "collectx.fork_server.end", *["collectx.fork_server.last_import"] * is_trainers]
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
            descendants.end([descendants.own_marks()])
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
                os.waitpid(server._forkserver_pid, 0)

    atexit.register(end)
