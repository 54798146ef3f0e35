"""Requests to workers between two of their batches, which `collectx/worker/requests.py` answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from collectx.transport.base import Departure, Reply, Transport


class Requests:
    """Sends requests and collects their replies."""

    def __init__(self) -> None:
        # Replies to come from each worker; more than one after a call that was interrupted.
        self._num_pending: Counter[int] = Counter()
        self._missing: set[int] = set()
        self._replies: list[Reply] = []

    def send(
        self,
        transport: Transport,
        handle_event: Callable[[], None],
        name: str,
        requests: Mapping[int, tuple[Any, ...]],
    ) -> dict[int, Any]:
        """Calls a method of `collectx.worker.requests.RequestHandler` in workers; blocks until they have replied.
        Returns the results by worker; raises the first error of a method, or of a worker that is gone.

        Args:
            handle_event: blocks until the transport has an event, and handles it; replies and departures arrive here by
                `handle_reply` and `handle_departure`.
            requests: arguments by worker.
        """
        self._replies, self._missing = [], set(requests)
        for worker, arguments in requests.items():
            transport.send_request(worker, (name, arguments))
            self._num_pending[worker] += 1
        while self._missing:
            handle_event()
        for reply in self._replies:
            if reply.error is not None:
                raise reply.error
        return {reply.worker: reply.value for reply in self._replies}

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
