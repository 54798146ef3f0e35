"""Workers that begin with a SLURM job, as its tasks: what becomes of those that fail.

    srun --- task r: worker r - 1, in a shell that says how it has ended      (`role`)
        \\-- the job's log <--- a thread of the trainer, on the same node

The shell outlives whatever kills its worker, or was no worker at all, and its words reach the log by srun's own
connection, whatever the node sees of the run folder. Where the shell itself is killed, or its node is lost, srun says
so there. Used in the trainer's process. Must not know what a task does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from collectx.errors import LauncherError
from collectx.launcher.slurm import commands

# How often the log is read.
_POLL_S = 0.3

# Arguments: the Python, the run folder. All processes of a task, envs' included, inherit its name.
_ROLE = """\
trap : TERM INT
export COLLECTX_TASK="$SLURM_PROCID $1"
if [ "$SLURM_PROCID" = 0 ]; then
  "$0" -u -m collectx.run.entry "$1"
  status=$?
  echo "$status" > "$1/jobs/exit_status.$SLURM_JOB_ID"
else
  "$0" -u -m collectx.run.entry "$1" >> "$1/logs/worker-$((SLURM_PROCID - 1)).log" 2>&1
  status=$?
  if [ "$status" != 0 ]; then
    echo "collectx: task $SLURM_PROCID on $(hostname): status $status"
  fi
fi
exit "$status"
"""
# What the shell says, by the task's rank among all.
_END = re.compile(r"collectx: task (?P<rank>\d+) on (?P<host>\S+): status (?P<status>\d+)$")
# What srun says, by its number among the tasks of a part of the job.
_TASKS = re.compile(r"srun: error: (?P<hosts>\S+): tasks? (?P<numbers>[\d,-]+): (?P<words>.+)$")
_NODES = re.compile(r"srun: error: (?P<words>Node failure on (?P<hosts>\S+))$")
_EXITED = re.compile(r"Exited with exit code (\d+)$")


# Arguments: a worker's index, the run folder.
_KILL = """\
name="COLLECTX_TASK=$(($0 + 1)) $1"
for file in $(grep --files-with-matches --null-data --line-regexp --fixed-strings --no-messages \
              "$name" /proc/[0-9]*/environ); do
  process="${file#/proc/}"
  kill -KILL "${process%/environ}"
done
"""


def kill_command(worker: int, run: str) -> list[str]:
    """Kills the processes of a worker's first life, where run on their node; their shell reports it."""
    return ["bash", "-c", _KILL, str(worker), run]


def role_command(python: str, run: str) -> list[str]:
    """What srun runs for each task, as words; `run` is the run folder."""
    return ["bash", "-c", _ROLE, python, run]


def role_shell(python: str) -> str:
    """What srun runs for each task, as words of shell; `$run` is the run folder."""
    return f'bash -c {shlex.quote(_ROLE)} {shlex.quote(python)} "$run"'


class TaskHandle:
    """The first life of a worker (`collectx.transport.processes.Handle`). Nothing here blocks; srun ends it.

    Attributes:
        sentinel: a descriptor that becomes readable when the task has failed.
        exitcode: how, once it has failed.
    """

    pid = None

    def __init__(self, rank: int):
        self._rank = rank
        self._host = self._how = ""
        self.exitcode: int | None = None
        self.sentinel = os.eventfd(0)
        weakref.finalize(self, os.close, self.sentinel)

    def __str__(self) -> str:
        return "" if self.exitcode is None else f"task {self._rank} on {self._host} {self._how}"

    def fail(self, host: str, status: int, how: str | None = None) -> None:
        """The first that is told counts. `how` it ended, where `status` does not say it."""
        if self.exitcode is not None:
            return
        if how is None:
            how = f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"
        self._host, self._how, self.exitcode = host, how, status
        os.eventfd_write(self.sentinel, 1)

    def join(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def terminate(self) -> None:
        """It ends with the trainer's connection."""

    kill = terminate


class LogWatcher:
    """The tasks of one start of a job, its trainer's aside.

    Args:
        log: the job's; the batch script has made it.
        begin: from where on in it the words are this start's.
        nodes: gives the node of each worker, by SLURM's names; may raise `LauncherError`.
        first: the number that srun gives to the first worker's task.
    """

    def __init__(self, log: Path, begin: int, nodes: Callable[[], Sequence[str]], first: int):
        self._log = log
        self._begin = begin
        self._nodes = functools.cache(nodes)
        self._first = first
        self._tasks: dict[int, TaskHandle] = {}
        self._watcher = threading.Thread(target=self._watch, name="collectx-tasks", daemon=True)

    def watch(self, worker: int) -> TaskHandle:
        """The handle of a worker's task."""
        if self._watcher.ident is None:
            self._watcher.start()
        return self._task(worker)

    def _task(self, worker: int) -> TaskHandle:
        # Made by who comes first, this thread or the other.
        return self._tasks.setdefault(worker, TaskHandle(worker + 1))

    def _watch(self) -> None:
        # The script has written to it before any task began.
        with open(self._log, "rb") as log:
            log.seek(self._begin)
            rest = b""
            while True:
                *lines, rest = (rest + log.read()).split(b"\n")
                for line in lines:
                    # Without SLURM's help, only what the shells say is understood.
                    with contextlib.suppress(LauncherError):
                        self._take(line.decode(errors="replace"))
                time.sleep(_POLL_S)

    def _take(self, line: str) -> None:
        if told := _END.search(line):
            self._task(int(told["rank"]) - 1).fail(told["host"], int(told["status"]))
        elif told := _TASKS.search(line):
            self._srun_says(_numbers(told["numbers"]), told["hosts"], told["words"])
        elif told := _NODES.search(line):
            self._srun_says(None, told["hosts"], told["words"])

    def _srun_says(self, numbers: set[int] | None, hosts: str, words: str) -> None:
        """What has become of tasks, or, where `numbers` is None, of all on these nodes."""
        lost = set(commands.hostnames(hosts))
        exited = _EXITED.match(words)
        for worker, node in enumerate(self._nodes()):
            # Both parts of a job count from 0; they have no node in common.
            if node in lost and (numbers is None or worker + self._first in numbers):
                status, how = (int(exited[1]), None) if exited else (1, f"is gone: srun says {words!r}")
                self._task(worker).fail(node, status, how)


def _numbers(text: str) -> set[int]:
    """Of 1,3-5."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
