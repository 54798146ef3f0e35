"""From `collectx run launcher=slurm` to the first batch, against a bare `srun python -c "import torch"`; pairs in turn.

Only where a SLURM answers: from a login host, or in `python tests/slurm/cluster.py bash` on a machine that has none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

from benchmarks import fresh

_TIMEOUT_S = 180.0
_COMMAND = (
    "collector=distributed",
    "collector.num_workers=2",
    "collector.frames_per_batch=64",
    "collector.total_frames=2048",
    "env=counting",
    "policy=random",
    "trainer=meter",
    "launcher=slurm",
)


def why_not() -> str | None:
    """Why this cannot be measured here; None where it can."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return "there is no sbatch on this machine"
    found = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return (
            "sbatch is installed but no SLURM answers: " + (found.stderr.strip().splitlines() or ["sinfo failed"])[-1]
        )
    if not any(state in found.stdout for state in ("idle", "mixed")):
        return f"no node is free: sinfo says {', '.join(sorted(set(found.stdout.split()))) or 'nothing'}"
    return None


def srun_s() -> float:
    """The yardstick."""
    began = perf_counter()
    subprocess.run(["srun", "-n1", sys.executable, "-c", "import torch"], check=True, capture_output=True)
    return perf_counter() - began


def command_s(shared: Path) -> float:
    """From the start of the command to the first line of `metrics.jsonl`, which stands for the first batch.

    Args:
        shared: a folder that the nodes see too.
    """
    shared.mkdir(exist_ok=True)
    command = str(Path(sys.executable).with_name("collectx"))
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        line = [command, "run", *_COMMAND, f"hydra.sweep.dir={folder}", f"hydra.run.dir={folder}"]
        began = perf_counter()
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                while not any(metrics.stat().st_size for metrics in Path(folder).rglob("metrics.jsonl")):
                    if process.poll() is not None or perf_counter() - began > _TIMEOUT_S:
                        process.kill()
                        raise fresh.Failed(f"{' '.join(line)} gave no batch: {process.communicate()[0][-2000:]}")
                    sleep(0.01)
                first_s = perf_counter() - began
                process.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise fresh.Failed(f"{' '.join(line)} did not end") from error
            finally:
                process.kill()
    return first_s
