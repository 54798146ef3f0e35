"""SLURM's commands as functions. A job is named by its id, such as "12", or "12_3" for task 3 of array 12.

Each call blocks until the command ends, for at most `COMMAND_S`; after the first start of workers, the thread that
delivers batches makes no call. Raises `LauncherError` if SLURM refuses or does not answer, or if this machine lacks the
command; the message contains SLURM's reason and, for known reasons, a remedy.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectx.config.problem import opt
from collectx.config.schema.launcher import SlurmResources
from collectx.errors import LauncherError

# SLURM's default of MaxArraySize.
_DEFAULT_ARRAY_SIZE = 1001
# A busy controller takes tens of seconds; a slower one is down.
COMMAND_S = 60.0

_OVER = {"COMPLETED", "CANCELLED", "PREEMPTED", "REVOKED", "BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "TIMEOUT"}
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}

# The variables that `environment` removes: those of this process's job, and defaults of SLURM's commands that would
# hide jobs and nodes, ask the user, wait for the job, or submit an array or to another cluster.
_REMOVED_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SACCT_")
_REMOVED = {"SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_CLUSTERS"}
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER"}

# What `sbatch --parsable` prints: the id or, with several clusters, `id;cluster`.
_JOB_ID = re.compile(r"(?P<id>\d+)(;\S+)?")

# The words before a worker's command: SIGUSR1 and SIGUSR2, which request a checkpoint from a job's trainer, would end a
# worker that is still importing.
WITHOUT_REQUESTS = ["bash", "-c", """trap '' USR1 USR2; exec "$0" "$@" """.strip()]

_GUARD = (
    """trap 'status=$?; if [ "${#BASH_SOURCE[@]}" -le 1 ]; then echo "collectx: launcher.setup failed with status """
    r"""$status at: $BASH_COMMAND. If this line may fail, append \" || true\" to it." >&2; exit "$status"; fi' ERR"""
)


# SLURM's reasons for a job's state, with an explanation.
_REASONS = {
    "Priority": "Priority: other jobs are ahead of it",
    "Resources": "Resources: the nodes it needs are in use",
    "PartitionConfig": "PartitionConfig: no node of the partition has what it asks for. Ask for less, or choose "
    "another partition",
    "PartitionTimeLimit": "PartitionTimeLimit: launcher.time is more than the partition allows",
    "PartitionNodeLimit": "PartitionNodeLimit: it asks for more nodes than the partition allows",
    "BadConstraints": "BadConstraints: no node has the features and resources that it asks for",
    "Dependency": "Dependency: launcher.max_parallel or launcher.sbatch.dependency lets other jobs go first",
    "JobArrayTaskLimit": "JobArrayTaskLimit: launcher.max_parallel points are already running",
    "JobHeldUser": "JobHeldUser: it is held until you run `scontrol release`",
    "JobHeldAdmin": "JobHeldAdmin: an administrator holds it. Ask your site",
    "launch failed requeued held": "launch failed requeued held: a node could not start it, for example because its "
    "prolog fails. `sinfo -R` says why. When the node is repaired or drained, run `scontrol release`",
    "job requeued in held state": "job requeued in held state: it waits until you run `scontrol release`",
    "DependencyNeverSatisfied": "DependencyNeverSatisfied: a job that it depends on has failed, so it never starts. "
    "Cancel it, and change launcher.sbatch.dependency",
    "Reservation": "Reservation: its reservation has not begun, or has no free node. `scontrol show reservation` says "
    "when",
    "BeginTime": "BeginTime: its start time has not come. After a requeue, SLURM waits two minutes",
    "None": "",
}

