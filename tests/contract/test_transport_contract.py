"""What every transport promises (`collectx/transport/base.py`), over all transports and a worker without env. What a
worker's end is called is in `test_survival.py`."""

import contextlib
from dataclasses import replace
from multiprocessing.connection import wait

import pytest
from user_code.toyworker import Toys, batch_spec, writer
from ways import TRANSPORTS, over

from collectx.transport.base import Arrival, Departure

PROCESSES = [way for way in TRANSPORTS if way.place != "inline"]


@pytest.fixture
def connect(way):
    """`connect(...)`: a transport with its toy workers attached; closed after the test."""
    with contextlib.ExitStack() as stack:

        def connect(num_workers=2, num_slots=1, num_started=None, require_latest=False, **kwargs):
            spec = replace(batch_spec(num_workers, num_slots), require_latest=require_latest)
            toys = stack.enter_context(Toys(way.transport, spec, **kwargs))
            toys.handles = [toys.start(worker) for worker in range(num_workers)[:num_started]]
            return toys

        yield connect


@over(TRANSPORTS, smoke=True)
def test_each_worker_fills_its_grants_in_order(connect):
    toys = connect(num_slots=3)
    for slot in (2, 0, 1):
        for worker in range(2):
            toys.grant(worker, slot)
    seen = {0: [], 1: []}
    for _ in range(6):
        arrival = toys.arrive()
        assert toys.content(arrival) == [arrival.worker, len(seen[arrival.worker])]
        seen[arrival.worker].append(arrival.slot)
    assert seen == {0: [2, 0, 1], 1: [2, 0, 1]}


@over(TRANSPORTS)
def test_a_slot_changes_only_after_its_next_grant_and_a_copy_never(connect):
    toys = connect(num_slots=2)
    toys.grant(1, 0)
    first = toys.arrive()
    owned = toys.numbers(first, copy=True)
    for count in range(1, 10):
        toys.grant(1, 1)
        assert toys.content(toys.arrive()) == [1, count]
        assert toys.content(first) == [1, 0]
    toys.grant(1, 0)
    assert toys.content(toys.arrive()) == [1, 10]
    assert owned.unique(dim=0).tolist() == [[1, 0]]


@over(PROCESSES)
def test_weights_that_are_published_while_a_worker_reads_are_never_torn(way):
    with Toys(way.transport, batch_spec(1, 1, weights_nbytes=4_000_000)) as toys:
        toys.start(0)
        newest = 0
        for _ in range(30):
            toys.grant(0, 0)
            for _ in range(20):
                newest = toys.publish(writer((101 + newest) % 251))
            report = toys.arrive().report  # the worker finds them all equal
            assert report.returns.tolist() == [(100 + report.policy_version) % 251]
        assert 0 < report.policy_version <= newest


@over(TRANSPORTS, smoke=True)
def test_individual_weights_reach_their_workers_alone_until_newer_ones_come_for_all(connect):
    """Worker 2 joins after all that is published before it."""
    toys = connect(3, num_started=2, require_latest=True)

    def acting(worker):
        toys.grant(worker, 0)
        report = toys.arrive().report
        return report.policy_version, report.returns.tolist()

    for _ in range(2):
        version = toys.transport.publish({worker: writer(200 + worker) for worker in (0, 2)})
    assert (version, acting(0), acting(1)) == (2, (2, [200.0]), (0, [100.0]))
    assert toys.transport.publish({1: writer(7)}) == 3
    toys.start(2)
    assert [acting(worker) for worker in range(3)] == [(2, [200.0]), (3, [7.0]), (2, [202.0])]
    with pytest.raises(ZeroDivisionError):
        toys.transport.publish({0: writer(9), 1: lambda buffer: 1 / 0})
    assert acting(0) == (2, [200.0])
    assert toys.publish(writer(8)) == 4
    assert [acting(worker) for worker in range(3)] == [(4, [8.0])] * 3


@over(TRANSPORTS)
def test_versions_begin_with_the_first_one_and_the_newest_weights_of_all_are_returned(way):
    with Toys(way.transport, replace(batch_spec(1, 1), first_version=7, require_latest=True)) as toys:
        toys.start(0)
        for version, value in ((7, 100), (8, 101)):
            toys.grant(0, 0)
            report = toys.arrive().report
            assert (report.policy_version, report.returns.tolist()) == (version, [value])
            newest = toys.transport.newest_weights()
            assert toys.publish(writer(value + 1)) == version + 1
            assert (len(newest), newest.unique().tolist()) == (4096, [value])
        toys.transport.publish({0: writer(9)})
        assert toys.transport.newest_weights().unique().tolist() == [102]


@over(TRANSPORTS)
@pytest.mark.parametrize("num_started", [0, 2])
def test_close_is_idempotent_and_ends_busy_and_idle_workers(connect, num_started):
    toys = connect(num_slots=2, num_started=num_started)
    if num_started:
        for slot in range(2):
            toys.grant(0, slot)
        toys.arrive()
    toys.transport.close()
    toys.transport.close()
    assert all(handle is None or handle.exitcode is not None for handle in toys.handles)


@over(PROCESSES)
@pytest.mark.parametrize("publishes", [False, True])
def test_a_lost_worker_is_granted_nothing_more(connect, publishes):
    """The end of a worker is noticed with its last batch, or while weights are published, and received afterwards."""
    toys = connect(1, num_slots=2, fails_at=2)
    toys.deliver()
    for slot in range(2):
        toys.grant(0, slot)
    assert wait([toys.handles[0].sentinel], 60)
    if publishes:
        toys.publish(writer(102))
        toys.grant(0, 0)
    while isinstance(event := toys.arrive(), Arrival):
        toys.grant(0, event.slot)
    assert isinstance(event, Departure)
    toys.start(0)
    for slot in range(2):
        toys.grant(0, slot)
    assert [toys.arrive().slot for _ in range(2)] == [0, 1]
    with pytest.raises(RuntimeError, match="no worker owes a batch"):
        toys.transport.receive()


@over(PROCESSES)
def test_a_worker_that_sends_while_the_trainer_closes_ends_quietly(connect, capfd):
    for _ in range(4):
        toys = connect(num_slots=2)
        for slot in range(2):
            for worker in range(2):
                toys.grant(worker, slot)
        for _ in range(3):
            toys.arrive()
        toys.transport.close()
        assert [handle.exitcode for handle in toys.handles] == [0, 0]
    lines = capfd.readouterr().err.splitlines()
    # torch says of every RPC agent that has gone that it has.
    assert [line for line in lines if "tensorpipe_agent.cpp" not in line] == []
