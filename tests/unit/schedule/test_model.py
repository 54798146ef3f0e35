"""Every order of events up to a depth, for each schedule: no slot is granted twice, none is lost, none waits for ever,
and no worker joins in the middle of a sync batch.

The model is the collector's use of a schedule. One event at a time: the trainer takes a step of `next`, a worker fills
its oldest granted slot, a worker is gone and is replaced or dropped, a worker joins, weights are published, another
process continues from a checkpoint. States that were seen are not entered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from collectx.schedule.asynchronous import AsyncSchedule, BoundedLagSchedule
from collectx.schedule.base import Schedule
from collectx.schedule.recorded import RecordedBatch, RecordedSchedule
from collectx.schedule.sync import SyncSchedule, _Batch
from collectx.transport.base import Arrival

RECORD = [RecordedBatch(*batch) for batch in [(0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 2), (0, 2, 2)]]


@dataclass
class Model:
    schedule: Schedule
    # Returns the schedule of a process that continues this model.
    continued: Callable[[Model], Schedule]
    num_batches: int | None
    # For each worker that is not dropped, the slots that it may fill, the oldest first.
    granted: dict[int, deque[int]]
    # Slots that are full, until they are released.
    full: set[tuple[int, int]] = field(default_factory=set)
    delivered: tuple[Arrival, ...] = ()
    num_delivered: int = 0
    version: int = 0
    faults: int = 0
    next_worker: int = 2
    # How many times a worker may still join, a new one or one that was dropped.
    late: int = 0
    may_cut: bool = True
    # Of a stacked schedule, the workers that took part when the batch was begun, without those that were dropped before
    # their part had arrived; None between two batches.
    begun: set[int] | None = None

    @property
    def key(self) -> str:
        state = {name: sorted(value) if isinstance(value, set) else value for name, value in vars(self).items()}
        inner = {
            name: sorted(value) if isinstance(value, set) else value for name, value in vars(self.schedule).items()
        }
        if self.num_batches is None:
            del state["num_delivered"]
        return repr(state | {"schedule": inner})

    def grant(self, grants) -> None:
        for worker, slot in grants:
            assert worker in self.granted, f"worker {worker} was dropped and is granted slot {slot}"
            assert slot not in self.granted[worker], f"slot {slot} of worker {worker} is granted twice"
            assert (worker, slot) not in self.full, f"slot {slot} of worker {worker} is granted while it is full"
            assert 0 <= slot < self.schedule.num_slots
            self.granted[worker].append(slot)
            full = sum(each == worker for each, _ in self.full)
            assert len(self.granted[worker]) + full <= self.schedule.num_slots, f"worker {worker} is ahead"

    @property
    def num_in_flight(self) -> int:
        """Slots that are granted, or full and not delivered."""
        return sum(map(len, self.granted.values())) + len(self.full) - len(self.delivered)

    def cut(self) -> None:
        """Lets another process continue from a checkpoint, for which workers fill the slots that they were granted."""
        for worker, slots in self.granted.items():
            while slots:
                self.fill(worker)
        batches = self.schedule.undelivered()
        self.may_cut, self.schedule = False, self.continued(self)
        self.schedule.published(self.version)
        self.schedule.skip(self.num_delivered)
        self.full, self.delivered, self.begun = set(), (), None
        for number, parts in enumerate(batches, start=1):
            restored = tuple(Arrival(part.worker, -number, part.report) for part in parts)
            self.schedule.restore(restored)
            self.full |= {(part.worker, part.slot) for part in restored}
            if self.schedule.stacked:
                self.begun = {part.worker for part in restored}

    @property
    def can_be_cut(self) -> bool:
        """Tells whether a checkpoint can be taken: a recorded order has all workers."""
        return not isinstance(self.schedule, RecordedSchedule) or sorted(self.granted) == [0, 1]

    @property
    def is_over(self) -> bool:
        return self.num_batches is not None and self.num_delivered >= self.num_batches

    def next(self) -> bool:
        """Takes one step of `Collector.next`; returns False where it has to wait for an event."""
        if self.delivered:
            parts, self.delivered = self.delivered, ()
            self.full -= {(part.worker, part.slot) for part in parts}
            self.grant(self.schedule.released(parts))
            return True
        if self.is_over:
            return False
        parts = self.schedule.next_batch()
        if parts is None:
            grants = list(self.schedule.batch_awaited())
            if self.schedule.stacked and grants:
                assert self.begun is None or not self.begun, "a batch is begun in the middle of another one"
                assert {worker for worker, _ in grants} == set(self.granted), "a batch is begun without a worker"
                self.begun = set(self.granted)
            self.grant(grants)
            return bool(grants)
        assert parts
        assert len({part.worker for part in parts}) == len(parts)
        assert {(part.worker, part.slot) for part in parts} <= self.full
        if self.schedule.stacked:
            workers = {part.worker for part in parts}
            assert workers >= self.begun, "a worker is missing"
            assert workers <= self.begun, "a worker has joined in the middle of the batch"
            self.begun = None
        else:
            assert len(parts) == 1
        self.delivered, self.num_delivered = parts, self.num_delivered + 1
        return True

    def fill(self, worker: int) -> None:
        slot = self.granted[worker].popleft()
        self.full.add((worker, slot))
        self.schedule.arrived(Arrival(worker, slot, Acted(0)))

    def replace(self, worker: int) -> None:
        lost = sorted(self.granted[worker])
        self.granted[worker].clear()
        self.faults += 1
        self.grant(self.schedule.replaced(worker))
        assert sorted(self.granted[worker]) == lost, "a replacement has the slots that its predecessor had"

    def drop(self, worker: int) -> None:
        del self.granted[worker]
        self.faults += 1
        self.schedule.dropped(worker)
        if self.begun is not None and all(each != worker for each, _ in self.full):
            self.begun.discard(worker)

    def join(self, worker: int) -> None:
        self.next_worker = max(self.next_worker, worker + 1)
        self.granted[worker] = deque()
        self.late -= 1
        self.schedule.joined(worker)

    def publish(self) -> bool:
        """Publishes weights unless slots have to be filled before; tells whether it did."""
        if self.schedule.must_wait_to_publish:
            self.grant(self.schedule.before_publish())
        if is_due := not self.schedule.must_wait_to_publish:
            self.version += 1
            self.schedule.published(self.version)
        return is_due

    def events(self) -> list[tuple]:
        events: list[tuple] = [("next",)]
        events += [("fill", worker) for worker, slots in self.granted.items() if slots]
        if self.may_cut and self.can_be_cut:
            events.append(("cut",))
        if self.version < 2:
            events.append(("publish",))
        if self.late:
            events += [("join", worker) for worker in range(self.next_worker + 1) if worker not in self.granted]
        if self.faults < 2:
            events += [("replace", worker) for worker in self.granted]
            if len(self.granted) + self.late > 1:
                events += [("drop", worker) for worker in self.granted]
        return events

    def after(self, event: tuple) -> Model:
        model = _copied(self)
        name, *arguments = event
        getattr(model, name)(*arguments)
        return model

    def check_end(self) -> None:
        """Asserts that workers that fill their slots let the trainer deliver more batches, without a further fault."""
        model = _copied(self)
        if not model.granted:
            model.join(model.next_worker)
        target = model.num_delivered + 4 if model.num_batches is None else model.num_batches
        while model.num_delivered < target:
            if model.next():
                continue
            busy = [worker for worker, slots in model.granted.items() if slots]
            if busy:
                model.fill(busy[0])
            else:
                assert model.version < 2, "nothing is granted, and a batch is requested"
                assert model.publish() or any(model.granted.values()), "nothing is granted, and publishing has to wait"


@dataclass
class BoundedLagModel(Model):
    """A model whose trainer publishes once per batch at most. `next_batch` raises where the lag of a batch is above
    the limit."""

    # The version at the grant of each slot that is granted or full.
    acted: dict[tuple[int, int], int] = field(default_factory=dict)
    may_publish: bool = False

    def grant(self, grants) -> None:
        super().grant(grants)
        self.acted |= dict.fromkeys(grants, self.version)

    def next(self) -> bool:
        has_slots, before = bool(self.delivered), self.num_delivered
        has_moved = super().next()
        self.may_publish = self.num_delivered > before or (has_slots and self.may_publish)
        return has_moved

    def fill(self, worker: int) -> None:
        slot = self.granted[worker].popleft()
        self.full.add((worker, slot))
        self.schedule.arrived(Arrival(worker, slot, Acted(self.acted.pop((worker, slot)))))

    def publish(self) -> None:
        super().publish()
        self.may_publish = False

    def cut(self) -> None:
        super().cut()
        self.may_publish = False

    def events(self) -> list[tuple]:
        return [event for event in super().events() if event != ("publish",) or self.may_publish]


@dataclass
class OverlappedModel(Model):
    """A model in which two batches may be filled at a time. All parts of one have the same version, which is no older
    than that of the last."""

    last_version: int = 0

    def next(self) -> bool:
        if self.delivered or self.is_over:
            return super().next()
        grants = list(self.schedule.batch_requested())
        assert not grants or {worker for worker, _ in grants} == set(self.granted), "a batch is begun without a worker"
        self.grant(grants)
        parts = self.schedule.next_batch()
        if parts is None:
            return bool(grants)
        assert {(part.worker, part.slot) for part in parts} <= self.full
        (version,) = {part.report.policy_version for part in parts}
        assert self.last_version <= version <= self.version
        self.delivered, self.num_delivered, self.last_version = parts, self.num_delivered + 1, version
        return True

    def fill(self, worker: int) -> None:
        slot = self.granted[worker].popleft()
        self.full.add((worker, slot))
        self.schedule.arrived(Arrival(worker, slot, Acted(self.schedule.version_of(slot))))


def _copied(value):
    """Copies a model as `copy.deepcopy` does, in a fifth of the time: the other parts do not change."""
    match value:
        case dict():
            return {key: _copied(each) for key, each in value.items()}
        case list() | set() | deque():
            return type(value)(map(_copied, value))
        case Model() | Schedule() | _Batch():
            copy = object.__new__(type(value))
            vars(copy).update(_copied(vars(value)))
            return copy
    return value


class Acted(NamedTuple):
    """The part of a report that a schedule reads."""

    policy_version: int


def _workers(count: int) -> dict[int, deque[int]]:
    return {worker: deque() for worker in range(count)}


def _model(make, num_batches: int | None = None, late: int = 0, model=Model) -> Model:
    """Makes a model of two workers, or of three of which `late` ones join."""
    ready = 3 - late if late else 2

    def continued(before: Model) -> Schedule:
        schedule = make(0)
        for worker in before.granted:
            schedule.joined(worker)
        return schedule

    return model(make(ready), continued, num_batches, _workers(ready), next_worker=ready, late=late)


def _bounded(max_lag: int, late: int = 0) -> Model:
    return _model(lambda ready: BoundedLagSchedule(ready, 2, None, False, max_lag), late=late, model=BoundedLagModel)


def _overlapped(num_batches: int | None = None, late: int = 0) -> Model:
    def make(ready: int) -> Schedule:
        schedule = SyncSchedule(ready, 1, num_batches)
        schedule.published(0)
        return schedule

    return _model(make, num_batches, late, OverlappedModel)


def _async(num_slots: int, num_batches: int | None = None, exact: bool = False, late: int = 0) -> Model:
    return _model(lambda ready: AsyncSchedule(ready, num_slots, num_batches, exact), num_batches, late)


def _replay() -> Model:
    def continued(before: Model) -> Schedule:
        return RecordedSchedule(2, 2, len(RECORD), RECORD[before.num_delivered :], False)

    schedule = RecordedSchedule(2, 2, len(RECORD), RECORD, False)
    schedule.published(0)
    return Model(schedule, continued, len(RECORD), _workers(2))


_MODELS = {
    "sync": lambda: _model(SyncSchedule, late=1),
    "overlap": lambda: _overlapped(late=1),
    "overlap-3-batches": lambda: _overlapped(3),
    "overlap-all-late": lambda: _overlapped(late=3),
    "sync-all-late": lambda: _model(SyncSchedule, late=3),
    "async-1-slot": lambda: _async(1),
    "async-all-late": lambda: _async(2, 5, late=3),
    "async": lambda: _async(2),
    "async-5-batches": lambda: _async(2, 5),
    "async-exact": lambda: _async(2, 3, exact=True),
    "lag-0": lambda: _bounded(0, late=1),
    "lag-1": lambda: _bounded(1),
    "lag-1-all-late": lambda: _bounded(1, late=3),
    "lag-2": lambda: _bounded(2),
    "replay": _replay,
}


_FAST = ("sync", "overlap", "async", "lag-1-all-late", "lag-2", "replay")


@pytest.mark.parametrize("depth", [6, pytest.param(12, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in _FAST else pytest.mark.ci) for each in _MODELS]
)
def test_every_order_of_events(name, depth):
    frontier = [(_MODELS[name](), ())]
    seen = {frontier[0][0].key}
    for _ in range(depth):
        following = []
        for model, path in frontier:
            for event in model.events():
                try:
                    after = model.after(event)
                    if after.key in seen:
                        continue
                    after.check_end()
                except AssertionError as error:
                    raise AssertionError(f"{error}: after {(*path, event)}") from error
                seen.add(after.key)
                following.append((after, (*path, event)))
        frontier = following
    assert len(seen) > 200