# What SLURM's commands print before the reason.
_SAYS = re.compile(r"^(\w+: (error|fatal): )?((Batch job submission failed|\w+ error): )?")
# Parts of the message of a user who may not submit as many jobs.
_TOO_MANY = ("submitjob", "violates accounting")
# A part of the message of any command on a machine that belongs to no cluster.
_NO_CLUSTER = "configuration source"
# The remedy, by a part of sbatch's message.
_ADVICE = {
    "accounting storage": "SLURM keeps no record of ended jobs",
    "submitjob": "Your account or QOS allows no more jobs at a time. Wait until some have ended, or submit fewer",
    "violates accounting": "Your account or QOS does not allow that much. Submit fewer jobs at a time, or ask for less "
    "time or smaller jobs (`sacctmgr show qos` and `sacctmgr show associations user=$USER` list the limits)",
    "account": "Choose another account with launcher.account (`sacctmgr show associations user=$USER` lists yours)",
    "partition": "Choose another partition with launcher.partition (`sinfo` lists them)",
    "qos": "Choose another QOS with launcher.qos",
    "time limit": "Ask for less time with launcher.time",
    "feature": "Choose other features with launcher.constraint (`sinfo -o %f` lists them)",
    "memory": "Ask for less memory with launcher.mem",
    "node configuration": "No node has that much. Ask for less with launcher.cpus_per_task, launcher.gpus or "
    "launcher.mem",
    "contact slurm controller": "SLURM does not answer. Try again later",
    "timed out": "SLURM does not answer. Try again later",
}


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        word: SLURM's name of the state, such as PENDING.
        is_over: whether the job has ended for good; a requeued job has not.
        has_started: whether the job is running or has run.
        node: the node list on which the job runs or has run; empty while it is pending.
    """

    word: str
    is_over: bool
    has_started: bool
    reason: str = ""
    node: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits in the queue."""
        return not (self.is_over or self.has_started)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.word}{reason}{f' on {self.node}' if self.node else ''}"


def why_waiting(states: Mapping[Any, JobState]) -> list[str]:
    """Returns a clause for each reason why workers wait in the queue, such as "workers 0 and 2 are PENDING (Priority)".
    `states` contains the states of their jobs, by worker."""
    workers: dict[str, list[str]] = {}
    for worker, state in states.items():
        workers.setdefault(str(state), []).append(str(worker))
    return [
        f"workers {', '.join(others)} and {last} are {reason}" if others else f"worker {last} is {reason}"
        for reason, (*others, last) in workers.items()
    ]


class NoMessage(LauncherError):
    """A command failed without a message."""


class NoCluster(LauncherError):
    """A command finds no cluster, as where SLURM's packages are installed without one."""


class TooManyJobs(LauncherError):
    """SLURM refused a job because of the user's limits. Fewer jobs may be allowed."""


def is_here() -> bool:
    """Whether this machine can submit jobs: it has `sbatch`."""
    return shutil.which("sbatch") is not None


def options(values: Mapping[str, object]) -> list[str]:
    """Returns arguments of sbatch or srun. None and False omit an option; True needs no value; of a list, as of nodes,
    the items are joined by commas."""
    values = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in values.items()}
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
    """Returns the `#SBATCH` lines of a script: `defaults`, overridden by the fields of `resources`, overridden by
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
    """Returns the commands that prepare a script: the lines of `launcher.setup`, and exports for its steps. A failing
    line ends the script, because later commands would run in a wrong environment; a failing command in a sourced file
    does not."""
    return [
        *([_GUARD, *lines, "trap - ERR"] if lines else []),
        "# The steps get the variables of this script, even if sbatch was told to export none.",
        "export SLURM_EXPORT_ENV=ALL",
        "# Since 22.05, srun does not inherit this option from sbatch.",
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
    ]


def body(resources: SlurmResources, command: Sequence[str], **srun: Any) -> list[str]:
    """Returns the commands of a script: the lines of `launcher.setup`, then `exec srun` with `command`, whose words the
    shell expands if they begin with `"$`."""
    arguments = map(_quoted, options(srun | {"container": resources.container}))
    words = (word if word.startswith('"$') else shlex.quote(word) for word in command)
    return [*set_up(resources.setup), " ".join(["exec srun", *arguments, *words])]


def submit(script: Path, *options: str, arguments: Sequence[str] = ()) -> str:
    """Submits a script by sbatch; returns the job id. The script's `#SBATCH` lines are passed as options too, because
    options override the variables `SBATCH_*`, and lines do not. Raises `LauncherError` if SLURM refuses the job, or
    sbatch prints no job id."""
    output = _run(["sbatch", "--parsable", *_options_of(script.read_text(), options), str(script), *arguments])
    # Sites print banners before the id.
    ids = [match["id"] for line in output.splitlines() if (match := _JOB_ID.fullmatch(line.strip()))]
    if not ids:
        said = "; ".join(line.strip() for line in output.splitlines()) or "nothing"
        raise LauncherError(
            f"sbatch printed no job id, so collectx cannot tell whether the job is queued. It printed: {said}. To see "
            "your jobs, run `squeue --me`, and ask your site how `sbatch --parsable` prints the id."
        )
    return ids[-1]


def _options_of(script: str, more: Sequence[str]) -> list[str]:
    """Returns the options in the `#SBATCH` lines of a script, and `more`, for each part of a heterogeneous job."""
    words: list[str] = [*more]
    for line in script.splitlines():
        if line == "#SBATCH hetjob":
            words += [":", *more]
        elif line.startswith("#SBATCH "):
            words += shlex.split(line.removeprefix("#SBATCH "))
    return words


def queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """Returns the states of the jobs that SLURM's controller remembers: it forgets a job some minutes after the job's
    end (MinJobAge)."""
    numbers = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
    command = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={numbers}", "--format=%i|%T|%r|%N"]
    try:
        output = _run(command)
    except LauncherError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return _read_states(_rows(output, 4), jobs)


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Returns the states of jobs in SLURM's controller, or, if it has forgotten them, in its accounting, if there is
    one. A job that is left out has ended: the controller knows all jobs that are pending or running.
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
    rows = _rows(output, 3)
    accounted = ((job, word.split()[0], "", "" if nodes.startswith("None") else nodes) for job, word, nodes in rows)
    return known | _read_states(accounted, forgotten)


def _rows(output: str, num_fields: int) -> Iterator[list[str]]:
    """Yields the fields of each line. Lines with fewer fields, a site's banners, are skipped."""
    rows = (line.split("|", num_fields - 1) for line in output.splitlines())
    return (row for row in rows if len(row) == num_fields)


