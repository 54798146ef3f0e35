"""Runs that begin with `collector.min_workers` of their workers, which come late, are lost, or never come. Every frame
of the counting envs is delivered once, in the order of its env."""

import os
import signal

import pytest
import ways
from configurations import Log, config, counting, through_a_file
from user_code.gates import Gates
from user_code.streams import StreamChecker

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import start_collector
from collectx.errors import WorkerDied, WorkerTimeout

NUM_ENVS = 3


class Runs:
    """Collectors of three workers that begin with `least`; the worker of an index starts when its gate is open."""

    def __init__(self, way, gates, least, **knobs):
        shape = {"num_workers": 3, "frames_per_batch": 90 if way.is_sync else 30, "total_frames": -1}
        shape |= {"on_worker_failure": "drop", "min_workers": least, "close_timeout_s": 3.0}
        self.cfg = config(way.kind, way.place, counting(NUM_ENVS), **shape | knobs)
        self.gates = gates
        self._spec = envs.read_spec(self.cfg.env, policies.is_user_policy(self.cfg.policy))
        self._policy = policies.build(self.cfg.policy, self._spec, self.cfg.seed)

    def start(self, resume=None):
        return Run(self.cfg, self._policy, self._spec, resume)


class Run:
    """Takes the batches of one collector, which `checker` checks.

    Attributes:
        members: of each batch, the workers whose parts it has.
        at_drop: called when a worker was dropped.
    """

    def __init__(self, cfg, policy, spec, resume):
        self.log, self.members, self.at_drop = Log(), [], lambda: None
        self.collector = start_collector(cfg, policy, spec, self._note, resume=resume)
        self.reasons = None if resume is None else self.collector.load(resume, cfg.seed)

    def _note(self, name, **fields):
        self.log(name, **fields)
        if name == "worker_dropped":
            self.at_drop()

    def take(self, checker):
        checker.take(next(self.collector))
        self.members.append({part.worker for part in self.collector.last_batch_info.parts})

    def until(self, checker, condition, most=100_000):
        """Takes batches until `condition(self)`, and two more, which show that the run goes on."""
        for _ in range(most):
            if condition(self):
                break
            self.take(checker)
        assert condition(self)
        for _ in range(2):
            self.take(checker)

    def has_joined(self, *workers):
        return set(workers) <= set().union(*self.members[-20:])

    def save(self):
        return through_a_file(self.collector.state())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.collector.close()


@pytest.fixture
def gates(tmp_path, monkeypatch):
    made = Gates(tmp_path)
    made.install(monkeypatch)
    yield made
    made.open(0, 1, 2)


# Ray takes seconds for every actor that it starts.
LATE = [ways.case(way, tier=way.tier if way.place == "ray" else way.smoke) for way in ways.BETWEEN_PROCESSES]


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", LATE)
def test_a_run_begins_with_few_loses_one_and_gains_one(way, gates):
    """The run has one of the two workers that it needs, so it waits for the late one."""
    gates.open(0, 2)
    checker = StreamChecker()
    with Runs(way, gates, 2).start() as run:
        assert run.collector.pool.must_wait_for_workers
        run.take(checker)
        assert not run.collector.pool.must_wait_for_workers
        run.until(checker, lambda run: run.has_joined(0, 2))
        assert run.collector.pool.ready_of_started == (2, 3)
        run.at_drop = lambda: gates.open(1)
        _kill(run, way, 2)
        run.until(checker, lambda run: run.has_joined(1))
    ready = run.log.of("worker_ready")
    assert [(each["worker"], each["num_workers"], each["of"]) for each in ready][-1] == (1, 2, 3)
    assert {each["worker"] for each in ready[:2]} == {0, 2}
    assert ready[-1]["batches"] > 0
    assert [(each["worker"], each["type"]) for each in run.log.of("worker_failed")] == [(2, WorkerDied.__name__)]
    if way.is_sync:
        first, *_, last = run.members
        assert (first, last) == ({0, 2}, {0, 1})
        # It joins once, and from then on has a part of every batch.
        assert [1 in members for members in run.members] == sorted(1 in members for members in run.members)
        # In the middle of one batch it lost the other one.
        assert sum(len(members) < 2 for members in run.members) <= 1


