"""Decides for which requests the inference server acts next. Does no I/O; runs in the server's process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from collectx.transport.inference_channel import NO_STEP, ActionRequest

# A worker, and one of its env groups.
Member = tuple[int, int]


class Order(Protocol):
    """The order in which the server answers requests."""

    def add(self, request: ActionRequest) -> None:
        """Records a new request."""

    def drop(self, worker: int) -> None:
        """Removes a worker that is gone and not replaced."""

    def take(self) -> Sequence[ActionRequest]:
        """Returns and removes the requests for the next policy call; empty: wait for more."""

    def wait_s(self) -> float | None:
        """Returns the seconds after which `take` may return requests even if no more arrive; None: never."""


class FixedOrder:
    """Acts for all members in worker order, whatever the order of their requests, so that a seed gives the same
    actions. The members form two halves, which alternate: one steps while the policy acts for the other. A batch begins
    when all members have ended the previous one."""

    def __init__(self, members: Sequence[Member]):
        has_groups = any(group for _, group in members)
        # For each member of each half, its unanswered requests; none while the member steps.
        self._halves: list[dict[Member, deque[ActionRequest]]] = [
            {(worker, group): deque() for worker, group in members if (group if has_groups else worker) % 2 == half}
            for half in range(2)
        ]
        self._turn = 0

    def add(self, request: ActionRequest) -> None:
        for half in self._halves:
            if (waiting := half.get((request.worker, request.group))) is None:
                continue
            if waiting and waiting[-1].incarnation < request.incarnation:
                # The old process is gone. Its NO_STEP request stays, because it had completed that batch.
                ended = [each for each in waiting if each.step == NO_STEP]
                waiting.clear()
                waiting.extend(ended)
            waiting.append(request)

    def drop(self, worker: int) -> None:
        for half in self._halves:
            for member in [member for member in half if member[0] == worker]:
                del half[member]

    def take(self) -> Sequence[ActionRequest]:
        for _ in range(4):  # the halves of this batch, and of the next one
            waiting = self._halves[self._turn].values()
            if not all(waiting):
                return ()
            self._turn = 1 - self._turn
            if taken := [each.popleft() for each in waiting if each[0].step != NO_STEP]:
                return taken
            others = self._halves[self._turn].values()
            if all(each and each[0].step == NO_STEP for each in others):
                for each in (*waiting, *others):
                    each.popleft()
                self._turn = 0
        return ()

    def wait_s(self) -> float | None:
        return None


class ReadyOrder:
    """Acts for waiting members in the order in which their requests arrived.

    Args:
        sizes: number of envs in each env group of a worker.
        min_batch, timeout_s, max_batch: options of the config group `inference`. A call contains at least one env
            group, and groups are not split.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        min_batch: int,
        timeout_s: float,
        max_batch: int | None,
        clock: Callable[[], float] = monotonic,
    ):
        self._sizes, self._min_batch, self._timeout_s, self._max_batch = sizes, min_batch, timeout_s, max_batch
        self._clock = clock
        self._waiting: dict[Member, tuple[ActionRequest, float]] = {}

    def add(self, request: ActionRequest) -> None:
        member = request.worker, request.group
        self._waiting.pop(member, None)
        if request.step != NO_STEP:
            self._waiting[member] = request, self._clock()

    def drop(self, worker: int) -> None:
        for member in [member for member in self._waiting if member[0] == worker]:
            del self._waiting[member]

    def take(self) -> Sequence[ActionRequest]:
        num_envs = sum(self._sizes[group] for _, group in self._waiting)
        if num_envs < self._min_batch and self.wait_s() != 0:
            return ()
        taken: list[ActionRequest] = []
        num_envs = 0
        for request, _ in self._waiting.values():
            num_envs += self._sizes[request.group]
            if taken and self._max_batch is not None and num_envs > self._max_batch:
                break
            taken.append(request)
        for request in taken:
            del self._waiting[request.worker, request.group]
        return taken

    def wait_s(self) -> float | None:
        first = next(iter(self._waiting.values()), None)
        return None if first is None else max(0.0, first[1] + self._timeout_s - self._clock())
