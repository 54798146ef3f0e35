"""The comparisons with other libraries, as typed."""

import subprocess
from pathlib import Path

import pytest
from commands import environment

_ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_gymnasium_gets_its_rows():
    command = ["python", "-m", "benchmarks.peers", "--only", "gymnasium", "--turns", "1", "--seconds", "0.2"]
    done = subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "|" in line]
    theirs = {(row[0], row[2]): row[3:] for row in rows if row[1] == "gymnasium"}
    assert len(theirs) == 8
    processes, frames, _, ratio = theirs["CartPole-v1, 32", "AsyncVectorEnv"]
    assert processes == "64"
    assert float(frames.replace(",", "")) > 0
    assert float(ratio.split(" ")[0]) > 0
    assert "gymnasium" in done.stdout.splitlines()[-1]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_replay_buffers_get_their_rows():
    command = ["python", "-m", "benchmarks.replay", "--turns", "1", "--seconds", "0.05"]
    done = subprocess.run(command, cwd=_ROOT, env=environment(), capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("python -m benchmarks.replay --turns 1 --seconds 0.05; 20")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "|" in line]
    cells = {(row[0], row[1]): row[2:] for row in rows}
    for sampling in ("uniform", "prioritised"):
        sample, written, _, sampled, _ = cells[f"{sampling}, CartPole", "collectx"]
        assert sample == "TensorDict"
        assert float(written.replace(",", "")) > 0
        assert float(sampled.replace(",", "")) > 0
    # It is installed in an environment of its own; a side without one says why it has no figures.
    assert cells["uniform, CartPole", "cpprb"][-1].endswith((")", "No module named 'cpprb'"))
