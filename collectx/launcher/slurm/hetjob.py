"""`launcher=submitit_delayed`: as `launcher=slurm`, but trainer and workers ask for resources of their own, as the two
parts of one heterogeneous job. For clusters that allow no job inside a job.

    batch script --- srun --het-group=0: task 0, the trainer
                       \\- --het-group=1: task r, worker r - 1

SLURM starts both parts together, on different nodes, and ends them together. Must not know what a task does.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from collectx.config import PartResources, SubmititDelayedLauncherConfig
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.log_watcher import role_shell
from collectx.launcher.slurm.script import SEES_FOLDER, SRUN, batch, job_name, options

# The part of the job that the workers are.
WORKERS = 1


def script(
    run: Path, launcher: SubmititDelayedLauncherConfig, num_workers: int, survives_nodes: bool, grace_s: float
) -> str:
    """The batch script of one run; see `collectx.launcher.slurm.script.script`. SLURM has no arrays of such jobs."""
    trainer, worker = (part(launcher, each) for each in (launcher.trainer, launcher.worker))
    whole = {
        "job_name": job_name([run]),
        "output": "/dev/null",
        "requeue": launcher.requeue,
        "no_requeue": not launcher.requeue,
    }
    header = [
        *commands.header(trainer, **whole, ntasks=1, nodes=1, no_kill=survives_nodes),
        "#SBATCH hetjob",
        *commands.header(worker, **whole, ntasks=num_workers, nodes=launcher.nodes, no_kill=survives_nodes),
    ]
    look = [
        f'srun --het-group={WORKERS} --ntasks="$SLURM_JOB_NUM_NODES_HET_GROUP_{WORKERS}" --ntasks-per-node=1 '
        f"{SEES_FOLDER} || exit 1"
    ]
    calls = [_call(resources, group, survives_nodes) for group, resources in enumerate((trainer, worker))]
    return batch([run], header, launcher.setup, look, f"srun {SRUN} {' : '.join(calls)}", grace_s)


def part(launcher: SubmititDelayedLauncherConfig, own: PartResources) -> SubmititDelayedLauncherConfig:
    """The launcher with what one part asks for in its own right."""
    asked: dict[str, Any] = {key: value for key, value in vars(own).items() if value is not None}
    asked["sbatch"] = launcher.sbatch | own.sbatch
    return dataclasses.replace(launcher, **asked)


def _call(resources: SubmititDelayedLauncherConfig, group: int, survives_nodes: bool) -> str:
    """What stands between two colons of srun."""
    words = options(
        {
            **resources.srun,
            "container": resources.container,
            "no-kill": survives_nodes,
            # srun reads it from no variable, as each part has its own.
            "cpus-per-task": resources.cpus_per_task,
            "het-group": group,
        }
    )
    return f"{shlex.join(words)} {role_shell(resources.python or sys.executable)}"
