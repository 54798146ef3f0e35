"""Both ends of a network in one process, without threads: seeded walks of grants, weights, batches, requests and
losses, compared with a model of what each worker must act with. Pairs are queues of bytes; connections are real.
"""

import itertools
import os
import random
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from socket import socketpair

import numpy as np
import pytest
import torch
from user_code.toyworker import NUMBER, SECRET, batch_spec, writer

from collectx.errors import WorkerDied
from collectx.transport.base import Arrival, Departure, Fill, Joined, Reply, Request, Reset, SlotReport
from collectx.transport.network import link as network_link
from collectx.transport.network import transport as ends
from collectx.transport.network import weight_sync
from collectx.transport.network.admission import RemotePeer
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.link import NetworkLink
from collectx.transport.network.transport import NetworkTransport
from collectx.transport.peer import JoinState
from collectx.transport.supervisor import Supervisor


class Queue:
    """One direction of a pair: messages reach the buffers in the order in which these are posted."""

    def __init__(self):
        self.sent, self.posted = deque(), deque()

    def send(self, buffer):
        self.sent.append(buffer.clone())
        self.move()

    def receive(self, buffer):
        incoming = Incoming(buffer)
        self.posted.append(incoming)
        self.move()
        return incoming

    def move(self):
        while self.sent and self.posted:
            incoming = self.posted.popleft()
            incoming.buffer.copy_(self.sent.popleft())
            incoming.is_done = True


@dataclass
class Incoming:
    buffer: torch.Tensor
    is_done: bool = False

    def done(self):
        return self.is_done

    def wait(self):
        assert self.is_done
        return self.buffer


@dataclass
class Pair:
    outwards: Queue
    inwards: Queue
    is_closed: bool = False

    def send(self, buffer):
        self.outwards.send(buffer)
        return self

    def receive(self, buffer):
        return self.inwards.receive(buffer)

    def wait(self):
        pass

    def close(self):
        self.is_closed = True


class Admission:
    """Admits the workers that the test lets join."""

    def __init__(self, workers, batch, config, events, endpoint, interface):
        self._workers, self.endpoint, self.queue = workers, endpoint, deque()
        self.readable, self._wakeup = os.pipe()

    def expect(self, worker, make_spec):
        self._workers[worker] = RemotePeer(worker, make_spec=make_spec)

    def admit(self, *admitted):
        self.queue.append(admitted)
        os.write(self._wakeup, b"x")

    def take(self):
        os.read(self.readable, 1)
        return self.queue.popleft()

    def withdraw(self, peer):
        peer.state = JoinState.GONE

    def stop(self):
        pass

    def close(self):
        os.close(self.readable)
        os.close(self._wakeup)


@dataclass
class Worker:
    """A worker's link, what it holds, and the model of what it is owed.

    Attributes:
        weights, version: what it acts with.
        owed: the grants and requests that it has not acquired, with the versions that it may act with.
        told: the events that the trainer must receive from it, the next one first.
        free: its slots that are not granted.
    """

    link: NetworkLink | None = None
    pair: Pair | None = None
    weights: int = -1
    version: int = -1
    owed: deque = field(default_factory=deque)
    told: deque = field(default_factory=deque)
    free: list = field(default_factory=lambda: [0, 1])


