"""What a trainer or a script changes in the envs while they run, as typed: by every schedule and transport, and again
after a lost worker, a resume and a reproduction."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import collectx, environment, forked

from collectx.run.folder.layout import RunFolder

TESTS = Path(__file__).parents[1]
COURSE = ["env=gym", "env.entry_point=worlds.levels:LevelEnv", "env.num_envs=2", "debug=tiny", "trainer=custom"]
COURSE += ["trainer.target=worlds.levels:Course", "trainer.digest=true", "collector.frames_per_batch=40"]
COURSE += ["collector.total_frames=480", "hydra.run.dir=run"]
WAYS = {
    "single": ["collector=single"],
    "sync": ["collector=multi_sync"],
    "overlap": ["collector=multi_sync", "collector.overlap=1"],
    "async": ["collector=multi_async"],
    "lag": ["collector=multi_async", "collector.max_policy_lag=2"],
    "server": ["collector=multi_sync", "inference=server"],
    "gloo": ["collector=distributed_sync"],
    "gloo_async": ["collector=distributed"],
    "rpc": ["collector=rpc"],
    "nested": ["collector=distributed_sync", "collector.num_workers_per_collector=2"],
    "vector": ["collector=multi_sync", "env=gym_vector", "env.id=worlds.levels:Level-v0", "env.entry_point=null"],
}


@pytest.fixture(autouse=True)
def imports(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def lines(folder):
    return list(RunFolder(folder).read_metrics())


def digests(folder):
    return [line.digest for line in lines(folder)]


def levels(folder):
    """The level of each batch, which is the one of its settings in every frame: a call and options of resets for each
    level. The batches of async workers may come in another order than their settings."""
    found = [line.scalars for line in lines(folder)]
    expected = [each["settings"] and 10 + (each["settings"] + 1) // 2 for each in found]
    assert [each["level"] for each in found] == [each["lowest"] for each in found] == expected
    return expected


def made(folder):
    """The settings that the events of a run name."""
    return [each for each in RunFolder(folder).read_events() if each["event"] == "setting"]


def ways(names, in_ci):
    """The ways of a test; the others are nightly."""
    return [pytest.param(name, marks=pytest.mark.ci if name in in_ci else pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("way", ways(WAYS, ["overlap", "gloo_async"]))
def test_a_course_is_followed_and_reproduced(tmp_path, way):
    collectx("run", *COURSE, *WAYS[way], cwd=tmp_path)
    found = levels(tmp_path / "run")
    assert found[0] == 0
    assert found[-1] >= 11
    versions = [line.settings or 0 for line in lines(tmp_path / "run")]
    assert versions[:3] == [0] * 3
    assert versions[-1] == 6
    assert [(each["kind"], each["of"]) for each in made(tmp_path / "run")[:2]] == [
        ("call", "set_level"),
        ("reset_options", ""),
    ]
    if way in ("single", "sync", "gloo", "vector", "server"):
        assert found == [0] * 3 + [11] * 3 + [12] * 3 + [13] * 3
    forked("reproduce", "run", "hydra.run.dir=again", cwd=tmp_path)
    assert digests(tmp_path / "again") == digests(tmp_path / "run")


@pytest.mark.parametrize("way", ways(["sync", "async", "gloo"], ["gloo"]))
def test_a_replaced_worker_gets_the_settings_in_force(tmp_path, way):
    dies = ["collector.on_worker_failure=restart", "env.kwargs.dies_at=75"]
    collectx("run", *COURSE, *WAYS[way], *dies, cwd=tmp_path)
    events = RunFolder(tmp_path / "run").read_events()
    assert sum(each["event"] == "worker_restarted" for each in events) == 1
    assert levels(tmp_path / "run")[-1] >= 12


@pytest.mark.parametrize("way", ways(["sync", "overlap"], ["overlap"]))
def test_a_resume_continues_the_course(tmp_path, way):
    collectx("run", *COURSE, *WAYS[way], cwd=tmp_path)
    half = [*WAYS[way], "run.max_batches=5", "hydra.run.dir=half"]
    forked("run", *COURSE, *half, cwd=tmp_path)
    forked("resume", "half", "run.max_batches=null", cwd=tmp_path)
    assert digests(tmp_path / "half") == digests(tmp_path / "run")


SCRIPT = """
import sys
from collectx import Collector, DistributedSyncCollector, MultiAsyncCollector, MultiSyncCollector
from worlds.levels import LevelEnv

KINDS = {"single": (Collector, {}), "sync": (MultiSyncCollector, {}), "async": (MultiAsyncCollector, {}),
         "gloo": (DistributedSyncCollector, {"launcher": "mp"})}

def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was accepted")

