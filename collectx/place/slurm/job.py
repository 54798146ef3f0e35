"""`launcher=slurm`: trainer and workers are the tasks of one SLURM job, and equal runs are the tasks of one job array.

    <run>/jobs/run.sh          the script of one run; <sweep>/jobs/array-0.sh of several
    <run>/jobs/task.json       the composed configuration, as plain data
    <run>/jobs/slurm.json      the job of the run
    <run>/jobs/exit_status.17  the trainer's exit status in job 17; another job may still be ending in the folder
    <run>/jobs/node.17         the node of the script and of the trainer
    <run>/jobs/log_begin       where this attempt of the job begins in job.log, in bytes
    <run>/logs/job.log         output of SLURM and the trainer

    batch script --- srun --- task 0: the trainer     the job ends with the trainer, with its status
                          \\-- task r: worker r - 1
                 \\--  srun --overlap: a replacement, started by the trainer

`ntasks` includes the trainer. srun kills no task when another one fails: the trainer applies
`collector.on_worker_failure`.

SLURM notices a lost node only after its `SlurmdTimeout`, so the trainer also connects to the node, as SLURM does. An
unreachable node counts as silent until then: it may be alive.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.errors import LauncherError
from collectx.place.launcher import AnyHandle, Entry, Launcher, RemoteHandle
from collectx.place.slurm import commands
from collectx.place.slurm.log_watcher import LogWatcher, kill_command
from collectx.process import until
from collectx.transport.network.handshake import Endpoint
from collectx.transport.peer import end_processes

# How long steps may take to end by themselves in `close`.
_CLOSE_S = 2.0


class JobTasksLauncher(Launcher):
    """Starts workers in the trainer's SLURM job: as tasks of the job, and replacements as further steps.

    Args:
        job_log, log_begin: `log` and `begin` of `LogWatcher`.
        run: the run folder, as the batch script writes it.
        group: the workers' part of a heterogeneous job; None for other jobs.
    """

    def __init__(
        self,
        cfg: SlurmLauncherConfig,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        job_log: Path,
        log_begin: int,
        log: Callable[[int], Path],
        run: str,
        group: int | None = None,
        announce: Callable[[Endpoint], None] | None = None,
    ):
        super().__init__(log, announce)
        self._run = run
        self._cfg = cfg
        self._command = list(command)
        self._environment = environment
        self._group = group
        self._worker_log = log
        # The suffix of SLURM's variables about the workers' part of the job.
        self._part = "" if group is None else f"_HET_GROUP_{group}"
        # Without parts, task 0 is the trainer.
        self._first = 1 if group is None else 0
        self._tasks = LogWatcher(job_log, log_begin, lambda: self._nodes()[self._first :], self._first)
        # All steps that may be running: replacements, and steps that kill a task.
        self._steps: list[RemoteHandle] = []

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> RemoteHandle:
        """Returns the handle of the worker's task or, if it is a replacement, of a new step. Kills a replaced task that
        may hang. Does not block."""
        log = self._worker_log(worker)
        # Later processes of the worker are steps, which their handles kill.
        if num_replaced == 1 and isinstance(previous, RemoteHandle) and previous.exitcode is None:
            self._start_step(lambda: self._kill(worker), log)
        if num_replaced:
            return self._start_step(lambda: self._step(worker, num_replaced), log)
        return self._tasks.watch(worker)

    def _start_step(self, command: Callable[[], list[str]], log: Path) -> RemoteHandle:
        self._steps = [step for step in self._steps if step.exitcode is None]
        self._steps.append(start_step(command, log))
        return self._steps[-1]

    def close(self) -> None:
        self._tasks.close()
        end_processes(self._steps, _CLOSE_S)

    def node_of(self, worker: int) -> str:
        """Returns the node of a worker's task."""
        names = self._nodes()
        return names[min(worker + self._first, len(names) - 1)]

    def _nodes(self) -> list[str]:
        return layout(self._environment, self._part)

    def _step(self, worker: int, num_replaced: int) -> list[str]:
        """Returns the command of a replacement's step. Blocks for some seconds if nodes are gone."""
        task, names, home = worker + self._first, self._nodes(), self.node_of(worker)
        # The lost worker's node comes first, because its cores are free; then the others in turn, because a hung node
        # may still answer.
        turn = list(dict.fromkeys([home, *names[task:], *names]))
        turn = turn[(num_replaced - 1) % len(turn) :] + turn[: (num_replaced - 1) % len(turn)]
        node = next((node for node in turn if not seems_lost(node)), home)
        cpus = self._environment.get(f"SLURM_CPUS_PER_TASK{self._part}")
        words = [*commands.WITHOUT_REQUESTS, *self._command, str(worker)]
        return self._srun(node, words, container=self._cfg.container, cpus_per_task=cpus)

    def _kill(self, worker: int) -> list[str]:
        """Returns the command of a step that kills the worker's task: SLURM cannot signal a single task of a step."""
        home = self.node_of(worker)
        if seems_lost(home):
            raise LauncherError(f"worker {worker} may still be running on {home}, which does not answer")
        return self._srun(home, kill_command(worker, self._run))

    def _srun(self, node: str, words: Sequence[str], **more: str | None) -> list[str]:
        options = {
            **self._cfg.srun,
            **more,
            "jobid": self._environment["SLURM_JOB_ID"],
            "het-group": self._group,
            "nodelist": node,
            "nodes": 1,
            "ntasks": 1,
            "overlap": True,
        }
        return ["srun", *commands.options(options), *words]


