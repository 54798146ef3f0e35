"""The places of SLURM, siblings over `SlurmPlace`. The other modules of this folder start their tasks and jobs.

slurm              trainer and workers are the tasks of one job; with several learners, each task is a learner, and
                   starts its workers itself
submitit_delayed   the same, in a heterogeneous job: the trainer's part has its own resources
submitit           the trainer runs where it was started, and each worker is a job
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from collectx.config.problem import Conflict, Problem, counted, opt, use
from collectx.place.base import Place
from collectx.place.local import Local
from collectx.place.slurm import commands, log_watcher
from collectx.place.slurm.script import EARLY_S, WORKERS

# What sbatch takes as memory, and as a time beside those of `_seconds`.
_MEMORY, _NO_LIMIT = re.compile(r"\d+([KMGT]B?)?", re.IGNORECASE), ("INFINITE", "UNLIMITED")


class SlurmPlace(Place):
    """What the three places share: the resources of jobs, as sbatch reads them. A subclass says which processes are in
    a job.

    Attributes:
        workers_part: the workers' part of a heterogeneous job; None for other jobs.
        other_tasks: what the tasks besides the trainer's are, and the number of the first one.
    """

    workers_part: int | None = None
    other_tasks = log_watcher.WORKERS

    @property
    def _launcher(self) -> Any:
        return self.cfg.launcher

    @property
    def cpus_per_task(self) -> int | None:
        """The cores to request for each task; None: the cluster's default."""
        return self._launcher.cpus_per_task

    @property
    def survives_nodes(self) -> bool:
        """Whether the run may continue when its job loses a node."""
        return self.cfg.collector.on_worker_failure != "raise"

    def job_needs(self) -> dict[str, Any]:
        cores = self.cpus_per_task or "the cluster's default"
        return {"tasks_of_a_job": self.num_tasks, "cores_of_a_task": cores}

    def _own_problems(self) -> Iterator[Problem]:
        if self.cfg.backend.kind == "mpi":
            yield from self._mpi_problems()
        yield from self._resource_problems()
        yield from self._sbatch_problems()
        if self.is_job:
            yield from self._node_problems()
            yield from self._time_problems()

    def _mpi_problems(self) -> Iterator[Problem]:
        """MPI connects trainer and workers."""
        kind = self.cfg.launcher.kind
        rule = f"{opt(f'launcher={kind}')} starts each worker as a separate job, and MPI cannot connect separate jobs"
        yield Conflict("backend", rule, "mpi", use("backend=gloo", "launcher=local"))

    def _resource_problems(self) -> Iterator[Problem]:
        """Times and memory are written as sbatch reads them."""
        for path, part in self._parts().items():
            memory = getattr(part, "mem", None)
            for name, time in _times(path, part):
                if _seconds(str(time)) is None and str(time).upper() not in _NO_LIMIT:
                    advice = f"use minutes, as in {name}=90, or hours:minutes:seconds, as in {name}=1:30:00."
                    rule = "is not a time limit that sbatch accepts" if time != "" else "has no value"
                    yield Problem(name, rule, time, advice)
            if memory is not None and not _MEMORY.fullmatch(str(memory)):
                advice = f"use a whole number with a unit (K, M, G or T), as in {path}.mem=4G."
                rule = "is not an amount of memory that sbatch accepts" if memory != "" else "has no value"
                yield Problem(f"{path}.mem", rule, memory, advice)

    def _sbatch_problems(self) -> Iterator[Problem]:
        for path, part in self._parts().items():
            names = {str(key).replace("_", "-") for key in getattr(part, "sbatch", ())}
            for name in sorted(filter(_instead, names)):
                yield Conflict(f"{path}.sbatch.{name}", f"collectx sets --{name} itself", advice=_instead(name))

    def _parts(self) -> dict[str, object]:
        """Returns the resources of jobs, by option."""
        return {"launcher": self._launcher}

    def _described_tasks(self) -> tuple[int, str]:
        """Returns the number of the tasks, and a clause about them, for which `launcher.nodes` counts nodes."""
        if not self.cfg.collector.has_workers:
            return self.num_tasks, f"with collector=single, the job has {self.num_tasks} task"
        num_workers = self.num_tasks - 1
        return self.num_tasks, f"the job has {self.num_tasks} tasks, the trainer and {counted(num_workers, 'worker')}"

    def _node_problems(self) -> Iterator[Problem]:
        """No node is without a task."""
        nodes = self._launcher.nodes
        num_tasks, described = self._described_tasks()
        if nodes is not None and nodes > num_tasks:
            advice = use(f"launcher.nodes={num_tasks}", "launcher.nodes=null")
            yield Problem("launcher.nodes", f"is too many: {described}", nodes, advice)

    def _time_problems(self) -> Iterator[Problem]:
        """A requeued run has time for a batch: SLURM does not signal it as soon as it starts. Requeueing needs the
        signal that collectx asks for."""
        launcher = self._launcher
        if launcher.requeue is False:
            return
        for path, part in self._parts().items():
            if (signal := getattr(part, "sbatch", {}).get("signal")) is not None:
                rule = "it replaces the signal before the time limit, at which the run saves and requeues its job"
                advice = "set its time with launcher.signal_s, or use launcher.requeue=false."
                yield Conflict(f"{path}.sbatch.signal", rule, signal, advice)
        # The last one is in force.
        name, time = [("", ""), *_times("launcher", launcher)][-1]
        limit_s = _seconds(str(time))
        if limit_s is not None and limit_s <= launcher.signal_s + EARLY_S:
            needed_s = launcher.signal_s + EARLY_S
            early = f"send the signal up to {EARLY_S} s early, so {needed_s} s before the end"
            rule = f"is too long for {name}={time} ({limit_s} s): SLURM may {early}"
            longer = f"{name}={needed_s // 60 + 1} or longer"
            advice = f"use {longer}, a smaller launcher.signal_s, or launcher.requeue=false."
            yield Problem("launcher.signal_s", rule, launcher.signal_s, advice)

    def missing(self) -> list[str]:
        if commands.is_here():
            return []
        return [
            f"{opt(f'launcher={self.cfg.launcher.kind}')} cannot be used: this machine has no sbatch on its PATH. "
            f"Start it on a login node of the cluster, or use {opt('launcher=local')}."
        ]


