"""What goes wrong in a worker reaches the trainer under its own name, at once, and nothing is left."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
from collecting import counting, custom, faulty, gym_vector, start, worker_pids
from worlds.faulty import BrokenLever, Unpicklable

from collectx.env.counting import StreamChecker
from collectx.errors import WorkerDied, WorkerError, WorkerTimeout

PLACES = [
    ("single", "inline"),
    ("multi_sync", "local"),
    ("multi_async", "local"),
    ("distributed", "local"),
    ("rpc", "local"),
]


def drain(collector):
    for _ in collector:
        pass


def traceback_of(caught):
    return "".join(map(str, caught.traceback)) + "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize(
    ("kind", "place", "fault", "kind_of_error"),
    [*((*way, "custom", BrokenLever) for way in PLACES), ("multi_sync", "local", "builtin", ZeroDivisionError)],
)
def test_an_env_that_raises(kind, place, fault, kind_of_error):
    with start(kind, place, faulty(fault), total_frames=-1) as collector:
        with pytest.raises(kind_of_error) as caught:
            drain(collector)
        assert "pull_the_lever" in traceback_of(caught)
        if place == "local":
            assert re.match(r"raised in worker [01]\n", caught.value.__notes__[-1])
        if fault == "custom":
            assert (caught.value.lever, caught.value.force) == ("left", 3)
        # Nor does it look complete afterwards.
        with pytest.raises((WorkerError, kind_of_error)):
            drain(collector)


def test_an_exception_that_cannot_be_pickled_keeps_its_type():
    with (
        start("multi_sync", "local", faulty("unpicklable")) as collector,
        pytest.raises(Unpicklable, match=r"holds a lock") as caught,
    ):
        drain(collector)
    assert "pull_the_lever" in traceback_of(caught)


@pytest.mark.parametrize(("kind", "place"), PLACES[:4])
def test_a_stop_iteration_in_an_env_does_not_end_the_collection_quietly(kind, place):
    with (
        start(kind, place, faulty("stop_iteration")) as collector,
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        drain(collector)


def test_an_env_that_exits_does_not_end_the_trainer():
    with (
        start("multi_sync", "local", faulty("exit")) as collector,
        pytest.raises(WorkerError, match="SystemExit"),
    ):
        drain(collector)


# By the other ways: `test_user_errors.py`.
@pytest.mark.parametrize(("kind", "place"), [("single", "inline"), ("multi_async", "local")])
def test_a_policy_that_raises(kind, place):
    policy = custom("worlds.faulty:RaisingPolicy", at_call=8)
    with (
        start(kind, place, counting(), policy, frames_per_batch=4, total_frames=-1) as collector,
        pytest.raises(BrokenLever) as caught,
    ):
        drain(collector)
    assert (caught.value.lever, caught.value.force) == ("policy", 7)


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async", "distributed_sync", "rpc"])
def test_a_worker_killed_in_mid_run_is_named(kind):
    with start(kind, "local", counting(), total_frames=-1) as collector:
        next(collector)
        victim = worker_pids(collector)[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"worker 1 \(pid {victim}\) was killed by signal 9"):
            drain(collector)


def test_a_crash_names_the_log(tmp_path):
    with (
        start("multi_sync", "local", faulty("killed"), log_dir=tmp_path) as collector,
        pytest.raises(WorkerDied, match=rf"worker [01] \(log: {tmp_path}/worker-[01].log\)"),
    ):
        drain(collector)


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async", "distributed", "rpc"])
def test_a_hung_env_names_the_knob(kind, tmp_path):
    env = faulty("hang", at_step=50, claim=str(tmp_path / "claim"))
    with (
        start(kind, "local", env, total_frames=-1, worker_timeout_s=0.5, close_timeout_s=0.2) as collector,
        pytest.raises(WorkerTimeout, match=r"worker [01] delivered nothing for 0.5 s \(collector.worker_timeout_s=0.5"),
    ):
        drain(collector)


def test_an_env_that_hangs_in_its_first_batch_names_the_start_timeout():
    env = faulty("hang", at_step=0)
    with (
        start("multi_sync", "local", env, start_timeout_s=2.0, close_timeout_s=0.2) as collector,
        pytest.raises(WorkerTimeout, match=r"collector.start_timeout_s=2"),
    ):
        drain(collector)


def test_leaving_in_mid_run_ends_busy_workers_between_two_steps():
    with start("multi_async", "local", counting(step_s=0.05), frames_per_batch=100, total_frames=-1) as collector:
        pids = worker_pids(collector)
        handles = dict(collector._transport._switchboard._handles)
    assert [handle.exitcode for handle in handles.values()] == [0, 0]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    del handles


@pytest.mark.ci
def test_an_env_with_processes_of_its_own_works_and_ends_with_its_worker(wait_until):
    env = gym_vector(2, vectorization="async")
    with start("multi_sync", "local", env, frames_per_batch=40, total_frames=400) as collector:
        assert next(collector).shape == (2, 2, 10)
        children = [child for pid in worker_pids(collector) for child in psutil.Process(pid).children(recursive=True)]
        assert len(children) >= 4  # two envs in each worker, and what multiprocessing starts for them
        drain(collector)
    wait_until(lambda: not any(child.is_running() for child in children), what=f"the envs' processes end: {children}")


@pytest.mark.ci
def test_an_env_with_processes_of_its_own_dies_with_its_killed_worker(wait_until):
    env = gym_vector(2, vectorization="async")
    with start("multi_sync", "local", env, frames_per_batch=40, total_frames=-1) as collector:
        next(collector)
        pid = worker_pids(collector)[0]
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="worker 0"):
            drain(collector)
        wait_until(
            lambda: not any(child.is_running() for child in children), what=f"the envs' processes end: {children}"
        )


@pytest.mark.parametrize(("kind", "place"), [("multi_async", "inline"), *PLACES[1:4]])
def test_a_next_that_is_interrupted_while_it_gathers_loses_nothing(kind, place, monkeypatch):
    """As by Ctrl-C, which comes at every second call."""
    checker = StreamChecker()
    with start(kind, place, counting(), frames_per_batch=12, total_frames=240) as collector:
        gather, calls = collector._transport.gather, []

        def interrupted(parts, own):
            calls.append(parts)
            if len(calls) % 2:
                raise KeyboardInterrupt
            return gather(parts, own)

        monkeypatch.setattr(collector._transport, "gather", interrupted)
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                next(collector)
            checker.take(next(collector))
        with pytest.raises(StopIteration):
            next(collector)
