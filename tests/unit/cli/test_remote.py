"""The installed command with workers over torch RPC and over Ray, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

COMMAND = Path(sys.executable).parent / "collectx"
RAY = ["collector=ray", "launcher=ray", "launcher.ray_init_config={num_cpus: 2, address: local}"]
WAYS = {
    "rpc": ["collector=rpc"],
    "ray": RAY,
}
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
pytestmark = pytest.mark.ci
ways = pytest.mark.parametrize("way", ["rpc", pytest.param("ray", marks=needs_ray)])


def run(*argv: str, cwd: Path) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [COMMAND, "run", *argv]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    folder = next(word.split("=", 1)[1] for word in argv if word.startswith("hydra.run.dir="))
    # torch's and Ray's own lines, as of agents that go.
    told = done.stdout + done.stderr + "".join(log.read_text() for log in (cwd / folder / "logs").glob("worker-*.log"))
    assert "[W" not in told
    assert "tensorpipe" not in told
    return json.loads((cwd / folder / "result.json").read_text())


@needs_ray
def test_the_same_seed_gives_the_same_batches_while_it_learns_wherever_its_workers_are(tmp_path: Path):
    learning = ["trainer.digest=true", "collector.total_frames=2048"]
    ways = {"local": ["collector=multi_sync"]} | {name: [*words, "collector.sync=true"] for name, words in WAYS.items()}
    digests = {
        name: run(*learning, *words, f"hydra.run.dir={name}", cwd=tmp_path)["digest"] for name, words in ways.items()
    }
    assert digests == dict.fromkeys(ways, digests["local"])


@ways
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_in_order_and_leaves_nothing(way: str, number: signal.Signals, tmp_path: Path, wait_until):
    argv = [*WAYS[way], "env=counting", "policy=random", "trainer=meter", "collector.total_frames=-1"]
    lines = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(
        [COMMAND, "run", *argv, "hydra.run.dir=run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as command:
        wait_until(lambda: (lines.exists() and lines.read_text()) or command.poll() is not None, 200, "a batch")
        there = psutil.Process(command.pid).children(recursive=True)
        # As a terminal does, and as a scheduler does.
        (os.killpg if number is signal.SIGINT else os.kill)(command.pid, number)
        told, _ = command.communicate(timeout=150)
    assert command.returncode == 130, told
    assert "Traceback" not in told
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    assert len(there) >= 2
    wait_until(lambda: not psutil.wait_procs(there, 0)[1], what="the end of what the run has started")
