"""Workers that are Ray actors and are killed, freeze, have processes of their own, or are given hooks."""

from __future__ import annotations

import contextlib
import os
import signal
from importlib.util import find_spec

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from collecting import RAY, Log, batches, counting, gym, mlp, start

from collectx import RayCollector
from collectx.env.counting import LIFE, StreamChecker

pytestmark = [pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"), pytest.mark.ci]


@pytest.mark.parametrize(
    ("kind", "how"),
    [("ray", signal.SIGKILL), ("ray_sync", signal.SIGKILL), ("ray_sync", signal.SIGSTOP)],
    ids=["async-killed", "sync-killed", "sync-frozen"],
)
def test_a_lost_worker_is_replaced_and_nothing_is_lost_repeated_or_torn(kind, how, wait_until):
    checker, log, lives, after = StreamChecker(restarts=True), Log(), {0}, 0
    with start(
        kind,
        "ray",
        counting(3, step_s=0.001),
        frames_per_batch=30,
        total_frames=-1,
        on_worker_failure="restart",
        worker_timeout_s=10.0 if how == signal.SIGSTOP else 120.0,
        events=log,
    ) as collector:
        while after < 10:
            batch = next(collector)
            checker.take(batch)
            mine = batch["observation"].reshape(-1, 5)
            parts = {part.worker for part in collector.delivery.parts}
            lives |= {episode // LIFE for env, episode in mine[:, :2].tolist() if 3 <= env < 6}
            if lives == {0} and 1 in parts and not log.of("worker_failed"):
                (victim,) = pids_of(log, 1)
                with contextlib.suppress(ProcessLookupError):  # until its end is noticed
                    os.kill(victim, how)
            after += 1 in lives
    (failure,) = log.of("worker_failed")
    expected = "WorkerDied" if how == signal.SIGKILL else "WorkerTimeout"
    assert (failure["worker"], failure["type"]) == (1, expected)
    assert "Ray actor" in failure["message"]
    # Ray itself ends what does not answer, some time after `ray.kill` has returned.
    wait_until(lambda: not psutil.pid_exists(victim), what="the end of the lost worker's process")


def pids_of(log, worker):
    return [fields["pid"] for fields in log.of("worker_joined") if fields["worker"] == worker]


def test_the_run_goes_on_without_one_that_is_frozen():
    checker, log, after = StreamChecker(), Log(), 0
    with start(
        "ray_sync",
        "ray",
        counting(2),
        num_workers=3,
        frames_per_batch=30,
        total_frames=-1,
        on_worker_failure="drop",
        worker_timeout_s=10.0,
        events=log,
    ) as collector:
        checker.take(next(collector))
        os.kill(pids_of(log, 1)[0], signal.SIGSTOP)
        while after < 10:
            batch = next(collector)
            checker.take(batch)
            after += bool(log.of("worker_dropped"))
    assert batch.shape == (2, 2, 5)
    assert [(each["worker"], each["type"]) for each in log.of("worker_failed")] == [(1, "WorkerTimeout")]
    assert "collector.worker_timeout_s=10" in log.of("worker_failed")[0]["message"]


@pytest.mark.parametrize("kind", ["ray", "ray_sync"])
def test_a_worker_may_be_a_collector_of_processes(kind):
    log = Log()
    shape = {"frames_per_batch": 4 * 2 * 8, "total_frames": 4 * 2 * 8 * 5, "seed": 3}
    relayed = batches(kind, "ray", gym(2), mlp(), num_workers_per_collector=2, events=log, **shape)
    assert [tuple(batch.batch_size) for batch in relayed] == [(2, 4, 8) if kind == "ray_sync" else (4, 16)] * 5
    if kind == "ray_sync":
        plain = batches("multi_sync", "local", gym(2), mlp(), num_workers=4, **shape)
        for ours, theirs in zip(relayed, plain, strict=True):
            for key in theirs.keys(include_nested=True, leaves_only=True):
                assert torch.equal(ours[key].reshape(theirs[key].shape), theirs[key]), key


def test_when_such_a_worker_is_killed_its_processes_end_too(wait_until):
    log = Log()
    with start(
        "ray",
        "ray",
        counting(),
        num_workers=1,
        num_workers_per_collector=2,
        total_frames=-1,
        on_worker_failure="restart",
        events=log,
    ) as collector:
        next(collector)
        within = psutil.Process(pids_of(log, 0)[0]).children(recursive=True)
        os.kill(pids_of(log, 0)[0], signal.SIGKILL)
        while len(pids_of(log, 0)) < 2:
            next(collector)
        assert len(within) >= 3
        wait_until(lambda: not psutil.wait_procs(within, 0)[1], what="the end of the processes within")


class Marked(gymnasium.Env):
    """Observes what `init_fn` and `pre_collect_hook` have left in its process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def _look(self):
        marks = [float(os.environ.get(name, -1)) for name in ("COLLECTX_TEST_INIT", "COLLECTX_TEST_BEFORE")]
        return np.array([*marks, os.getpid()], np.float32)

    def reset(self, *, seed=None, options=None):
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {}


def test_hooks_are_called_where_the_batches_are_made():
    def init():
        os.environ["COLLECTX_TEST_INIT"] = "7"

    def before():
        os.environ["COLLECTX_TEST_BEFORE"] = str(1 + int(os.environ.get("COLLECTX_TEST_BEFORE", 0)))

    def after(batch):
        batch["next", "reward"].fill_(float(os.environ["COLLECTX_TEST_BEFORE"]))

    with RayCollector(
        [Marked] * 2,
        sync=True,
        frames_per_batch=8,
        total_frames=24,
        ray_init_config=RAY,
        remote_configs={"num_cpus": 0.1},
        start_timeout_s=200.0,
        init_fn=init,
        pre_collect_hook=before,
        post_collect_hook=after,
    ) as collector:
        for index, batch in enumerate(collector, start=1):
            assert batch["next", "observation"][..., 0].unique().tolist() == [7.0]
            assert batch["next", "observation"][..., 1].unique().tolist() == [float(index)]
            assert batch["next", "reward"].unique().tolist() == [float(index)]
            assert os.getpid() not in batch["observation"][..., 2].unique().tolist()
    assert "COLLECTX_TEST_INIT" not in os.environ
