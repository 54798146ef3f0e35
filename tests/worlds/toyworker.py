"""A worker without env or policy, for tests of transports: fills a slot with (worker, count, weights it read)."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from collectx.batch import Layout, Leaf
from collectx.launcher.local import LocalLauncher
from collectx.transport.base import Departure, Joined, SlabSpec, Tally
from collectx.transport.distributed import DistributedTransport
from collectx.transport.distributed_link import DistributedLink, Terms, join_trainer
from collectx.transport.inline import InlineTransport
from collectx.transport.shared_memory import SharedMemoryTransport
from collectx.transport.switchboard import Switchboard

NUMBER = ("number",)
LEAVES = (Leaf(NUMBER, (2,), torch.int64), Leaf(("small",), (3,), torch.uint8))
WEIGHTS_NBYTES = 4096


def slab_spec(num_workers=2, num_slots=2, joined=False, rows=2, steps=3, weights_nbytes=WEIGHTS_NBYTES):
    return SlabSpec(LEAVES, rows, steps, num_workers, num_slots, joined, joined, weights_nbytes)


def writer(value):
    return lambda buffer: buffer.fill_(value)


KINDS = ("inline", "shared_memory", "gloo", "rpc")


@dataclass(frozen=True)
class Fault:
    """What goes wrong in a worker when it is granted its batch number `at`; one that hangs makes the file `sign`."""

    what: str
    at: int = 2
    sign: str | None = None


def place(kind, spec, fault=None, start_timeout_s=60.0, worker_timeout_s=60.0, close_timeout_s=30.0):
    """A transport of that kind, and `start(worker)`, which starts and attaches a toy worker and returns its handle.

    `fault` is for all workers, or a dict by worker: a `Fault`, or its name alone. Only a worker's first life has it.
    """
    faults = fault if isinstance(fault, dict) else dict.fromkeys(range(spec.num_workers), fault)
    launcher = LocalLauncher(1)
    if kind == "inline":
        transport = InlineTransport(spec)

        def start(worker):
            transport.attach(worker, work(worker, transport.link(worker), faults.pop(worker, None)))

        return transport, start
    switchboard = Switchboard(start_timeout_s, worker_timeout_s, close_timeout_s, launcher.describe)
    if kind == "shared_memory":
        transport = SharedMemoryTransport(spec, switchboard)

        def start(worker):
            link = transport.link(worker)
            handle = launcher.start(serve, (worker, link, faults.pop(worker, None)), worker)
            transport.attach(worker, handle)
            return handle

        return transport, start
    transport = DistributedTransport(
        spec, switchboard, ("127.0.0.1",), 0, b"secret", lambda *who: {}, worker_timeout_s, backend=kind
    )

    def start(worker):
        transport.expect(worker, 0)
        arguments = (transport.meeting, worker, spec, faults.pop(worker, None))
        handle = launcher.start(serve_remote, arguments, worker)
        transport.attach(worker, handle)
        return handle

    return transport, start


def arrive(transport):
    """The next arrival or departure; workers that join are passed over."""
    while isinstance(event := transport.receive(), Joined):
        pass
    return event


def lose(transport):
    """The error of the worker that is gone."""
    event = arrive(transport)
    assert isinstance(event, Departure)
    return event.error


def work(worker, link, fault=None):
    """Yields after each batch; one of them goes wrong as `fault` says."""
    if isinstance(fault, str):
        fault = Fault(fault)
    seen = np.zeros(1, np.int64)

    def read(buffer):
        assert len(set(buffer.tolist())) <= 1, "two versions of the weights are mixed"
        seen[0] = int(buffer[0])

    version, count = -1, 0
    while (slot := link.acquire()) is not None:
        if fault is not None and count == fault.at:
            go_wrong(fault)
        version = link.refresh(read, version)
        link.slots[slot].tensors[NUMBER][...] = torch.tensor([worker, count])
        link.send(slot, Tally(version, 0.0, 0.0, 0.0, 0.0, np.array([float(seen[0])]), np.array([count])))
        count += 1
        yield


def serve(worker, link, fault=None):
    try:
        for _ in work(worker, link, fault):
            pass
    except BaseException as error:
        link.fail(error)
        raise


def serve_remote(meeting, worker, spec, fault=None):
    told, connection, pair = join_trainer(meeting, worker, {"pid": os.getpid()}, 60.0)
    layout = Layout(spec.leaves, spec.rows, spec.steps)
    serve(worker, DistributedLink(worker, connection, pair, layout, Terms(**told["terms"])), fault)


def go_wrong(fault):
    if fault.what == "raise":
        raise KeyError("gone wrong")
    if fault.what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.what == "exit":
        os._exit(3)
    if fault.what == "hang":
        if fault.sign is not None:
            Path(fault.sign).touch()
        time.sleep(1000)


def read_versions(link, wanted, connection):
    """Refreshes until version `wanted`, asserting in `read` order. Says "reading" when it has seen one, and at the end
    how many versions it has seen and any torn."""
    state = {"torn": 0, "seen": 0, "wrong": 0}
    held = torch.zeros(link._slab.spec.weights_nbytes, dtype=torch.uint8)
    version = -1
    while version < wanted:
        newest = link.refresh(held.copy_, version)
        if newest != version:
            state["seen"] += 1
            first = int(held[0])
            state["torn"] += int((held != first).any())
            state["wrong"] += int(first != newest % 251)
            assert newest > version
            if version == -1:
                connection.send("reading")
        version = newest
    connection.send(state)
    connection.close()
