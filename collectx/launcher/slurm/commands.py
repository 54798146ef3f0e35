"""SLURM's commands as functions. Every call blocks until the command has ended, for at most `COMMAND_S`. After the
first start of workers, no call is made from the thread that delivers batches. Does not depend on the kinds of jobs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from collectx.config.schema.launcher import SlurmResources
from collectx.errors import LauncherError
from collectx.launcher.slurm.worker_job import JobState

# A busy controller takes tens of seconds; one that takes longer is down.
COMMAND_S = 60.0

_ENDED_WELL, _CANCELLED = {"COMPLETED"}, {"CANCELLED", "PREEMPTED", "REVOKED"}
_ENDED_BADLY = {"BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
_OVER = _ENDED_WELL | _CANCELLED | _ENDED_BADLY
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}

# Explanations of SLURM's reasons.
_REASONS = {
    "Priority": "Priority: others are before it",
    "Resources": "Resources: what it asks for is in use",
    "PartitionConfig": "PartitionConfig: no node of the partition has what it asks for: ask for less, or choose "
    "another",
    "PartitionTimeLimit": "PartitionTimeLimit: launcher.time is more than the partition allows",
    "PartitionNodeLimit": "PartitionNodeLimit: it asks for more nodes than the partition allows",
    "BadConstraints": "BadConstraints: no node has the features and resources that it asks for",
    "Dependency": "Dependency: launcher.max_parallel or launcher.sbatch.dependency lets others go first",
    "None": "",
}

_GUARD = (
    """trap 'status=$?; if [ "${#BASH_SOURCE[@]}" -le 1 ]; then echo "collectx: a line of launcher.setup ended with """
    """status $status: $BASH_COMMAND; a line may fail where it ends with || true" >&2; exit "$status"; fi' ERR"""
)

# Remedies by a part of sbatch's message.
_ADVICE = {
    "account": "choose another with launcher.account (`sacctmgr show associations user=$USER` lists yours)",
    "partition": "choose another with launcher.partition (`sinfo` lists them)",
    "qos": "choose another with launcher.qos",
    "time limit": "ask for less with launcher.time",
    "feature": "choose another with launcher.constraint (`sinfo -o %f` lists them)",
    "memory": "ask for less with launcher.mem",
    "node configuration": "no node has so much: ask for less launcher.cpus_per_task, launcher.gpus or launcher.mem",
    "contact slurm controller": "SLURM does not answer: try again later",
    "timed out": "SLURM does not answer: try again later",
}


def is_here() -> bool:
    """Whether this machine can submit jobs."""
    return shutil.which("sbatch") is not None


def header(resources: SlurmResources, **options: Any) -> list[str]:
    """The `#SBATCH` lines of a script.

    Precedence, lowest first: `options`, the named fields of `resources`, `resources.sbatch`. False and None leave an
    option out; True is an option without a value.
    """
    requested = {
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "time": resources.time,
        "mem": resources.mem,
        "cpus-per-task": resources.cpus_per_task,
        "gres": f"gpu:{resources.gpus}" if resources.gpus else None,
        "constraint": resources.constraint,
        "exclusive": resources.exclusive or None,
    }
    requested = {key: value for key, value in requested.items() if value is not None}
    options = {key.replace("_", "-"): value for key, value in options.items()}
    named = {**options, **requested, **{key.replace("_", "-"): value for key, value in resources.sbatch.items()}}
    return [
        f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={shlex.quote(str(value))}"
        for key, value in named.items()
        if value is not None and value is not False
    ]


def set_up(lines: Sequence[str]) -> list[str]:
    """The lines of `launcher.setup`. A line that fails ends the script, as later commands would run in a wrong
    environment. A command that fails within a sourced file does not end it."""
    return [_GUARD, *lines, "trap - ERR"] if lines else []


