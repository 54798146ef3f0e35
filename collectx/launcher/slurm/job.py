"""`launcher=slurm`: trainer and workers are the tasks of one SLURM job, and equal runs are the tasks of one job array.

    <run>/jobs/run.sh          the script of one run; <sweep>/jobs/array-0.sh of several
    <run>/jobs/run.json        what is run: the composed configuration, as plain data
    <run>/jobs/slurm.json      which job runs it
    <run>/jobs/exit_status.17  how the trainer's process of job 17 ended, whatever ended it; another job may still
                               be ending in the folder
    <run>/jobs/log_begin       where in job.log this start of the job begins
    <run>/logs/job.log         what SLURM and the trainer print

    batch script --- srun --- task 0: the trainer     its end is the run's end, and its status the job's
                          \\-- task r: worker r - 1
                 \\--  srun --overlap: a worker that takes another's place, started by the trainer

`ntasks` counts the trainer. srun never kills tasks because another has failed: the trainer is told, decides by
`collector.on_worker_failure`, and says why. Must not know what a task does.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from collectx.config import SlurmLauncherConfig
from collectx.errors import LauncherError
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.job_watcher import JobState, ending
from collectx.launcher.slurm.log_watcher import LogWatcher, TaskHandle, kill_command, role_shell

# A host that is up answers at once, if only with a refusal.
_ANSWER_S = 2.0

_SEES = """\
[ -e "$0/jobs/run.json" ] || { echo "$(hostname) does not see the run folder $0: all nodes must share its file system:
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
        survives_nodes: whether the job goes on when it loses a node.
        grace_s: how long workers may go on after the trainer's end, before they are killed.
        after: jobs that must have ended before.
    """
    limit = "" if launcher.max_parallel is None else f"%{launcher.max_parallel}"
    if after:
        asked = [launcher.sbatch.get("dependency"), f"afterany:{':'.join(sorted(after))}"]
        dependency = ",".join(str(each) for each in asked if each)
        launcher = dataclasses.replace(launcher, sbatch=launcher.sbatch | {"dependency": dependency})
    header = commands.header(
        launcher,
        job_name=job_name(runs),
        ntasks=ntasks,
        nodes=launcher.nodes,
        array=f"0-{len(runs) - 1}{limit}" if len(runs) > 1 else None,
        output="/dev/null",  # the script itself knows which run's log it is
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
    """The run folder's name; of several runs that of the sweep's folder."""
    return runs[0].name if len(runs) == 1 else runs[0].parent.name


def batch(
    runs: Sequence[Path], header: Sequence[str], setup: Sequence[str], look: Sequence[str], roles: str, grace_s: float
) -> str:
    """The whole script around the call of srun.

    Args:
        runs, grace_s: as in `script`.
        header: `#SBATCH` lines.
        setup: the user's lines of shell.
        look: lines that end the job where a node does not see the run folder.
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
        'rm -f "$ended" "$run/result.json"  # of an earlier start of the job',
        'stat --format=%s "$run/logs/job.log" > "$run/jobs/log_begin"',
        "# Since 22.05, srun does not take it over from sbatch.",
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
        *commands.set_up(setup),
        "",
        *look,
        f"{roles} &",
        "roles=$!",
        "# Where the trainer has ended and a worker has not, it hangs.",
        f'(until [ -e "$ended" ]; do sleep 1; done; sleep {grace_s:g}; kill -KILL "$roles") &',
        '{ wait "$roles"; } 2>/dev/null  # nothing of how it was killed',
        "status=$?",
        "kill $! 2>/dev/null",
        'if [ -e "$ended" ]; then read -r status < "$ended"; fi',
        'exit "$status"',
        "",
    ]
    return "\n".join(lines)


