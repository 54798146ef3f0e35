"""Resident memory of the trainer and its workers after 100 and after 100,000 batches, and remaining processes and
files.

Measured as Pss, because every process maps the slab: a shared page counts once in the sum of all processes.
"""

import gc
import os
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, env_config, policy_config, run_config

TARGET_GROWTH = 0.02
_EARLY = 100


def measure(num_batches: int, **_: Any) -> dict[str, Any]:
    """Runs CartPole with two async workers and small batches, which are discarded."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector

    torch.set_num_threads(1)
    before = _shared_files()
    case = CASES["cartpole_1"]
    cfg = run_config(env_config(case), policy_config(case), "multi_async", 2, 8)
    spec = envs.read_spec(cfg.env)
    points = {}
    with start_collector(cfg, policies.build(cfg.policy, spec, 0), spec) as collector:
        for index in range(1, num_batches + 1):
            next(collector)
            if index in (_EARLY, num_batches // 10, num_batches):
                gc.collect()
                points[index] = sum(_pss_bytes(pid) for pid in (os.getpid(), *_descendants()))
        workers = _descendants()
    deadline = monotonic() + 5.0
    # Workers must have ended; the fork server and its resource tracker live as long as this process.
    while (left := _descendants()) and _names(left) and monotonic() < deadline:
        sleep(0.05)
    return {
        "bytes": points,
        "growth": points[num_batches] / points[_EARLY] - 1.0,
        "processes": len(workers),
        "left_processes": _names(left),
        "left_files": sorted(_shared_files() - before),
    }


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def _descendants() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _names(pids: list[int]) -> list[str]:
    """Command lines of those processes that are workers: children of the fork server, not of this process."""
    import psutil

    names = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.ppid() != os.getpid():
                names.append(f"{pid} {' '.join(process.cmdline())[:80]}")
        except psutil.NoSuchProcess:
            continue
    return names


def _shared_files() -> set[str]:
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


if __name__ == "__main__":
    fresh.serve(measure)
