"""Workers without env or policy, for tests of transports: they fill a slot with (worker, count)."""

import os
import socket
import time

import numpy as np
import torch

from collectx.batch import Layout, Leaf
from collectx.place.local_launcher import LocalLauncher
from collectx.transport.base import Departure, Joined, SlotReport, SlotSpec
from collectx.transport.inline import InlineTransport
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.link import join_trainer
from collectx.transport.network.transport import NetworkTransport
from collectx.transport.shared_memory import SharedMemoryTransport
from collectx.transport.supervisor import Supervisor

NUMBER = ("number",)
LEAVES = (Leaf(NUMBER, (2,), torch.int64), Leaf(("small",), (3,), torch.uint8))
SECRET = b"s" * 32


def batch_spec(num_workers=2, num_slots=2, weights_nbytes=4096):
    """Slots of two rows and three steps, one region for each."""
    return SlotSpec(LEAVES, 2, 3, num_workers, num_slots, False, False, weights_nbytes)


def writer(value):
    return lambda buffer: buffer.fill_(value)


class Toys:
    """A transport of that kind, and its toy workers. A context manager: closes the transport at its end.

    Args:
        fails_at: the number of the batch in which every worker's first incarnation raises an error.
        clock: see `Supervisor`.
        remote: further arguments of `NetworkTransport`.
    """

    def __init__(
        self,
        kind,
        spec,
        fails_at=None,
        *,
        clock=time.monotonic,
        address="127.0.0.1",
        spec_of=lambda incarnation: {},
        **remote,
    ):
        self.spec = spec
        self._fails_at, self._spec_of = fails_at, spec_of
        self._lives = dict.fromkeys(range(spec.num_workers), 0)
        self._launcher = launcher = LocalLauncher(1)
        if kind == "inline":
            self.transport = InlineTransport(spec)
        else:
            self.supervisor = supervisor = Supervisor(60.0, 60.0, 60.0, launcher.describe, None, clock)
            if kind == "shared_memory":
                self.transport = SharedMemoryTransport(spec, supervisor)
            else:
                arguments = (spec, supervisor, Endpoint((address,), 0, SECRET))
                self.transport = NetworkTransport(*arguments, timeout_s=60.0, backend=kind, **remote)
        self.grant = self.transport.grant
        self.publish(writer(100))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.transport.close()

    def start(self, worker, is_attached=True):
        """Starts and attaches a worker's next incarnation; returns its process, if it is one."""
        transport, incarnation = self.transport, self._lives[worker]
        fails_at = self._fails_at if incarnation == 0 else None
        self._lives[worker] += 1
        if isinstance(transport, InlineTransport):
            transport.attach(worker, work(worker, transport.link(worker), fails_at))
            return None
        if isinstance(transport, SharedMemoryTransport):
            entry = serve, (worker, transport.link(worker), fails_at)
        else:
            transport.expect(worker, lambda: self._spec_of(incarnation))
            entry = run_remote_worker, (transport.endpoint, worker, fails_at)
        handle = self._launcher.start(worker, entry)
        if is_attached:
            transport.attach(worker, handle)
        return handle

    def publish(self, write):
        """Publishes weights for all workers; returns their version."""
        return self.transport.publish({None: write})

    def arrive(self):
        """The next arrival or departure; workers that join are passed over."""
        while isinstance(event := self.transport.receive(), Joined):
            pass
        return event

    def deliver(self, count=1, worker=0):
        """Grants slot 0 and waits for it, `count` times; checks what the worker has written."""
        for _ in range(count):
            self.grant(worker, 0)
            arrival = self.arrive()
            assert self.content(arrival) == [worker, arrival.report.lengths[0]]

    def lose(self):
        """The error of the worker that is gone."""
        event = self.arrive()
        assert isinstance(event, Departure)
        return event.error

    def numbers(self, arrival, copy=False):
        """Returns what the worker has written: (worker, count) for each frame."""
        layout = Layout(self.spec.leaves, self.spec.rows, self.spec.steps)
        return layout.slot(self.transport.gather([arrival], copy)).tensors[NUMBER].reshape(-1, 2)

    def content(self, arrival):
        """The same, where it is one for all frames of the slot."""
        (content,) = self.numbers(arrival).unique(dim=0).tolist()
        return content


def work(worker, link, fails_at):
    """Yields after each batch."""
    weights, version, count = [], -1, 0

    def read(buffer):
        weights[:] = [buffer.clone()]

    while (grant := link.acquire()) is not None:
        if count == fails_at:
            raise KeyError("gone wrong")
        version = link.refresh(read, version)
        value = weights[0].unique().tolist()
        assert len(value) == 1, "two versions of the weights are mixed"
        link.slots[grant.slot].tensors[NUMBER][...] = torch.tensor([worker, count])
        link.send(grant.slot, SlotReport(version, 6, 0.0, 0.0, np.array(value, float), np.array([count])))
        count += 1
        yield


def serve(worker, link, fails_at):
    try:
        for _ in work(worker, link, fails_at):
            pass
    except BaseException as error:
        link.fail(error)
        raise


def run_remote_worker(endpoint, worker, fails_at):
    socket.setdefaulttimeout(60.0)
    _, link = join_trainer(endpoint, worker, {"pid": os.getpid()}, 60.0)
    serve(worker, link, fails_at)