class Walk:
    def __init__(self, seed, stack, **options):
        self.draw, self.stack = random.Random(seed), stack
        self.spec = replace(batch_spec(3, weights_nbytes=8), **options)
        self.supervisor = Supervisor(60.0, 60.0, 0.0, lambda index, handle: f"worker {index}")
        self.transport = NetworkTransport(
            self.spec, self.supervisor, Endpoint(("127.0.0.1",), 1, SECRET), timeout_s=60.0
        )
        stack.callback(self.transport.close)
        self.workers, self.kept = {}, []
        # The value of each version for all workers, and the newest version of each worker.
        self.values, self.newest = {}, dict.fromkeys(range(3), -1)
        self.named = deque([0], maxlen=2)
        self.publish(None)
        for index in range(3):
            self.expect(index)

    def expect(self, index):
        self.workers[index] = Worker()
        self.transport.expect(index, dict)

    def join(self, index):
        worker, wires = self.workers[index], (Queue(), Queue())
        ours, theirs = (self.stack.enter_context(Connection(end.detach())) for end in socketpair())
        worker.pair = Pair(*wires)
        worker.link = NetworkLink(index, theirs, Pair(*reversed(wires)), self.spec, SECRET, 20.0)
        worker.link._poller = Pumped(worker.link._poller, lambda: self.pump_others(index))
        peer = self.transport._workers[index]
        peer.info = {"host": f"host {index}"}
        self.transport._admission.admit(peer, ours, worker.pair)
        worker.told.appendleft(Joined(index, peer.info))
        self.pump()

    def pump(self):
        """Lets the trainer handle what has arrived, without blocking, and compares it with the model."""
        self.transport._process_events(0.0)
        while self.transport._received:
            event = self.transport.receive()
            worker = self.workers[event.worker]
            self.compare(worker.told.popleft(), event)
            if isinstance(event, Arrival):
                self.take(worker, event)

    def pump_others(self, waiting):
        """Lets the trainer and the other workers go on."""
        for index, worker in self.workers.items():
            if worker.link is not None and index != waiting:
                worker.link._receive_messages(0.0)
                worker.link._take_weights()
        self.pump()

    def compare(self, expected, event):
        assert type(event) is type(expected)
        match event:
            case Arrival(slot=slot, report=report):
                assert (slot, *plain(report)) == (expected.slot, *plain(expected.report))
            case Departure(error=error):
                # The system tells a worker's end apart from one that left messages unread.
                text = str(error).replace(" ([Errno 104] Connection reset by peer)", "")
                assert (type(error), text) == (type(expected.error), str(expected.error))
            case Reply(value=value, error=error):
                assert (value, str(error)) == (expected.value, str(expected.error))
            case _:
                assert event == expected

    def take(self, worker, arrival):
        """The bytes of a batch: leased and kept for a while, copied, or read where they are."""
        how = self.draw.choice(["lease", "copy", "view"])
        memory = self.transport.lease([arrival]) if how == "lease" else self.transport.gather([arrival], how == "copy")
        content = memory.clone()
        numbers = self.spec.layout().slot(memory).tensors[NUMBER]
        assert numbers.unique(dim=1).reshape(-1, 2).unique(dim=0).tolist() == [
            [arrival.worker, arrival.report.policy_version]
        ]
        self.transport.release([arrival])
        worker.free.append(arrival.slot)
        if how != "view":
            self.kept.append((memory, content))

    def publish(self, chosen):
        value = self.draw.randrange(256)
        writes = {index: writer(value) for index in ([None] if chosen is None else chosen)}
        version = self.transport.publish(writes)
        assert version == len(self.values)
        self.values[version] = value
        self.newest |= dict.fromkeys(self.newest if chosen is None else chosen, version)
        if chosen is None:
            assert self.transport.newest_weights().tolist() == [value] * 8

    def grant(self, index):
        worker = self.workers[index]
        slot = worker.free.pop(0)
        reset = self.draw.choice([None, Reset(), Reset(7), Reset(8, True)])
        if self.spec.grants_name_version:
            newest = len(self.values) - 1
            # As a schedule does it: two batches at a time, each with a version of its own.
            if newest not in self.named and not self.is_named(self.named[0] if len(self.named) == 2 else -1):
                self.named.append(newest)
            low = high = self.named[-1]
            self.transport.grant(index, slot, reset, high)
        else:
            low, high = self.newest[index] if self.spec.require_latest else 0, None
            self.transport.grant(index, slot, reset)
        worker.owed.append((Fill(slot, reset), low, high))

    def is_named(self, version):
        """Whether a worker still has to act with this version."""
        return any(low == version for worker in self.workers.values() for _, low, _ in worker.owed)

    def request(self, index):
        request = Request("state", (self.draw.randrange(9), [1.5, None]))
        self.transport.send_request(index, request)
        self.workers[index].owed.append((request, None, None))

    def work(self, index):
        worker = self.workers[index]
        expected, low, high = worker.owed.popleft()
        acquired = worker.link.acquire()
        assert acquired == expected
        if isinstance(acquired, Request):
            value, error = self.draw.choice([((1, {"a": "b"}), None), (None, ValueError("wrong"))])
            worker.told.append(Reply(index, value, error))
            worker.link.reply(value, error)
            return

        def read(buffer):
            assert buffer.shape == (8,)
            (worker.weights,) = buffer.unique().tolist()

        worker.version = worker.link.refresh(read, worker.version)
        assert low <= worker.version <= (len(self.values) - 1 if high is None else high)
        assert worker.weights == self.values.get(worker.version, -1)
        assert not worker.link.stop[0]
        worker.link.slots[acquired.slot].tensors[NUMBER][...] = torch.tensor([index, worker.version])
        report = self.report(worker.version)
        worker.told.append(Arrival(index, acquired.slot, report))
        worker.link.send(acquired.slot, report)

    def report(self, version):
        episodes, metrics = self.draw.randrange(3), self.draw.randrange(3)
        times = [self.draw.random() for _ in range(4)]
        returns, lengths = np.arange(episodes) + 0.5, np.arange(episodes) + self.draw.randrange(9)
        added = {("own", "score"): torch.ones(2, 3)} if self.draw.random() < 0.2 else {}
        sums = np.arange(2.0 * metrics).reshape(2, metrics)
        return SlotReport(version, self.draw.randrange(7), *times[:2], returns, lengths, *times[2:], sums, added)

    def lose(self, index):
        """The worker fails, or is gone; another process of it takes its place, with the slots that it owed."""
        worker, peer = self.workers[index], self.transport._workers[index]
        name = f"worker {index} on host {index}"
        self.pump()  # what arrives together with the loss is lost
        if self.draw.random() < 0.5:
            worker.link.fail(KeyError("gone wrong"))
            worker.told.append(Departure(index, KeyError("gone wrong")))
        else:
            worker.link.connection.close()
            text = (
                "its connection broke before it reported an error. Possible causes: it was killed, ran out of memory, "
                "crashed in native code of the env, or its host was lost."
            )
            worker.told.append(Departure(index, WorkerDied(f"{name} is gone: {text}")))
        self.pump()
        assert not worker.told
        assert (worker.pair.is_closed, peer.connection, peer.handle) == (True, None, None)
        self.transport.grant(index, 0)  # does nothing until it is expected again
        self.expect(index)
        for granted, *_ in worker.owed:
            if isinstance(granted, Fill):
                self.workers[index].free.remove(granted.slot)
                self.transport.grant(
                    index, granted.slot, None, self.named[-1] if self.spec.grants_name_version else None
                )
                low = (
                    self.named[-1]
                    if self.spec.grants_name_version
                    else self.newest[index]
                    if self.spec.require_latest
                    else 0
                )
                self.workers[index].owed.append(
                    (Fill(granted.slot), low, low if self.spec.grants_name_version else None)
                )

    def step(self):
        events = [(self.pump,)] * 3
        if self.spec.grants_name_version:
            events.append((self.publish, None))
        else:
            events += [(self.publish, None), (self.publish, self.draw.sample(range(3), self.draw.randrange(1, 3)))]
        for index, worker in self.workers.items():
            events += [(self.request, index)] if len(worker.owed) < 3 else []
            events += [(self.grant, index)] * 3 if worker.free else []
            if worker.link is None:
                events += [(self.join, index)] * 2
            elif worker.owed:
                events += [(self.work, index)] * 4
            if worker.link is not None and self.draw.random() < 0.1:
                events.append((self.lose, index))
        event, *arguments = self.draw.choice(events)
        event(*arguments)


