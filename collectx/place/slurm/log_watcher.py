"""Detects failed workers among the tasks of a SLURM job, by reading the job's log.

    srun --- task r: worker r - 1, in a shell that prints its exit status      (`role_command`)
        \\-- the job's log <--- a thread of the trainer, on the same node

The shell outlives its worker, and srun writes its output to the log, even without a shared file system. If the shell is
killed or its node is lost, srun writes that. SLURM's commands know nothing of single tasks.
"""

from __future__ import annotations

import functools
import re
import shlex
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from collectx.errors import LauncherError
from collectx.place.launcher import RemoteHandle
from collectx.place.slurm import JobFiles, commands
from collectx.place.slurm.requeue import IDLE

# `SlurmPlace.other_tasks` of a job with one learner.
WORKERS = "worker", 0
# The interval between two reads of the log.
_POLL_S = 0.3

# Arguments: the Python, `SlurmPlace.other_tasks`, the run folder. All processes of a task, those of envs too, inherit
# COLLECTX_TASK.
_RUN = JobFiles(Path("$3"))
# The shell leaves signals to Python, which handles USR1 and USR2 only when it has imported.
_ROLE = f"""\
trap : TERM INT HUP
trap '' USR1 USR2
export COLLECTX_TASK="$SLURM_PROCID $3"
if [ "$SLURM_PROCID" = 0 ]; then
  "$0" -u -m collectx.jobs.entry "$3"
  status=$?
  # SIGTERM came before the trainer could handle it, for example during its imports.
  unset ${{!SQUEUE_@}}  # they may hide the job
  if [ "$status" = 143 ] && [ -n "$COLLECTX_REQUEUE" ] && [ ! -e "{_RUN.result}" ] &&
      [ "$(squeue --noheader --jobs="$COLLECTX_REQUEUE" --format=%T | sort -u)" = RUNNING ]; then
    idle="{_RUN.idle_note("$COLLECTX_REQUEUE")}"
    if [ -e "$idle" ]; then
      echo "collectx: job $COLLECTX_REQUEUE is not requeued: {IDLE}"
    else
      echo "collectx: the job is being requeued: it was signalled before the run began"
      touch "$idle"
      scontrol requeue "$COLLECTX_REQUEUE"
    fi
  fi
  echo "$status" > "{_RUN.exit_status("$SLURM_JOB_ID")}"
else
  "$0" -u -m collectx.jobs.entry "$3" >> "{_RUN.log("$1-$((SLURM_PROCID - 1 + $2))")}" 2>&1
  status=$?
  if [ "$status" != 0 ]; then
    echo "collectx: task $SLURM_PROCID on $(hostname): status $status"
  fi
fi
exit "$status"
"""
# The shell's line, with the task's rank among all tasks.
_END = re.compile(r"collectx: task (?P<rank>\d+) on (?P<host>\S+): status (?P<status>\d+)$")
# srun's lines, with the task's number in its part of the job.
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
    """Returns a command that, called on the node of a worker's task, kills the task's processes; the task's shell
    reports their end."""
    return ["bash", "-c", _KILL, str(worker), run]


def role_command(python: str, run: str, others: tuple[str, int] = WORKERS) -> list[str]:
    """Returns the command of a task, the trainer's or another one; `run` is the run folder, and `others` are
    `SlurmPlace.other_tasks`."""
    return ["bash", "-c", _ROLE, python, *map(str, others), run]


def role_shell(python: str, others: tuple[str, int] = WORKERS) -> str:
    """Returns the command of a task as shell code; `$run` is the run folder. See `role_command`."""
    name, first = others
    return f'bash -c {shlex.quote(_ROLE)} {shlex.quote(python)} {name} {first} "$run"'


class LogWatcher:
    """Watches the tasks of a job's workers in a thread, which the first `watch` starts and `close` ends.

    Args:
        begin: where this attempt of the job begins in the log, in bytes.
        nodes: returns the node name of each worker; may raise `LauncherError`.
        first: srun's task number of the first worker.
    """

    def __init__(self, log: Path, begin: int, nodes: Callable[[], Sequence[str]], first: int):
        self._log = log
        self._begin = begin
        self._nodes = functools.cache(nodes)
        self._first = first
        self._tasks: dict[int, RemoteHandle] = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="collectx-tasks", daemon=True)

    def watch(self, worker: int) -> RemoteHandle:
        """Returns the handle of a worker's task, which finishes when the task fails. The handle cannot end the task:
        srun does."""
        if self._watcher.ident is None:
            self._watcher.start()
        return self._task(worker)

    def close(self) -> None:
        """Ends the thread. Blocks while it reads, or while it asks SLURM for node names, for at most
        `commands.COMMAND_S`. Idempotent."""
        self._closing.set()
        if self._watcher.ident is not None:
            self._watcher.join()

    def _task(self, worker: int) -> RemoteHandle:
        # Both threads call this.
        return self._tasks.get(worker) or self._tasks.setdefault(worker, RemoteHandle())

    def _watch(self) -> None:
        end, rest, pending = self._begin, b"", list[bytes]()
        while not self._closing.wait(_POLL_S):
            try:
                # A network file system may fail for a while; a new descriptor is never stale.
                with open(self._log, "rb") as log:
                    log.seek(end)
                    text = log.read()
            except OSError:
                text = b""
            end += len(text)
            *lines, rest = (rest + text).split(b"\n")
            # Lines for which scontrol failed are read again.
            pending = [line for line in pending + lines if not self._take(line.decode(errors="replace"))]

    def _take(self, line: str) -> bool:
        """Reads a line; returns False if scontrol, which names the nodes, failed."""
        try:
            self._read(line)
        except LauncherError:
            return False
        return True

    def _read(self, line: str) -> None:
        if match := _END.search(line):
            status = int(match["status"])
            self._note_end(int(match["rank"]) - 1, match["host"], status, _described(status))
        elif match := _TASKS.search(line):
            self._note_srun_error(_numbers(match["numbers"]), match["hosts"], match["words"])
        elif match := _NODES.search(line):
            self._note_srun_error(None, match["hosts"], match["words"])

    def _note_srun_error(self, numbers: set[int] | None, hosts: str, words: str) -> None:
        """Notes the end of these tasks; `numbers=None`: of all tasks on these nodes."""
        lost = set(commands.hostnames(hosts))
        exited = _EXITED.match(words)
        for worker, node in enumerate(self._nodes()):
            # Both parts of a job number their tasks from 0; they share no node.
            if node in lost and (numbers is None or worker + self._first in numbers):
                status = int(exited[1]) if exited else 1
                how = _described(status) if exited else f"is gone: srun says {words!r}"
                self._note_end(worker, node, status, how)

    def _note_end(self, worker: int, host: str, status: int, how: str) -> None:
        """Notes the end of a task. Later calls do nothing."""
        task = self._task(worker)
        if task.exitcode is None:
            task.text = f"task {worker + 1} on {host} {how}"
            task.finish(status)


def _described(status: int) -> str:
    return f"was killed by signal {status - 128}" if status > 128 else f"ended with status {status}"


def _numbers(text: str) -> set[int]:
    """Returns the numbers of a list such as 1,3-5."""
    ranges = (part.partition("-") for part in text.split(","))
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
