"""The batch script of equal runs: one SLURM job whose tasks are trainer and workers, or an array of such jobs.

With `launcher=submitit_delayed`, trainer and workers are the two parts of one heterogeneous job, with different
resources. SLURM starts both together, on different nodes, and ends both together:

    batch script --- srun --het-group=0: task 0, the trainer
                       \\- --het-group=1: task r, worker r - 1
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectx.config.problem import counted
from collectx.config.schema.launcher import PartResources, SlurmLauncherConfig, SubmititDelayedLauncherConfig
from collectx.errors import LauncherError
from collectx.place.slurm import JobFiles, commands, log_watcher

# How early SLURM's signal before the time limit may come, in seconds.
EARLY_S = 60
# The workers' part of a heterogeneous job.
WORKERS = 1
_SEES = f"""\
[ -e "{JobFiles(Path("$0")).job_spec}" ] || {{
  echo "$(hostname) does not see the run folder $0: all nodes must share its file system:
choose another with hydra.run.dir or hydra.sweep.dir" >&2; exit 1; }}
"""
_RUN = JobFiles(Path("$run"))
# For example after `scontrol requeue` by hand, or after the loss of a node while the job ends.
_COMPLETED = (
    f"""if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && grep -qs '"status": "completed"' "{_RUN.result}"; then""",
    '  echo "collectx: the run has completed: job $job was requeued, and has nothing to do"; exit 0',
    "fi",
)


def script(
    runs: Sequence[Path],
    launcher: SlurmLauncherConfig,
    ntasks: int,
    survives_nodes: bool,
    grace_s: float,
    after: Collection[str] = (),
    others: tuple[str, int] = log_watcher.WORKERS,
) -> str:
    """Returns the batch script of equal runs: one job, or one array with a task for each run. SLURM has no arrays of
    heterogeneous jobs.

    Args:
        ntasks: the number of processes of a run, including the trainer.
        survives_nodes: whether the job continues when it loses a node.
        grace_s: seconds that workers may run after the trainer's end before they are killed.
        others: see `SlurmPlace.other_tasks`.
    """
    if after:
        dependencies = [launcher.sbatch.get("dependency"), f"afterany:{':'.join(sorted(after))}"]
        dependency = ",".join(str(each) for each in dependencies if each)
        launcher = dataclasses.replace(launcher, sbatch=launcher.sbatch | {"dependency": dependency})
    common = {
        # The name of the run folder; for several runs, of the sweep's folder.
        "job_name": runs[0].name if len(runs) == 1 else runs[0].parent.name,
        "output": "/dev/null",  # the script redirects its output to the log of its run
        "requeue": launcher.requeue,
        "no_requeue": not launcher.requeue,
        # To the tasks, not to this script.
        "signal": f"TERM@{launcher.signal_s}" if launcher.requeue else None,
        "no_kill": survives_nodes,
    }
    sees_folder = f'bash -c {shlex.quote(_SEES)} "$run" || exit 1'
    if isinstance(launcher, SubmititDelayedLauncherConfig):
        parts = [_part(launcher, resources) for resources in (launcher.trainer, launcher.worker)]
        header = [
            *commands.header(parts[0], **common, ntasks=1, nodes=1),
            "#SBATCH hetjob",
            *commands.header(parts[1], **common, ntasks=ntasks - 1, nodes=launcher.nodes),
        ]
        nodes = f'"$SLURM_JOB_NUM_NODES_HET_GROUP_{WORKERS}"'
        look = f"srun --het-group={WORKERS} --ntasks={nodes} --ntasks-per-node=1 {sees_folder}"
        # srun has no environment variable for the cores of the parts.
        groups = [{"cpus-per-task": part.cpus_per_task, "het-group": group} for group, part in enumerate(parts)]
        calls = [_call(part, others, survives_nodes, group) for part, group in zip(parts, groups, strict=True)]
    else:
        limit = "" if launcher.max_parallel is None else f"%{launcher.max_parallel}"
        array = f"0-{len(runs) - 1}{limit}" if len(runs) > 1 else None
        header = commands.header(launcher, **common, ntasks=ntasks, nodes=launcher.nodes, array=array)
        look = f'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 {sees_folder}'
        look = f'if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then {look}; fi'
        calls = [_call(launcher, others, survives_nodes, {})]
    lines = [
        "#!/bin/bash",
        *header,
        "",
        "runs=(",
        *(f"  {shlex.quote(str(run))}" for run in runs),
        ")",
        "run=${runs[${SLURM_ARRAY_TASK_ID:-0}]}",
        f'exec >>"{_RUN.log("job")}" 2>&1 || exit 1',
        "# A request for a checkpoint, from sbatch --signal=B:USR1@60, or scancel --batch.",
        'for each in USR1 USR2; do trap "kill -$each \\$roles 2>/dev/null; is_request=1" "$each"; done',
        "job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
        *_limit(launcher),
        *_COMPLETED,
        f'ended="{_RUN.exit_status("$SLURM_JOB_ID")}"',
        f'rm -f "$ended" "{_RUN.result}"  # of an earlier attempt of the job',
        f'stat --format=%s "{_RUN.log("job")}" > "{_RUN.log_begin}"',
        f'echo "$SLURMD_NODENAME" > "{_RUN.node_note("$job")}"  # of this script and of the trainer',
        *commands.set_up(launcher.setup),
        "",
        look,
        f"srun --distribution=block --kill-on-bad-exit=0 {' : '.join(calls)} &",
        "roles=$!",
        "# A worker that does not end after the trainer hangs. After status 2, no worker knows the trainer's address.",
        'wait_for_trainer() { until [ -s "$ended" ]; do sleep 1; done; read -r status < "$ended"; }',
        f'(trap "" USR1 USR2; wait_for_trainer; [ "$status" = 2 ] || sleep {grace_s:g}; kill -KILL "$roles") &',
        # bash would print how srun was killed.
        'while is_request=; { wait "$roles"; } 2>/dev/null; status=$?; [ "$is_request" ]; do :; done',
        "kill $! 2>/dev/null",
        'if [ -e "$ended" ]; then read -r status < "$ended"; fi',
        'exit "$status"',
        "",
    ]
    return "\n".join(lines)


def _limit(launcher: SlurmLauncherConfig) -> list[str]:
    """Returns lines that end a job which SLURM requeued too often, for example after preemptions without time for a
    checkpoint, or which SLURM signals as soon as it starts, and lines that tell the trainer's shell which job it may
    requeue (`log_watcher`)."""
    if not launcher.requeue:
        return []
    # The limit may be one that the partition, a QOS or a variable of sbatch has set.
    needed_s = launcher.signal_s + EARLY_S
    early = f"SLURM may send the signal of launcher.signal_s={launcher.signal_s} up to {EARLY_S} s early, at the start"
    longer = (
        f"Use launcher.time={needed_s // 60 + 1} or longer, a smaller launcher.signal_s, or launcher.requeue=false."
    )
    limit = launcher.max_requeues
    times = f"{counted(limit, 'time')} (launcher.max_requeues={limit})"
    remedy = "Raise the limit, or continue the run with collectx resume."
    message = f"collectx: job $job will not start again, because it was already requeued {times}. {remedy}"
    count = '"${SLURM_RESTART_COUNT:-0}"'
    return [
        'got=$(unset "${!SQUEUE_@}"; squeue --noheader --jobs="$SLURM_JOB_ID" --format=%l 2>/dev/null | head -n 1)',
        """got_s=$(awk -F '[-:]' '{ print $NF + 60 * $(NF-1) + 3600 * $(NF-2) + 86400 * $(NF-3) }' <<< "0-0:0:$got")""",
        f'if [[ "$got" = *:* ]] && [ "$got_s" -le {needed_s} ]; then',
        f'  echo "collectx: job $job ends, because its time limit is $got_s s, and {early}. {longer}"',
        "  exit 1",
        "fi",
        f'if [ {count} -gt {limit} ]; then echo "{message}"; exit 1; fi',
        f'if [ {count} -lt {limit} ]; then export COLLECTX_REQUEUE="$job"; fi',
    ]


def _part(launcher: SubmititDelayedLauncherConfig, resources: PartResources) -> SubmititDelayedLauncherConfig:
    fields: dict[str, Any] = {key: value for key, value in vars(resources).items() if value is not None}
    fields["sbatch"] = launcher.sbatch | resources.sbatch
    return dataclasses.replace(launcher, **fields)


def _call(
    launcher: SlurmLauncherConfig, others: tuple[str, int], survives_nodes: bool, more: Mapping[str, object]
) -> str:
    options = {**launcher.srun, "container": launcher.container, "no-kill": survives_nodes, **more}
    return (
        f"{shlex.join(commands.options(options))} {log_watcher.role_shell(launcher.python or sys.executable, others)}"
    )


def submit(path: Path, text: str, num_runs: int) -> list[str]:
    """Writes the script, and submits it as a held job (`commands.release`); returns the job ids of the runs, such as
    17, or 17_0 and 17_1. Raises `LauncherError` if SLURM refused the job; the message contains SLURM's reason and a
    remedy. The earlier file at `path` is restored."""
    before, is_new = path.read_bytes() if path.exists() else None, not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        job = commands.submit(path, "--hold")
    except LauncherError:
        path.unlink() if before is None else path.write_bytes(before)
        if is_new:
            path.parent.rmdir()
        raise
    return [job] if num_runs == 1 else [f"{job}_{index}" for index in range(num_runs)]