class SlurmJob(SlurmPlace):
    """`launcher=slurm`: trainer and workers are the tasks of one job."""

    is_job = can_be_step = True

    def _mpi_problems(self) -> Iterator[Problem]:
        """No worker is replaced: no process can join or leave the MPI universe that SLURM made."""
        path, mode = "collector.on_worker_failure", self.cfg.collector.on_worker_failure
        if mode != "raise":
            rule = (
                f"with backend=mpi and launcher={self.cfg.launcher.kind}, MPI ends all processes when one of them "
                "dies, and cannot replace it"
            )
            yield Conflict(path, rule, mode, use(f"{path}=raise", "backend=gloo"))


class SlurmLearners(SlurmJob, Local):
    """`launcher=slurm` with several learners: each task of the job is a learner with its workers."""

    other_tasks = "learner", 1
    survives_nodes, learners_elsewhere = False, True

    @property
    def num_tasks(self) -> int:
        return self.cfg.trainer.num_learners

    @property
    def cpus_per_task(self) -> int:
        return self._launcher.cpus_per_task or 1 + self.num_threads_beside() // self.num_tasks

    def cores_of_trainer(self, usable: int) -> int:
        return super().cores_of_trainer(usable * self.num_tasks)  # each task has as many

    def gpu_of(self, rank: int) -> int:
        sees_one = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
        return 0 if sees_one else int(os.environ.get("SLURM_LOCALID", 0))

    def _described_tasks(self) -> tuple[int, str]:
        return self.num_tasks, f"the job has {self.num_tasks} tasks, the learners"


class SlurmWorkerJobs(SlurmPlace):
    """`launcher=submitit`: the trainer runs where it was started, and each worker is a job."""

    has_worker_jobs = needs_workers = True

    def job_needs(self) -> dict[str, Any]:
        return {"tasks_of_a_job": 1, "cores_of_a_task": self._launcher.cpus_per_task or self._launcher.num_threads}


class SlurmParts(SlurmPlace):
    """`launcher=submitit_delayed`: trainer and workers are two parts of one job."""

    is_job = needs_workers = True
    workers_part = WORKERS

    def _parts(self) -> dict[str, object]:
        return {
            "launcher": self._launcher,
            "launcher.trainer": self._launcher.trainer,
            "launcher.worker": self._launcher.worker,
        }

    def _own_problems(self) -> Iterator[Problem]:
        yield from super()._own_problems()
        if self._launcher.max_parallel is not None:
            rule, advice = (
                "launcher=submitit_delayed submits heterogeneous jobs, which cannot form a job array",
                use("launcher.max_parallel=null", "launcher=slurm"),
            )
            yield Conflict("launcher.max_parallel", rule, self._launcher.max_parallel, advice)

    def _described_tasks(self) -> tuple[int, str]:
        if not self.cfg.collector.has_workers:
            return super()._described_tasks()
        num_workers = self.num_tasks - 1
        return num_workers, f"the run has {counted(num_workers, 'worker')}"


def _instead(name: str) -> str:
    """Returns what to use instead of an option of sbatch that collectx sets itself; "" for other options."""
    output = "find the output in the folder logs of the run folder."
    return {
        "array": use("launcher.max_parallel", how="limit how many points of a sweep run at once with"),
        "ntasks": use("collector.num_workers", how="set the number of workers with"),
        "nodes": use("launcher.nodes", how="set the number of nodes with"),
        "output": output,
        "error": output,
        "no-kill": f"use {opt('collector.on_worker_failure=drop')} to continue without a lost worker.",
        "requeue": use("launcher.requeue"),
        "no-requeue": use("launcher.requeue"),
    }.get(name, "")


def _times(path: str, resources: object) -> list[tuple[str, Any]]:
    """Returns the options of these resources that set a time limit, with their values; the last one is in force."""
    times = {
        f"{path}.time": getattr(resources, "time", None),
        f"{path}.sbatch.time": getattr(resources, "sbatch", {}).get("time"),
    }
    return [(name, time) for name, time in times.items() if time is not None]


def _seconds(time: str) -> int | None:
    """Returns the seconds of a time in SLURM's syntax: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours[:minutes[:seconds]]; None for other words, such as UNLIMITED."""
    days, has_days, rest = time.rpartition("-")
    parts = rest.split(":")
    if not has_days:
        days = "0"
    if not all(part.isdecimal() for part in (days, *parts)) or len(parts) > 3:
        return None
    units = (3600, 60, 1) if has_days or len(parts) == 3 else (60, 1)
    return 86400 * int(days) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))
