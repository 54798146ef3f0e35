"""Which workers take part in a run that begins with some of them."""

import pytest
from collecting import Log

from collectx.collector.failure_policy import FailurePolicy
from collectx.collector.members import Members
from collectx.errors import JobEnded, WorkerDied
from collectx.schedule.sync import SyncSchedule
from collectx.transport.base import Departure, Reply

READY, LOAD = ("ready", ()), ("load", (7,))


class Sent:
    """A transport that keeps the requests."""

    def __init__(self):
        self.requests = []

    def send_request(self, worker, request):
        self.requests.append((worker, *request))


@pytest.fixture
def made():
    """Members of three workers that begin with two, where worker 2 has a state; the schedule, requests and events."""
    transport, schedule, log = Sent(), SyncSchedule(0), Log()
    policy = FailurePolicy("drop", 10, 3, lambda worker, life: None, {}, min_workers=2, max_requeues=1)
    members = Members(transport, schedule, policy, log, 2, lambda worker: [READY, LOAD] if worker == 2 else [READY])
    for _ in range(3):
        members.start()
    return members, schedule, transport.requests, log


def test_a_worker_is_ready_when_it_has_replied(made):
    members, _, requests, log = made
    assert requests == [(0, *READY), (1, *READY), (2, *READY)]
    members.handle_first_reply(Reply(2), num_batches=0)
    assert (requests[3:], members.ready) == ([(2, *LOAD)], set())
    sizes = []
    for worker in (2, 0, 1):
        members.handle_first_reply(Reply(worker), num_batches=0)
        sizes.append((len(members.ready), members.are_too_few, members.taking_part))
    assert sizes == [(1, True, (1, 3)), (2, False, (2, 3)), (3, False, None)]
    assert members.unanswered == {}
    assert [each["worker"] for each in log.of("worker_ready")] == [2, 0, 1]


def test_a_worker_whose_first_request_fails_ends_the_run(made):
    with pytest.raises(ValueError, match="no such state"):
        made[0].handle_first_reply(Reply(2, None, ValueError("no such state")), 0)


def test_a_worker_that_never_replied_is_dropped_and_its_request_is_kept(made):
    members, _, _, log = made
    members.handle_departure(Departure(2, WorkerDied("late")), is_final=False)
    assert log.of("worker_dropped") == [{"worker": 2, "num_workers": 2}]
    assert members.unanswered[2] == [READY, LOAD]
    with pytest.raises(WorkerDied):
        members.handle_departure(Departure(1, WorkerDied("late")), is_final=False)


def test_a_worker_whose_job_is_submitted_again_is_not_waited_for(made):
    members, schedule, requests, _ = made
    for worker in (0, 1, 2, 2):
        members.handle_first_reply(Reply(worker), 0)
    assert list(schedule.begin()) == [(0, 0), (1, 0), (2, 0)]
    assert list(members.handle_departure(Departure(2, JobEnded("preempted")), is_final=False)) == []
    assert (members.ready, members.starting) == ({0, 1}, {2})
    # It begins new episodes, so it gets no state.
    assert requests[-1] == (2, *READY)
    assert members.failure_policy.lives[2] == 1
    members.handle_first_reply(Reply(2), 5)
    assert members.taking_part is None
