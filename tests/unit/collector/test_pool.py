"""The records of workers: who is started, takes part, is asked, and is replaced or dropped."""

from types import SimpleNamespace

import pytest
from configurations import Log

from collectx.collector.pool import WorkerPool
from collectx.collector.worker_record import FailurePolicy
from collectx.errors import JobEnded, WorkerDied, worker_of
from collectx.place.workers import Workers
from collectx.schedule.sync import SyncSchedule
from collectx.transport.base import Departure, Reply, Request, Reset
from collectx.worker.spec import ProcessHistory

READY, LOAD = Request("ready"), Request("load", (7,))


class Recorder:
    """A launcher and a transport that keep what they are called with."""

    max_requeues = 0

    def __init__(self):
        self.calls, self.requests = [], []

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
    specs = SimpleNamespace(
        make=lambda *who: SimpleNamespace(to_json=lambda: who),
        make_server=lambda *who: SimpleNamespace(to_json=lambda: ("server", *who)),
    )
    entry = lambda spec: spec.to_json()  # noqa: E731
    workers = Workers(recorder, recorder, specs, entry, endpoint, entry if is_served else None)
    policy = FailurePolicy(mode, 10, min_workers=2, **limits)
    counts = {"num_workers": num_workers, "min_workers": 2}
    pool = WorkerPool(
        workers, schedule, policy, log, **counts, histories=dict(histories), first_requests=first_requests
    )
    pool.start_all()
    return pool, recorder, log


@pytest.fixture
def made():
    """A pool of three workers that begins with two, where worker 2 has a state; the schedule, requests and events."""
    schedule = SyncSchedule(0)
    pool, recorder, log = make_pool(
        "drop", 3, schedule, lambda worker: [READY, LOAD] if worker == 2 else [READY], max_requeues=1
    )
    return pool, schedule, recorder.requests, log


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
    with pytest.raises(WorkerDied):
        pool.replies()


def test_an_added_worker_has_incarnations_that_no_other_worker_has():
    schedule = SyncSchedule(2)
    pool, recorder, _ = make_pool("restart", 2, schedule, max_requeues=3)
    pool.add()
    assert ("expect", 2, (2, ProcessHistory(14))) in recorder.calls
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]


def test_a_reply_to_an_interrupted_request_is_discarded():
    pool, _, _ = make_pool("restart", 2, SyncSchedule(2))
    pool.request("envs", {0: (), 1: ()})
    pool.request("state", {0: (), 1: (), 5: ()})
    for worker, value in ((0, "old"), (1, "old"), (0, 3), (1, 4)):
        assert pool.num_awaited > 0
        pool.handle_reply(Reply(worker, value))
    assert (pool.num_awaited, pool.replies(), pool.unanswered) == (0, {0: 3, 1: 4}, [])


def test_a_worker_is_ready_when_it_has_replied(made):
    pool, _, requests, log = made
    assert requests == [(0, *READY), (1, *READY), (2, *READY)]
    pool.handle_first_reply(Reply(2), num_batches=0)
    assert (requests[3:], pool.ready) == ([(2, *LOAD)], set())
    sizes = []
    for worker in (2, 0, 1):
        pool.handle_first_reply(Reply(worker), num_batches=0)
        sizes.append((pool.num_ready, pool.must_wait_for_workers, pool.ready_of_started))
    assert sizes == [(1, True, (1, 3)), (2, False, (2, 3)), (3, False, None)]
    assert not any(worker.first_requests for worker in pool.records)
    assert [each["worker"] for each in log.of("worker_ready")] == [2, 0, 1]


def test_a_pending_reset_is_of_use_to_new_envs_only_by_its_seed_and_never_to_restored_ones(made):
    pool = made[0]
    for worker, reset in zip(pool.records, (Reset(5), Reset(), Reset(5)), strict=True):
        worker.reset = reset
    for index in (0, 1, 2, 2):
        pool.handle_first_reply(Reply(index), 0)
    assert [worker.reset for worker in pool.records] == [Reset(5), None, None]


def test_a_worker_whose_first_request_fails_ends_the_run(made):
    with pytest.raises(ValueError, match="no such state"):
        made[0].handle_first_reply(Reply(2, None, ValueError("no such state")), 0)


def test_a_worker_that_never_replied_is_dropped_and_its_request_is_kept(made):
    pool, _, _, log = made
    pool.handle_departure(Departure(2, WorkerDied("late")), is_final=False)
    assert log.of("worker_dropped") == [{"worker": 2, "num_workers": 2}]
    assert pool.records[2].first_requests == [READY, LOAD]
    with pytest.raises(WorkerDied):
        pool.handle_departure(Departure(1, WorkerDied("late")), is_final=False)


def test_a_worker_whose_job_is_submitted_again_is_not_waited_for(made):
    pool, schedule, requests, _ = made
    for worker in (0, 1, 2, 2):
        pool.handle_first_reply(Reply(worker), 0)
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]
    assert list(pool.handle_departure(Departure(2, JobEnded("preempted")), is_final=False)) == []
    assert (pool.ready, pool.starting) == ({0, 1}, {2})
    # It begins new episodes, so it gets no state.
    assert requests[-1] == (2, *READY)
    assert pool.records[2].history.incarnation == 1
    pool.handle_first_reply(Reply(2), 5)
    assert pool.ready_of_started is None


def test_who_joins_late_gets_the_settings_in_force_and_begins_anew_unless_restored(made):
    pool, _, requests, _ = made
    pool.settings.add("call", "set_level", [((1,), {})])
    pool.settings.add("set_attr", "size", [(False, 3)])
    newest = pool.settings.add("call", "set_level", [((2,), {}), ((3,), {})])
    for index in (0, 1, 2):
        pool.handle_first_reply(Reply(index), 0)
    pool.handle_first_reply(Reply(2), 0)
    size = ("set_attr", "size", (False, 3))
    for index, level in ((0, 2), (1, 3)):
        assert (index, "change", ([size, ("call", "set_level", ((level,), {}))],)) in requests
        assert pool.records[index].reset == Reset(0)
    # Worker 2 was restored, with no setting of this run in its envs.
    assert (2, "change", ([size, newest.of(2)],)) in requests
    assert pool.records[2].reset is None
    pool.handle_reply(Reply(0))
    with pytest.raises(AttributeError, match="no size") as caught:
        pool.handle_reply(Reply(1, None, AttributeError("no size")))
    assert worker_of(caught.value) == 1
    with pytest.raises(WorkerDied) as caught:
        pool.handle_departure(Departure(2, WorkerDied("killed")), is_final=True)
    assert worker_of(caught.value) == 2


def test_a_worker_that_is_lost_while_it_gets_a_setting_is_no_error_of_the_setting(made):
    pool = made[0]
    for index in (0, 1, 2):
        pool.handle_first_reply(Reply(index), 0)
    pool.handle_first_reply(Reply(2), 0)
    setting = pool.settings.add("call", "go", [((), {})])
    pool.request("change", {index: ([setting.of(index)],) for index in (0, 1, 2)}, is_setting=True)
    pool.handle_departure(Departure(1, WorkerDied("killed")), is_final=False)
    pool.handle_reply(Reply(0, [5]))
    pool.handle_reply(Reply(2, [6]))
    assert pool.num_awaited == 0
    assert pool.replies() == {0: [5], 2: [6]}
