"""How many cores the trainer may use, and how many of them its workers leave to torch in its process.

Used in the trainer's process, on Linux; elsewhere all cores count. Must not know what is computed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from collectx.config import RayLauncherConfig, RunConfig

_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores that this process may use, at least 1: by its affinity, by the CPU quotas of its control groups, and, in a
    task of SLURM, by what the task has."""
    limits: list[float] = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    limits += _quotas()
    if (task := _slurm_cores(os.environ)) is not None:
        limits.append(task)
    return max(1, int(min(limits)))


def limit_threads(cfg: RunConfig) -> None:
    """Limits torch in this process to the cores that the workers beside it leave, unless the user set OMP_NUM_THREADS.

    A pool as large as the machine waits in every small operation for the thread that shares its core with a worker:
    on two busy cores PPO learnt 25 times slower.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        left = num_cores() - _num_worker_threads(cfg)
        torch.set_num_threads(max(1, min(torch.get_num_threads(), left)))


def _num_worker_threads(cfg: RunConfig) -> int:
    """Threads of the workers that share this process's cores. Those of other tasks and jobs of SLURM have their own."""
    if isinstance(cfg.launcher, RayLauncherConfig):
        from collectx.launcher import ray_cluster

        ray_cluster.connect(cfg.launcher.ray_init_config)
        is_beside = ray_cluster.is_single_host()
    else:
        is_beside = cfg.launcher.kind in ("inline", "local")
    processes = cfg.collector.num_workers * cfg.collector.num_workers_per_collector
    return processes * cfg.launcher.num_threads if is_beside else 0


def _slurm_cores(environment: Mapping[str, str]) -> int | None:
    """Cores of one of the tasks of this step, or of this batch script; None outside of SLURM.

    Without `--cpus-per-task` SLURM tells only what the step has on this node: equal parts of it are each task's.
    """
    if (cores := environment.get("SLURM_CPUS_PER_TASK")) is not None:
        return int(cores)
    if (cores := environment.get("SLURM_CPUS_ON_NODE")) is None:
        return None
    # Of a batch script there is one, whatever the tasks of its job are.
    counts = per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    node = int(environment.get("SLURM_NODEID", "0"))
    return int(cores) // (counts[node] if node < len(counts) else 1)


def per_node(text: str) -> list[int]:
    """The numbers, node by node, in a variable of SLURM: `4(x2),2` is two nodes with four and one with two."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in groups for _ in range(int(times or 1))]


def _quotas() -> Iterator[float]:
    """Cores that each control group above this process allows, where it sets a limit."""
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            root, names = _MOUNTED, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, names = _MOUNTED / controllers, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        folder = root / group.lstrip("/")
        for parent in (folder, *folder.parents):
            if not parent.is_relative_to(root):
                break
            try:
                quota, period = " ".join((parent / name).read_text() for name in names).split()
            except (OSError, ValueError):
                continue  # the root has none, nor has a group that a container does not show
            if quota not in ("max", "-1"):
                yield int(quota) / int(period)
