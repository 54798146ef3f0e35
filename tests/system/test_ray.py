"""Workers that are Ray actors: what only they have. One cluster serves all tests; the last one ends it. It has two
GPUs in name only."""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from commands import collectx
from configurations import start
from library_collectors import make
from user_code.cartpoles import Argmax, cartpole
from user_code.customcollectors import Doubling
from ways import RAY_SYNC
from worlds.levels import LevelEnv

from collectx.errors import ConfigError, LauncherError, WorkerTimeout
from collectx.run import RunFolder

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")
TESTS = Path(__file__).parents[1]


@pytest.mark.nightly
def test_a_worker_that_is_added_is_as_the_others_are():
    """The added worker runs the user's own class, with the same hooks."""

    calls = []

    def after(batch):
        batch["next", "reward"] += len(calls)

    hooks = {"init_fn": lambda: calls.extend([None] * 10), "pre_collect_hook": lambda: calls.append(None)}
    keywords = {"num_workers": 1, "frames_per_batch": 40, "collector_class": Doubling, "post_collect_hook": after}
    with make(RAY_SYNC, policy=Argmax(), **keywords, **hooks) as collector:
        assert isinstance(collector.local_policy(), Argmax)
        assert next(collector).shape == (1, 40)
        with pytest.raises(ConfigError, match="cannot be called as Doubling"):
            collector.add_collectors(cartpole, collector_kwargs={"no_such": 1})
        with pytest.raises(LauncherError, match=r"asks for 64 CPU per worker, but no node of the Ray cluster has that"):
            collector.add_collectors(cartpole, remote_configs={"num_cpus": 64})
        with pytest.raises(ConfigError, match=r"remote_configs=.*no_such"):
            collector.add_collectors(cartpole, remote_configs={"no_such": 1})
        with pytest.raises(ConfigError, match=r"create_env_fn=.* cannot be pickled"):
            collector.add_collectors([cartpole, partial(print, threading.Lock())])
        assert collector.num_workers == len(collector.remote_collectors) == 1
        collector.add_collectors(cartpole)
        assert len({actor._actor_id for actor in collector.remote_collectors}) == 2
        assert collector.stats()["workers"] == collector.stats()["workers_alive"] == 2
        batch = next(collector)
    # A reward is 1, doubled, and what the hooks have counted: two batches of the first worker, one of the second.
    assert [part.unique().tolist() for part in batch["next", "reward"]] == [[14.0], [13.0]]
    first, second = batch["collector", "traj_ids"].tolist()
    assert not set(first) & set(second)


@pytest.mark.nightly
def test_attributes_that_were_read_can_be_set_also_after_a_worker_was_added():
    with make(RAY_SYNC, LevelEnv, num_workers=1, frames_per_batch=20) as collector:
        collector.set_attr("level", [4])
        collector.add_collectors(LevelEnv)
        assert collector.get_attr("level") == (4, 4)
        collector.set_attr("level", (5, 6))
        collector.set_attr("level", collector.get_attr("level"))
        assert collector.get_attr("level") == (5, 6)


@pytest.mark.nightly
def test_a_question_waits_for_an_actor():
    keywords = {"on_worker_failure": "drop", "min_workers": 1, "frames_per_batch": 20}
    with make(RAY_SYNC, LevelEnv, **keywords) as collector:
        collector.call("set_level", 4)
        assert {*collector.get_attr("level")} == {4}


@pytest.mark.parametrize(
    ("remote_configs", "num_workers", "message"),
    [
        ({"num_cpus": 64}, 2, r"asks for 64 CPU per worker, but .*Nodes: 1 with 2 CPU, 2 GPU, .* \(free: "),
        ({"resources": {"tpu": 1}}, 2, r"asks for 1 tpu per worker, but no node of the Ray cluster has that"),
        ({"num_cpus": 1}, 3, r"asks for 3 CPU for 3 workers together, but the Ray cluster has less"),
    ],
    ids=["of_a_node", "of_another_kind", "of_all_nodes"],
)
def test_what_the_cluster_does_not_have_is_refused_before_anything_starts(remote_configs, num_workers, message):
    with pytest.raises(LauncherError, match=message):
        start("ray", "ray", num_workers=num_workers, remote_configs=remote_configs)


@pytest.mark.nightly
def test_a_worker_sees_the_gpu_that_it_asks_for():
    def tell(batch):
        batch["next", "reward"].fill_(float(os.environ["CUDA_VISIBLE_DEVICES"]))

    gpu = {"num_cpus": 0.1, "num_gpus": 1}
    with make(RAY_SYNC, frames_per_batch=40, post_collect_hook=tell, remote_configs=[gpu] * 2) as collector:
        assert sorted(part.unique().tolist() for part in next(collector)["next", "reward"]) == [[0.0], [1.0]]


