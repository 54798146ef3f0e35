"""Where Ray places workers, what it gives them, and what it does not have. The cluster has two GPUs by name alone."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from collecting import RAY, counting, custom, start
from worlds.seeing import Seeing, seen_by

from collectx import RayCollector
from collectx.cli.compose import compose
from collectx.errors import ConfigError, LauncherError, WorkerTimeout
from collectx.run import machine

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
slow = pytest.mark.ci


@pytest.fixture(scope="module")
def gpus():
    """Other modules' cluster has none."""
    import ray

    ray.shutdown()
    ray.init(**RAY, num_gpus=2, log_to_driver=False)
    yield
    ray.shutdown()


@slow
@pytest.mark.usefixtures("gpus")
def test_a_worker_sees_the_gpus_that_it_asked_for():
    asked = [{"num_cpus": 0.1, "num_gpus": 1}] * 2
    makes = [Seeing] * 2
    collector = RayCollector(makes, sync=True, frames_per_batch=20, remote_configs=asked, start_timeout_s=200.0)
    assert sorted(seen_by(collector)) == [[0.0], [1.0]]


@slow
@pytest.mark.usefixtures("gpus")
def test_the_policy_acts_on_the_gpu_of_its_worker():
    # There is none, which is torch's to say, in the worker.
    policy = custom("worlds.faulty:telling_policy", size=10)
    with (
        start("ray", "ray", counting(), policy, policy_device="cuda:0", remote_configs={"num_gpus": 1}) as collector,
        pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA") as caught,
    ):
        next(collector)
    assert any("make_actor" in note for note in caught.value.__notes__)


@slow
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("remote_configs", "num_workers", "told"),
    [
        (
            {"num_cpus": 64},
            2,
            r"no node of the Ray cluster has 64 CPU.*Nodes: 1 with 2 CPU, 2 GPU, .* of which",
        ),
        ({"num_cpus": 0, "num_gpus": 3}, 2, r"no node of the Ray cluster has 3 GPU"),
        ({"num_cpus": 0, "resources": {"tpu": 1}}, 2, r"no node of the Ray cluster has 1 tpu"),
        ({"num_cpus": 1}, 3, r"3 workers ask for 3 CPU together, more than the Ray cluster has"),
    ],
)
def test_what_the_cluster_does_not_have_is_told_before_anything_starts(remote_configs, num_workers, told):
    with pytest.raises(LauncherError, match=told):
        start("ray", "ray", num_workers=num_workers, frames_per_batch=12, remote_configs=remote_configs)


@slow
@pytest.mark.usefixtures("gpus")
def test_as_is_what_added_workers_ask_for():
    asked = {"num_cpus": 0.1}
    with RayCollector([Seeing], None, frames_per_batch=20, remote_configs=asked) as collector:
        with pytest.raises(LauncherError, match=r"no node of the Ray cluster has 64 CPU"):
            collector.add_collectors([Seeing], remote_configs={"num_cpus": 64})
        assert len(collector.remote_collectors) == 1


@slow
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("autoscaling", [False, True])
def test_what_others_use_or_what_is_to_come_is_waited_for_no_longer_than_said(autoscaling):
    asked = {"num_cpus": 64 if autoscaling else 1}
    waits = {"queue_timeout_s": 3.0, "autoscaling": autoscaling, "close_timeout_s": 30.0}
    with start("ray", "ray", counting(), num_workers=1, total_frames=-1, remote_configs={"num_cpus": 2}) as first:
        next(first)  # it has what it asked for
        with (
            start("ray", "ray", num_workers=1, remote_configs=asked, **waits) as second,
            pytest.raises(WorkerTimeout) as caught,
        ):
            next(second)
        next(first)
    told = str(caught.value)
    assert f"Ray has not started it: it asks for {64 if autoscaling else 1} CPU. Nodes: 1 with 2 CPU" in told
    assert re.search(r"of which are free (?!.*CPU)", told)
    assert "(launcher.queue_timeout_s=3)" in told


WRONG = {
    "devices.policy_device=cuda": r"acts on cuda, .*num_gpus=0: Ray may place it .*: ask for num_gpus=1 or a part of",
    "devices.policy_device=cuda:1 launcher.remote_configs.num_gpus=1": r"num_gpus=1: it sees 1, .*: ask for num_gpus=2",
    "launcher.queue_timeout_s=0": r"launcher\.queue_timeout_s",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_does_not_fit_together(line):
    with pytest.raises(ConfigError) as caught:
        compose(["collector=ray", "launcher=ray", *line.split()])
    assert any(re.search(WRONG[line], problem) for problem in caught.value.problems), caught.value.problems


def test_gpus_of_workers_need_not_be_here():
    words = ["collector=ray", "launcher=ray", "devices.policy_device=cuda", "launcher.remote_configs.num_gpus=0.5"]
    assert machine.device_problems(compose(words)) == []


def test_python_is_told_the_same():
    asked = [{"num_gpus": 1}, {}]
    with pytest.raises(ConfigError, match=r"remote_configs: the policy of a worker acts on cuda, .*num_gpus=0"):
        RayCollector([Seeing] * 2, None, frames_per_batch=20, remote_configs=asked, policy_device="cuda")
    with pytest.raises(ConfigError, match=r"queue_timeout_s=0: must be above 0"):
        RayCollector([Seeing] * 2, None, frames_per_batch=20, queue_timeout_s=0)