@ways.over([ways.SHARED_SYNC, ways.GLOO_SYNC, ways.GLOO_ASYNC])
def test_a_run_that_has_lost_all_that_were_ready_goes_on_with_one_that_is_late(way, gates):
    gates.open(0)
    checker = StreamChecker()
    with Runs(way, gates, 1).start() as run:
        run.until(checker, lambda run: run.has_joined(0))
        run.at_drop = lambda: gates.open(1)
        _kill(run, way, 0)
        run.until(checker, lambda run: run.has_joined(1))
        assert run.members[-1] == {1}


def _kill(run, way, worker):
    if way.place == "ray":
        import ray

        ray.kill(run.collector.handles()[worker].actor)
    else:
        os.kill(run.collector.handles()[worker].pid, signal.SIGKILL)


# They wait until a worker's time is over.
NEVER = [ways.case(way, tier="nightly" if way is ways.GLOO_ASYNC else None) for way in (ways.SHARED_SYNC, *ways.GLOO)]


@pytest.mark.parametrize("way", NEVER)
def test_a_worker_that_never_comes_is_dropped_where_enough_are_left(way, gates):
    gates.open(0, 1)
    checker = StreamChecker()
    with Runs(way, gates, 2, start_timeout_s=8.0).start() as run:
        run.until(checker, lambda run: run.log.of("worker_dropped"))
        assert run.log.of("worker_dropped") == [{"worker": 2, "num_workers": 2}]
        assert [(each["worker"], each["type"]) for each in run.log.of("worker_failed")] == [(2, WorkerTimeout.__name__)]
        assert not any(2 in members for members in run.members)
        assert run.collector.pool.ready_of_started == (2, 3)


@pytest.mark.parametrize("way", [NEVER[0], NEVER[-1]])
def test_the_run_ends_where_too_few_come(way, gates):
    gates.open(0)
    with Runs(way, gates, 2, start_timeout_s=5.0).start() as run, pytest.raises(WorkerTimeout) as caught:
        next(run.collector)
    assert "1 worker would be left, but collector.min_workers=2" in caught.value.__notes__[-1]
    assert "collector.start_timeout_s=5" in str(caught.value)


@pytest.mark.parametrize("way", [NEVER[0], NEVER[-1]])
def test_a_resumed_run_begins_with_the_workers_that_are_there(way, gates):
    """Worker 2 is never there in the first part, nor worker 1 in the second: its state goes on to the third."""
    runs, checker = Runs(way, gates, 2), StreamChecker()
    gates.open(0, 1)
    with runs.start() as run:
        run.until(checker, lambda run: run.has_joined(0, 1))
        state = run.save()
    assert sorted(state["workers"]) == sorted(state["incarnations"]) == [0, 1]
    gates.close(1)
    gates.open(2)
    with runs.start(state) as run:
        run.until(checker, lambda run: run.has_joined(0, 2))
        assert run.collector.worker_indices == [0, 2]  # batches of worker 1 may have been full in the first part
        state = run.save()
    assert run.reasons == {}
    assert state["incarnations"] == {0: 0, 1: 0, 2: 0}
    assert sorted(state["workers"]) == [0, 1, 2]
    gates.open(1)
    with runs.start(state) as run:
        run.until(checker, lambda run: run.has_joined(0, 1, 2))
        assert run.collector.frames_by_worker.keys() == {0, 1, 2}
    # Of every env the frames follow each other across the three parts, so that none is lost and none comes twice.
    assert checker.frames == run.collector.num_frames


@ways.over([ways.INLINE_SYNC, ways.INLINE_ASYNC])
def test_a_batch_is_begun_as_soon_as_enough_are_ready(way):
    checker = StreamChecker()
    with Runs(way, None, 2).start() as run:
        run.until(checker, lambda run: run.has_joined(0, 1, 2))
    assert [each["worker"] for each in run.log.of("worker_ready")] == [0, 1, 2]
    if way.is_sync:
        assert run.members == [{0, 1}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
