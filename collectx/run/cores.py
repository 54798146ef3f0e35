"""How many cores the trainer may use, and how many torch threads run in its process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from collectx.config.schema.run import RunConfig
from collectx.place import place_of
from collectx.place.slurm import commands

_CGROUP_FILE = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Returns how many cores this process may use, at least 1: the minimum of its affinity, the CPU quotas of its
    control groups and the cores of its SLURM task."""
    return max(1, int(min(limits().values())))


def limits() -> dict[str, float]:
    """Returns the limits of `num_cores`, in cores, by their source."""
    found: dict[str, float] = {
        "affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    }
    if quotas := [*_quotas()]:
        found["control group"] = min(quotas)
    if (task := _slurm_cores(os.environ)) is not None:
        found["SLURM"] = task
    return found


def shortage(num_processes: int) -> str | None:
    """Returns advice if this number of busy processes shares too few cores; None if each gets at least half a core."""
    usable = num_cores()
    if num_processes <= 2 * usable:
        return None
    return (
        "fewer workers may be as fast (collector.num_workers=N, or collector=single), or ask for more cores "
        "(launcher.cpus_per_task, the container's limit); `collectx tune` finds the fastest number."
    )


def note(cfg: RunConfig) -> str | None:
    """Returns a note if the processes of a run share too few cores of this machine; otherwise None."""
    place = place_of(cfg)
    if not place.is_here:
        return None
    counts = place.processes()
    # The evaluator yields to the others.
    busy = sum(counts.values()) - counts["fork_server_and_tracker"] - counts["evaluator"]
    if (advice := shortage(busy)) is None:
        return None
    found = limits()
    by = min(found, key=lambda name: found[name])
    return f"{busy} processes share {num_cores()} usable core{'s' * (num_cores() > 1)} ({by}): {advice}"


def limit_threads(cfg: RunConfig) -> None:
    """Limits torch's threads to the cores that the workers on this machine leave, unless OMP_NUM_THREADS is set.

    With one thread per core, every small operation waits for the thread that shares its core with a worker: on two
    busy cores PPO learned 25 times slower.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(trainer_threads(cfg))


def trainer_threads(cfg: RunConfig) -> int:
    """Returns the number of torch threads that `limit_threads` sets. Imports torch; connects to Ray with
    launcher=ray."""
    import torch

    now = torch.get_num_threads()
    return now if "OMP_NUM_THREADS" in os.environ else max(1, min(now, place_of(cfg).cores_of_trainer(num_cores())))


def _slurm_cores(environment: Mapping[str, str]) -> int | None:
    """Returns the cores of this SLURM task or batch script; None outside SLURM.

    Without `--cpus-per-task` SLURM reports only the cores of the step on this node, which its tasks share equally.
    """
    if (cores := environment.get("SLURM_CPUS_PER_TASK")) is not None:
        return int(cores)
    if (cores := environment.get("SLURM_CPUS_ON_NODE")) is None:
        return None
    # A batch script is one task, independent of the tasks of its job.
    counts = commands.per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    node = int(environment.get("SLURM_NODEID", "0"))
    return int(cores) // (counts[node] if node < len(counts) else 1)


def _quotas() -> Iterator[float]:
    """Yields, in cores, the CPU quotas that the control groups of this process set."""
    for text in control_group_values("cpu", ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        quota, period = text.split()
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def control_group_values(controller: str, version2: Sequence[str], version1: Sequence[str]) -> Iterator[str]:
    """Yields, for every control group of this process from the innermost to the root, the contents of a controller's
    files, joined by a space. `version2` and `version1` are the file names in version 2 and in version 1 of control
    groups; see cgroups(7)."""
    try:
        lines = _CGROUP_FILE.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, names = _CGROUP_ROOT, version2
        elif controller in controllers.split(","):
            root, names = _CGROUP_ROOT / controllers, version1
        else:
            continue
        folder = root / group.lstrip("/")
        for parent in (folder, *folder.parents):
            if not parent.is_relative_to(root):
                break
            # The root, and a group that a container hides, lack these files.
            with suppress(OSError):
                yield " ".join((parent / name).read_text().strip() for name in names)
