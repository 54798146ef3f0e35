"""The pipes between workers and the inference server, all of whose ends are here in one process."""

import contextlib
import os
import socket
from multiprocessing.connection import Connection

import pytest

from collectx.transport import inference_channel
from collectx.transport.inference_channel import NO_STEP, ActionRequest, InferenceChannel


@pytest.fixture
def ends():
    """The trainer's channel, the server's end, the client of worker 1, and the trainer's connection to it."""
    with contextlib.closing(InferenceChannel(2)) as channel, contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(Connection(end.detach())) for end in socket.socketpair())
        client = channel.client(1, 3)
        client.connect(there)
        yield channel, channel.server(), client, here


def test_a_worker_waits_for_the_answer_to_its_last_request(ends, monkeypatch, within):
    channel, server, client, _ = ends
    client.post(0, 1, 5, 77)
    client.post(1, 1, 5, 77)
    client.post(1, 1, NO_STEP, 77)
    asked = [ActionRequest(77, 3, step, 1, group, 1) for group, step in ((0, 5), (1, 5), (1, NO_STEP))]
    assert server.receive() == asked
    for request in (asked[0]._replace(incarnation=2), asked[0]._replace(step=4), asked[1], asked[0]):
        server.reply(request)
    now = iter([50_000.0, 50_003.0])
    monkeypatch.setattr(inference_channel, "perf_counter", lambda: next(now))
    waiting, read = [], os.read
    within(inference_channel, "os", read=lambda *what: (waiting.append(channel.is_waiting(1)), read(*what))[1])
    assert client.wait(0)
    assert client.wait(1)  # which was answered meanwhile
    assert (client.wait_s, waiting) == (3.0, [True])
    assert not channel.is_waiting(1)
    assert not channel.is_waiting(0)


def test_the_end_of_the_trainer_ends_the_wait_and_is_no_answer(ends):
    channel, _, client, here = ends
    client.post(0, 0, 1, 7)
    here.close()
    assert not client.wait(0)
    assert channel.is_waiting(1)
    channel.client(1, 4)  # of its replacement
    assert not channel.is_waiting(1)
