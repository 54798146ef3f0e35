"""The collector: what it tells its transport and its pool, and what it returns, step by step in some runs."""

import re
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collectx.batch import POLICY_VERSION, Leaf
from collectx.collector import CollectorCore
from collectx.collector.batch_info import BatchSpec
from collectx.collector.env_methods import EnvMethods
from collectx.collector.pool import Channel, WorkerPool
from collectx.collector.worker_record import FailurePolicy
from collectx.errors import WorkerDied
from collectx.schedule.asynchronous import AsyncSchedule
from collectx.schedule.recorded import RecordedBatch, RecordedSchedule
from collectx.schedule.sync import SyncSchedule
from collectx.transport.base import Arrival, Departure, Reply, Request, Reset, SlotReport, SlotSpec

LEAVES = (Leaf(("number",), (), torch.uint8),)


class Transport:
    """Writes down what it is told; `receive` returns the events that the test queues. A slot contains 10 * worker +
    slot."""

    carries_objects = True

    def __init__(self, lines, spec):
        self._lines, self._spec, self.events, self.version = lines, spec, deque(), -1
        self.num_stepping, self.leases = 1, deque()

    def __getattr__(self, name):
        return lambda *arguments: self._lines.append(f"    {name}{arguments}")

    def expect(self, worker, make_spec):
        """Its processes do not connect."""

    def attach(self, worker, handle):
        """They do not end by themselves."""

    def receive(self):
        if not self.events:
            raise InterruptedError("nothing is queued")
        return self.events.popleft()

    def gather(self, parts, copy):
        self._lines.append(f"    gather {[(part.worker, part.slot) for part in parts]} copy={copy}")
        return self._memory(parts)

    def lease(self, parts):
        is_leased = self.leases.popleft() if self.leases else True
        self._lines.append(f"    lease {[(part.worker, part.slot) for part in parts]} {is_leased}")
        return self._memory(parts) if is_leased else None

    def _memory(self, parts):
        layout = self._spec.layout(len(parts))
        memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
        numbers = layout.slot(memory).tensors["number",]
        for place, part in enumerate(parts):
            numbers[place * self._spec.rows : (place + 1) * self._spec.rows] = 10 * part.worker + part.slot
        return memory

    def release(self, parts):
        self._lines.append(f"    release {[(part.worker, part.slot) for part in parts]}")

    def publish(self, writes):
        self.version += 1
        self._lines.append(f"    publish {[*writes]}")
        return self.version

    def newest_weights(self):
        return torch.zeros(1, dtype=torch.uint8)