def body(resources: SlurmResources, command: Sequence[str], **srun: Any) -> list[str]:
    """The commands of a script: the lines of `launcher.setup`, then `exec srun` with `command`.

    Args:
        command: words; those that begin with `"$` are expanded by the shell.
        srun: its options, as in `header`.
    """
    options = [
        f"--{key.replace('_', '-')}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for key, value in {**srun, "container": resources.container}.items()
        if value is not None and value is not False
    ]
    words = [word if word.startswith('"$') else shlex.quote(word) for word in command]
    return [
        *set_up(resources.setup),
        # Since 22.05, srun does not inherit this option from sbatch.
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
        " ".join(["exec srun", *options, *words]),
    ]


def submit(arguments: Sequence[str]) -> str:
    """Calls sbatch; returns the job id.

    Raises:
        LauncherError: SLURM refused the job; the message has its reason and a remedy.
    """
    output = _run(["sbatch", "--parsable", *arguments])
    # With several clusters, `id;cluster`.
    return output.strip().partition(";")[0]


def queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs in the controller's memory, which keeps them for some minutes after their end (MinJobAge).
    `12_3` is task 3 of array 12.

    Raises:
        LauncherError: SLURM does not answer.
    """
    numbers = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
    command = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={numbers}", "--format=%i|%T|%r|%N"]
    try:
        output = _run(command)
    except LauncherError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    states = {}
    for line in output.splitlines():
        job, word, reason, node = line.split("|", 3)
        if job := _whole_job(job):
            states[job] = JobState(word, word in _OVER, word not in _WAITING, _REASONS.get(reason, reason), node)
    return {job: states[job] for job in jobs if job in states}


def accounted(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs in SLURM's accounting; empty if there is no accounting."""
    command = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State,NodeList"]
    try:
        output = _run([*command, f"--jobs={','.join(jobs)}"])
    except LauncherError:
        return {}
    states = {}
    for line in output.splitlines():
        job, words, node = line.split("|", 2)
        word = words.split()[0]  # of `CANCELLED by 1000`
        if job := _whole_job(job):
            node = "" if node.startswith("None") else node
            states[job] = JobState(word, word in _OVER, word not in _WAITING, node=node)
    return {job: states[job] for job in jobs if job in states}


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs in SLURM's controller, or, if it has forgotten them, in its accounting. A job that is left out
    has ended: the controller knows all jobs that are pending or running.

    Raises:
        LauncherError: SLURM does not answer.
    """
    known = queued(jobs) if jobs else {}
    forgotten = [job for job in jobs if job not in known]
    return known | (accounted(forgotten) if forgotten else {})


def _whole_job(job: str) -> str:
    """The id of a job. For parts of a heterogeneous job: the first part, 12+0, which starts the others, stands for the
    job; the others have an empty id."""
    job, _, number = job.partition("+")
    return job if number in ("", "0") else ""


def hostnames(nodes: str) -> list[str]:
    """The names in a list of nodes as SLURM writes it, such as `n[1-3]`.

    Raises:
        LauncherError: scontrol cannot be called.
    """
    return _run(["scontrol", "show", "hostnames", nodes]).split()


def cancel(jobs: Sequence[str]) -> None:
    """Calls scancel.

    Raises:
        LauncherError: SLURM does not answer.
    """
    _run(["scancel", "--quiet", *jobs])


def _run(command: Sequence[str]) -> str:
    name = command[0]
    try:
        # In a new session: Ctrl-C must not end the command with which the trainer then cancels its jobs.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise LauncherError(f"{name} has not answered for {COMMAND_S:g} s: SLURM's controller hangs.") from error
    except OSError as error:
        raise LauncherError(f"{name} cannot be called on this machine: {error}") from error
    if done.returncode:
        message = "; ".join(line.strip() for line in done.stderr.splitlines()) or f"exit status {done.returncode}"
        advice = next((text for part, text in _ADVICE.items() if part in message.lower()), None)
        raise LauncherError(message + (f": {advice}." if advice else ""))
    return done.stdout


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` without those of the SLURM job that this process may be in: a job that is submitted from inside
    another would use the tasks and GPUs of the other."""
    return {
        name: value
        for name, value in variables.items()
        if name in ("SLURM_CONF", "SLURM_CONF_SERVER") or not name.startswith(("SLURM_", "SLURMD_", "SRUN_"))
    }
