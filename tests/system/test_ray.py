"""Workers that are Ray actors: what only they have. One cluster serves all tests; those that end it come last. It has
two GPUs in name only."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from collecting import RAY, Log, counting, custom, start
from making import make
from ways import RAY_SYNC
from worlds.cartpoles import Argmax, cartpole
from worlds.faulty import telling_policy
from worlds.seeing import Seeing, seen_by

from collectx import Collector
from collectx.env.counting import StreamChecker
from collectx.errors import ConfigError, LauncherError, WorkerTimeout

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")
TESTS = Path(__file__).parents[1]
SMALL = {"num_cpus": 0.1}


def create(way, env=cartpole, **keywords):
    return make(way, env, ray_init_config=RAY, frames_per_batch=40, **keywords)


class Doubling(Collector):
    def __next__(self):
        batch = super().__next__()
        batch["next", "reward"] *= 2
        return batch


def test_a_worker_that_is_added_is_as_the_others_are():
    """Of the user's own class, and with the hooks of all."""

    def after(batch):
        batch["next", "reward"] += 5

    keywords = {"num_workers": 1, "collector_class": Doubling, "post_collect_hook": after, "remote_configs": SMALL}
    with create(RAY_SYNC, policy=Argmax(), **keywords) as collector:
        assert isinstance(collector.local_policy(), Argmax)
        assert next(collector).shape == (1, 40)
        with pytest.raises(ConfigError, match="cannot be called as Doubling"):
            collector.add_collectors(cartpole, collector_kwargs={"no_such": 1})
        with pytest.raises(LauncherError, match=r"no node of the Ray cluster has 64 CPU"):
            collector.add_collectors(cartpole, remote_configs={"num_cpus": 64})
        assert len(collector.remote_collectors) == 1
        collector.add_collectors(cartpole)
        assert len({actor._actor_id for actor in collector.remote_collectors}) == 2
        batch = next(collector)
    assert batch.shape == (2, 40)
    assert batch["next", "reward"].unique().tolist() == [7.0]
    first, second = batch["collector", "traj_ids"].tolist()
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("remote_configs", "num_workers", "message"),
    [
        ({"num_cpus": 64}, 2, r"no node of the Ray cluster has 64 CPU.*Nodes: 1 with 2 CPU, 2 GPU, .* of which"),
        ({"num_cpus": 0, "num_gpus": 3}, 2, r"no node of the Ray cluster has 3 GPU"),
        ({"num_cpus": 0, "resources": {"tpu": 1}}, 2, r"no node of the Ray cluster has 1 tpu"),
        ({"num_cpus": 1}, 3, r"3 workers ask for 3 CPU together, more than the Ray cluster has"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_anything_starts(remote_configs, num_workers, message):
    with pytest.raises(LauncherError, match=message):
        start("ray", "ray", num_workers=num_workers, remote_configs=remote_configs)


class Marked(gymnasium.Env):
    """Observes what `init_fn` and `pre_collect_hook` have left in its process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def _look(self):
        marks = [float(os.environ.get(name, -1)) for name in ("COLLECTX_TEST_INIT", "COLLECTX_TEST_BEFORE")]
        return np.array(marks, np.float32)

    def reset(self, *, seed=None, options=None):
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {}


@pytest.mark.nightly
def test_hooks_are_called_where_the_batches_are_made():
    def init():
        os.environ["COLLECTX_TEST_INIT"] = "7"

    def before():
        os.environ["COLLECTX_TEST_BEFORE"] = str(1 + int(os.environ.get("COLLECTX_TEST_BEFORE", 0)))

    def after(batch):
        batch["next", "reward"].fill_(float(os.environ["COLLECTX_TEST_BEFORE"]))

    hooks = {"init_fn": init, "pre_collect_hook": before, "post_collect_hook": after}
    with create(RAY_SYNC, Marked, total_frames=120, **hooks) as collector:
        for index, batch in enumerate(collector, start=1):
            assert batch["next", "observation"].flatten(0, 1).unique(dim=0).tolist() == [[7.0, float(index)]]
            assert batch["next", "reward"].unique().tolist() == [float(index)]
    assert index == 3
    assert "COLLECTX_TEST_INIT" not in os.environ


@pytest.mark.nightly
def test_weights_are_put_into_the_store_once_for_all_workers(monkeypatch):
    from collectx.transport import pair_ray

    stored, put, mine = [], pair_ray.ray.put, telling_policy(100_000)
    monkeypatch.setattr(pair_ray.ray, "put", lambda value: stored.append(len(value)) or put(value))
    policy = custom("worlds.faulty:telling_policy", size=100_000)
    shape = {"num_workers": 3, "frames_per_batch": 30, "total_frames": 300}
    with start("ray_sync", "ray", counting(2), policy, **shape) as collector:
        for index, batch in enumerate(collector):
            assert batch["low"].unique().tolist() == batch["high"].unique().tolist() == [float(index)]
            with torch.no_grad():
                mine.module.number.fill_(index + 1)
            collector.publish(mine)
    assert 10 <= len(stored) <= 11
    assert min(stored) >= 400_000


@pytest.mark.nightly
def test_bytes_may_travel_by_gloo_between_actors():
    checker = StreamChecker()
    with start("distributed", "ray", counting(2), frames_per_batch=20, total_frames=400) as collector:
        for batch in collector:
            checker.take(batch)
    assert checker.frames == 400


@pytest.mark.nightly
def test_a_worker_sees_the_gpu_that_it_asks_for():
    collector = create(RAY_SYNC, Seeing, remote_configs=[{"num_cpus": 0.1, "num_gpus": 1}] * 2)
    assert sorted(seen_by(collector)) == [[0.0], [1.0]]
    # The policy acts on it: there is none, as torch says in the worker.
    policy, knobs = custom("worlds.faulty:telling_policy", size=10), {"remote_configs": {"num_gpus": 1}}
    with (
        start("ray", "ray", counting(), policy, policy_device="cuda:0", **knobs) as collector,
        pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA") as caught,
    ):
        next(collector)
    assert any("make_actor" in note for note in caught.value.__notes__)


@pytest.mark.nightly
def test_resources_in_use_or_to_come_are_waited_for_as_long_as_configured():
    waits = {"num_workers": 1, "queue_timeout_s": 3.0, "close_timeout_s": 30.0}
    with start("ray", "ray", num_workers=1, total_frames=-1, remote_configs={"num_cpus": 2}) as first:
        next(first)  # it has all that there is
        for autoscaling, cpus in ((False, 1), (True, 64)):
            with (
                start("ray", "ray", remote_configs={"num_cpus": cpus}, autoscaling=autoscaling, **waits) as second,
                pytest.raises(WorkerTimeout) as caught,
            ):
                next(second)
            message = str(caught.value)
            assert f"Ray has not started it: it asks for {cpus} CPU. Nodes: 1 with 2 CPU" in message
            assert re.search(r"of which are free (?!.*CPU)", message)
            assert "(launcher.queue_timeout_s=3)" in message
        next(first)


@pytest.mark.nightly
def test_the_processes_of_a_worker_that_is_killed_end_too(wait_until):
    log = Log()
    knobs = {"num_workers": 1, "num_workers_per_collector": 2, "total_frames": -1, "on_worker_failure": "restart"}
    with start("ray", "ray", events=log, **knobs) as collector:
        next(collector)
        pid = log.of("worker_joined")[0]["pid"]
        within = psutil.Process(pid).children(recursive=True)
        assert len(within) >= 3
        os.kill(pid, signal.SIGKILL)
        while len(log.of("worker_joined")) < 2:
            next(collector)
    assert "Ray actor" in log.of("worker_failed")[0]["message"]
    wait_until(lambda: not psutil.wait_procs(within, 0)[1], what="the end of the processes within")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_node_of_a_cluster_that_is_killed():
    command = [sys.executable, str(TESTS / "scripts" / "rayrun.py")]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "survived on 2 nodes" in ended.stdout


# From here on tests end the cluster of this process.


@pytest.mark.nightly
def test_closing_after_ray_was_shut_down_starts_no_other_cluster():
    import ray

    with start("ray", "ray", num_workers=1, total_frames=-1, close_timeout_s=5.0) as collector:
        next(collector)
        ray.shutdown()
    assert not ray.is_initialized()


@pytest.mark.nightly
def test_an_address_without_a_cluster_is_refused():
    import ray

    ray.shutdown()
    with pytest.raises(LauncherError, match=r"ray start --head"):
        start("ray", "ray", ray_init_config={"address": "127.0.0.1:9"})
