"""Time from `collectx run launcher=slurm` to the first batch, relative to `srun python -c "import torch"`; alternating
pairs.

Needs SLURM: run it on a login host, or in `python tests/slurm/cluster.py bash`.
"""

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
    """Returns why this cannot be measured here; None if it can."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return "there is no sbatch on this machine"
    sinfo = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, check=False)
    if sinfo.returncode != 0:
        return (
            "sbatch is installed but no SLURM answers: " + (sinfo.stderr.strip().splitlines() or ["sinfo failed"])[-1]
        )
    if not any(state in sinfo.stdout for state in ("idle", "mixed")):
        return f"no node is free: sinfo says {', '.join(sorted(set(sinfo.stdout.split()))) or 'nothing'}"
    return None


def srun_s() -> float:
    """The reference."""
    began = perf_counter()
    subprocess.run(["srun", "-n1", sys.executable, "-c", "import torch"], check=True, capture_output=True)
    return perf_counter() - began


def command_s(shared: Path) -> float:
    """From the start of the command to the first line of `metrics.jsonl`, which is written with the first batch.

    Args:
        shared: a folder on a file system shared with the nodes.
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
