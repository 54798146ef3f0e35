"""The learners of a run besides the first one (`trainer.num_learners`): processes of this machine, each with workers of
its own.

    rank 0    the command's process: starts the others, decides, writes the run folder, and ends them
    rank k    a process of the fork server, with logs/learner-<k>.log

A pipe connects each of them with rank 0: "ready", "go", then the events of its workers, and its error or "end". A
thread of rank 0 waits for these, and for the ends of the processes. If a learner fails, the collectives of the others
fail too; the run's error is the first cause.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from collectx.config.derived import share_of
from collectx.config.schema.run import RunConfig
from collectx.errors import RemoteFailure, WorkerTimeout, set_worker, text_of, worker_of
from collectx.place import place_of
from collectx.place.launcher import Launcher
from collectx.place.local_launcher import LocalLauncher
from collectx.run import cores
from collectx.run.context import RunContext
from collectx.run.signals import Interrupted
from collectx.run.words import Words
from collectx.trainer.learners import Learners
from collectx.transport.peer import Handle, death_error, end_processes
from collectx.transport.tracebacks import request_stacks
from collectx.worker.spec import Placement

# Seconds after which an error of a collective is the cause itself, unless a learner has failed.
_PATIENCE_S = 2.0
# Seconds that a learner may take to end, in addition to the time of its workers.
_END_S = 10.0
_COLLECTIVE = re.compile(r"gloo|nccl|process ?group", re.IGNORECASE)


class LearnerProcesses:
    """The other learners, as rank 0 sees them. Starts their processes.

    Args:
        run: gets the events of their workers, and its record the cause of an error.
        entry: what each process calls, with the configuration, the run folder, the rank, `batches` and a connection.
        batches: the number of batches after which the run is resumed; None: it begins.
    """

    def __init__(self, run: RunContext, entry: Callable[..., None], batches: int | None):
        self._run, self._options = run, run.cfg.trainer
        self._store = run.folder.path / ".learners"
        self._store.unlink(missing_ok=True)  # of a killed run
        self._changed = threading.Condition()
        self._ready: set[int] = set()
        self._ended: set[int] = set()
        # The first error that is not of a collective, and the last one that is.
        self._cause: BaseException | None = None
        self._consequence: BaseException | None = None
        self._is_closing = False
        self._environment = dict(os.environ)
        self._launcher = LocalLauncher(
            cores.trainer_threads(run.cfg), run.cfg.collector.start_timeout_s, log_dir=run.folder.logs
        )
        self._handles: dict[int, Handle] = {}
        self._connections: dict[int, Connection] = {}
        run.record.cause_of = self.cause_of
        for rank in range(1, self._options.num_learners):
            self._launcher.names[rank] = f"learner {rank}"
            self._connections[rank], end = multiprocessing.Pipe()
            with end:
                arguments = run.cfg, run.folder.path, rank, batches, end
                handle = self._launcher.start(rank, (entry, arguments))
                assert handle is not None
                self._handles[rank] = handle
        self._thread = threading.Thread(target=self._watch, name="collectx-learners", daemon=True)
        self._thread.start()

    def join(self, device: torch.device) -> Words:
        """Waits until all learners have made their policies, and makes their groups. Raises the error of a learner."""
        with self._changed:
            self._changed.wait_for(lambda: self._cause is not None or self._ready == self._handles.keys())
        if self._cause is not None:
            raise self._cause
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for connection in self._connections.values():
            connection.send(port)
        return _join(self._run.cfg, 0, self._store, port, device)

    def cause_of(self, error: BaseException) -> BaseException:
        """Returns the error of the learner that failed first, if `error` is what this process noticed of it."""
        if not (isinstance(error, Interrupted) or is_of_collective(error)):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._cause is not None, _PATIENCE_S)
            if self._cause is not None:
                return self._cause
            seen = self._consequence if isinstance(error, Interrupted) and self._consequence is not None else error
        if "imed out" not in text_of(seen):
            return seen
        rank = next((each for each in self._handles if each not in self._ended), 0)
        name, stacks, limit_s = "learner 0", "", self._options.learner_timeout_s
        if rank:
            name, stacks = self._launcher.describe(rank), request_stacks(self._handles[rank].pid, None)
        return WorkerTimeout(
            f"{name} kept the others waiting for {limit_s:g} s (trainer.learner_timeout_s={limit_s:g}). If a batch, "
            "a checkpoint or an evaluation can take longer, raise trainer.learner_timeout_s."
            f"{stacks and ' '}{stacks}"
        )

    def close(self) -> BaseException | None:
        """Ends the learners: waits for those of a run that ends as it should, and kills the others. Then leaves the
        groups. Returns the error of a learner that ended otherwise."""
        is_end = self._run.words.is_end and not self._run.record.errors
        self._is_closing = not is_end
        seconds = self._run.cfg.collector.close_timeout_s + _END_S if is_end else 0.0
        with self._changed:
            self._changed.wait_for(lambda: self._ended == self._handles.keys(), seconds)
        cause = self._cause if is_end else None
        end_processes([*self._handles.values()], _PATIENCE_S * is_end)
        self._thread.join(_PATIENCE_S)
        for connection in self._connections.values():
            connection.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in _variables(0, self._options.num_learners, 0):
            if name in self._environment:
                os.environ[name] = self._environment[name]
            else:
                os.environ.pop(name, None)
        self._store.unlink(missing_ok=True)
        return cause

    def _watch(self) -> None:
        """Receives what the learners say until all have ended."""
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for connection in wait([*ranks]):
                assert isinstance(connection, Connection)
                rank = ranks[connection]
                try:
                    self._handle(rank, *connection.recv())
                except (EOFError, OSError):
                    del ranks[connection]
                    self._handle_end(rank)

    def _handle(self, rank: int, kind: str, *content: Any) -> None:
        if kind == "event":
            name, fields = content
            self._run.add_event(name, **fields)
        elif kind in ("ready", "end"):
            with self._changed:
                (self._ready if kind == "ready" else self._ended).add(rank)
                self._changed.notify_all()
        else:
            failure, worker, is_consequence = content
            error = failure.rebuild(self._launcher.describe(rank))
            if worker is not None:
                set_worker(error, worker)
            self._fail(rank, error, is_consequence)

    def _handle_end(self, rank: int) -> None:
        if rank not in self._ended:
            handle = self._handles[rank]
            self._fail(rank, death_error(self._launcher.describe(rank), True, handle, _PATIENCE_S, None))

    def _fail(self, rank: int, error: BaseException, is_consequence: bool = False) -> None:
        with self._changed:
            self._ended.add(rank)
            if is_consequence:
                self._consequence = self._consequence or error
            else:
                self._cause = self._cause or error
            self._changed.notify_all()
        if not self._is_closing:
            self._run.signals.interrupt()


class FirstLearner:
    """Rank 0, as another learner sees it. `connection` leads there."""

    def __init__(self, run: RunContext, rank: int, connection: Connection):
        self.rank, self._run, self._connection = rank, run, connection
        self._lock = threading.Lock()
        self._first_worker = rank * share_of(run.cfg, rank).collector.num_workers
        run.log, run.record.cause_of = self._tell_event, self._tell_error

    def join(self, device: torch.device) -> Words:
        """Waits until the other learners have made their policies, and makes their groups."""
        self._connection.send(("ready",))
        port = self._connection.recv()
        return _join(self._run.cfg, self.rank, self._run.folder.path / ".learners", port, device)

    def end(self) -> None:
        """Leaves the groups, and tells whether this learner has ended as it should."""
        if dist.is_initialized():
            dist.destroy_process_group()
        if not self._run.record.errors:
            with self._lock, suppress(OSError):
                self._connection.send(("end",))

    def launcher(self, share: RunConfig) -> Launcher:
        """Returns a launcher that numbers the workers as those of the run."""
        launcher = place_of(share).launcher(self._run.folder.logs)
        launcher.first_worker = self._first_worker
        return launcher

    def _tell_event(self, name: str, **fields: Any) -> None:
        """Passes on what happens to a worker. Other events are those of rank 0, too."""
        if "worker" in fields:
            fields["worker"] += self._first_worker
        elif name != "checkpoint_failed":
            return
        with self._lock, suppress(OSError):
            self._connection.send(("event", name, fields))

    def _tell_error(self, error: BaseException) -> BaseException:
        if not isinstance(error, KeyboardInterrupt):
            worker = worker_of(error)
            worker = None if worker is None else self._first_worker + worker
            with self._lock, suppress(OSError):
                self._connection.send(("error", RemoteFailure.of(error), worker, is_of_collective(error)))
        return error


def placement_of(share: RunConfig, rank: int, num_envs: int) -> Placement | None:
    """Returns the place of a learner's workers in the run, whose workers have `num_envs` envs each; None if there is
    one learner."""
    if share.trainer.num_learners == 1:
        return None
    num_processes = share.collector.num_workers * share.collector.num_workers_per_collector
    first = rank * num_processes
    return Placement(
        worker=rank,
        run_index=rank,
        num_workers=num_processes * share.trainer.num_learners,
        env_index=first * num_envs,
        worker_index=first,
    )


def is_of_collective(error: BaseException) -> bool:
    """Whether torch raised the error because another learner is lost, or did not answer."""
    return isinstance(error, RuntimeError) and _COLLECTIVE.search(text_of(error)) is not None


def _variables(rank: int, num_learners: int, port: int) -> Mapping[str, str]:
    """Returns the environment variables that `torchrun` sets, for user code, and gloo's network interface."""
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | dict.fromkeys(
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_learners)
    )
    loopback = os.environ.get("GLOO_SOCKET_IFNAME") or ("lo" if sys.platform == "linux" else "lo0")
    return ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": loopback}


def _join(cfg: RunConfig, rank: int, store: Path, port: int, device: torch.device) -> Words:
    num_learners, timeout = cfg.trainer.num_learners, timedelta(seconds=cfg.trainer.learner_timeout_s)
    os.environ.update(_variables(rank, num_learners, port))
    # NCCL refuses two ranks on one GPU.
    has_gpus = device.type == "cuda" and share_of(cfg, 0).devices != share_of(cfg, 1).devices
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
        store=dist.FileStore(str(store), num_learners),
        rank=rank,
        world_size=num_learners,
        timeout=timeout,
    )
    group = dist.new_group(backend="gloo", timeout=timeout)
    learners = Learners(rank, num_learners, dist.group.WORLD)
    return Words(learners, group, share_of(cfg, rank).collector.num_workers)
