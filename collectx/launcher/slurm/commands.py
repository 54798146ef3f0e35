"""SLURM's commands as functions. Every call blocks until the command has ended, for at most `COMMAND_S`. After the
first start of workers, no call is made from the thread that delivers batches. Raises `LauncherError` if SLURM refuses
or does not answer, or if the machine has no such command; the message has SLURM's reason and, for known reasons, what
to do. Does not depend on the kinds of jobs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectx.config.schema.launcher import SlurmResources
from collectx.errors import LauncherError

# A busy controller takes tens of seconds; one that takes longer is down.
COMMAND_S = 60.0

_OVER = {"COMPLETED", "CANCELLED", "PREEMPTED", "REVOKED", "BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "TIMEOUT"}
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}

_GUARD = (
    """trap 'status=$?; if [ "${#BASH_SOURCE[@]}" -le 1 ]; then echo "collectx: a line of launcher.setup ended with """
    """status $status: $BASH_COMMAND; a line may fail where it ends with || true" >&2; exit "$status"; fi' ERR"""
)


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
    "JobArrayTaskLimit": "JobArrayTaskLimit: as many points run as launcher.max_parallel allows",
    "JobHeldUser": "JobHeldUser: it is held until `scontrol release`",
    "BeginTime": "BeginTime: its start is set to a later time; SLURM does so for two minutes when it requeues a job",
    "None": "",
}

# Remedies by a part of sbatch's message.
_ADVICE = {
    "accounting storage": "SLURM keeps no record of ended jobs",
    "account": "choose another with launcher.account (`sacctmgr show associations user=$USER` lists yours)",
    "partition": "choose another with launcher.partition (`sinfo` lists them)",
    "qos": "choose another with launcher.qos",
    "time limit": "ask for less with launcher.time",
    "feature": "choose another with launcher.constraint (`sinfo -o %f` lists them)",
    "memory": "ask for less with launcher.mem",
    "node configuration": "no node has so much: ask for less launcher.cpus_per_task, launcher.gpus or launcher.mem",
    "configuration source": 'this machine is in no SLURM cluster: use launcher=local (in Python: launcher="mp")',
    "contact slurm controller": "SLURM does not answer: try again later",
    "timed out": "SLURM does not answer: try again later",
}


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        word: SLURM's name of the state, such as PENDING.
        is_over: whether the job has ended for good; a requeued job has not.
        has_started: whether it is running or has run.
        reason: SLURM's reason for the state; may be empty.
        node: where it runs or has run; empty while it is pending.
    """

    word: str
    is_over: bool
    has_started: bool
    reason: str = ""
    node: str = ""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.word}{reason}{f' on {self.node}' if self.node else ''}"


class NoMessage(LauncherError):
    """A command has failed without a message."""


def is_here() -> bool:
    """Whether this machine can submit jobs."""
    return shutil.which("sbatch") is not None


def options(values: Mapping[str, object]) -> list[str]:
    """Arguments of sbatch or srun, with `-` for `_` in their names. None and False leave an option out, True is an
    option without a value."""
    names = {key: key.replace("_", "-") for key in values}
    return [
        f"--{names[key]}" if value is True else f"--{names[key]}={value}"
        for key, value in values.items()
        if value is not None and value is not False
    ]


def _quoted(option: str) -> str:
    name, has_value, value = option.partition("=")
    return name + has_value + (shlex.quote(value) if has_value else "")


def header(resources: SlurmResources, **defaults: Any) -> list[str]:
    """The `#SBATCH` lines of a script. Precedence, lowest first: `defaults`, the named fields of `resources`,
    `resources.sbatch`."""
    named = {name: getattr(resources, name) for name in ("partition", "account", "qos", "time", "mem", "constraint")}
    named |= {
        "cpus_per_task": resources.cpus_per_task,
        "gres": f"gpu:{resources.gpus}" if resources.gpus else None,
        "exclusive": resources.exclusive or None,
    }
    requested = defaults | {name: value for name, value in named.items() if value is not None}
    requested |= {name.replace("-", "_"): value for name, value in resources.sbatch.items()}
    return [f"#SBATCH {_quoted(option)}" for option in options(requested)]


def set_up(lines: Sequence[str]) -> list[str]:
    """The lines of `launcher.setup`. A line that fails ends the script, as later commands would run in a wrong
    environment. A command that fails within a sourced file does not end it."""
    return [
        *([_GUARD, *lines, "trap - ERR"] if lines else []),
        "# Since 22.05, srun does not inherit this option from sbatch.",
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
    ]


def body(resources: SlurmResources, command: Sequence[str], **srun: Any) -> list[str]:
    """The commands of a script: the lines of `launcher.setup`, then `exec srun` with `command`.

    Args:
        command: words; those that begin with `"$` are expanded by the shell.
        srun: its options.
    """
    arguments = map(_quoted, options(srun | {"container": resources.container}))
    words = (word if word.startswith('"$') else shlex.quote(word) for word in command)
    return [*set_up(resources.setup), " ".join(["exec srun", *arguments, *words])]


def submit(arguments: Sequence[str]) -> str:
    """Calls sbatch; returns the job id."""
    output = _run(["sbatch", "--parsable", *arguments])
    # With several clusters, `id;cluster`.
    return output.strip().partition(";")[0]


def queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs in the controller's memory, which keeps them for some minutes after their end (MinJobAge).
    `12_3` is task 3 of array 12.
    """
    numbers = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
    command = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={numbers}", "--format=%i|%T|%r|%N"]
    try:
        output = _run(command)
    except LauncherError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return _read_states((line.split("|", 3) for line in output.splitlines()), jobs)


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of jobs in SLURM's controller, or, if it has forgotten them, in its accounting, if there is one. A job
    that is left out has ended: the controller knows all jobs that are pending or running.
    """
    known = queued(jobs) if jobs else {}
    forgotten = [job for job in jobs if job not in known]
    if not forgotten:
        return known
    command = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State,NodeList"]
    try:
        output = _run([*command, f"--jobs={','.join(forgotten)}"])
    except LauncherError:
        return known
    # A state may be `CANCELLED by 1000`, and a list of nodes `None assigned`.
    rows = (line.split("|", 2) for line in output.splitlines())
    accounted = ((job, word.split()[0], "", "" if nodes.startswith("None") else nodes) for job, word, nodes in rows)
    return known | _read_states(accounted, forgotten)


def _read_states(rows: Iterable[Sequence[str]], jobs: Sequence[str]) -> dict[str, JobState]:
    """The states of `jobs` in rows of id, state, reason and nodes. Of a heterogeneous job, only the first part, 12+0,
    which starts the others, stands for the job."""
    states_by_job = {}
    for part, word, reason, nodes in rows:
        job, _, number = part.partition("+")
        if number in ("", "0"):
            reason = _REASONS.get(reason, reason)
            states_by_job[job] = JobState(word, word in _OVER, word not in _WAITING, reason, nodes)
    return {job: states_by_job[job] for job in jobs if job in states_by_job}


def hostnames(nodes: str) -> list[str]:
    """The names in a list of nodes as SLURM writes it, such as `n[1-3]`."""
    return _run(["scontrol", "show", "hostnames", nodes]).split()


def per_node(text: str) -> list[int]:
    """Parses a per-node SLURM variable: `4(x2),2` is [4, 4, 2]."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in groups for _ in range(int(times or 1))]


