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

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collectx.config import SlurmLauncherConfig
from collectx.errors import LauncherError
from collectx.launcher.base import Launcher
from collectx.launcher.slurm import commands, script
from collectx.launcher.slurm.log_watcher import LogWatcher, TaskHandle, kill_command
from collectx.launcher.slurm.worker_job import ending
from collectx.transport.network.handshake import Endpoint

# A host that is up answers at once, if only with a refusal.
_ANSWER_S = 2.0


class JobTasksLauncher(Launcher):
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
        announce: Callable[[Endpoint], None] | None = None,
    ):
        super().__init__(announce)
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
        return ["srun", *script.options(wanted), *words]


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
