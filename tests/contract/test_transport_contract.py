"""What every transport promises (`collectx/transport/base.py`), over all transports and a worker without env."""

from __future__ import annotations

import pytest
import toyworker
from toyworker import NUMBER, slab_spec, writer

from collectx.launcher.inline import InlineLauncher
from collectx.launcher.local import LocalLauncher
from collectx.transport.inline import InlineTransport
from collectx.transport.shared_memory import SharedMemoryTransport


@pytest.fixture(params=["inline", "shared_memory"])
def connect(request):
    """`connect(spec, fault)`: a transport with its toy workers attached; closed after the test."""
    made = []

    def connect(spec, fault=None):
        if request.param == "inline":
            transport = InlineTransport(spec)
            start, entry = InlineLauncher().start, toyworker.work
        else:
            transport = SharedMemoryTransport(spec, 30.0, 30.0, 10.0)
            start, entry = LocalLauncher(1).start, toyworker.serve
        made.append(transport)
        transport.publish(writer(100))
        workers = range(spec.num_workers)
        transport.attach(start(entry, [(worker, transport.link(worker), fault) for worker in workers]))
        return transport

    yield connect
    while made:
        made.pop().close()


def content(transport, arrival):
    """(worker, count) as the worker wrote it into the slot's first frame."""
    region = transport.region_layout.slot(transport.region(arrival.worker, arrival.slot))
    start = arrival.worker * transport.slab.spec.rows if transport.slab.spec.joined else 0
    frames = region.tensors[NUMBER][start : start + transport.slab.spec.rows].reshape(-1, 2)
    assert (frames == frames[0]).all()
    return frames[0].tolist()


def test_each_worker_fills_its_grants_in_order(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=3))
    for slot in (2, 0, 1):
        for worker in range(2):
            transport.grant(worker, slot)
    seen = {0: [], 1: []}
    for _ in range(6):
        arrival = transport.receive()
        assert content(transport, arrival) == [arrival.worker, len(seen[arrival.worker])]
        seen[arrival.worker].append(arrival.slot)
    assert seen == {0: [2, 0, 1], 1: [2, 0, 1]}


def test_a_slot_that_was_not_granted_again_is_not_touched(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=2))
    transport.grant(0, 0)
    first = transport.receive()
    for count in range(1, 20):
        transport.grant(0, 1)
        assert content(transport, transport.receive()) == [0, count]
        assert content(transport, first) == [0, 0]


def test_a_worker_without_a_grant_does_nothing(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1))
    for count in range(5):
        transport.grant(1, 0)
        assert content(transport, transport.receive()) == [1, count]
    assert not transport.region(0, 0).any()


def test_joined_slots_of_all_workers_lie_in_one_region(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1, joined=True))
    for count in range(3):
        for worker in range(2):
            transport.grant(worker, 0)
        for _ in range(2):
            arrival = transport.receive()
            assert content(transport, arrival) == [arrival.worker, count]
        whole = transport.region_layout.slot(transport.region(0, 0)).tensors[NUMBER]
        assert whole[:, 0, 0].tolist() == [0, 0, 1, 1]


def test_the_newest_weights_are_read_before_the_next_grant_is_filled(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1))
    for version in range(10):
        if version:
            assert transport.publish(writer(100 + version)) == version
        transport.grant(0, 0)
        tally = transport.receive().tally
        assert (tally.policy_version, tally.episodes[0][0]) == (version, 100.0 + version)


def test_of_several_versions_only_the_newest_is_read(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1))
    assert [transport.publish(writer(value)) for value in (101, 102, 103)] == [1, 2, 3]
    transport.grant(0, 0)
    assert transport.receive().tally.policy_version == 3


def test_an_error_in_a_worker_comes_back_as_it_was(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1), fault="raise")
    for _ in range(2):
        transport.grant(1, 0)
        transport.receive()
    transport.grant(1, 0)
    with pytest.raises(KeyError, match="gone wrong") as caught:
        transport.receive()
    told = "".join(str(entry) for entry in caught.traceback) + "".join(getattr(caught.value, "__notes__", []))
    assert "go_wrong" in told


def test_after_an_error_waiting_again_raises_and_never_looks_like_the_end(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1), fault="raise")
    for _ in range(2):
        transport.grant(0, 0)
        transport.receive()
    transport.grant(0, 0)
    with pytest.raises(KeyError):
        transport.receive()
    transport.grant(0, 0)
    with pytest.raises(Exception, match="worker 0") as caught:
        transport.receive()
    assert not isinstance(caught.value, StopIteration)


def test_waiting_for_nothing_is_an_error_and_not_the_end(connect):
    transport = connect(slab_spec())
    with pytest.raises(Exception) as caught:  # noqa: PT011, any but StopIteration
        transport.receive()
    assert not isinstance(caught.value, StopIteration)


def test_close_is_idempotent_and_ends_busy_and_idle_workers(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=2))
    for slot in range(2):
        transport.grant(0, slot)
    transport.receive()
    transport.close()
    transport.close()


def test_close_before_any_worker_was_attached():
    for transport in (InlineTransport(slab_spec()), SharedMemoryTransport(slab_spec(), 1.0, 1.0, 1.0)):
        transport.close()
        transport.close()