class Story:
    def __init__(self, schedule, num_workers=2, mode="restart", first=None, has_server=False, **delivery):
        self.lines = []
        slots = SlotSpec(LEAVES, 2, 3, num_workers, schedule.num_slots, schedule.stacked, False, 1)
        self.transport = Transport(self.lines, slots)
        channel = Channel(self.transport, str, str if has_server else None)
        start = lambda worker, *arguments: self.lines.append(f"    start {worker}") or f"process of {worker}"  # noqa: E731
        policy = FailurePolicy(mode, 1, min_workers=1)
        self.pool = WorkerPool(
            SimpleNamespace(start=start, names={}),
            channel,
            lambda *who: SimpleNamespace(to_json=None),
            schedule,
            policy,
            self.event,
            num_workers=num_workers,
            min_workers=1,
            first_requests=first,
            seed=5,
        )
        options = {"total_frames": -1, "check_finite": True, "zero_copy": False, "storing_device": None} | delivery
        spec = BatchSpec(slots, (2,), {}, schedule.stacked, **options)
        self.core = CollectorCore(self.transport, schedule, spec, self.pool)
        self.core.publish_weights({None: lambda buffer: None})
        self.pool.start_all()
        self.kept = {}

    def event(self, name, **fields):
        self.lines.append(f"    event {name} {fields}")

    def arrive(self, *arrivals, frames=6):
        """Each a worker and its slot."""
        for worker, slot in arrivals:
            report = SlotReport(self.transport.version, frames, 0.0, 0.0, np.zeros(0), np.zeros(0, int))
            self.transport.events.append(Arrival(worker, slot, report))

    def reply(self, worker, value=None, error=None):
        self.transport.events.append(Reply(worker, value, error))

    def die(self, worker):
        self.transport.events.append(Departure(worker, WorkerDied("killed")))

    def refuse_leases(self, *answers):
        self.transport.leases.extend(answers)

    def next(self):
        batch = next(self.core)
        info = self.core.last_batch_info
        self.lines.append(
            f"  batch {info.index} of {info.frames} frames, version {info.version}, settings {info.settings}, steps "
            f"{self.core.filled_steps}, parts {[(part.worker, part.slot) for part in info.parts]}"
        )
        return batch if not hasattr(batch, "shape") else ([*batch.shape], batch["number"].unique().tolist())

    def save(self, **arguments):
        self.kept = self.core.state(**arguments)
        plain = dict(self.kept, undelivered=len(self.kept["undelivered"]))
        return {name: each for name, each in plain.items() if name not in ("weights", "memory")}

    def __getitem__(self, name):
        """Returns what a step calls: a method of this class, or of the collector."""
        for holder in (self, self.core):
            if hasattr(holder, name):
                return getattr(holder, name)
        raise KeyError(name)

    def step(self, text):
        self.lines.append(text)
        try:
            result = eval(text, {"Reset": Reset}, self)
        except StopIteration:
            result = "the end"
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        self.lines.append(f"  -> {result}; {self.core.num_batches} batches, {self.core.num_frames} frames")

    def publish(self, *workers):
        return self.core.publish_weights(dict.fromkeys(workers or [None], None))

    def text(self):
        lines = [re.sub(r"SlotReport\(.*?\{\}\)", "REPORT", line) for line in self.lines]
        return "\n".join(lines)


