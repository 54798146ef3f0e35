"""Which workers take part in the batches of a collector: they are started, join, fail, and are replaced or dropped.

    starting --replies to its first requests--> ready        starting, ready --dropped--> not alive

Where a run waits for all workers, they are ready as soon as they are started, and there are no first requests. Where it
begins with some of them (`collector.min_workers`), each is sent requests, the next one after the reply to the one
before, as a worker that has not started reads nothing. It is ready when it has replied to all; so is one whose job is
submitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from collectx.collector.failure_policy import FailurePolicy
from collectx.errors import text_of
from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import Departure, Joined, Reply, Request, Transport


class Members:
    """The workers of a collector.

    Args:
        events: called as `events(name, **fields)` when a worker has joined or failed.
        min_workers: how many workers have to be ready before a batch is requested, as long as others are starting.
        first_requests: returns the first requests to a worker, at least one. None: workers are ready as soon as they
            are started.

    Attributes:
        ready: workers that take part.
        starting: workers that have not replied to their first requests.
        unanswered: the first requests without a reply, by worker, also of workers that were dropped.
    """

    def __init__(
        self,
        transport: Transport,
        schedule: Schedule,
        failure_policy: FailurePolicy,
        events: Callable[..., None],
        min_workers: int,
        first_requests: Callable[[int], Sequence[Request]] | None = None,
    ):
        self.failure_policy = failure_policy
        self.ready: set[int] = set()
        self.starting: set[int] = set()
        self.unanswered: dict[int, list[Request]] = {}
        self._transport = transport
        self._schedule = schedule
        self._events = events
        self._min_workers = min_workers
        self._first_requests = first_requests

    @property
    def lives(self) -> dict[int, int]:
        """The life of each ready worker, by index."""
        return {worker: self.failure_policy.lives[worker] for worker in self.ready}

    @property
    def num_alive(self) -> int:
        """How many workers are ready or starting."""
        return len(self.ready) + len(self.starting)

    @property
    def num_started(self) -> int:
        """How many workers were started; a replacement does not count."""
        return len(self.failure_policy.lives)

    @property
    def taking_part(self) -> tuple[int, int] | None:
        """How many workers are ready and how many were started; None if all are ready."""
        counts = len(self.ready), self.num_started
        return None if counts[0] == counts[1] else counts

    @property
    def are_too_few(self) -> bool:
        """Whether the next batch has to wait for workers that are starting."""
        return bool(self.starting) and len(self.ready) < self._min_workers

    def start(self) -> int:
        """Starts the worker of the next index and returns the index. Does not wait for it."""
        worker = self.failure_policy.begin()
        if self._first_requests is None:
            self.ready.add(worker)
        else:
            self._wait_for(worker, self._first_requests(worker))
        return worker

    def _wait_for(self, worker: int, first_requests: Sequence[Request]) -> None:
        self.starting.add(worker)
        self.unanswered[worker] = list(first_requests)
        self._transport.send_request(worker, first_requests[0])

    def add(self) -> None:
        """Starts one more worker. Only for a run that waits for all."""
        worker = self.start()
        self._events("worker_added", worker=worker, num_workers=self.num_alive)
        self._schedule.joined(worker)

    def handle_joined(self, joined: Joined) -> None:
        """Reports the connection of a worker."""
        self._events("worker_joined", worker=joined.worker, **joined.info)

    def handle_first_reply(self, reply: Reply, num_batches: int) -> None:
        """Sends a starting worker its next request, or lets it take part after the last one. Raises the reply's error.

        Args:
            num_batches: how many batches the run has delivered.
        """
        if reply.error is not None:
            raise reply.error
        worker = reply.worker
        _, *requests = self.unanswered[worker]
        if requests:
            self.unanswered[worker] = requests
            self._transport.send_request(worker, requests[0])
            return
        self.starting.remove(worker)
        del self.unanswered[worker]
        self.ready.add(worker)
        self._schedule.joined(worker)
        counts = {"num_workers": len(self.ready), "of": self.num_started, "batches": num_batches}
        self._events("worker_ready", worker=worker, **counts, new_episodes=reply.value)

    def handle_departure(self, departure: Departure, is_final: bool) -> Iterable[Grant]:
        """Replaces or drops a worker that is gone; returns the slots that its replacement may fill.

        Args:
            is_final: the run ends in any case.

        Raises:
            Exception: the worker's error, which ends the run.
        """
        worker, error = departure.worker, departure.error
        self._events("worker_failed", worker=worker, type=type(error).__name__, message=text_of(error))
        if is_final:
            raise error
        life = self.failure_policy.replace(worker, error, num_others=self.num_alive - 1)
        if life is not None:
            self._events("worker_restarted", worker=worker, life=life, after=type(error).__name__)
            if self._first_requests is None:
                return self._schedule.replaced(worker)
        if worker in self.ready:
            self.ready.remove(worker)
            self._schedule.dropped(worker)
        self.starting.discard(worker)
        if life is None:
            self._events("worker_dropped", worker=worker, num_workers=self.num_alive)
        else:
            self._wait_for(worker, [("ready", ())])
        return ()
