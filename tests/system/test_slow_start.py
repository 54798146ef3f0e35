"""A start may take as long as it makes progress."""

import os
from pathlib import Path

import pytest
from commands import collectx, result

RUN = ["run", "env=gym", "env.num_envs=2", "policy=random", "trainer=meter", "debug=tiny", "hydra.run.dir=run"]


@pytest.fixture(autouse=True)
def user_code(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


@pytest.mark.ci
@pytest.mark.parametrize("collector", ["multi_sync", pytest.param("distributed_sync", marks=pytest.mark.nightly)])
def test_a_start_takes_longer_than_its_limit_if_each_part_is_shorter(tmp_path, collector):
    words = ["env.entry_point=user_code.slow_start:make", "collector.start_timeout_s=7", f"collector={collector}"]
    done = collectx(*RUN, *words, cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 128
    # Over a network, the check of this machine imports torch, and says so if that takes long.
    assert "] importing torch\n" in done.stdout or collector == "distributed_sync"
    assert "] making an env to read its spaces\n" in done.stdout
    assert "] waiting for the first batch (0 of 2 workers have stepped)\n" in done.stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    ("part", "where"),
    [
        pytest.param("imports", "It was importing modules, or making its first env.", marks=pytest.mark.nightly),
        ("makes", "It has made or reset envs 1 time, but has not stepped them yet."),
    ],
)
def test_a_start_that_hangs_in_one_part_says_in_which(tmp_path, part, where):
    words = [f"env.entry_point=user_code.endless_start:{part}", "collector.start_timeout_s=4"]
    said = collectx(*RUN, *words, cwd=tmp_path, status=1).stderr
    assert f"made no progress for 4 s (collector.start_timeout_s=4). {where}" in said
    assert f"endless_{'import' if part == 'imports' else 'start'}.py" in said


# In a worker process of Ray, each module takes longer to import from torch on, as on a slow file system.
_COLD = """
import sys, time

class Cold:
    def find_spec(self, *names):
        if "torch" in sys.modules:
            time.sleep({})

if any("default_worker.py" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, Cold())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [0.012, 100])
def test_imports_of_rays_workers_may_take_longer_than_the_limit_of_a_start(tmp_path, monkeypatch, seconds):
    pytest.importorskip("ray")
    (tmp_path / "sitecustomize.py").write_text(_COLD.format(seconds))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    words = [*RUN[:1], *RUN[3:], "collector=ray", "launcher=ray", "collector.start_timeout_s=6"]
    words += ["launcher.ray_init_config={num_cpus: 2}"]
    done = collectx(*words, cwd=tmp_path, status=0 if seconds < 1 else 1)
    if seconds < 1:
        assert result(tmp_path / "run")["frames"] == 128
        assert "] connecting to Ray\n" in done.stdout
        assert "] waiting for the first batch (0 of 2 workers have stepped)\n" in done.stdout
    else:
        said = (
            "made no progress for 6 s (collector.start_timeout_s=6). It was importing modules, or making its first env"
        )
        assert said in done.stderr
