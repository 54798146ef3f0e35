"""Workers that are Ray actors: what is particular to them. The contract suite runs over them as well."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest
import torch
from collecting import RAY, counting, custom, faulty, start
from worlds.cartpoles import cartpole
from worlds.customcollectors import Doubling
from worlds.faulty import BrokenLever

from collectx import RayCollector
from collectx.cli.compose import compose
from collectx.env.counting import StreamChecker
from collectx.errors import ConfigError, LauncherError

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
TESTS = Path(__file__).parents[2]
slow = pytest.mark.ci


@slow
def test_an_env_that_raises_does_so_under_its_own_name():
    with start("ray", "ray", faulty("raises"), total_frames=-1) as collector, pytest.raises(BrokenLever) as caught:
        for _ in collector:
            pass
    assert (caught.value.lever, caught.value.force) == ("left", 3)
    assert "pull_the_lever" in "".join(caught.value.__notes__)


@slow
def test_weights_are_put_into_the_store_once_for_all_workers(monkeypatch):
    from worlds import faulty

    from collectx.transport import pair_ray

    stored = []
    put = pair_ray.ray.put
    mine = faulty.telling_policy(100_000)
    monkeypatch.setattr(pair_ray.ray, "put", lambda value: stored.append(len(value)) or put(value))
    policy = custom("worlds.faulty:telling_policy", size=100_000)
    with start(
        "ray_sync", "ray", counting(2), policy, num_workers=3, frames_per_batch=30, total_frames=300
    ) as collector:
        for index, batch in enumerate(collector):
            assert batch["low"].unique().tolist() == [float(index)]
            assert batch["high"].unique().tolist() == [float(index)]
            with torch.no_grad():
                mine.module.number.fill_(index + 1)
            collector.publish(mine)
    assert 10 <= len(stored) <= 11
    assert min(stored) >= 400_000


@slow
def test_batches_that_are_not_copied_may_be_written_to():
    with start("ray", "ray", counting(2), frames_per_batch=200_000, total_frames=400_000, zero_copy=True) as collector:
        for batch in collector:
            batch.apply_(lambda tensor: tensor.zero_())


@slow
def test_bytes_may_travel_by_gloo_between_actors():
    checker = StreamChecker()
    with start("distributed", "ray", counting(2), frames_per_batch=20, total_frames=400) as collector:
        for batch in collector:
            checker.take(batch)
    assert checker.frames == 400


@slow
def test_the_library_has_torchrls_methods():
    with RayCollector(
        make, Greedy(), num_collectors=2, frames_per_batch=40, ray_init_config=RAY, remote_configs={"num_cpus": 0.1}
    ) as collector:
        assert isinstance(collector.local_policy(), Greedy)
        assert len({actor._actor_id for actor in collector.remote_collectors}) == 2
        first = next(collector)
        assert first.shape == (40,)
        collector.add_collectors([make])
        assert len(collector.remote_collectors) == 3
        ids, seen = set(first["collector", "traj_ids"].tolist()), set()
        while seen != {0, 1, 2}:
            batch = next(collector)
            (part,) = collector._collector.delivery.parts
            new = part.worker not in seen
            seen.add(part.worker)
            mine = set(batch["collector", "traj_ids"].tolist())
            assert not (new and part.worker == 2) or not mine & ids
            ids |= mine
        collector.stop()


@slow
def test_a_sync_batch_grows_by_the_part_of_a_worker_that_is_added():
    with RayCollector(
        [make, make],
        None,
        sync=True,
        frames_per_batch=40,
        ray_init_config=RAY,
        remote_configs={"num_cpus": 0.1},
    ) as collector:
        assert next(collector).shape == (2, 20)
        collector.add_collectors(make)
        assert next(collector).shape == (3, 20)


@slow
def test_a_worker_that_is_added_is_of_the_users_own_class():
    with RayCollector(
        [cartpole],
        collector_class=Doubling,
        sync=True,
        frames_per_batch=20,
        ray_init_config=RAY,
        remote_configs={"num_cpus": 0.1},
    ) as collector:
        with pytest.raises(ConfigError, match="cannot be called as Doubling"):
            collector.add_collectors(cartpole, collector_kwargs={"no_such": 1})
        collector.add_collectors(cartpole, collector_kwargs={"reset_at_each_iter": True})
        batch = collector.next()
    assert batch["next", "reward"].unique().tolist() == [2.0]


@slow
def test_a_worker_that_is_added_has_the_hooks_of_all():
    def after(batch):
        batch["next", "reward"].fill_(7.0)

    keywords = {"ray_init_config": RAY, "remote_configs": {"num_cpus": 0.1}, "post_collect_hook": after}
    with RayCollector([make], sync=True, frames_per_batch=20, **keywords) as collector:
        with pytest.raises(ConfigError, match="collector_kwargs has max_frames_per_traj"):
            collector.add_collectors(make, collector_kwargs={"max_frames_per_traj": 5})
        collector.add_collectors(make)
        assert collector.next()["next", "reward"].unique().tolist() == [7.0]


class Greedy(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, observation):
        return super().forward(observation).argmax(-1)


def make():
    return gymnasium.make("CartPole-v1")


@slow
@pytest.mark.timeout(600)
def test_a_node_of_a_cluster_that_is_killed():
    command = [sys.executable, str(TESTS / "scripts" / "rayrun.py")]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("found: "))
    found = json.loads(line.removeprefix("found: "))
    names = found["events"]
    assert found["nodes"] == 2
    # Until Ray knows that the node is gone, it may place another there.
    assert names.count("worker_failed") == names.count("worker_restarted") >= 1
    assert names.count("worker_joined") == 3
    assert found["frames"] >= 300


WRONG = {
    "collector=ray": r"^launcher=local: collector=ray has Ray start its workers: use launcher=ray",
    "backend=ray": r"^launcher=local: backend=ray has Ray start its workers: use launcher=ray",
    "collector=ray launcher=ray backend=gloo": r"^backend=gloo: collector=ray is over Ray's object store: use",
    "launcher=ray backend=mpi": r"^backend=mpi: MPI does not start the workers of launcher=ray",
    "launcher=ray backend=shared_memory": r"the workers of launcher=ray may be on other hosts",
    "launcher=ray launcher.remote_configs={cpus:2}": r"^launcher\.remote_configs: .*cpus",
    "launcher=ray ~launcher.remote_configs +launcher.remote_configs=[{num_cpus:1}]": r"remote_configs has 1 entries",
    "launcher=ray ~launcher.remote_configs +launcher.remote_configs=[{num_cpus:1},2]": r"must be a mapping, or a list",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_does_not_go_with_ray(line):
    with pytest.raises(ConfigError) as caught:
        compose(line.split())
    assert any(re.search(WRONG[line], problem) for problem in caught.value.problems), caught.value.problems


def test_wrong_keywords_are_told_all_at_once():
    with pytest.raises(ConfigError) as caught:
        RayCollector(
            [make] * 2, frames_per_batch=40, num_collectors=3, remote_configs=[{"cpus": 1}], num_workers_per_collector=0
        )
    told = "\n".join(caught.value.problems)
    assert "num_collectors=3" in told or "num_workers=3" in told
    assert "remote_configs has 1 entries" in told
    assert "num_workers_per_collector=0" in told


@slow
def test_closing_when_ray_has_been_left_starts_no_other():
    import ray

    with start("ray", "ray", counting(), num_workers=1, total_frames=-1, close_timeout_s=5.0) as collector:
        next(collector)
        ray.shutdown()
    assert not ray.is_initialized()


@slow
def test_an_address_where_no_cluster_is():
    import ray

    ray.shutdown()
    with pytest.raises(LauncherError, match=r"ray start --head"):
        start("ray", "ray", ray_init_config={"address": "127.0.0.1:9"})


def test_a_cluster_that_does_not_let_in_may_ask_for_a_token(monkeypatch):
    from collectx.transport import ray_cluster

    def refuse(**_):
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray_cluster.ray, "init", refuse)
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(LauncherError, match=r"may ask for a token: set RAY_AUTH_MODE=token"):
        ray_cluster.begin({"address": "auto"})
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(LauncherError) as caught:
        ray_cluster.begin({"address": "auto"})
    assert "token" not in str(caught.value)


_RUN = """
import sys
import ray
from collectx.transport import ray_cluster
ray_cluster.begin({"num_cpus": 1, "include_dashboard": False} if len(sys.argv) == 1 else {})
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@slow
def test_a_run_without_an_address_has_a_cluster_of_its_own():
    """Not the one that another run has begun and takes with it when it ends, as Ray's search would give it."""
    with contextlib.ExitStack() as runs:

        def address(*arguments, **environment):
            run = runs.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _RUN, *arguments],
                    env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            return run.stdout.readline().strip()

        first = address()
        assert first
        second = address()
        assert second
        assert second != first
        assert address("told", RAY_ADDRESS=first, RAY_AUTH_MODE="token") == first