def _read_states(rows: Iterable[Sequence[str]], jobs: Sequence[str]) -> dict[str, JobState]:
    """Returns the states of `jobs` from rows of id, state, reason and nodes. The first part of a heterogeneous job,
    12+0, stands for the job, because it starts the others."""
    states_by_job = {}
    for part, word, reason, nodes in rows:
        job, _, number = part.partition("+")
        if number in ("", "0"):
            reason = _REASONS.get(reason, reason)
            states_by_job[job] = JobState(word, word in _OVER, word not in _WAITING, reason, nodes)
    return {job: states_by_job[job] for job in jobs if job in states_by_job}


def hostnames(nodes: str) -> list[str]:
    """Returns the names in a node list of SLURM, such as `n[1-3]`."""
    return _run(["scontrol", "show", "hostnames", nodes]).split()


def per_node(text: str) -> list[int]:
    """Parses a per-node SLURM variable: `4(x2),2` is [4, 4, 2]."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in groups for _ in range(int(times or 1))]


def down(nodes: str) -> list[str]:
    """Returns the nodes of a node list of SLURM that are down or do not answer."""
    command = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--states=down,no_respond", "--format=%N|%T"]
    return list(dict.fromkeys(node for node, _ in _rows(_run(command), 2)))


def slurmd(node: str) -> tuple[str, int]:
    """Returns the address and port at which SLURM's daemon on a node listens."""
    fields = _fields(_run(["scontrol", "--oneliner", "show", "node", node]))
    try:
        return fields["NodeAddr"], int(fields.get("Port") or settings()["SlurmdPort"])
    except (KeyError, ValueError) as error:
        raise LauncherError(f"scontrol does not say at which port {node} listens") from error