def submit(path: Path, text: str, num_runs: int) -> list[str]:
    """Writes the script and submits it; returns the job of each run, such as 17, or 17_0 and 17_1.

    Raises:
        LauncherError: SLURM refused it; the message has its words and what to change.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    job = commands.submit([str(path)])
    return [job] if num_runs == 1 else [f"{job}_{index}" for index in range(num_runs)]


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """What is known of jobs, by SLURM's controller, or, where it has forgotten them, by its accounting. A job that is
    left out has ended: the controller knows all that wait or run.

    Raises:
        LauncherError: SLURM does not answer.
    """
    found = commands.states(jobs) if jobs else {}
    forgotten = [job for job in jobs if job not in found]
    return found | (commands.accounted(forgotten) if forgotten else {})


class JobTasksLauncher:
    """The workers of the SLURM job that this process is the trainer of: the first lives are tasks of the job, those
    that take another's place further steps of it.

    Args:
        launcher: as in `script`.
        command: what a worker runs, its index to be appended.
        environment: of this task, as SLURM made it.
        job_log: the job's log.
        log_begin: see `LogWatcher`.
        log: the log file of a worker.
        run: the run folder, by the name that the script has passed to `role`.
        group: which part of a heterogeneous job the workers are; None where it has no parts.
    """

    def __init__(
        self,
        launcher: SlurmLauncherConfig,
        command: Sequence[str],
        environment: Mapping[str, str],
        job_log: Path,
        log_begin: int,
        log: Callable[[int], Path],
        run: str,
        group: int | None = None,
    ):
        self._run = run
        self._launcher = launcher
        self._command = list(command)
        self._environment = environment
        self._group = group
        self._log = log
        # Without parts, the first task is the trainer's.
        self._first = 1 if group is None else 0
        self._tasks = LogWatcher(job_log, log_begin, lambda: self._nodes()[self._first :], self._first)
        self._newest: dict[int, TaskHandle | StepHandle] = {}
        self._kills: list[StepHandle] = []

    def start(self, worker: int, life: int) -> TaskHandle | StepHandle:
        """The task, or a new step, for a worker of that index. Does not block. A task that is replaced and may hang is
        killed."""
        previous = self._newest.get(worker)
        if isinstance(previous, TaskHandle) and previous.exitcode is None:
            self._kills.append(StepHandle(lambda: self._kill(worker), self._log(worker)))
        handle = self._newest[worker] = (
            StepHandle(lambda: self._step(worker, life), self._log(worker)) if life else self._tasks.watch(worker)
        )
        return handle

    def describe(self, worker: int) -> str:
        """Names a worker in messages: how it has failed, if it has, its log, and the log's last line then."""
        log, handle = self._log(worker), self._newest.get(worker)
        if handle is None or not handle.exitcode:
            return f"worker {worker} (log: {log})"
        return f"worker {worker} ({handle}; log: {log}{ending(log)})"

    @property
    def _part(self) -> str:
        """How SLURM's variables about the workers' part of the job end."""
        return "" if self._group is None else f"_HET_GROUP_{self._group}"

    def _nodes(self) -> list[str]:
        """Of the tasks of that part."""
        return layout(self._environment, self._part)

    def _step(self, worker: int, life: int) -> list[str]:
        """The words of the step. Blocks for some seconds where nodes are gone."""
        task = worker + self._first
        nodes = self._nodes()
        home = nodes[min(task, len(nodes) - 1)]
        # Its own node first, as its cores are free there; then the others in turn, as a node may hang and still answer.
        turn = list(dict.fromkeys([home, *nodes[task:], *nodes]))
        turn = turn[(life - 1) % len(turn) :] + turn[: (life - 1) % len(turn)]
        node = next((node for node in turn if is_up(node)), home)
        cpus = self._environment.get(f"SLURM_CPUS_PER_TASK{self._part}")
        return self._srun(node, [*self._command, str(worker)], container=self._launcher.container, cpus_per_task=cpus)

    def _kill(self, worker: int) -> list[str]:
        """The words of a step that kills the worker's first life. SLURM itself cannot signal one task of a step."""
        nodes = self._nodes()
        home = nodes[min(worker + self._first, len(nodes) - 1)]
        if not is_up(home):
            raise LauncherError(f"worker {worker} may still be running on {home}, which does not answer")
        return self._srun(home, kill_command(worker, self._run))

    def _srun(self, node: str, words: Sequence[str], **more: str | None) -> list[str]:
        wanted = {
            **self._launcher.srun,
            **{name.replace("_", "-"): value for name, value in more.items()},
            "jobid": self._environment["SLURM_JOB_ID"],
            "het-group": self._group,
            "nodelist": node,
            "nodes": 1,
            "ntasks": 1,
            "overlap": True,
        }
        return ["srun", *options(wanted), *words]


class StepHandle:
    """A started step (`collectx.transport.processes.Handle`). Nothing but `join` blocks: a thread calls srun.

    Attributes:
        sentinel: a descriptor that becomes readable when the step has ended.
        exitcode: srun's, once it has ended.
    """

    pid = None

    def __init__(self, command: Callable[[], list[str]], log: Path):
        """`command()` are the words of srun; called in the thread. What it prints goes to `log`."""
        self._log = log
        self.sentinel, end = os.pipe()
        weakref.finalize(self, os.close, self.sentinel)
        self.exitcode: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_wanted = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, args=(command, end), name="collectx-step", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"its srun ended with status {self.exitcode}"

    def _live(self, command: Callable[[], list[str]], end: int) -> None:
        code = 1
        try:
            words = command()
            with self._lock, open(self._log, "ab") as log:
                if not self._is_wanted:
                    return
                self._process = subprocess.Popen(
                    words,
                    env=commands.environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            code = self._process.wait()
        except (OSError, LauncherError) as error:
            print(f"collectx: srun was not called: {error}", file=sys.stderr)
        finally:
            self.exitcode = code
            os.close(end)

    def join(self, timeout: float | None = None) -> None:
        """Waits until the step has ended."""
        self._thread.join(timeout)

    def terminate(self) -> None:
        """srun passes it on to the worker."""
        with self._lock:
            self._is_wanted = False
            if self._process is not None:
                self._process.terminate()

    def kill(self) -> None:
        with self._lock:
            self._is_wanted = False
            if self._process is not None:
                self._process.kill()


def layout(environment: Mapping[str, str], part: str = "") -> list[str]:
    """The node of every task of the job, by its number (srun's `--distribution=block`).

    Args:
        part: the end of the names of SLURM's variables about a part of the job.

    Raises:
        LauncherError: scontrol does not answer.
    """
    # Inside an allocation, the step of a run need not have all of its nodes.
    scope = "STEP" if not part and "SLURM_STEP_NODELIST" in environment else "JOB"
    nodes = commands.hostnames(environment[f"SLURM_{scope}_NODELIST{part}"])
    per_node = "SLURM_STEP_TASKS_PER_NODE" if scope == "STEP" else f"SLURM_TASKS_PER_NODE{part}"
    counts: list[int] = []
    # 2(x3),1 is three nodes with two tasks each and one with one.
    for group in environment.get(per_node, "1").split(","):
        count, _, times = group.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return [node for node, count in zip(nodes, counts, strict=False) for _ in range(count)] or nodes


def is_up(host: str) -> bool:
    """Whether a host answers; blocks for at most `_ANSWER_S`. SLURM itself notices a lost node only after minutes."""
    try:
        # Nobody listens on this port, which a living host says at once.
        socket.create_connection((host, 1), timeout=_ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def options(values: Mapping[str, object]) -> list[str]:
    """srun's words; None and False leave an option out, True gives it without a value."""
    return [
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in values.items()
        if value is not None and value is not False
    ]