def start_step(command: Callable[[], list[str]], log: Path) -> RemoteHandle:
    """Starts a step: calls srun in a new thread, and returns the step's handle at once. The handle's exit code is
    srun's. `command` returns the command; called in the thread."""
    processes: list[subprocess.Popen[bytes]] = []
    is_stopped, lock = threading.Event(), threading.Lock()

    def stop(handle: RemoteHandle, signum: int) -> None:
        # srun forwards the signal to the worker.
        with lock:
            is_stopped.set()
            for process in processes:
                process.send_signal(signum)

    def run() -> None:
        code = 1
        try:
            words = command()
            with lock, open(log, "ab") as file:
                if is_stopped.is_set():
                    return
                process = subprocess.Popen(
                    words,
                    env=commands.environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                processes.append(process)
            code = process.wait()
        except (OSError, LauncherError) as error:
            print(f"collectx: srun could not be started: {error}", file=sys.stderr)
        finally:
            handle.text = f"its srun ended with status {code}" if code else ""
            handle.finish(code)

    handle = RemoteHandle(stop, lambda handle: True)
    threading.Thread(target=run, name="collectx-step", daemon=True).start()
    return handle


def layout(environment: Mapping[str, str], part: str = "") -> list[str]:
    """Returns the node of every task of the job, by task number (srun's `--distribution=block`). `part` is the suffix
    of SLURM's variables about a part of the job."""
    # Within an allocation, a run's step may use only some of the nodes.
    scope = "STEP" if not part and "SLURM_STEP_NODELIST" in environment else "JOB"
    names = commands.hostnames(environment[f"SLURM_{scope}_NODELIST{part}"])
    name = "SLURM_STEP_TASKS_PER_NODE" if scope == "STEP" else f"SLURM_TASKS_PER_NODE{part}"
    counts = commands.per_node(environment.get(name, "1"))
    # Without any task, each node counts as one.
    return [node for node, count in zip(names, counts, strict=False) for _ in range(count)] or names


# How long a host may take to accept or refuse a connection.
_ANSWER_S = 2.0
# The interval between two queries of SLURM.
_ASK_S = 2.0
# SLURM's default SlurmdTimeout, and how much later it may report the node.
_SLURMD_TIMEOUT_S = 300
_MARGIN_S = 30
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


def seems_lost(node: str) -> bool:
    """Whether the node is lost according to SLURM, or silent. Blocks for some seconds."""
    return _is_silent(node) or _is_down(node)


def is_lost(node: str) -> bool:
    """Whether the node is lost according to SLURM. Blocks for a silent node until SLURM knows, for at most
    `SlurmdTimeout` and half a minute."""
    if _is_down(node):
        return True
    if not _is_silent(node):
        return False
    timeout_s = _timeout_s()
    text = f"{node} does not answer. SLURM may take up to {timeout_s} s to say whether it is lost."
    print(f"collectx: {text}", flush=True)
    until(lambda: _is_down(node) or not _is_silent(node), timeout_s, _ASK_S)
    return _is_down(node)


def _is_down(node: str) -> bool:
    try:
        return node in commands.down(node)
    except LauncherError:
        return False


def _is_silent(node: str) -> bool:
    """Whether nothing answers at the port over which SLURM starts tasks on the node; False if the port is unknown. A
    firewall may drop packets to other ports."""
    try:
        socket.create_connection(commands.slurmd(node), timeout=_ANSWER_S).close()
    except LauncherError:
        return False
    except OSError as error:
        return isinstance(error, TimeoutError) or error.errno in _UNREACHABLE
    return False


def _timeout_s() -> int:
    try:
        return int(commands.settings()["SlurmdTimeout"].split()[0]) + _MARGIN_S
    except (LauncherError, KeyError, ValueError):
        return _SLURMD_TIMEOUT_S + _MARGIN_S
