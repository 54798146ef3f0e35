"""Both ends of shared memory in one process: a seeded walk, compared with a model of what each worker is owed."""

import random
from array import array
from collections import deque
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from user_code.toyworker import NUMBER, batch_spec, writer

from collectx.errors import WorkerDied
from collectx.transport.base import Arrival, Departure, Reply, Request, Reset, SlotReport
from collectx.transport.shared_memory import SharedMemoryTransport
from collectx.transport.supervisor import Supervisor


class Unpicklable:
    def __reduce__(self):
        raise TypeError("has a lock")


class Unreadable:
    """Raises where it is unpickled."""

    def __reduce__(self):
        return _raise, ()


def _raise():
    raise OSError("not here")


class Walk:
    def __init__(self, seed, **options):
        self.draw, self.spec = random.Random(seed), replace(batch_spec(3, weights_nbytes=8), **options)
        self.supervisor = Supervisor(60.0, 60.0, 0.0, lambda index, handle: f"worker {index}")
        self.transport = SharedMemoryTransport(self.spec, self.supervisor)
        self.version, self.links, self.known, self.owed, self.told, self.free = -1, {}, {}, {}, {}, {}
        self.publish()
        for index in range(3):
            self.start(index)

    def start(self, index):
        counts = self.transport.slab.progress(index)
        counts[:] = memoryview(array(counts.format, [5, 6, 7]))
        link = self.links[index] = self.transport.link(index)
        assert [*counts] == [0, 0, 0]
        self.known[index], self.owed[index], self.told[index], self.free[index] = -1, deque(), deque(), [0, 1]
        self.transport._close_remote_end = lambda peer: None  # this process is the worker's too
        assert (link.worker, link.fileno()) == (index, link._connection.fileno())

    def publish(self):
        self.version = self.transport.publish({None: writer(self.version + 1)})

    def grant(self, index):
        slot, reset = self.free[index].pop(), self.draw.choice([None, Reset(), Reset(7), Reset(8, True)])
        version = self.version if self.spec.grants_name_version else None
        self.transport.grant(index, slot, reset, version)
        self.owed[index].append((slot, reset, version))

    def request(self, index):
        request = Request("state", (self.draw.randrange(9), {"a"}))
        self.transport.send_request(index, request)
        self.owed[index].append((request, None, None))

    def refused(self, index):
        """Sends a request that the worker cannot unpickle."""
        self.transport.send_request(index, Request("state", (Unreadable(),)))
        self.told[index].append(Reply(index, None, OSError("not here")))
        self.request(index)
        self.work(index)

    def work(self, index):
        link = self.links[index]
        granted, reset, version = self.owed[index].popleft()
        acquired = link.acquire()
        if isinstance(granted, Request):
            assert acquired == granted
            value, error, heard = self.draw.choice(
                [
                    ({1: print}, None, ({1: print}, None)),
                    (None, ValueError("wrong"), (None, ValueError("wrong"))),
                    (Unpicklable(), None, (None, TypeError("has a lock"))),
                    (Unreadable(), None, (None, OSError("not here"))),
                ]
            )
            link.reply(value, error)
            self.told[index].append(Reply(index, *heard))
            return
        assert acquired.reset == reset
        assert self.transport.slab.slot_in(index, acquired.slot) == granted
        read = []
        self.known[index] = link.refresh(lambda buffer: read.append(buffer.unique().tolist()), self.known[index])
        assert self.known[index] == (self.version if version is None else version)
        assert read in ([], [[self.known[index]]])
        link.slots[acquired.slot].tensors[NUMBER][...] = torch.tensor([index, self.known[index]])
        report = SlotReport(self.known[index], 6, 0.5, 0.25, np.zeros(1), np.ones(1, int))
        self.told[index].append(Arrival(index, granted, report))
        link.send(acquired.slot, report)

    def lose(self, index):
        name = f"worker {index}"
        self.receive()
        if self.draw.random() < 0.5:
            self.links[index].fail(KeyError("gone wrong"))
            self.told[index].append(Departure(index, KeyError("gone wrong")))
        else:
            self.links[index]._connection.close()
            self.told[index].append(Departure(index, WorkerDied(f"{name} is gone")))
        if not self.supervisor.has_outstanding:
            self.supervisor.granted(self.supervisor.workers[index])  # as otherwise nothing is waited for
        self.receive(1)
        for _ in range(2):
            self.transport.grant(index, 0)  # does nothing, as it is gone
        self.start(index)

    def receive(self, count=0):
        """Receives the events that are there, and waits for at least `count` of them."""
        while count or any(self.told.values()):
            event, count = self.transport.receive(), max(0, count - 1)
            expected = self.told[event.worker].popleft()
            assert type(event) is type(expected)
            if isinstance(event, Arrival):
                assert (event.slot, event.report.policy_version) == (expected.slot, expected.report.policy_version)
                numbers = self.spec.layout().slot(self.transport.gather([event], True)).tensors[NUMBER]
                assert numbers.reshape(-1, 2).unique(dim=0).tolist() == [[event.worker, event.report.policy_version]]
                self.transport.release([event])
                self.free[event.worker].append(event.slot)
            elif expected.error is not None:
                assert type(event.error) is type(expected.error)
                assert str(expected.error) in str(event.error)
            else:
                assert event.value == expected.value

    def step(self):
        events = [(self.receive,)] * 2
        # A schedule waits with newer weights for batches with older ones.
        if not self.spec.grants_name_version or not any(self.owed.values()):
            events.append((self.publish,))
        for index in range(3):
            events += [(self.grant, index)] * 2 if self.free[index] else []
            events += [(self.request, index)] if len(self.owed[index]) < 3 else []
            events += [(self.refused, index)] if not self.owed[index] else []
            events += [(self.work, index)] * 3 if self.owed[index] else []
            events += [(self.lose, index)] if self.draw.random() < 0.1 else []
        event, *arguments = self.draw.choice(events)
        event(*arguments)


@pytest.mark.parametrize("options", [{}, {"grants_name_version": True}, {"num_spare": 2}], ids=str)
def test_a_walk_of_both_ends(options):
    walk = Walk(0, **options)
    with closing(walk.transport):
        for _ in range(300):
            walk.step()
        while any(walk.owed.values()):
            for index, owed in walk.owed.items():
                if owed:
                    walk.work(index)
        walk.receive()
        assert not walk.supervisor.has_outstanding
        with pytest.raises(RuntimeError, match="no worker is collecting a batch or answering a request"):
            walk.transport.receive()
        # The end of the trainer is no request.
        walk.transport.close()
        assert walk.links[0].acquire() is None
        assert walk.links[0].stop[0] == 1
        for link in walk.links.values():
            link._connection.close()
