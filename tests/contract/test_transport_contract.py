"""What every transport promises (`collectx/transport/base.py`), over all transports and a worker without env."""

from __future__ import annotations

import traceback

import pytest
from worlds import toyworker
from worlds.toyworker import NUMBER, arrive, lose, slab_spec, writer

from collectx.batch import Layout
from collectx.transport.base import Departure


@pytest.fixture(params=toyworker.KINDS)
def connect(request):
    """`connect(spec, fault)`: a transport with its toy workers attached; closed after the test."""
    made = []

    def connect(spec, fault=None):
        transport, start = toyworker.place(request.param, spec, fault)
        made.append(transport)
        transport.publish(writer(100))
        for worker in range(spec.num_workers):
            start(worker)
        transport.start_again = start
        return transport

    yield connect
    while made:
        made.pop().close()


def content(transport, arrival):
    """(worker, count) as the worker wrote it into the slot's first frame."""
    frames = parts_of(transport, [arrival], own=False).reshape(-1, 2)
    assert (frames == frames[0]).all()
    return frames[0].tolist()


def parts_of(transport, parts, own):
    """The numbers in `parts`, `[rows, steps, 2]`."""
    spec = transport.spec
    layout = Layout(spec.leaves, spec.rows * len(parts), spec.steps)
    return layout.slot(transport.gather(parts, own)).tensors[NUMBER]


def test_each_worker_fills_its_grants_in_order(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=3))
    for slot in (2, 0, 1):
        for worker in range(2):
            transport.grant(worker, slot)
    seen = {0: [], 1: []}
    for _ in range(6):
        arrival = arrive(transport)
        assert content(transport, arrival) == [arrival.worker, len(seen[arrival.worker])]
        seen[arrival.worker].append(arrival.slot)
    assert seen == {0: [2, 0, 1], 1: [2, 0, 1]}


def test_a_slot_that_was_not_granted_again_is_not_touched(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=2))
    transport.grant(0, 0)
    first = arrive(transport)
    for count in range(1, 20):
        transport.grant(0, 1)
        assert content(transport, arrive(transport)) == [0, count]
        assert content(transport, first) == [0, 0]


def test_a_worker_without_a_grant_does_nothing(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1))
    for count in range(5):
        transport.grant(1, 0)
        assert content(transport, arrive(transport)) == [1, count]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_parts_of_all_workers_are_joined_in_the_order_given(connect, num_workers, own):
    transport = connect(slab_spec(num_workers, num_slots=1, joined=True))
    for count in range(3):
        for worker in range(num_workers):
            transport.grant(worker, 0)
        parts = sorted((arrive(transport) for _ in range(num_workers)), key=lambda part: part.worker)
        for some in (parts, parts[1:]):
            numbers = parts_of(transport, some, own)
            assert numbers[:, 0, 0].tolist() == [part.worker for part in some for _ in range(2)]
            assert (numbers[..., 1] == count).all()


def test_owned_bytes_stay_when_the_slot_is_filled_again(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1))
    transport.grant(0, 0)
    owned = parts_of(transport, [arrive(transport)], own=True)
    transport.grant(0, 0)
    assert content(transport, arrive(transport)) == [0, 1]
    assert (owned[..., 1] == 0).all()


def test_the_newest_weights_are_read_before_the_next_grant_is_filled(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1, joined=True))
    for version in range(10):
        if version:
            assert transport.publish(writer(100 + version)) == version
        transport.grant(0, 0)
        tally = arrive(transport).tally
        assert (tally.policy_version, tally.returns.tolist()) == (version, [100.0 + version])


def test_of_several_versions_only_the_newest_is_read(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1, joined=True))
    assert [transport.publish(writer(value)) for value in (101, 102, 103)] == [1, 2, 3]
    transport.grant(0, 0)
    assert arrive(transport).tally.policy_version == 3


def test_an_error_in_a_worker_comes_back_as_it_was(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1), fault="raise")
    for _ in range(2):
        transport.grant(1, 0)
        arrive(transport)
    transport.grant(1, 0)
    error = lose(transport)
    assert (type(error), error.args) == (KeyError, ("gone wrong",))
    assert "go_wrong" in "".join([*traceback.format_exception(error), *getattr(error, "__notes__", [])])


def test_an_error_is_told_once_and_waiting_on_is_an_error(connect):
    transport = connect(slab_spec(num_workers=1, num_slots=1), fault="raise")
    for _ in range(2):
        transport.grant(0, 0)
        arrive(transport)
    transport.grant(0, 0)
    assert isinstance(lose(transport), KeyError)


def test_the_others_go_on_when_one_is_gone(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=1), fault={1: "raise"})
    for count in range(6):
        transport.grant(0, 0)
        if count < 3:
            transport.grant(1, 0)
        events = [arrive(transport) for _ in range(2 if count < 3 else 1)]
        gone = [event.worker for event in events if isinstance(event, Departure)]
        assert gone == ([1] if count == 2 else [])
        assert [content(transport, event) for event in events if event.worker == 0] == [[0, count]]


def test_another_worker_takes_the_place_of_one_that_is_gone(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=2), fault={1: "raise"})
    for _ in range(2):
        transport.grant(1, 0)
        arrive(transport)
    transport.publish(writer(101))
    transport.grant(1, 0)
    transport.grant(1, 1)
    assert isinstance(lose(transport), KeyError)
    transport.start_again(1)
    for slot in (0, 1):
        transport.grant(1, slot)
    arrivals = [arrive(transport) for _ in range(2)]
    assert [content(transport, arrival) for arrival in arrivals] == [[1, 0], [1, 1]]
    assert [(arrival.slot, arrival.tally.policy_version) for arrival in arrivals] == [(0, 1), (1, 1)]


def test_waiting_for_nothing_is_an_error_and_not_the_end(connect):
    transport = connect(slab_spec())
    with pytest.raises(Exception) as caught:  # noqa: PT011, any but StopIteration
        arrive(transport)
    assert not isinstance(caught.value, StopIteration)


def test_close_is_idempotent_and_ends_busy_and_idle_workers(connect):
    transport = connect(slab_spec(num_workers=2, num_slots=2))
    for slot in range(2):
        transport.grant(0, slot)
    arrive(transport)
    transport.close()
    transport.close()


@pytest.mark.parametrize("kind", toyworker.KINDS)
def test_close_before_any_worker_was_started(kind):
    transport, _ = toyworker.place(kind, slab_spec())
    transport.close()
    transport.close()