RECORD = [RecordedBatch(*each) for each in ((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 0, 1, 1, 1))]
STORIES = {
    # Batches of two workers, one of which ends early and is lost once; the last batch of the run.
    "sync": (
        lambda: Story(SyncSchedule(2, num_batches=4), total_frames=46),
        [
            "worker_indices, num_envs, envs_per_worker, frames_by_worker, policy_version, handles()",
            "arrive((1, 0), (0, 0))",
            "next()",
            "grant_next_batch()",
            "grant_next_batch()",
            "arrive((0, 0), frames=4)",
            "die(1)",
            "next()",
            "arrive((1, 0))",
            "next()",
            "publish()",
            "request_reset(Reset(3))",
            "request_reset(Reset(), [0])",
            "arrive((0, 0), (1, 0))",
            "refuse_leases(False)",
            "next()",
            "wait_until_filled()",
            "arrive((0, 0), (1, 0))",
            "next()",
            "frames_by_worker",
            "next()",
            "grant_next_batch()",
        ],
    ),
    # Without copies, memory is released at the next request.
    "async-zero-copy": (
        lambda: Story(AsyncSchedule(2, 2, None), zero_copy=True),
        [
            "arrive((1, 0), (0, 0))",
            "next()",
            "publish(1)",
            "next()",
            "grant_next_batch()",
            "die(0)",
            "next()",
            "arrive((0, 1), (0, 0), (1, 1), (1, 0))",
            "wait_until_filled()",
            "next()",
            "die(0)",
            "next()",
            "next()",
            "ask('envs')",
        ],
    ),
    # Questions, settings and a state; then another collector continues.
    "questions": (
        lambda: Story(AsyncSchedule(2, 1, None)),
        [
            "reply(0)",
            "reply(1)",
            "wait_until_ready()",
            "reply(0, [1, 2])",
            "reply(1, [3, 4])",
            "get_attr('size')",
            "reply(1, [3])",
            "reply(0, None, ValueError('wrong'))",
            "ask('envs', 7)",
            "reply(0, None, ValueError('wrong'))",
            "reply(1, [3, 4])",
            "change('call', 'go', [((1,), {})])",
            "arrive((0, 0))",
            "next()",
            "reply(0, [1, 2])",
            "die(1)",
            "change('call', 'go', [((2,), {})])",
            "arrive((0, 0), (1, 0))",
            "next()",
            "next()",
            "save(wait_for_workers=False)",
            "arrive((0, 0))",
            "reply(1)",  # it has made its envs
            "reply(1)",
            "arrive((1, 0))",
            "reply(0, {'rollout': {}, 'seed': 0})",
            "reply(1, {'rollout': {'reason': 'a lock'}})",
            "save()",
        ],
    ),
    # Workers that write batches themselves.
    "written": (
        lambda: Story(AsyncSchedule(2, 2, 5, True), is_written=True, total_frames=30),
        [
            "arrive((1, 0), (0, 0))",
            "next()",
            "wait_until_idle()",
            "arrive((1, 1), (1, 0), (0, 1))",
            "wait_until_idle()",
            "next()",
        ],
    ),
    # A run that begins with one of two workers.
    "elastic": (
        lambda: Story(AsyncSchedule(0, 1, None), mode="drop", first=lambda worker: [Request("ready")]),
        [
            "grant_next_batch()",
            "next()",
            "request_reset(Reset(9))",
            "reply(1)",
            "next()",
            "arrive((1, 0))",
            "next()",
            "die(0)",
            "next()",
            "arrive((1, 0))",
            "next()",
            "die(1)",
            "next()",
            "interrupt()",
        ],
    ),
    "overlap": (
        lambda: Story(SyncSchedule(2, 1), has_server=True),
        [
            "arrive((0, 0), (1, 0))",
            "next()",
            "publish()",
            "publish(0)",
            "grant_next_batch()",
            "request_reset(Reset(3))",
            "request_reset(Reset())",
            "arrive((0, 1))",
            "arrive((1, 1), (0, 0), (1, 0))",
            "next()",
            "reply(0, {'rollout': {}})",
            "reply(2)",
            "reply(1, {'rollout': {}})",
            "reply(2, 'generators')",
            "save()",
            "interrupt()",
            "die(0)",
            "next()",
            "next()",
        ],
    ),
    # The reproduction of an async run: newer weights and settings wait for the batches of older ones.
    "recorded": (
        lambda: Story(RecordedSchedule(2, 1, None, RECORD, False)),
        [
            "arrive((1, 0))",
            "publish()",
            "arrive((0, 0))",
            "publish()",
            "next()",
            "arrive((0, 0))",
            "reply(0, [5, 6])",
            "reply(1, [7, 8])",
            "change('call', 'go', [((1,), {})])",
            "next()",
            "next()",
            "arrive((1, 0))",
            "next()",
        ],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_of_a_collector(name, expected):
    make, steps = STORIES[name]
    story = make()
    for step in steps:
        story.step(step)
    story.step("close()")
    story.step("next()")
    expected(f"core-{name}", story.text())


def test_a_closed_or_failed_collector_publishes_nothing():
    closed, failed = Story(SyncSchedule(2)), Story(SyncSchedule(2), mode="raise")
    closed.core.close()
    with pytest.raises(RuntimeError, match="this collector is closed"):
        closed.publish()
    failed.die(1)
    for use in (failed.next, failed.publish):
        with pytest.raises(WorkerDied):
            use()
    assert (closed.core.policy_version, failed.core.policy_version) == (0, 0)


def test_the_incarnations_of_a_worker_have_the_same_envs():
    """Several resumes leave it so. Added workers have the envs of earlier ones, but count as others."""
    core = Story(SyncSchedule(2), num_envs=4).core
    first = {
        4 * 2**32 * incarnation: family
        for family in (0, 1, 2)
        for incarnation in (2**16 * family, 2**16 * family + 999)
    }
    keys = [core.env_of(start + index) for start in first for index in (0, 5, 9)]
    assert keys == [(env, family) for family in first.values() for env in (0, 1, 1)]
    own = Story(SyncSchedule(2)).core
    assert own.env_of(3) != own.env_of(7)


def test_a_worker_that_ends_before_it_has_restored_its_envs_says_that_they_begin_new_episodes():
    story = Story(SyncSchedule(2), first=lambda worker: [Request("ready"), Request("load", ({"seen": worker},))])
    story.die(1)
    for worker in (0, 0, 1):
        story.reply(worker)
    story.arrive((0, 0), (1, 0))
    story.next()
    ready = [line for line in story.lines if "event worker_ready" in line]
    assert ["'new_episodes': None" in line for line in ready] == [True, False]
    assert "its process ended before it had restored them" in ready[1]


def test_the_versions_of_saved_batches_of_another_device_are_shifted():
    core = Story(SyncSchedule(2)).core
    slots = replace(core._spec.slots, leaves=(*LEAVES, Leaf(POLICY_VERSION, (), torch.int64)))
    core._spec = replace(core._spec, slots=slots, storing_device=torch.device("meta"))
    layout = slots.layout(2)
    saved = {"parts": [0, 1], "memory": torch.zeros(layout.nbytes, dtype=torch.uint8)}
    shifted = layout.slot(core.with_versions(saved, 5)["memory"]).tensors[POLICY_VERSION]
    assert shifted.unique().tolist() == [5]


def test_a_collector_that_continues(expected):
    """Worker 0 is restored, worker 1 is not; worker 2 begins its next incarnation."""

    def make():
        return Story(AsyncSchedule(3, 1, None), num_workers=3)

    story = make()
    for step in (
        "reply(0, [0])",
        "reply(1, [0])",
        "reply(2, [0])",
        "change('set_attr', 'size', [(False, 3)])",
        "arrive((0, 0), (1, 0), (2, 0))",
        "next()",
        "arrive((0, 0))",
        "reply(0, {'rollout': {}})",
        "reply(1, {'rollout': {'reason': 'a lock'}})",
        "reply(2)",
        "save()",
    ):
        story.step(step)
    story.core.close()
    again = make()
    again.kept = story.kept
    for step in (
        "reply(1, 'a lock')",
        "reply(0)",
        "load(kept, 5)",
        "frames_by_worker",
        "next()",
        "reply(1)",
        "reply(2)",
        "next()",
        "next()",
        "arrive((1, 0), (0, 0), (2, 0))",
        "next()",
        "next()",
        "close()",
    ):
        again.step(step)
    expected("core-continues", f"{story.text()}\n\n{again.text()}")


def test_what_a_trainer_asks_of_envs():
    """Two workers with two envs each."""
    calls = []

    class Methods(EnvMethods):
        def _with_core(self, use):
            return use(core)

    core = SimpleNamespace(
        worker_indices=[0, 1], num_envs=4, envs_per_worker=2, get_attr=lambda name: {1: [3, 4], 0: [1, 2]}
    )
    core.change = lambda *what: calls.append(what) or {0: [1, None], 1: [3, 4]}
    methods = Methods()
    assert methods.call("go", 1, by=2) == (1, None, 3, 4)
    methods.set_attr("size", 5)
    methods.set_attr("size", (1, 2, 3, 4))
    methods.set_reset_options({"a": 1})
    methods.set_reset_options(None)
    with pytest.raises(TypeError, match=r"set_reset_options\(\) needs a dict"):
        methods.set_reset_options("easy")
    assert methods.get_attr("size") == (1, 2, 3, 4)
    assert calls == [
        ("call", "go", [((1,), {"by": 2})]),
        ("set_attr", "size", [(False, 5)]),
        ("set_attr", "size", [(True, [1, 2]), (True, [3, 4])]),
        ("reset_options", "", [{"a": 1}]),
        ("reset_options", "", [None]),
    ]
    for values in ([1], [1] * 5):
        with pytest.raises(ValueError, match=rf"got {len(values)} values? for 4 envs"):
            methods.set_attr("size", values)