if __name__ == "__main__":
    kind, options = KINDS[sys.argv[1]]
    envs = [LevelEnv, LevelEnv] if options or kind is not Collector else LevelEnv
    count = len(envs) if isinstance(envs, list) else 1
    with kind(envs, frames_per_batch=20 * count, **options) as collector:
        assert ("collector", "settings_version") not in next(collector).keys(True)
        assert collector.call("set_level", 3) == (None,) * count
        collector.set_attr("level", [4, 5][:count])
        assert collector.get_attr("level") == (4, 5)[:count]
        assert [each["level"] for each in collector.call("where")] == [4, 5][:count]
        assert collector.call("where")[0]["seen"].tolist() == [4.0, 0.0]
        collector.set_reset_options({"speed": 7})
        for _ in range(5):
            batch = next(collector)
        last = batch[..., -1, :] if batch.ndim > 3 else batch[..., -1]
        assert set(last["observation"][..., 0].reshape(-1).tolist()) <= {4.0, 5.0}
        assert set(last["observation"][..., 1].reshape(-1).tolist()) == {7.0}
        assert set(batch["collector", "settings_version"].unique().tolist()) == {5}
        if count > 1:
            assert collector.map_fn("env.set_level", [(1,), (2,)], [{"by": 20}, {"by": 30}]) == [None, None]
            assert collector.get_attr("level") == (21, 32)
        else:
            assert collector.map_fn("env.set_level", [(1,), (2,)], [{"by": 20}, {"by": 30}]) == [None, None]
            assert collector.get_attr("level") == (32,)
        collector.set_attr("level", [[1, 2, 3]] * count)
        assert collector.get_attr("level")[0] == [1, 2, 3]
        collector.set_attr("level", 4)
        assert "have an attribute 'levle'" in refused(lambda: collector.set_attr("levle", 1))
        assert "have an attribute 'nope'" in refused(lambda: collector.get_attr("nope"))
        assert "TypeError: " in refused(lambda: collector.call("set_level", object()))
        assert "got 3 values for" in refused(lambda: collector.set_attr("level", [1, 2, 3]))
        assert "unexpected keyword" in refused(lambda: collector.call("set_level", 1, wrong=2))
        next(collector)
"""


@pytest.mark.parametrize("kind", ways(["single", "sync", "async", "gloo"], ["gloo"]))
def test_a_script_changes_and_reads_envs(tmp_path, kind):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py", kind]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


LEVEL = ["env=gym_vector", "env.id=worlds.levels:Level-v0"]
TAKING = {
    "gym": ["env=gym", "env.entry_point=worlds.levels:LevelEnv"],
    "same_step": [*LEVEL, "env.autoreset_mode=same_step"],
    "next_step": [*LEVEL, "env.autoreset_mode=next_step"],
    "same_step, processes": [*LEVEL, "env.autoreset_mode=same_step", "env.vectorization_mode=async"],
    "next_step, processes": [*LEVEL, "env.autoreset_mode=next_step", "env.vectorization_mode=async"],
    "torchrl": ["env=torchrl", "env.target=worlds.levels:torchrl_env"],
    "torchrl, processes": ["env=torchrl", "env.target=worlds.levels:torchrl_processes"],
}


@pytest.mark.parametrize("way", ways(TAKING, ["gym", "same_step", "torchrl"]))
def test_options_of_resets_are_an_option(tmp_path, way):
    run = collectx if "processes" in way else forked  # they import the main module
    words = [*TAKING[way], "env.num_envs=2", "policy=random", "env.reset_options={speed: 9}"]
    run("run", *words, "debug=tiny", "trainer=record", "collector=single", "hydra.run.dir=run", cwd=tmp_path)
    from collectx.data import load

    data = load(tmp_path / "run")
    assert data["observation"][..., 1].unique().tolist() == [9.0]
    assert data["next", "done"].sum() > 10


@pytest.mark.ci
def test_envs_that_reset_themselves_follow_a_course_through_a_resume(tmp_path):
    course = [*COURSE, *LEVEL, "env.entry_point=null", "env.autoreset_mode=same_step"]
    collectx("run", *course, cwd=tmp_path)
    forked("run", *course, "run.max_batches=5", "hydra.run.dir=half", cwd=tmp_path)
    forked("resume", "half", "run.max_batches=null", cwd=tmp_path)
    assert digests(tmp_path / "half") == digests(tmp_path / "run")
    # Episodes of five frames, in parts of ten.
    assert [line.scalars["speed"] for line in lines(tmp_path / "half")] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


REFUSING = {
    "batched": (
        ["env=gym_vector", "env.id=CartPole-v1", "env.vectorization_mode=vector_entry_point"],
        "autoreset mode",
    ),
    "torchrl": (
        ["env=torchrl", "env.target=worlds.levels:torchrl_norm"],
        "reset options cannot be used, because TorchRL resets these envs (",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("way", REFUSING)
def test_envs_without_options_of_resets_say_so(tmp_path, way):
    words, message = REFUSING[way]
    done = forked("run", *words, "env.reset_options={speed: 9}", cwd=tmp_path, status=2)
    assert "env.reset_options={'speed': 9}" in done.stderr
    assert message in done.stderr
