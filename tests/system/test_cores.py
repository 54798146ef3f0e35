"""Trainer and workers may use all cores, also where OpenMP's variables bind threads, as on some clusters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import collectx

from collectx.run import RunFolder

TESTS = Path(__file__).parents[1]
CORES = len(os.sched_getaffinity(0))
SCRIPT = """
import collectx
from user_code.placed import make

collectx.Collector(make, frames_per_batch=1, total_frames=1)
"""


@pytest.mark.skipif(CORES == 1, reason="one core")
@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
@pytest.mark.parametrize("collector", ["single", pytest.param("multi_sync", marks=pytest.mark.ci)])
def test_the_command_ignores_variables_that_bind_threads(tmp_path, monkeypatch, collector, name):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv(name, {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}.get(name, f"0-{CORES - 1}"))
    words = ["env=gym", "env.entry_point=user_code.placed:make", "env.metrics=[cores]", "hydra.run.dir=run"]
    words += ["policy=random", "trainer=meter", f"collector={collector}", "collector.total_frames=2000"]
    done = collectx("run", *words, cwd=tmp_path)
    assert f"note: {name} is ignored: it would bind trainer and workers to one core. " in done.stderr
    *_, last = RunFolder(tmp_path / "run").read_metrics()
    assert last.scalars["cores"] == CORES


@pytest.mark.skipif(CORES == 1, reason="one core")
def test_a_script_that_openmp_has_bound_is_warned():
    environment = os.environ | {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=100)
    expected = "UserWarning: OMP_PROC_BIND has bound this process and its workers to one core. "
    assert f"{expected}Before you start Python: unset OMP_PROC_BIND OMP_PLACES" in done.stderr
