"""The learners of a run besides the first one (`trainer.num_learners`): processes with workers of their own.

    rank 0    the run's process: decides, writes the run folder, and ends the others
    rank k    a process of this machine or an actor of Ray, which rank 0 starts, or another task of its SLURM job; its
              log is logs/learner-<k>.log

Each of them connects to rank 0 by an authenticated connection (`collectx.transport.network.handshake`), with JSON:

    rank k                        rank 0
    its rank            --------------------->
                        <---------------------  the batches to resume from
    "ready", its host   --------------------->
                        <---------------------  where all learners are: they make their process groups
    events of its workers; its error or "end" ->

A thread of rank 0 waits for these, and for the ends of the processes. If a learner fails, the collectives of the others
fail too; the run's error is the first cause. A learner that loses rank 0 ends.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import distributed as dist

from collectx.config.derived import share_of
from collectx.config.schema.run import RunConfig
from collectx.errors import RemoteFailure, RendezvousError, WorkerTimeout, set_worker, text_of, worker_of
from collectx.place import place_of
from collectx.place.launcher import Launcher
from collectx.run import cores
from collectx.run.context import RunContext
from collectx.run.signals import Interrupted
from collectx.run.words import Words
from collectx.trainer.learners import Learners
from collectx.transport.connections import enable_keepalive, set_receive_timeout, shut_down
from collectx.transport.network.addresses import local_addresses, plain_address
from collectx.transport.network.admission import filter_listeners
from collectx.transport.network.handshake import Endpoint, Listener, connect, join_limit, new_secret, receive_hello
from collectx.transport.peer import Handle, death_error, end_processes, timeout_error
from collectx.transport.tracebacks import request_stacks
from collectx.worker.spec import Placement

# Seconds after which an error of a collective is the cause itself, unless a learner has failed.
_PATIENCE_S = 2.0
# Seconds that a learner may take to end, in addition to the time of its workers.
_END_S = 10.0
# Seconds between two looks for learners that have connected.
_LOOK_S = 0.2
_COLLECTIVE = re.compile(r"gloo|nccl|process ?group|pair closure", re.IGNORECASE)
# The variables that `torchrun` sets for user code, and gloo's network interface.
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INTERFACE = "GLOO_SOCKET_IFNAME"


class LearnerProcesses:
    """The other learners, as rank 0 sees them. Starts their processes.

    Args:
        run: gets the events of their workers, and its record the cause of an error.
        entry: what each process calls, with the configuration, the run folder, the rank and rank 0's endpoint.
        batches: the number of batches after which the run is resumed; None: it begins.
        launcher: starts the processes, numbered from 0; None: that of the run's place.
    """

    def __init__(self, run: RunContext, entry: Callable[..., None], batches: int | None, launcher: Launcher | None):
        self._run, self._options, self._batches = run, run.cfg.trainer, batches
        self._store = run.folder.path / ".learners"
        self._store.unlink(missing_ok=True)  # of a killed run
        self._changed = threading.Condition()
        # Host and device of each learner that is ready.
        self._ready: dict[int, list[str]] = {}
        self._ended: set[int] = set()
        # The first error that is not of a collective, and the last one that is.
        self._cause: BaseException | None = None
        self._consequence: BaseException | None = None
        self._is_closing = False
        self._environment = dict(os.environ)
        num_threads = cores.trainer_threads(run.cfg)
        self._launcher = launcher or place_of(run.cfg).launcher_of_learners(num_threads, run.folder.logs)
        self._handles: dict[int, Handle] = {}
        self._connections: dict[int, Connection] = {}
        run.record.cause_of = self.cause_of
        interface = None if self._launcher.is_local else run.cfg.backend.interface
        # The address at which the others see this host.
        self._address, *others = ("127.0.0.1",) if self._launcher.is_local else local_addresses(interface)
        endpoint = Endpoint((self._address, *others), run.cfg.backend.port or 0, new_secret())
        self._listener = Listener(endpoint, self._admit, self._refuse, interface)
        self._launcher.announce(self._listener.endpoint)
        for rank in range(1, self._options.num_learners):
            self._launcher.names[rank - 1] = f"learner {rank}"
            arguments = run.cfg, run.folder.path, rank, self._listener.endpoint
            handle: Any = self._launcher.start(rank - 1, (entry, arguments))
            self._handles[rank] = handle
        self._thread = threading.Thread(target=self._watch, name="collectx-learners", daemon=True)
        self._thread.start()

    def join(self, device: torch.device, num_envs: int) -> tuple[Words, Placement]:
        """Waits until all learners have made their policies, and makes their groups. Returns rank 0's words, and the
        place of its workers, with `num_envs` envs each. Raises the error of a learner."""
        began_s = time.monotonic()
        with self._changed:
            while self._cause is None and self._ready.keys() != self._handles.keys():
                self._changed.wait(_LOOK_S)
                self._check_waiting(time.monotonic() - began_s)
        if self._cause is not None:
            raise self._cause
        self._listener.close()
        with socket.socket(socket.AF_INET6 if ":" in self._address else socket.AF_INET) as free:
            free.bind((self._address, 0))
            port = free.getsockname()[1]
        places = [_host_and_device(device), *(self._ready[rank] for rank in sorted(self._ready))]
        where = {"address": self._address, "port": port, "places": places}
        for connection in self._connections.values():
            _send(connection, where)
        words = _join(self._run.cfg, 0, self._store, self._address, where)
        return words, _placement(self._run.cfg, 0, num_envs)

    def _check_waiting(self, waited_s: float) -> None:
        """Raises `WorkerTimeout` if a scheduler has not started a learner in time."""
        for rank, handle in self._handles.items():
            limit = self._launcher.join_timeout(rank - 1, handle)
            if limit is not None and waited_s > limit[1] and self._launcher.waiting(rank - 1, handle):
                raise timeout_error(self._name(rank), False, limit, "")

    def cause_of(self, error: BaseException) -> BaseException:
        """Returns the error of the learner that failed first, if `error` is what this process noticed of it."""
        if not (isinstance(error, Interrupted) or is_of_collective(error)):
            return error
        if self._run.record.errors:
            return error  # the cause is known
        with self._changed:
            # SLURM and Ray tell late that a process has ended, and `_handle_end` waits for them.
            self._changed.wait_for(lambda: self._cause is not None, 2 * _PATIENCE_S)
            if self._cause is not None:
                return self._cause
            seen = self._consequence if isinstance(error, Interrupted) and self._consequence is not None else error
        # gloo says either, depending on who notices first.
        if not any(words in text_of(seen) for words in ("imed out", "timeout caused")):
            return seen
        rank = next((each for each in self._handles if each not in self._ended), 0)
        name, stacks, limit_s = "learner 0", "", self._options.learner_timeout_s
        if rank:
            name, stacks = self._name(rank), request_stacks(self._handles[rank].pid, None)
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
        self._listener.close()
        for connection in self._connections.values():
            shut_down(connection)
        self._thread.join(_PATIENCE_S)
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in (*_VARIABLES, _INTERFACE):
            if name in self._environment:
                os.environ[name] = self._environment[name]
            else:
                os.environ.pop(name, None)
        self._store.unlink(missing_ok=True)
        return cause

    def _admit(self, connection: Connection, address: str) -> None:
        """Takes the connection of a process that knows the secret, if it is a learner that is still missing."""
        hello = receive_hello(connection)
        if hello.get("is_starting"):
            return  # an actor of Ray says so, on a connection of its own
        rank: Any = hello.get("learner")
        with self._changed:
            if rank not in range(1, self._options.num_learners) or rank in self._connections:
                raise RendezvousError(f"learner {rank!r:.40} cannot join, because it has joined or does not exist.")
            set_receive_timeout(connection, None)
            enable_keepalive(connection, self._run.cfg.collector.worker_timeout_s)
            _send(connection, self._batches)
            self._connections[rank], self._address = connection, address

    def _refuse(self, address: str, reason: str) -> None:
        self._run.add_event("peer_refused", address=address, reason=reason)

    def _watch(self) -> None:
        """Receives what the learners say until all have ended."""
        left = {*self._handles}
        while left:
            ranks: dict[Any, int] = {self._handles[rank].sentinel: rank for rank in left}
            lines = {line: rank for rank, line in [*self._connections.items()] if rank in left}
            ranks |= lines
            for each in wait([*ranks], None if len(lines) == len(left) else _LOOK_S):
                rank = ranks[each]
                if rank in left and not self._receive(rank, isinstance(each, int)):
                    left.remove(rank)
                    self._handle_end(rank)

    def _receive(self, rank: int, has_ended: bool) -> bool:
        """Handles the next message of a learner, or all of them if its process `has_ended`. Returns whether there may
        be more."""
        connection = self._connections.get(rank)
        try:
            while connection is not None and (not has_ended or connection.poll(_PATIENCE_S)):
                self._handle(rank, *_receive(connection))
                if not has_ended:
                    return True
        except (EOFError, OSError):
            pass
        return False

    def _handle(self, rank: int, kind: str, *content: Any) -> None:
        if kind == "event":
            name, fields = content
            self._run.add_event(name, **fields)
        elif kind == "ready":
            with self._changed:
                self._ready[rank] = [*content]
                self._changed.notify_all()
        elif kind == "end":
            with self._changed:
                self._ended.add(rank)
                self._changed.notify_all()
        else:
            failure, worker, is_consequence = content
            error = RemoteFailure.from_json(failure).rebuild(self._name(rank))
            if worker is not None:
                set_worker(error, worker)
            self._fail(rank, error, is_consequence)

    def _handle_end(self, rank: int) -> None:
        if rank not in self._ended:
            handle = self._handles[rank]
            wait([handle.sentinel], _PATIENCE_S)  # SLURM tells later than the connection
            self._fail(rank, death_error(self._name(rank), rank in self._connections, handle, _PATIENCE_S, None))

    def _name(self, rank: int) -> str:
        return self._launcher.describe(rank - 1, self._handles[rank])

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
    """Rank 0, as another learner sees it, in the process of that learner. Connects to rank 0 (`connect`).

    Attributes:
        batches: the number of batches after which the run is resumed; None: it begins.
    """

    def __init__(self, run: RunContext, rank: int, endpoint: Endpoint):
        self._rank, self._run = rank, run
        self._connection, self._address = connect(endpoint, *join_limit(run.cfg.collector.start_timeout_s))
        _send(self._connection, {"learner": rank})
        self.batches: int | None = _receive(self._connection)
        enable_keepalive(self._connection, run.cfg.collector.worker_timeout_s)
        self._lock = threading.Lock()
        self._has_ended = False
        self._first_worker = _placement(run.cfg, rank, 0).worker_index
        run.log, run.record.cause_of = self._tell_event, self._tell_error

    def join(self, device: torch.device, num_envs: int) -> tuple[Words, Placement]:
        """Does the same as that of `LearnerProcesses`."""
        _send(self._connection, ["ready", *_host_and_device(device)])
        where = _receive(self._connection)
        threading.Thread(target=self._watch, name="collectx-first-learner", daemon=True).start()
        words = _join(self._run.cfg, self._rank, self._run.folder.path / ".learners", self._address, where)
        return words, _placement(self._run.cfg, self._rank, num_envs)

    def _watch(self) -> None:
        """Waits for the end of rank 0, which says nothing more, and ends this process if it comes too early."""
        with suppress(EOFError, OSError):
            self._connection.recv_bytes()
        if not self._has_ended:
            print("collectx: learner 0 is gone, so this learner ends", flush=True)
            os._exit(1)

    def close(self) -> BaseException | None:
        """Leaves the groups."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._has_ended = True
        return None

    def tell_end(self) -> None:
        self._tell("end")

    def launcher(self) -> Launcher:
        """Returns a launcher that numbers the workers as those of the run."""
        launcher = place_of(share_of(self._run.cfg)).launcher(self._run.folder.logs)
        launcher.first_worker = self._first_worker
        return launcher

    def _tell(self, *message: Any) -> None:
        with self._lock, suppress(OSError):
            _send(self._connection, message)

    def _tell_event(self, name: str, **fields: Any) -> None:
        """Passes on what happens to a worker. Other events are those of rank 0, too."""
        if "worker" in fields:
            fields["worker"] += self._first_worker
        elif name != "checkpoint_failed":
            return
        self._tell("event", name, fields)

    def _tell_error(self, error: BaseException) -> BaseException:
        if not isinstance(error, KeyboardInterrupt):
            worker = worker_of(error)
            worker = None if worker is None else self._first_worker + worker
            self._tell("error", RemoteFailure.of(error).to_json().decode(), worker, is_of_collective(error))
        return error