@pytest.mark.nightly
def test_resources_in_use_or_to_come_are_waited_for_as_long_as_configured():
    with start("ray", "ray", num_workers=1, total_frames=-1, remote_configs={"num_cpus": 2}) as first:
        next(first)  # it has all that there is
        for autoscaling, cpus in ((False, 1), (True, 64)):
            waits = {"remote_configs": {"num_cpus": cpus}, "autoscaling": autoscaling, "queue_timeout_s": 3.0}
            why = rf"asks for {cpus} CPU\. Nodes: 1 with 2 CPU, .* \(free: (?!.*CPU).*queue_timeout_s=3\)"
            with start("ray", "ray", num_workers=1, **waits) as second, pytest.raises(WorkerTimeout, match=why):
                next(second)
        next(first)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_node_of_a_cluster_that_is_killed():
    command = [sys.executable, str(TESTS / "scripts" / "rayrun.py")]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "survived on 2 nodes" in ended.stdout


@pytest.mark.nightly
def test_a_cluster_that_has_ended_or_is_not_there():
    import ray

    with start("ray", "ray", num_workers=1, total_frames=-1, close_timeout_s=5.0) as collector:
        next(collector)
        ray.shutdown()
    assert not ray.is_initialized()  # closing has started no other
    with pytest.raises(LauncherError, match=r"ray start --head"):
        start("ray", "ray", ray_init_config={"address": "127.0.0.1:9"})


# A cluster of its own, as a run starts one, of more cores than this machine may have.
RUN = ["collector=distributed_sync", "launcher=ray", "launcher.ray_init_config={address: local, num_cpus: 2}"]
RUN += ["collector.num_workers=2", "env=gym", "env.num_envs=2", "collector.frames_per_batch=40"]
RUN += ["collector.total_frames=480", "policy=random", "hydra.run.dir=run"]


@pytest.mark.nightly
def test_a_course_is_followed_by_actors(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    course = ["env.entry_point=worlds.levels:LevelEnv", "trainer=custom", "trainer.target=worlds.levels:Course"]
    collectx("run", *RUN, *course, cwd=tmp_path)
    levels = [line.scalars["level"] for line in RunFolder(tmp_path / "run").read_metrics()]
    assert levels == [0] * 3 + [11] * 3 + [12] * 3 + [13] * 3


@pytest.mark.nightly
def test_each_env_of_an_actor_has_its_simulator_and_takes_it_along(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    folder = tmp_path / "simulators"
    folder.mkdir()
    kwargs = f"env.kwargs={{port: 21500, folder: {folder}, flags: [--daemon]}}"
    collectx("run", *RUN, "env.entry_point=worlds.simulated:SimulatedEnv", "trainer=meter", kwargs, cwd=tmp_path)
    # Two workers of two envs, and the one that shows the spaces.
    assert {int(path.stem) for path in folder.glob("*.pid")} == {21500, 21501, 21502, 21503, 21504}
    assert list(folder.glob("*.licence")) == []


FORKED = """
import os

import gymnasium
import ray

from collectx import RayCollector
from collectx.errors import LauncherError

ray.init(address="local", num_cpus=1)
child = os.fork()
if child == 0:
    try:
        RayCollector([lambda: gymnasium.make("CartPole-v1")], frames_per_batch=8, start_timeout_s=3.0)
    except LauncherError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.nightly
def test_a_client_of_ray_that_a_fork_has_spoiled_is_not_waited_for_without_end(tmp_path):
    (tmp_path / "forked.py").write_text(FORKED)
    run = subprocess.run([sys.executable, "forked.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert run.stdout.startswith("Ray did not list its nodes within 3 s (start_timeout_s=3)"), run.stderr


SILENT = """
import socket

import gymnasium

from collectx import RayCollector
from collectx.errors import LauncherError

with socket.create_server(("127.0.0.1", 0)) as server:
    address = f"127.0.0.1:{server.getsockname()[1]}"
    try:
        make = lambda: gymnasium.make("CartPole-v1")
        RayCollector([make], frames_per_batch=8, start_timeout_s=3.0, ray_init_config={"address": address})
    except LauncherError as error:
        print(error, flush=True)
"""


@pytest.mark.nightly  # Ray notices the end of the limit after each of its own waits of 40 s
def test_an_address_at_which_no_ray_answers_is_not_waited_for_without_end(tmp_path):
    (tmp_path / "silent.py").write_text(SILENT)
    run = subprocess.run([sys.executable, "silent.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert "ray.init took more than 3 s (start_timeout_s=3). If that" in run.stdout, run.stderr
