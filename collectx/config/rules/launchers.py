"""Rules about SLURM jobs and Ray actors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collectx.config.derived import num_tasks_of, schedule_of
from collectx.config.problem import Problem
from collectx.config.rules.backends import acting_device
from collectx.config.schema.launcher import RayLauncherConfig, SlurmLauncherConfig, SubmititDelayedLauncherConfig
from collectx.config.schema.run import RunConfig

# Options of sbatch that collectx sets, and which option to use instead.
_SBATCH = {
    "array": ": use launcher.max_parallel, where the launcher has it",
    "ntasks": ": use collector.num_workers",
    "nodes": ": use launcher.nodes, where the launcher has it",
    "output": ": the run folder has the logs",
    "error": ": the run folder has the logs",
    "no-kill": ": use collector.on_worker_failure",
    "requeue": ": use launcher.requeue",
    "no-requeue": ": use launcher.requeue",
}
# How early SLURM's signal before the time limit may come, in seconds.
_EARLY_S = 60


def slurm_jobs(cfg: RunConfig) -> Iterator[Problem]:
    """Parts and options of SLURM jobs."""
    launcher = cfg.launcher
    parts: dict[str, object] = {"launcher": launcher}
    if isinstance(launcher, SubmititDelayedLauncherConfig):
        parts |= {"launcher.trainer": launcher.trainer, "launcher.worker": launcher.worker}
        if launcher.max_parallel is not None:
            rule, advice = "jobs of two parts cannot be a job array", "use null, or launcher=slurm."
            yield Problem("launcher.max_parallel", rule, launcher.max_parallel, advice)
    for path, part in parts.items():
        names = {str(key).replace("_", "-") for key in getattr(part, "sbatch", ())}
        for name in sorted(_SBATCH.keys() & names):
            yield Problem(f"{path}.sbatch.{name}", f"collectx sets it itself{_SBATCH[name]}.")


def slurm_nodes(cfg: RunConfig) -> Iterator[Problem]:
    """A node without a task would be allocated for nothing."""
    launcher = cfg.launcher
    if not isinstance(launcher, SlurmLauncherConfig) or launcher.nodes is None:
        return
    num_tasks = num_tasks_of(cfg)
    described = f"tasks, the trainer and {num_tasks - 1} workers"
    if schedule_of(cfg.collector) == "single":
        described = "tasks, collector=single"
    elif isinstance(launcher, SubmititDelayedLauncherConfig):
        num_tasks, described = num_tasks - 1, "workers"
    if launcher.nodes > num_tasks:
        rule = f"is more than the {num_tasks} {described}"
        yield Problem("launcher.nodes", rule, launcher.nodes, f"use {num_tasks} or null.")


def slurm_time(cfg: RunConfig) -> Iterator[Problem]:
    """A run that is signalled as soon as it starts, at every start, delivers nothing."""
    launcher = cfg.launcher
    if not isinstance(launcher, SlurmLauncherConfig) or launcher.requeue is False or launcher.time is None:
        return
    limit_s = _seconds(str(launcher.time))
    if limit_s is not None and limit_s <= launcher.signal_s + _EARLY_S:
        early = f"SLURM may signal {_EARLY_S} s earlier, {launcher.signal_s + _EARLY_S} s before the end"
        rule = f"is too much for launcher.time={limit_s} s: {early}"
        advice = "use a smaller value, a longer launcher.time, or launcher.requeue=false."
        yield Problem("launcher.signal_s", rule, launcher.signal_s, advice)


def _seconds(time: str) -> int | None:
    """A time in SLURM's syntax: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; None
    for other words, such as UNLIMITED."""
    days, has_days, rest = time.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")) or len(parts) > 3:
        return None
    units = (3600, 60, 1) if has_days or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))


def ray_gpus(cfg: RunConfig) -> Iterator[Problem]:
    """Each worker's actor asks for the GPU that its policy acts on."""
    if isinstance(cfg.launcher, RayLauncherConfig):
        path, configs = "launcher.remote_configs", cfg.launcher.remote_configs
        per_worker = configs if isinstance(configs, list) else [configs]
        if not all(isinstance(one, dict) for one in per_worker):
            yield Problem(path, "must be a mapping, or a list with one for each worker.", configs)
            return
        num_workers = cfg.collector.num_workers
        if isinstance(configs, list) and len(configs) != num_workers:
            rule = f"has {len(configs)} entries for collector.num_workers={num_workers}"
            yield Problem(path, rule, advice="one for each, or one mapping.")
        yield from gpu_problems(per_worker, [acting_device(cfg)] * len(per_worker))


def gpu_problems(configs: Sequence[Mapping[str, Any] | None], acting: Sequence[str]) -> Iterator[Problem]:
    """Problems of the GPUs that Ray actors ask for.

    Args:
        configs, acting: for each worker the arguments of `ray.remote`, and the device that its policy acts on.
    """
    for num_gpus, acts in dict.fromkeys(zip(map(_num_gpus, configs), acting, strict=True)):
        kind, _, index = acts.partition(":")
        if kind != "cuda" or int(index or 0) < num_gpus:
            continue
        reason = f"it sees {num_gpus}, from cuda:0 on" if num_gpus else "Ray may place it where there is none"
        part = "" if int(index or 0) else " or a part of one"
        other = "cuda" if num_gpus else "the CPU"
        yield Problem(
            "launcher.remote_configs",
            f"the policy of a worker acts on {acts}, which asks for num_gpus={num_gpus}: {reason}",
            advice=f"ask for num_gpus={int(index or 0) + 1}{part}, or let the policy act on {other}.",
        )


def _num_gpus(config: Mapping[str, Any] | None) -> int:
    return math.ceil((config or {}).get("num_gpus") or 0)