class Pumped:
    """A worker that waits lets the others go on."""

    def __init__(self, poller, pump):
        self._poller, self._pump = poller, pump

    def poll(self, limit):
        for _ in range(20 if limit is None or limit > 0 else 0):
            if not self._poller.poll(0):
                self._pump()
        return self._poller.poll(0)


@pytest.mark.parametrize(
    ("options", "most_sending"),
    # With named versions, a worker takes the next one only when it has been granted a slot.
    [({}, 1), ({}, 4), ({"require_latest": True}, 1), ({"grants_name_version": True}, 4)],
    ids=str,
)
def test_a_walk_of_both_ends(options, most_sending, monkeypatch):
    monkeypatch.setattr(ends, "Admission", Admission)
    monkeypatch.setattr(weight_sync, "_MIN_CONCURRENT", most_sending)
    monkeypatch.setattr(weight_sync, "_TRANSFER_BYTES", 0)
    with ExitStack() as stack:
        walk = Walk(most_sending, stack, **options)
        sync = walk.transport._weight_sync
        for _ in range(300):
            walk.step()
            sending = sum(peer.has_joined and peer.sending is not None for peer in walk.supervisor.workers.values())
            assert sync._num_sending == sending <= most_sending
        for index, worker in walk.workers.items():
            if worker.link is None:
                walk.join(index)
            while worker.owed:
                walk.work(index)
            walk.pump()
            assert not worker.told
        assert not walk.supervisor.has_outstanding
        with pytest.raises(RuntimeError, match="no worker is collecting a batch or answering a request"):
            walk.transport.receive()
        assert len(walk.kept) > 20
        for _ in range(2):
            walk.transport.close()
        walk.pump_others = lambda waiting: None
        assert all(worker.pair.is_closed and worker.link.acquire() is None for worker in walk.workers.values())
        assert all(torch.equal(memory, content) for memory, content in walk.kept)