def down(nodes: str) -> list[str]:
    """Returns the nodes of a list, as SLURM writes it, that are down or do not answer."""
    command = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--states=down,no_respond", "--format=%N"]
    return list(dict.fromkeys(_run(command).split()))


def node_states() -> list[tuple[str, str, int]]:
    """Partition (the default one with a `*`), state and number of nodes, for each state in each partition."""
    rows = (line.split("|") for line in _run(["sinfo", "--noheader", "--format=%P|%T|%D"]).splitlines())
    return [(partition, state, int(count)) for partition, state, count in rows]


def why_no_accounting() -> str:
    """Returns why sacct does not answer; empty if it does."""
    try:
        _run(["sacct", "--noheader", "--allocations", "--jobs=1"])
    except LauncherError as error:
        return str(error)
    return ""


def preempts(partitions: str | None) -> bool:
    """Whether SLURM may preempt jobs in one of these partitions, such as `a,b`; None: in the default one."""
    for line in _run(["scontrol", "--oneliner", "show", "partition"]).splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        is_default = fields.get("Default") == "YES"
        is_meant = is_default if partitions is None else fields.get("PartitionName") in partitions.split(",")
        if is_meant and fields.get("PreemptMode") in ("REQUEUE", "CANCEL"):
            return True
    return False


def cancel(jobs: Sequence[str]) -> None:
    """Calls scancel."""
    _run(["scancel", "--quiet", *jobs])


def interrupt(jobs: Sequence[str]) -> None:
    """Sends SIGINT to the tasks of jobs that run, whose trainers then write a checkpoint, end, and cancel their jobs;
    cancels jobs that wait. After `cancel`, SLURM gives them its KillWait only. Continues after an error; the exception
    has all errors.
    """
    # Not by scancel's option --state: for one task of an array, it cancels all tasks that are pending.
    words = {job: state.word for job, state in queued(jobs).items() if not state.is_over}
    running = [job for job, word in words.items() if word == "RUNNING"]
    waiting = [job for job, word in words.items() if word in _WAITING or word in ("SUSPENDED", "STOPPED")]
    errors = []
    # First those that wait: a task of an array could start in the place of one that ends.
    for command in filter(None, (waiting, running and ["--signal=INT", *running])):
        try:
            _run(["scancel", "--quiet", *command])
        except NoMessage:
            pass  # one of the jobs has ended meanwhile; the others are signalled
        except LauncherError as error:
            errors.append(str(error))
    if errors:
        raise LauncherError("; ".join(dict.fromkeys(errors)))


def release(jobs: Sequence[str]) -> None:
    """Lets a held job, or all tasks of a held array, start."""
    try:
        _run(["scontrol", "release", jobs[0].partition("_")[0]])
    except LauncherError:
        # scontrol also fails for a job that it has released and that cannot start yet.
        if any(state.reason == _REASONS["JobHeldUser"] for state in queued(jobs).values()):
            raise


def requeue(job: str) -> None:
    """Calls `scontrol requeue`."""
    _run(["scontrol", "requeue", job])


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
        message = "; ".join(line.strip() for line in done.stderr.splitlines())
        if not message:
            raise NoMessage(f"{name}: exit status {done.returncode}")
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
