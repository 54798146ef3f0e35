"""Time to the first batch of eight local workers, from the start of a Python process, relative to
`python -c "import torch, gymnasium, tensordict"`; alternating pairs.

Measures the library in a script, and `collectx run` by the `start_s` of its `result.json`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, time
from typing import Any

from benchmarks import fresh

NUM_WORKERS = 8
TARGET = 1.5
_IMPORTS = "import torch, gymnasium, tensordict"
_COMMAND = (
    "trainer=meter",
    "collector=multi_async",
    f"collector.num_workers={NUM_WORKERS}",
    "env.num_envs=1",
    "collector.frames_per_batch=64",
    "collector.total_frames=2048",
)


def imports_s() -> float:
    """The reference."""
    began = perf_counter()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    return perf_counter() - began


def library_s() -> float:
    """From the start of a Python process that uses the library to its first batch."""
    return fresh.run("benchmarks.startup", began=time())["start_s"]


def command_s() -> float | None:
    """From the start of `collectx run` to its first batch; None if the command fails."""
    command = Path(sys.executable).with_name("collectx")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        line = [str(command), "run", *_COMMAND, f"hydra.run.dir={run}"]
        if not command.exists() or subprocess.run(line, capture_output=True, check=False).returncode != 0:
            return None
        return json.loads((run / "result.json").read_text())["start_s"]


def measure(began: float, **_: Any) -> dict[str, Any]:
    """The library's start in this process, which began at `began` (seconds of the wall clock)."""
    from collectx.fork_server.start import warm_up

    # The fork server imports at the same time as this process.
    warm_up()
    from benchmarks.cases import CASES, env_config, policy_config, run_config
    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector

    case = CASES["cartpole_1"]
    cfg = run_config(env_config(case), policy_config(case), "multi_async", NUM_WORKERS, 64)
    spec = envs.read_spec(cfg.env)
    with start_collector(cfg, policies.build(cfg.policy, spec, 0), spec) as collector:
        next(collector)
        return {"start_s": time() - began}


if __name__ == "__main__":
    fresh.serve(measure)