def settings() -> dict[str, str]:
    """Returns SLURM's configuration, by the names in slurm.conf."""
    rows = (line.partition("=") for line in _run(["scontrol", "show", "config"]).splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def largest_array() -> int:
    """Returns how many tasks an array may have that begins at index 0; SLURM's default if SLURM does not answer."""
    try:
        known = settings()
    except LauncherError:
        known = {}
    limit = re.search(r"\bmax_array_tasks=(\d+)", known.get("SchedulerParameters", ""))
    sizes = [known.get("MaxArraySize", ""), limit[1] if limit else ""]
    # 0: SLURM has no arrays.
    return max(1, min((int(size) for size in sizes if size.isdecimal()), default=_DEFAULT_ARRAY_SIZE))


def node_states() -> list[tuple[str, str, int]]:
    """Returns partition (the default one with a `*`), state and number of nodes, for each state in each partition."""
    rows = _rows(_run(["sinfo", "--noheader", "--format=%P|%T|%D"]), 3)
    return [(partition, state, int(count)) for partition, state, count in rows]


def why_no_accounting() -> str:
    """Returns why sacct does not answer; empty if it does."""
    try:
        _run(["sacct", "--noheader", "--allocations", "--jobs=1"])
    except LauncherError as error:
        return str(error)
    return ""


def preempts(partitions: str | None) -> bool:
    """Whether SLURM may preempt jobs in one of these partitions, such as `a,b`; None: in the default partition."""
    for line in _run(["scontrol", "--oneliner", "show", "partition"]).splitlines():
        fields = _fields(line)
        is_default = fields.get("Default") == "YES"
        is_meant = is_default if partitions is None else fields.get("PartitionName") in partitions.split(",")
        if is_meant and fields.get("PreemptMode") in ("REQUEUE", "CANCEL"):
            return True
    return False


def _fields(line: str) -> dict[str, str]:
    """Returns the fields of a record that scontrol printed, `Name=value` each."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def cancel(jobs: Sequence[str]) -> None:
    """Cancels jobs, or sends the tasks of running jobs SIGTERM and, after KillWait, SIGKILL."""
    _run(["scancel", "--quiet", *jobs])


def interrupt(jobs: Sequence[str]) -> None:
    """Sends SIGINT to the tasks of running jobs, whose trainers then write a checkpoint, end, and cancel their jobs.
    Cancels waiting jobs. (After `cancel`, jobs have SLURM's KillWait only.) Continues after an error; the exception
    lists all errors."""
    # Without scancel's option --state: given one task of an array, it cancels all pending tasks.
    words = {job: state.word for job, state in queued(jobs).items() if not state.is_over}
    running = [job for job, word in words.items() if word == "RUNNING"]
    waiting = [job for job, word in words.items() if word in _WAITING or word in ("SUSPENDED", "STOPPED")]
    errors = []
    # Waiting jobs first: a task of an array could start when another one ends.
    for command in filter(None, (waiting, running and ["--signal=INT", *running])):
        try:
            _run(["scancel", "--quiet", *command])
        except NoMessage:
            pass  # one of the jobs ended meanwhile; the others are signalled
        except LauncherError as error:
            errors.append(str(error))
    if errors:
        raise LauncherError("; ".join(dict.fromkeys(errors)))


def release(jobs: Sequence[str]) -> None:
    """Releases a held job, or all tasks of a held array."""
    try:
        _run(["scontrol", "release", jobs[0].partition("_")[0]])
    except LauncherError:
        # scontrol also fails for a job that it released but that cannot start yet.
        if any(state.reason == _REASONS["JobHeldUser"] for state in queued(jobs).values()):
            raise


def requeue(job: str) -> None:
    """Requeues a running job. If it is the job of this process, SLURM ends its steps, and this command with them."""
    with suppress(NoMessage):  # scontrol was ended with the steps
        _run(["scontrol", "requeue", job])


def _run(command: Sequence[str]) -> str:
    name = command[0]
    try:
        # In a new session: Ctrl-C must not end the command by which the trainer cancels its jobs.
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
        raise LauncherError(
            f"{name} did not answer within {COMMAND_S:g} s. SLURM's controller may be down or overloaded. Try again "
            "later."
        ) from error
    except OSError as error:
        raise LauncherError(f"{name} cannot be called on this machine: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines()]
        message = "; ".join(_SAYS.sub("", line) for line in [line for line in lines if ": fatal: " in line] or lines)
        if not message:
            raise NoMessage(f"{name} failed with exit status {done.returncode}, and printed no reason")
        if _NO_CLUSTER in message.lower():
            raise NoCluster(
                f"{name} finds no SLURM cluster ('{message.removesuffix('.')}'). Use {opt('launcher=local')}, or start "
                "this on a login node of the cluster."
            )
        advice = next((text for part, text in _ADVICE.items() if part in message.lower()), None)
        what = "the job could not be submitted: " if name == "sbatch" else ""
        kind = TooManyJobs if any(part in message.lower() for part in _TOO_MANY) else LauncherError
        raise kind(f"{what}{message.removesuffix('.')}. {advice}." if advice else f"{what}{message}")
    return done.stdout


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns `variables` for a command of SLURM, without those of this process's own job: a job that is submitted from
    inside another would use the other's tasks and GPUs. The user's and the site's defaults of sbatch are kept (see
    `submit`)."""
    removed = {name for name in variables if name.startswith(_REMOVED_PREFIXES)} | _REMOVED
    return {name: value for name, value in variables.items() if name in _KEPT or name not in removed}
