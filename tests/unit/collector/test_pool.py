"""The records of workers: who is started, takes part, is asked, and is replaced or dropped."""

from types import SimpleNamespace

import pytest
from configurations import Log

from collectx.collector.pool import Channel, WorkerPool
from collectx.collector.worker_record import FailurePolicy
from collectx.errors import WorkerDied
from collectx.schedule.sync import SyncSchedule
from collectx.transport.base import Departure, Reply, Request, Reset
from collectx.worker.spec import ProcessHistory

READY, LOAD = Request("ready"), Request("load", (7,))


class Recorder:
    """A launcher and a transport that keep what they are called with."""

    def __init__(self):
        self.calls, self.requests, self.names = [], [], {}

    def announce(self, endpoint):
        self.calls.append(("announce", endpoint))

    def expect(self, worker, spec):
        self.calls.append(("expect", worker, spec()))

    def start(self, worker, entry, restarts, previous):
        self.calls.append(("start", worker, entry, restarts, previous))
        return f"process {worker}.{restarts}"

    def attach(self, worker, handle):
        self.calls.append(("attach", worker, handle))

    def send_request(self, worker, request):
        self.requests.append((worker, *request))


def make_pool(mode, num_workers, schedule, first_requests=None, histories=(), endpoint=None, is_served=False, **limits):
    recorder, log = Recorder(), Log()

    def make_spec(worker, history, is_server):
        return SimpleNamespace(to_json=lambda: ("server", worker) if is_server else (worker, history))

    entry = lambda spec: spec.to_json()  # noqa: E731
    channel = Channel(recorder, entry, entry if is_served else None, endpoint)
    policy = FailurePolicy(mode, 10, min_workers=2, **limits)
    counts = {"num_workers": num_workers, "min_workers": 2}
    whole = {"histories": dict(histories), "first_requests": first_requests}
    pool = WorkerPool(recorder, channel, make_spec, schedule, policy, log, **counts, **whole)
    pool.start_all()
    return pool, recorder, log


def test_a_worker_that_cannot_be_started_is_not_added():
    pool, recorder, _ = make_pool("raise", 2, SyncSchedule(2))
    start, recorder.start = recorder.start, None
    with pytest.raises(TypeError):
        pool.add()
    assert (len(pool.records), pool.num_alive, pool.ready) == (2, 2, {0, 1})
    recorder.start = start
    pool.add()
    assert (len(pool.records), pool.num_alive, pool.ready) == (3, 3, {0, 1, 2})


def test_all_workers_are_expected_before_one_can_find_the_trainer():
    _, recorder, _ = make_pool("restart", 2, SyncSchedule(2), histories={1: ProcessHistory(4)}, endpoint="here")
    assert [call[:3] for call in recorder.calls[:4]] == [
        ("expect", 0, (0, ProcessHistory())),
        ("expect", 1, (1, ProcessHistory(4))),
        ("announce", "here"),
        ("start", 0, (0, ProcessHistory())),
    ]


def test_the_inference_server_starts_last_and_is_asked_with_the_workers():
    pool, recorder, _ = make_pool("restart", 2, SyncSchedule(2), is_served=True)
    assert recorder.calls[-3:] == [
        ("expect", 2, ("server", 2)),
        ("start", 2, ("server", 2), 0, None),
        ("attach", 2, "process 2.0"),
    ]
    assert (pool.ready, pool.askable, pool.num_alive) == ({0, 1}, {0, 1, 2}, 2)
    assert list(pool.handle_departure(Departure(0, WorkerDied("killed")), is_final=False)) == []
    with pytest.raises(WorkerDied):
        pool.handle_departure(Departure(2, WorkerDied("killed")), is_final=False)


def test_a_replacement_begins_the_next_incarnation_with_the_reset_of_its_worker():
    schedule = SyncSchedule(2)
    pool, recorder, log = make_pool("restart", 2, schedule)
    worker = pool.records[1]
    list(schedule.batch_awaited())
    worker.num_granted, worker.reset, worker.num_frames = 1, Reset(), 30
    pool.request("ready", {1: ()})
    recorder.calls.clear()
    assert list(pool.handle_departure(Departure(1, WorkerDied("killed")), is_final=False)) == [(1, 0)]
    assert recorder.calls == [
        ("expect", 1, (1, ProcessHistory(1, 1, num_restarts=1))),
        ("start", 1, (1, ProcessHistory(1, 1, num_restarts=1)), 1, "process 1.0"),
        ("attach", 1, "process 1.1"),
    ]
    assert (worker.history.incarnation, worker.num_granted, worker.num_frames, pool.num_awaited) == (1, 0, 30, 0)
    assert (worker.take_reset(), worker.take_reset()) == (Reset(), None)
    assert log.of("worker_restarted") == [{"worker": 1, "incarnation": 1, "restarts": 1, "after": "WorkerDied"}]
    assert (pool.replies(), [*pool.lost]) == ({}, [1])


@pytest.mark.parametrize("reason", [None, "it has a thread"])
def test_a_worker_that_loads_a_state_is_restored_whatever_it_is_told_afterwards(reason):
    pool, recorder, log = make_pool("drop", 2, SyncSchedule(0), first_requests=lambda worker: [READY])
    worker = pool.records[0]
    pool.restore_starting({0: {"old": 1}})
    pool.restore_starting({0: {"new": 1}})
    worker.reset = Reset(5)
    pool.handle_first_reply(Reply(0, None, None), 0)
    pool.tell_starting("set_hook", "pre_collect_hook", None)
    pool.handle_first_reply(Reply(0, reason, None), 0)
    assert worker.saved == {"new": 1}
    pool.handle_first_reply(Reply(0, None, None), 3)
    names = [request[:2] for request in recorder.requests]
    assert [name for index, name in names if index == 0] == ["ready", "load", "set_hook"]
    assert (worker.reset, worker.saved) == (Reset(5) if reason else None, None)
    assert log.of("worker_ready")[0]["new_episodes"] == reason
