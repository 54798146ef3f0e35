"""Messages of a worker that knows the secret and is broken: its end is reported, nothing of it is executed."""

import contextlib
import io
import json
import os
import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Pipe
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from user_code.toyworker import SECRET, Toys, batch_spec

from collectx import state as states
from collectx.errors import NotRestorableError, RemoteFailure, RendezvousError
from collectx.transport import messages
from collectx.transport.base import Arrival, Departure, Fill, Joined, Request, SlotReport
from collectx.transport.network.link import NetworkLink, join_trainer

CASES = pytest.mark.parametrize(
    "cases", [100, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)


class Evil:
    """Makes the file when it is unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return open, (self._path, "w")


def _evil_messages(path):
    file = io.BytesIO()
    torch.save([Evil(path), None], file)
    pickles = [file.getvalue(), pickle.dumps(Evil(path))]
    failure = {"type_name": "subprocess.Popen", "message": "", "traceback": "", "attributes": {}}
    texts = [json.dumps(failure | {"arguments": [["touch", str(path)]]}).encode()]
    kinds = (messages.REPLY, messages.FAILED, messages.FULL, FULL)
    return [kind + content for kind in kinds for content in pickles + texts]


def _altered(message, changes):
    content = bytearray(message)
    for place, value in changes:
        content[1 + place % (len(content) - 1)] ^= value
    return bytes(content)


FULL = struct.pack("<cqqqqdddd", messages.FULL, 0, 0, 6, 1, 0.1, 0.1, 0.1, 0.1) + struct.pack("<dq", 1.5, 6)
WHOLE = [
    FULL,
    FULL + messages.pack_tensors(messages.FULL, {"added": torch.ones(1, 6)}),
    messages.pack_version(messages.HAVE, 0),
    messages.FAILED + RemoteFailure.of(ValueError("wrong")).to_json(),
    messages.pack_signed(messages.REPLY, ({"weights": torch.ones(2)}, None), SECRET),
]
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)
MESSAGES = st.one_of(
    st.binary(max_size=99),
    st.tuples(st.sampled_from(range(9)), st.binary(max_size=99)).map(lambda both: bytes([both[0]]) + both[1]),
    st.builds(_altered, st.sampled_from(WHOLE), CHANGES),
    st.builds(lambda message, end: message[: 1 + end % len(message)], st.sampled_from(WHOLE), st.integers(0, 10_000)),
)


def join(toys):
    """Lets this process join as worker 0, which owes two replies; returns its link."""
    toys.transport.expect(0, dict)
    for _ in range(2):
        toys.transport.send_request(0, Request("state", ()))
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join_trainer, toys.transport.endpoint, 0, {}, 60.0)
        assert isinstance(toys.transport.receive(), Joined)
        _, link = joining.result()
    assert [type(link.acquire()) for _ in range(2)] == [Request] * 2
    return link


@CASES
def test_a_broken_message_is_the_end_of_its_worker_alone(cases, tmp_path):
    path = tmp_path / "executed"
    with Toys("gloo", batch_spec(1)) as toys, ExitStack() as stack:
        links = []

        @given(MESSAGES)
        @settings(max_examples=cases, deadline=None)
        def check(message):
            if not links:
                links.append(join(toys))
                stack.callback(links[0].connection.close)
            links[0].connection.send_bytes(message)
            links[0].reply("after it")
            event = toys.transport.receive()
            if isinstance(event, Departure):
                links.clear()
                assert "worker 0" in "".join([str(event.error), *getattr(event.error, "__notes__", [])])
                return
            is_reply = event.value != "after it"
            if is_reply:
                event = toys.transport.receive()
            assert (event.value, event.error) == ("after it", None)
            for _ in range(1 + is_reply):
                toys.transport.send_request(0, Request("state", ()))
                assert isinstance(links[0].acquire(), Request)

        for message in _evil_messages(path):
            check = example(message)(check)
        check()
    assert not path.exists()


@pytest.mark.parametrize(("frames", "is_right"), [(-1, False), (0, True), (6, True), (7, False)])
def test_a_batch_has_no_more_frames_than_a_slot(frames, is_right):
    with Toys("gloo", batch_spec(1)) as toys:
        link = join(toys)
        toys.grant(0, 0)
        assert link.acquire() == Fill(0)
        link.send(0, SlotReport(0, frames, 0.0, 0.0, np.array([]), np.array([], np.int64)))
        event = toys.transport.receive()
        link.connection.close()
        assert isinstance(event, Arrival) is is_right
        assert is_right or f"worker 0 is gone: it sent an invalid message (ValueError('{frames} frames'))" in str(
            event.error
        )


@CASES
def test_what_is_no_message_is_refused_by_the_worker(cases):
    @given(MESSAGES)
    @settings(max_examples=cases)
    def check(message):
        for unpack in (messages.unpack_grant, messages.unpack_version, messages.unpack_full):
            with contextlib.suppress(ValueError, struct.error):
                unpack(message)

    check()


@pytest.fixture
def ends():
    """Yields the link of a worker, and the trainer's end of its connection."""
    trainers, workers = Pipe()
    with trainers, workers:
        yield NetworkLink(0, workers, Mock(), batch_spec(1), SECRET, 60.0), trainers


class _Making:
    """Makes the folder when it is unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


def _load_request(path, secret):
    """Returns a request to load a state of envs whose pickle makes the folder."""
    envs = torch.frombuffer(bytearray(zlib.compress(pickle.dumps(_Making(path)))), dtype=torch.uint8)
    return messages.pack_signed(messages.REQUEST, ("load", ({"rollout": {"envs": envs}},)), secret)


def _acquire_and_unpickle(link):
    """Does what a worker does with the envs of a request."""
    request = link.acquire()
    assert isinstance(request, Request)
    with contextlib.suppress(NotRestorableError):
        states.loads(request.arguments[0]["rollout"]["envs"], None, "envs")


@pytest.mark.parametrize("tampering", ["signed by another", "altered", "unsigned"])
def test_a_worker_does_not_unpickle_a_state_that_the_trainer_has_not_signed(ends, tmp_path, tampering):
    link, trainers = ends
    path = tmp_path / "executed"
    message = _load_request(path, b"another" if tampering == "signed by another" else SECRET)
    if tampering == "altered":
        message = _altered(message, [(len(message) // 2, 1)])
    if tampering == "unsigned":
        message = message[:-32]
    trainers.send_bytes(message)
    with pytest.raises(RendezvousError, match="not signed with the secret of this run"):
        _acquire_and_unpickle(link)
    assert not path.exists()


def test_a_worker_unpickles_a_state_that_the_trainer_has_signed(ends, tmp_path):
    link, trainers = ends
    trainers.send_bytes(_load_request(tmp_path / "executed", SECRET))
    _acquire_and_unpickle(link)
    assert (tmp_path / "executed").exists()
