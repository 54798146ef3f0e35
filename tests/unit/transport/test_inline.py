"""Inline workers: what the trainer's end does with grants, requests, errors and interruptions."""

import numpy as np
import pytest
from user_code.toyworker import batch_spec

from collectx.errors import WorkerDied
from collectx.transport.base import Arrival, Departure, Fill, Request, Reset, SlotReport
from collectx.transport.inline import InlineTransport

REPORT = SlotReport(0, 6, 0.0, 0.0, np.zeros(0), np.zeros(0, int))


def worker(link):
    """Fills what it acquires; told "fail" it fails, told "end" it ends, told "raise" it raises."""
    while True:
        match link.acquire():
            case Request(name="fail"):
                link.fail(KeyError("gone wrong"))
            case Request(name="end"):
                return
            case Request(name="raise"):
                raise OSError("not here")
            case Fill(slot=slot):
                link.send(slot, REPORT)
        yield


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fail", KeyError("gone wrong")),
        ("raise", OSError("not here")),
        ("end", WorkerDied("worker 1 has ended, because it raised an error")),
    ],
)
def test_a_lost_worker_owes_nothing_and_the_others_go_on(name, error):
    transport = InlineTransport(batch_spec(3))
    for index in range(3):
        transport.attach(index, worker(transport.link(index)))
    for request in (Request(name), Request("never")):
        transport.send_request(1, request)
    transport.grant(2, 0)
    departure, arrival = transport.receive(), transport.receive()
    assert (type(departure), departure.worker, type(departure.error)) == (Departure, 1, type(error))
    assert str(error) in str(departure.error)
    assert arrival == Arrival(2, 0, REPORT)
    with pytest.raises(RuntimeError, match="no worker owes"):
        transport.receive()


def test_what_ctrl_c_interrupts_is_done_later():
    transport, interrupts = InlineTransport(batch_spec(1)), [True, False]
    link = transport.link(0)

    def interrupted():
        while True:
            acquired = link.acquire()
            if interrupts.pop(0):
                link.put_back(acquired, KeyboardInterrupt())
            elif isinstance(acquired, Fill):
                link.send(acquired.slot, REPORT)
                seen.append(acquired)
            else:
                link.reply(acquired)
            yield

    seen = []
    transport.attach(0, interrupted())
    for reset, expected in ((None, Reset()), (Reset(3), Reset(3))):
        transport.grant(0, 0, reset)
        with pytest.raises(KeyboardInterrupt):
            transport.receive()
        assert transport.receive() == Arrival(0, 0, REPORT)
        assert seen.pop() == Fill(0, expected)
        interrupts[:] = [True, False]
    transport.send_request(0, Request("a"))
    with pytest.raises(KeyboardInterrupt):
        transport.receive()
    assert transport.receive().value == Request("a")
