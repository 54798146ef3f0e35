"""Requests to workers between two of their batches, which `collectx/worker/requests.py` answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from collectx.collector.members import Members
from collectx.transport.base import Departure, Reply, Transport


class Requests:
    """Sends requests and collects their replies.

    The argument `handle_event` of its methods blocks until the transport has an event, and handles it; replies and
    departures arrive here by `handle_reply` and `handle_departure`. It is not kept: its collector has to be freed with
    the last reference to it.
    """

    def __init__(self, transport: Transport, members: Members):
        self._transport = transport
        self._members = members
        # Replies to come from each worker; more than one after a call that was interrupted.
        self._num_pending: Counter[int] = Counter()
        self._missing: set[int] = set()
        self._replies: list[Reply] = []

    def ask(
        self, handle_event: Callable[[], None], name: str, requests: Mapping[int, tuple[Any, ...]]
    ) -> dict[int, Any]:
        """Calls a method of `collectx.worker.requests.RequestHandler` in workers; blocks until they have replied.
        Returns the results by worker; raises the first error of a method, or of a worker that is gone.

        Args:
            requests: arguments by worker; those that do not take part are not asked.
        """
        ready = self._members.ready
        replies = self._send(handle_event, name, {worker: requests[worker] for worker in ready if worker in requests})
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        return {reply.worker: reply.value for reply in replies}

    def wait_until_ready(self, handle_event: Callable[[], None]) -> None:
        """Blocks until each worker that takes part, or its replacement, has replied to a request."""
        asked: dict[int, int] = {}
        while new := self._members.lives.items() - asked.items():
            asked |= dict(new)
            # The error of a worker that was replaced or dropped has been handled.
            self._send(handle_event, "ready", {worker: () for worker, _ in new})

    def _send(
        self, handle_event: Callable[[], None], name: str, requests: Mapping[int, tuple[Any, ...]]
    ) -> list[Reply]:
        self._replies, self._missing = [], set(requests)
        for worker, arguments in requests.items():
            self._transport.send_request(worker, (name, arguments))
            self._num_pending[worker] += 1
        while self._missing:
            handle_event()
        return self._replies

    def handle_reply(self, reply: Reply) -> None:
        """Takes a reply; one to an interrupted call is discarded."""
        self._num_pending[reply.worker] -= 1
        if self._num_pending[reply.worker] == 0:
            self._missing.discard(reply.worker)
            self._replies.append(reply)

    def handle_departure(self, departure: Departure) -> None:
        """Replies for a worker that is gone."""
        self._num_pending.pop(departure.worker, None)
        if departure.worker in self._missing:
            self._missing.discard(departure.worker)
            self._replies.append(Reply(departure.worker, None, departure.error))
