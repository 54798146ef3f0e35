"""Messages of a worker that knows the secret and is broken: its end is reported, nothing of it is executed."""

import contextlib
import io
import json
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from worlds.toyworker import Toys, slab_spec

from collectx.errors import RemoteFailure
from collectx.transport import messages
from collectx.transport.base import BatchReport

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
    messages.pack_have(0),
    messages.FAILED + RemoteFailure.of(ValueError("wrong")).to_json(),
    messages.pack_tensors(messages.REPLY, ({"weights": torch.ones(2)}, None)),
]
CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)
MESSAGES = st.one_of(
    st.binary(max_size=99),
    st.tuples(st.sampled_from(range(9)), st.binary(max_size=99)).map(lambda both: bytes([both[0]]) + both[1]),
    st.builds(_altered, st.sampled_from(WHOLE), CHANGES),
    st.builds(lambda message, end: message[: 1 + end % len(message)], st.sampled_from(WHOLE), st.integers(0, 10_000)),
)


@CASES
def test_a_broken_message_is_the_end_of_its_worker_alone(cases, tmp_path):
    path = tmp_path / "executed"
    with Toys("gloo", slab_spec(1)) as toys:
        toys.start(0)
        toys.deliver()
        transport, removed = toys.transport, []
        worker = transport._workers[0]
        transport._remove_worker = lambda worker, error: removed.append(error)

        @given(MESSAGES)
        @settings(max_examples=cases)
        def check(message):
            removed.clear()
            transport._handle_message(worker, message)
            if removed:
                text = "".join([str(removed[0]), *getattr(removed[0], "__notes__", [])])
                assert "worker 0" in text
            for _, _, report in transport._announced:
                assert 0 <= report.frames <= 6
            transport._announced.clear()
            transport._received.clear()

        for message in _evil_messages(path):
            check = example(message)(check)
        check()
        del transport._remove_worker
    assert not path.exists()


@CASES
def test_what_is_no_message_is_refused_by_the_worker(cases):
    @given(MESSAGES)
    @settings(max_examples=cases)
    def check(message):
        for unpack in (messages.unpack, messages.unpack_full):
            with contextlib.suppress(ValueError, struct.error):
                unpack(message)

    check()


def test_what_a_hook_has_added_travels_with_the_report():
    report = BatchReport(3, 6, 0.1, 0.2, np.array([1.5]), np.array([6]), added={"deep.key": torch.ones(1, 6)})
    slot, same = messages.unpack_full(messages.pack_full(2, report))
    assert (slot, same.policy_version, same.returns.tolist(), same.lengths.tolist()) == (2, 3, [1.5], [6])
    assert torch.equal(same.added["deep.key"], report.added["deep.key"])
