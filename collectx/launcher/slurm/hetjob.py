"""`launcher=submitit_delayed`: as `launcher=slurm`, but trainer and workers request different resources, as the two
parts of one heterogeneous job. For clusters that do not allow jobs to submit jobs.

    batch script --- srun --het-group=0: task 0, the trainer
                       \\- --het-group=1: task r, worker r - 1

SLURM starts both parts together, on different nodes, and ends them together. Must not know the tasks.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

from collectx.config.schema.launcher import PartResources, SubmititDelayedLauncherConfig
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.log_watcher import role_shell
from collectx.launcher.slurm.script import SEES_FOLDER, SRUN, batch, job_name, options

# The workers' part of the job.
WORKERS = 1


def script(
    run: Path, launcher: SubmititDelayedLauncherConfig, num_workers: int, survives_nodes: bool, grace_s: float
) -> str:
    """The batch script of one run; see `collectx.launcher.slurm.script.script`. SLURM has no arrays of such jobs."""
    trainer, worker = (part(launcher, each) for each in (launcher.trainer, launcher.worker))
    common = {
        "job_name": job_name([run]),
        "output": "/dev/null",
        "requeue": launcher.requeue,
        "no_requeue": not launcher.requeue,
    }
    header = [
        *commands.header(trainer, **common, ntasks=1, nodes=1, no_kill=survives_nodes),
        "#SBATCH hetjob",
        *commands.header(worker, **common, ntasks=num_workers, nodes=launcher.nodes, no_kill=survives_nodes),
    ]
    look = [
        f'srun --het-group={WORKERS} --ntasks="$SLURM_JOB_NUM_NODES_HET_GROUP_{WORKERS}" --ntasks-per-node=1 '
        f"{SEES_FOLDER} || exit 1"
    ]
    calls = [_call(resources, group, survives_nodes) for group, resources in enumerate((trainer, worker))]
    return batch([run], header, launcher.setup, look, f"srun {SRUN} {' : '.join(calls)}", grace_s)


def part(launcher: SubmititDelayedLauncherConfig, resources: PartResources) -> SubmititDelayedLauncherConfig:
    """The launcher with the resources of one part."""
    fields: dict[str, Any] = {key: value for key, value in vars(resources).items() if value is not None}
    fields["sbatch"] = launcher.sbatch | resources.sbatch
    return dataclasses.replace(launcher, **fields)


def _call(resources: SubmititDelayedLauncherConfig, group: int, survives_nodes: bool) -> str:
    """The arguments of one part, between two colons of srun."""
    words = options(
        {
            **resources.srun,
            "container": resources.container,
            "no-kill": survives_nodes,
            # srun has no environment variable for the parts.
            "cpus-per-task": resources.cpus_per_task,
            "het-group": group,
        }
    )
    return f"{shlex.join(words)} {role_shell(resources.python or sys.executable)}"
