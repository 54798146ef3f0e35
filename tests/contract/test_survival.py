"""Workers that are killed, raise or hang in mid-batch, over every way: `collector.on_worker_failure`
replaces or drops them, or ends the run. What is delivered stays complete and in order, and an error arrives as it was
raised."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from multiprocessing.connection import Listener

import gymnasium
import psutil
import pytest
import torch
import ways
from configurations import Log, counting, custom, faulty, start, worker_pids
from library_collectors import make
from losing_workers import RELAY, collector, survive
from user_code.cartpoles import cartpole
from user_code.faulty import BrokenLever, pull_the_lever
from user_code.streams import StreamChecker

import collectx
from collectx.errors import WorkerDied, WorkerError, WorkerTimeout
from collectx.transport.tracebacks import request_stacks

# What the policy of one worker does, and the error that the trainer gets.
ERRORS = {"killed": WorkerDied, "raises": BrokenLever, "stopped": WorkerTimeout}
PLACES = (ways.INLINE_SYNC, ways.INLINE_ASYNC, *ways.BETWEEN_PROCESSES, RELAY)
# One smoke test of each transport, by mode. A worker that is stopped costs `worker_timeout_s`.
SMOKES = {
    "restart": [("shared_async", "killed"), ("rpc_sync", "killed")],
    "drop": [("shared_sync", "raises")],
    "raise": [("shared_sync", "raises"), ("gloo_async", "raises"), ("rpc_sync", "raises")],
}
# Within this process code can only raise, and nothing names a worker. Ray takes seconds for every actor that it starts,
# and so does a worker for a fork server of its own.
INLINE = {"restart": ("raises",), "drop": ("raises",), "raise": ()}
FEWER = {
    "inline_sync": INLINE,
    "inline_async": INLINE,
    "ray_sync": {"restart": ("killed", "stopped"), "drop": ("stopped",), "raise": ()},
    "ray_async": {"restart": ("killed",), "drop": (), "raise": ("raises",)},
    "relay": {"restart": ("killed",), "drop": (), "raise": ("raises",)},
}


def losses(mode):
    """Parameters `way` and `fault`."""
    cases = []
    for way in PLACES:
        for fault in FEWER.get(way.name, {}).get(mode, ERRORS):
            tier = "nightly" if fault == "stopped" and (mode, way) != ("raise", ways.SHARED_SYNC) else way.tier
            tier = way.smoke if (way.name, fault) in SMOKES[mode] else tier
            cases.append(ways.case(way, fault, tier=tier))
    return pytest.mark.parametrize(("way", "fault"), cases)


@pytest.mark.difference("a worker dies, hangs, loses its connection")
@losses("restart")
def test_a_lost_worker_is_replaced(way, fault):
    lives = 1 if fault == "stopped" or way.place == "ray" or way is RELAY else 2
    _, log = survive(way, fault, lives, zero_copy=fault == "killed")
    assert [(each["worker"], each["type"]) for each in log.of("worker_failed")] == [(1, ERRORS[fault].__name__)] * lives
    assert [(each["worker"], each["incarnation"]) for each in log.of("worker_restarted")] == [(1, 1), (1, 2)][:lives]


def test_a_worker_whose_error_has_no_text_is_replaced():
    _, log = survive(ways.INLINE_SYNC, "wordless")
    assert [(each["worker"], each["message"]) for each in log.of("worker_failed")] == [
        (1, "(no text: str() raised RuntimeError)")
    ]


class Brief(gymnasium.Wrapper):
    """Fails at its 15th step."""

    def __init__(self):
        super().__init__(cartpole())
        self._left = 15

    def step(self, action):
        self._left -= 1
        return self.env.step(action) if self._left else pull_the_lever("raises")


@ways.over((ways.INLINE_SYNC, ways.SHARED_SYNC))
def test_a_replacement_draws_other_episodes_and_other_actions(way):
    """Each worker delivers ten frames of an incarnation, and fails in its second batch."""
    with make(way, Brief, frames_per_batch=20, on_worker_failure="restart") as batches:
        both = torch.cat([next(batches), next(batches)])
    assert len(both["collector", "traj_ids"][:, 0].unique()) == 4
    for drawn in (both["observation"][:, 0], both["action"]):
        assert len(drawn.unique(dim=0)) == 4


def test_the_unfinished_trajectories_of_lost_workers_are_forgotten():
    """Each worker is in its second trajectory or a later one when it fails."""
    options = {"trajs_per_batch": 4, "max_frames_per_traj": 10, "max_restarts": 100}
    with make(ways.INLINE_SYNC, Brief, frames_per_batch=12, on_worker_failure="restart", **options) as batches:
        for _ in range(10):
            next(batches)
        state = batches.state_dict()
    assert min(state[f"worker{worker}"]["rollout"]["episodes"]["traj_ids"].item() for worker in (0, 1)) > 2**33
    assert len(state["stream"]["assembler"]["unfinished"]) <= 2


@pytest.mark.difference("a worker dies, hangs, loses its connection")
@losses("drop")
def test_the_run_goes_on_without_a_lost_worker(way, fault):
    checker, log, sizes, late = StreamChecker(), Log(), [], []
    with collector(way, "drop", fault, log=log) as batches:
        while len(late) < 10:
            batch = next(batches)
            checker.take(batch)
            sizes.append(batch.batch_size[0])
            if log.of("worker_dropped"):
                late.append({part.worker for part in batches.last_batch_info.parts})
    assert log.of("worker_dropped") == [{"worker": 1, "num_workers": 2}]
    assert [each["type"] for each in log.of("worker_failed")] == [ERRORS[fault].__name__]
    # Batches that it had finished before are delivered first.
    assert not any(1 in workers for workers in late[3:])
    if way.is_sync:
        assert (sizes[0], sizes[-1]) == (3, 2)


@pytest.mark.difference("a worker dies, hangs, loses its connection")
@losses("raise")
def test_the_error_of_a_lost_worker_ends_the_run(way, fault):
    with collector(way, "raise", fault) as batches:
        for _ in range(2):  # nor does the run look complete afterwards
            with pytest.raises(ERRORS[fault]) as caught:
                deque(batches, maxlen=0)
        message = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "worker 1" in message
    if fault == "raises":
        assert (caught.value.lever, caught.value.force) == ("left", 3)
        assert "pull_the_lever" in message
    elif fault == "stopped":
        assert "made no progress for 5 s (collector.worker_timeout_s=5)" in message
        assert "is stopped (by SIGSTOP" in message
    else:
        assert re.search(r"worker 1 \(pid \d+\) was killed by signal 9", message)


def test_more_restarts_than_allowed_end_the_run_with_the_error_of_the_worker():
    with (
        collector(ways.INLINE_ASYNC, "restart", "raises", 9, max_restarts=2, total_frames=20_000) as batches,
        pytest.raises(BrokenLever) as caught,
    ):
        deque(batches, maxlen=0)
    assert any("the run has already used its 2 restarts" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("least", [1, 2])
def test_fewer_workers_than_the_least_cannot_be_left(least):
    policy = custom("user_code.faulty:FailingPolicy", fault="raises", env=0)
    knobs = {"on_worker_failure": "drop", "num_workers": least, "min_workers": least, "total_frames": -1}
    with start("multi_async", "inline", counting(), policy, **knobs) as batches:
        for _ in range(2):
            with pytest.raises(BrokenLever) as caught:
                list(batches)
    left = "because it is the last worker." if least == 1 else "1 worker would be left, but collector.min_workers=2"
    assert left in caught.value.__notes__[-1]


# --- errors that are unusual ---


FAULTS = {
    "stop_iteration": (RuntimeError, r"raised StopIteration in .*faulty\.py, line \d+, in `raise error`"),
    # Of the worker's process.
    "exits": (WorkerError, "SystemExit"),
    "killed": (WorkerDied, r"worker [01] \(log: .*/worker-[01]\.log; pid \d+\)"),
}


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        ways.case(ways.INLINE_SYNC, "stop_iteration"),
        *(ways.case(way, fault) for way in (ways.SHARED_SYNC, ways.GLOO_ASYNC) for fault in FAULTS),
    ],
)
def test_an_env_that_fails_in_an_unusual_way_is_named(way, fault, tmp_path):
    error, message = FAULTS[fault]
    collector = start(way.kind, way.place, faulty(fault), log_dir=tmp_path)
    with collector, pytest.raises(error, match=message) as caught:
        list(collector)
    if fault == "stop_iteration":
        assert "raised in step() of env 0 (of " in "".join(caught.value.__notes__)


@pytest.mark.parametrize("fault", [pytest.param("sleeps", marks=pytest.mark.nightly), "locks"])
def test_a_worker_that_hangs_has_its_stacks_in_the_error_and_in_its_log(fault, tmp_path):
    shape = {"num_workers": 1, "worker_timeout_s": 2.0, "close_timeout_s": 0.0}
    with start("multi_sync", "local", faulty(fault, at_step=15), log_dir=tmp_path, **shape) as collector:
        next(collector)
        with pytest.raises(WorkerTimeout) as caught:
            list(collector)
    for text in (str(caught.value), (tmp_path / "worker-0.log").read_text()):
        assert re.search(r'faulty.py", line \d+ in pull_the_lever\n.*faulty.py", line \d+ in step\n', text)


@pytest.mark.sample(1)
@pytest.mark.ci
@pytest.mark.parametrize("kind", ["multi_sync", "multi_async", "distributed", "nested"])
def test_a_batch_that_takes_longer_than_the_timeout_is_no_hang(kind):
    shape = {"num_workers": 2, "worker_timeout_s": 2.0}
    if kind == "nested":
        kind, shape = "distributed", {**shape, "num_workers": 1, "num_workers_per_collector": 2}
    # Each part takes three seconds at least.
    with start(kind, "local", counting(step_s=0.3), frames_per_batch=20, total_frames=40, **shape) as collector:
        assert sum(batch.numel() for batch in collector) == 40


@pytest.mark.sample(1)
@pytest.mark.ci
@ways.over([ways.SHARED_SYNC, ways.GLOO_ASYNC])
def test_a_step_that_hangs_is_told_with_the_steps_before_it(way):
    shape = {"num_workers": 1, "worker_timeout_s": 2.0, "close_timeout_s": 0.0}
    env = faulty("sleeps", at_step=40 + 36, step_s=0.1)
    with start(way.kind, way.place, env, frames_per_batch=40, **shape) as collector:
        next(collector)
        began_s = time.monotonic()
        with pytest.raises(WorkerTimeout) as caught:
            next(collector)
    # Two seconds after 36 steps.
    assert 5.0 < time.monotonic() - began_s < 9.0
    assert re.search(r"It stepped 3[0-6] of 40 times", str(caught.value))


# A worker of another host, whose output is its log.
REMOTE = """
import sys
from multiprocessing.connection import Client
from collectx.transport.tracebacks import write_on_signal

