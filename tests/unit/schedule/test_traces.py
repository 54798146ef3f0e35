"""Each schedule's decisions in a walk of random events, as a whole. `test_model.py` checks what every order must keep;
these traces show what else would change. A slot is WORKER.SLOT."""

import random
from typing import NamedTuple

import pytest

from collectx.schedule.asynchronous import AsyncSchedule, BoundedLagSchedule
from collectx.schedule.recorded import RecordedBatch, RecordedSchedule
from collectx.schedule.sync import PreemptiveSchedule, SyncSchedule
from collectx.transport.base import Arrival

# Workers, with the versions of weights and settings that act, and those at the delivery.
RECORD = [
    RecordedBatch(worker, acted, newest, acted_settings, newest_settings)
    for worker, acted, newest, acted_settings, newest_settings in (
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0),
        (1, 1, 1, 0, 1),
        (2, 0, 1, 0, 1),
        (0, 1, 2, 1, 1),
        (1, 2, 2, 1, 1),
        (2, 2, 3, 1, 2),
        (2, 3, 3, 2, 2),
        (0, 3, 3, 2, 2),
    )
]


class Acted(NamedTuple):
    """The part of a report that a schedule reads."""

    policy_version: int


class Walk:
    """A schedule of three workers, the slots that they may fill, and the batches that are delivered."""

    def __init__(self, schedule, seed, has_faults=True):
        self.schedule, self.draw, self.has_faults = schedule, random.Random(seed), has_faults
        self.granted, self.delivered, self.lines = {0: [], 1: [], 2: []}, [], []
        self.version = self.settings = 0
        schedule.preempt = lambda requested: self.lines.append(f"    preempt {requested}")
        schedule.published(0)

    def grant(self, grants):
        grants = list(grants)
        for worker, slot in grants:
            assert slot not in self.granted[worker]
            self.granted[worker].append(slot)
        versions = [self.schedule.version_of(slot) for _, slot in grants]
        texts = [f"{worker}.{slot}" for worker, slot in grants]
        named = [
            f"{text} at {version}" if version is not None else text
            for text, version in zip(texts, versions, strict=True)
        ]
        return " ".join(named) or "-"

    def next(self):
        begun = self.grant(self.schedule.batch_requested())
        parts = self.schedule.next_batch()
        if parts is None:
            return f"requests {begun}, awaits {self.grant(self.schedule.batch_awaited())}"
        self.delivered.append(parts)
        return f"requests {begun}, delivers {' '.join(f'{part.worker}.{part.slot}' for part in parts)}"

    def release(self):
        return f"grants {self.grant(self.schedule.released(self.delivered.pop(0)))}"

    def arrive(self, worker):
        slot = self.granted[worker].pop(0)
        version = self.schedule.version_of(slot)
        acted = self.version if version is None else version
        self.schedule.arrived(Arrival(worker, slot, Acted(acted)))
        return f"slot {slot}"

    def replace(self, worker):
        self.granted[worker] = []
        return f"grants {self.grant(self.schedule.replaced(worker))}"

    def drop(self, worker):
        del self.granted[worker]
        self.schedule.dropped(worker)

    def join(self, worker):
        self.granted[worker] = []
        self.schedule.joined(worker)

    def publish(self):
        grants = self.grant(self.schedule.before_publish()) if self.schedule.must_wait_to_publish else "-"
        if self.schedule.must_wait_to_publish:
            return f"waits, grants {grants}"
        self.version += 1
        self.schedule.published(self.version)
        return f"version {self.version}, grants {grants}"

    def change(self):
        if not self.schedule.must_wait_to_publish:
            self.settings += 1
            self.schedule.changed(self.settings)
        return f"settings {self.settings}"

    def step(self):
        is_recorded = isinstance(self.schedule, RecordedSchedule)
        events = [(self.next,)] * (2 if is_recorded else 3)
        events += [(self.publish,)] * (2 if is_recorded else bool(self.delivered))
        events += [(self.change,)] * (is_recorded and self.settings < 3)
        events += [(self.release,)] * 3 if self.delivered else []
        events += [(self.arrive, worker) for worker, slots in self.granted.items() if slots] * 3
        if self.has_faults and self.draw.random() < 0.3:
            events += [(self.replace, worker) for worker in self.granted]
            events += [(self.drop, worker) for worker in self.granted if len(self.granted) > 1]
            events += [(self.join, worker) for worker in range(3) if worker not in self.granted] * 3
        event, *worker = self.draw.choice(events)
        try:
            result = event(*worker)
        except RuntimeError as error:
            result = f"{error}"[:60]
        undelivered = [[f"{part.worker}.{part.slot}" for part in parts] for parts in self.schedule.undelivered()]
        left = f"; complete {' '.join('+'.join(parts) for parts in undelivered)}" if undelivered else ""
        self.lines.append(f"{' '.join([event.__name__, *map(str, worker)])}: {result}{left}")


SCHEDULES = {
    "sync": lambda: SyncSchedule(3, num_batches=12),
    "overlap": lambda: SyncSchedule(3, 1, 12),
    "preemptive": lambda: PreemptiveSchedule(3, 0.6),
    "async": lambda: AsyncSchedule(3, 2, None),
    "async-12-batches": lambda: AsyncSchedule(3, 2, 12),
    "async-exact": lambda: AsyncSchedule(3, 1, 12, True),
    "lag-2": lambda: BoundedLagSchedule(3, 2, 15, False, 2),
    "recorded": lambda: RecordedSchedule(3, 1, 16, RECORD, False),
    "recorded-zero-copy": lambda: RecordedSchedule(3, 1, None, RECORD, True),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_trace_of_decisions(name, expected):
    lines = []
    for seed in (0, 1):
        schedule = SCHEDULES[name]()
        walk = Walk(schedule, seed, has_faults="recorded" not in name)
        if seed == 1 and name in ("sync", "overlap", "async", "async-12-batches", "recorded"):
            # It continues a run that had complete batches.
            for number in (1, 2)[: schedule.num_slots if schedule.stacked else 2]:
                workers = range(3) if schedule.stacked else [RECORD[number - 1].worker]
                parts = tuple(Arrival(worker, -number, Acted(0)) for worker in workers)
                schedule.restore(parts)
        for _ in range(45):
            walk.step()
        lines += [f"# seed {seed}", *walk.lines]
    expected(f"trace-{name}", "\n".join(lines))
