"""The batch script of equal runs: one SLURM job whose tasks are trainer and workers, or an array of such jobs.

Used by the `collectx` command on the submitting host, and by `collectx/launcher/slurm/hetjob.py`. Must not know the
tasks.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.log_watcher import role_shell

_SEES = """\
[ -e "$0/jobs/task.json" ] || { echo "$(hostname) does not see the run folder $0: all nodes must share its file system:
choose another with hydra.run.dir or hydra.sweep.dir" >&2; exit 1; }
"""
SEES_FOLDER = f'bash -c {shlex.quote(_SEES)} "$run"'
SRUN = "--distribution=block --kill-on-bad-exit=0"


def script(
    runs: Sequence[Path],
    launcher: SlurmLauncherConfig,
    ntasks: int,
    survives_nodes: bool,
    grace_s: float,
    after: Collection[str] = (),
) -> str:
    """The batch script of equal runs: one job, or one array with a task for each.

    Args:
        runs: the run folders; all nodes see them.
        ntasks: of each run: the trainer and its workers.
        survives_nodes: whether the job continues when it loses a node.
        grace_s: how long workers may run after the trainer's end, before they are killed.
        after: jobs that must end first.
    """
    limit = "" if launcher.max_parallel is None else f"%{launcher.max_parallel}"
    if after:
        dependencies = [launcher.sbatch.get("dependency"), f"afterany:{':'.join(sorted(after))}"]
        dependency = ",".join(str(each) for each in dependencies if each)
        launcher = dataclasses.replace(launcher, sbatch=launcher.sbatch | {"dependency": dependency})
    header = commands.header(
        launcher,
        job_name=job_name(runs),
        ntasks=ntasks,
        nodes=launcher.nodes,
        array=f"0-{len(runs) - 1}{limit}" if len(runs) > 1 else None,
        output="/dev/null",  # the script redirects its output to the log of its run
        requeue=launcher.requeue,
        no_requeue=not launcher.requeue,
        no_kill=survives_nodes,
    )
    words = options({**launcher.srun, "container": launcher.container, "no-kill": survives_nodes})
    look = [
        'if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then',
        f'  srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 {SEES_FOLDER} || exit 1',
        "fi",
    ]
    roles = f"srun {SRUN} {shlex.join(words)} {role_shell(launcher.python or sys.executable)}"
    return batch(runs, header, launcher.setup, look, roles, grace_s)


def job_name(runs: Sequence[Path]) -> str:
    """The name of the run folder; for several runs, of the sweep's folder."""
    return runs[0].name if len(runs) == 1 else runs[0].parent.name


def batch(
    runs: Sequence[Path], header: Sequence[str], setup: Sequence[str], look: Sequence[str], roles: str, grace_s: float
) -> str:
    """The batch script around the call of srun.

    Args:
        runs, grace_s: as in `script`.
        header: `#SBATCH` lines.
        setup: the user's lines of shell.
        look: lines that end the job if a node does not see the run folder.
        roles: the call of srun that starts all roles.
    """
    lines = [
        "#!/bin/bash",
        *header,
        "",
        "runs=(",
        *(f"  {shlex.quote(str(run))}" for run in runs),
        ")",
        "run=${runs[${SLURM_ARRAY_TASK_ID:-0}]}",
        'exec >>"$run/logs/job.log" 2>&1 || exit 1',
        'ended="$run/jobs/exit_status.$SLURM_JOB_ID"',
        'rm -f "$ended" "$run/result.json"  # of an earlier attempt of the job',
        'stat --format=%s "$run/logs/job.log" > "$run/jobs/log_begin"',
        "# Since 22.05, srun does not take it over from sbatch.",
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
        *commands.set_up(setup),
        "",
        *look,
        f"{roles} &",
        "roles=$!",
        "# A worker that has not ended after the trainer hangs.",
        f'(until [ -e "$ended" ]; do sleep 1; done; sleep {grace_s:g}; kill -KILL "$roles") &',
        '{ wait "$roles"; } 2>/dev/null  # do not print how it was killed',
        "status=$?",
        "kill $! 2>/dev/null",
        'if [ -e "$ended" ]; then read -r status < "$ended"; fi',
        'exit "$status"',
        "",
    ]
    return "\n".join(lines)


def submit(path: Path, text: str, num_runs: int) -> list[str]:
    """Writes the script and submits it; returns the job ids of the runs, such as 17, or 17_0 and 17_1.

    Raises:
        LauncherError: SLURM refused it; the message has SLURM's reason and a remedy.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    job = commands.submit([str(path)])
    return [job] if num_runs == 1 else [f"{job}_{index}" for index in range(num_runs)]


def options(values: Mapping[str, object]) -> list[str]:
    """srun's arguments; None and False leave an option out, True is an option without a value."""
    return [
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in values.items()
        if value is not None and value is not False
    ]