def hangs():
    connection.send_bytes(b"ready")
    return connection.recv_bytes()

connection = Client(("127.0.0.1", int(sys.argv[1])))
write_on_signal(connection)
assert hangs() == b"go on"
"""


def test_a_worker_of_another_host_writes_its_stacks_to_its_log_and_goes_on(tmp_path, wait_until):
    log = tmp_path / "worker-0.log"
    with Listener(("127.0.0.1", 0)) as listener, open(log, "w") as output:
        words = [sys.executable, "-c", REMOTE, str(listener.address[1])]
        with subprocess.Popen(words, stderr=output) as worker, listener.accept() as connection:
            assert connection.recv_bytes() == b"ready"
            for number in (1, 2):
                assert "Its log ends with the stack" in request_stacks(None, connection)
                wait_until(lambda number=number: log.read_text().count(" in hangs\n") == number)
            connection.send_bytes(b"go on")
            assert worker.wait(60) == 0, log.read_text()


# Not the process of the tests: faulthandler reads the frames of threads that go on, and may crash.
HANGING = """
import time
from collectx.transport.tracebacks import write_on_signal

def hangs():
    print("ready", flush=True)
    time.sleep(600)

for _ in range(2):
    write_on_signal()
hangs()
"""


def test_a_worker_of_this_machine_writes_its_stacks_into_memory_and_its_log(tmp_path):
    log = tmp_path / "worker-0.log"
    words = [sys.executable, "-c", HANGING]
    with open(log, "w") as output, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=output) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            found = [request_stacks(process.pid, None) for _ in range(2)]
        finally:
            process.kill()
    for text in found:
        assert text.startswith("The stacks of its threads:\n")
        assert text.count(" in hangs\n") == 1
        assert text == text.rstrip()
    words = "The trainer killed this worker, because it exceeded a timeout. The stacks of its threads:\n"
    assert log.read_text().count(words) == 2


@ways.over([ways.SINGLE, ways.SHARED_SYNC])
def test_an_error_of_a_reset_says_so(way):
    with (
        start(way.kind, way.place, faulty("raises", at_step=-1)) as collector,
        pytest.raises(BrokenLever, match=r"raised in reset\(\) of env 0 \(of 1\)"),
    ):
        next(collector)


@pytest.mark.parametrize(
    ("way", "at_close"),
    [
        ways.case(ways.SINGLE, "wordless"),
        ways.case(ways.SHARED_SYNC, "sleeps", tier="test"),
        ways.case(ways.SHARED_SYNC, "exits"),
        ways.case(ways.GLOO_ASYNC, "sleeps"),
    ],
)
def test_an_error_is_told_also_where_closing_the_env_hangs_or_fails(way, at_close):
    with (
        start(way.kind, way.place, faulty("raises", at_close=at_close), close_timeout_s=1.0) as collector,
        pytest.raises(BrokenLever),
    ):
        list(collector)


@ways.over([ways.SHARED_SYNC, ways.GLOO_SYNC])
@pytest.mark.parametrize("is_filtered", [True, False])
def test_warnings_of_workers_are_filtered_on_request(way, is_filtered, tmp_path, monkeypatch):
    assert collectx.filter_warnings_subprocess
    monkeypatch.setattr(collectx, "filter_warnings_subprocess", is_filtered)
    with start(way.kind, way.place, faulty("warns"), frames_per_batch=20, log_dir=tmp_path) as collector:
        next(collector)
    assert ("the env warns" in (tmp_path / "worker-0.log").read_text()) is not is_filtered


# --- workers that are collectors themselves ---


TWO_EACH = {"kind": "distributed", "num_workers_per_collector": 2}


def inner_pids(pid):
    """The worker processes within a worker: those of its fork server."""
    pids = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            pids += [process.pid for process in child.children()]
    return pids


@pytest.mark.ci
def test_one_that_is_killed_takes_its_processes_along(wait_until):
    log = Log()
    with start(on_worker_failure="restart", events=log, total_frames=-1, **TWO_EACH) as collector:
        while len(log.of("worker_joined")) < 2:
            next(collector)
        pid = worker_pids(collector)[0]
        wait_until(lambda: len(inner_pids(pid)) == 2, 200, "processes within")
        within = inner_pids(pid)
        os.kill(pid, signal.SIGKILL)
        while len(log.of("worker_joined")) < 3:
            next(collector)
    assert [(each["worker"], each["type"]) for each in log.of("worker_failed")] == [(0, "WorkerDied")]
    wait_until(lambda: not any(map(psutil.pid_exists, within)), what="the end of the processes within")


@pytest.mark.ci
def test_closing_does_not_wait_for_a_batch_and_leaves_nobody(wait_until):
    """A batch takes 400 s; a worker stops between two steps."""
    names = []

    def events(name, **_):
        names.append(name)
        if names.count("worker_joined") == 2:
            raise KeyboardInterrupt

    shape = {"frames_per_batch": 4000, "total_frames": -1, "close_timeout_s": 200.0}
    with start(env=counting(step_s=0.2), events=events, **TWO_EACH, **shape) as collector:
        # Both have been granted a batch by then.
        with pytest.raises(KeyboardInterrupt):
            next(collector)
        handles, pids = list(collector.handles().values()), worker_pids(collector)
        wait_until(lambda: all(len(inner_pids(pid)) == 2 for pid in pids), 200, "processes within")
        within = [inner for pid in pids for inner in inner_pids(pid)]
    assert [handle.exitcode for handle in handles] == [0, 0]
    assert not any(map(psutil.pid_exists, within))