def filling(stack):
    """A walk whose worker 0 has begun to fill a slot, and this worker's link."""
    walk = Walk(0, stack)
    walk.join(0)
    walk.grant(0)
    link = walk.workers[0].link
    assert isinstance(link.acquire(), Fill)
    return walk, link


def test_a_reply_does_not_overtake_the_bytes_of_a_slot(monkeypatch):
    monkeypatch.setattr(ends, "Admission", Admission)
    with ExitStack() as stack:
        walk, link = filling(stack)
        walk.transport.send_request(0, Request("state", ()))
        assert isinstance(link.acquire(), Request)
        bytes_of_slots, report = walk.workers[0].pair.inwards, walk.report(0)
        monkeypatch.setattr(bytes_of_slots, "move", lambda: None)
        link.slots[0].tensors[NUMBER][...] = torch.tensor([0, 0])
        link.send(0, report)
        link.reply("state")
        walk.pump()  # nothing is told yet
        monkeypatch.undo()
        bytes_of_slots.move()
        walk.workers[0].told += [Arrival(0, 0, report), Reply(0, "state", None)]
        walk.pump()
        assert not walk.workers[0].told


def test_weights_that_arrive_after_a_grant_are_used(monkeypatch):
    monkeypatch.setattr(ends, "Admission", Admission)
    with ExitStack() as stack:
        walk, link = filling(stack)
        walk.publish(None)
        assert link.refresh(lambda buffer: None, -1) == 1


def test_weights_that_arrive_within_a_batch_make_room_for_newer_ones(monkeypatch, within):
    monkeypatch.setattr(ends, "Admission", Admission)
    within(network_link, "time", monotonic=itertools.count().__next__)
    with ExitStack() as stack:
        walk, link = filling(stack)
        for _ in range(4):
            walk.publish(None)
            assert not link.stop[0]  # as after each step
            walk.pump()
        assert link.refresh(lambda buffer: None, 0) == 4


def plain(report):
    arrays = [array.tolist() for array in (report.returns, report.lengths, report.metrics)]
    added = {key: value.tolist() for key, value in report.added.items()}
    return (
        report.policy_version,
        report.frames,
        report.env_s,
        report.policy_s,
        report.wait_s,
        report.send_s,
        arrays,
        added,
    )