def _placement(cfg: RunConfig, rank: int, num_envs: int) -> Placement:
    """Returns the place of a learner's workers in the run, whose workers have `num_envs` envs each."""
    share = share_of(cfg)
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


def _send(connection: Connection, message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _receive(connection: Connection) -> Any:
    return json.loads(connection.recv_bytes())


def _host_and_device(device: torch.device) -> list[str]:
    """Returns the host and the name of a learner's device. A GPU's name is its UUID: each process may see another
    one as cuda:0."""
    name = f"cuda {torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else str(device)
    return [socket.gethostname(), name]


def _join(cfg: RunConfig, rank: int, store: Path, address: str, where: Mapping[str, Any]) -> Words:
    """Makes the groups of all learners, over the network interface of this host's `address`."""
    num_learners, timeout = cfg.trainer.num_learners, timedelta(seconds=cfg.trainer.learner_timeout_s)
    places = where["places"]
    hosts, devices = [host for host, _ in places], [device for _, device in places]
    local = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
    values = rank, local[0], num_learners, local[1], where["address"], where["port"]
    os.environ.update(zip(_VARIABLES, map(str, values), strict=True))
    os.environ.setdefault(_INTERFACE, _interface_of(address))
    # NCCL refuses two ranks on one GPU.
    has_gpus = all("cuda" in device for device in devices) and len(set(map(tuple, places))) == num_learners

    def make_groups() -> Any:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
            store=dist.FileStore(str(store), num_learners),
            rank=rank,
            world_size=num_learners,
            timeout=timeout,
        )
        return dist.new_group(backend="gloo", timeout=timeout)

    # gloo does not ask who connects; all learners have, when the groups are made.
    group, _ = filter_listeners(make_groups, os.get_inheritable)
    return Words(Learners(rank, num_learners, dist.group.WORLD), group, share_of(cfg).collector.num_workers)


def _interface_of(address: str) -> str:
    """Returns the name of this host's network interface with an address."""
    entries = psutil.net_if_addrs().items()
    return next(name for name, found in entries if address in [plain_address(each.address) for each in found])
