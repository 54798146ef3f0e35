"""Workers that begin with a SLURM job, as its tasks: what becomes of those that fail.

    srun --- task r: worker r - 1, in a shell that says how it has ended      (`role`)
        \\-- the job's log <--- a thread of the trainer, on the same node

The shell outlives whatever kills its worker, or was no worker at all, and its words reach the log by srun's own
connection, whatever the node sees of the run folder. Used in the trainer's process. Must not know what a task does.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
import weakref
from pathlib import Path

# How often the log is read.
_POLL_S = 0.3

# Arguments: the Python, the run folder.
_ROLE = """\
trap : TERM INT
if [ "$SLURM_PROCID" = 0 ]; then
  "$0" -u -m collectx.run.task "$1"
  status=$?
  echo "$status" > "$1/jobs/exit_status"
else
  "$0" -u -m collectx.run.task "$1" >> "$1/logs/worker-$((SLURM_PROCID - 1)).log" 2>&1
  status=$?
  if [ "$status" != 0 ]; then
    echo "collectx: task $SLURM_PROCID of $SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} on $(hostname): status $status"
  fi
fi
exit "$status"
"""
_END = re.compile(r"collectx: task (?P<rank>\d+) of (?P<start>\S+) on (?P<host>\S+): status (?P<status>\d+)$")


def role(python: str) -> str:
    """What srun runs for each task, as words of shell; `$run` is the run folder."""
    return f'bash -c {shlex.quote(_ROLE)} {shlex.quote(python)} "$run"'


class Task:
    """The first life of a worker (`collectx.transport.switchboard.Handle`). Nothing here blocks; srun ends it.

    Attributes:
        sentinel: a descriptor that becomes readable when the task has failed.
        exitcode: how, once it has failed.
    """

    pid = None

    def __init__(self, rank: int):
        self._rank = rank
        self._host = ""
        self.exitcode: int | None = None
        self.sentinel = os.eventfd(0)
        weakref.finalize(self, os.close, self.sentinel)

    def __str__(self) -> str:
        if self.exitcode is None:
            return ""
        how = f"ended with status {self.exitcode}"
        if self.exitcode > 128:
            how = f"was killed by signal {self.exitcode - 128}"
        return f"task {self._rank} on {self._host} {how}"

    def fail(self, host: str, status: int) -> None:
        """Called from any thread."""
        self._host, self.exitcode = host, status
        os.eventfd_write(self.sentinel, 1)

    def join(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def terminate(self) -> None:
        """It ends with the trainer's connection."""

    kill = terminate


class Tasks:
    """The tasks of one start of a job, its trainer's aside.

    Args:
        log: the job's; the batch script has made it.
        start: which start, as `<job>.<restarts>`: a log may have more than one's words.
    """

    def __init__(self, log: Path, start: str):
        self._log = log
        self._start = start
        self._tasks: dict[int, Task] = {}
        self._watcher = threading.Thread(target=self._watch, name="collectx-tasks", daemon=True)

    def watch(self, worker: int) -> Task:
        """The handle of a worker's task."""
        if self._watcher.ident is None:
            self._watcher.start()
        return self._task(worker + 1)

    def _task(self, rank: int) -> Task:
        # Made by who comes first, this thread or the other.
        return self._tasks.setdefault(rank, Task(rank))

    def _watch(self) -> None:
        # The script has written to it before any task began.
        with open(self._log, errors="replace") as log:
            rest = ""
            while True:
                *lines, rest = (rest + log.read()).split("\n")
                for line in lines:
                    self._take(line)
                time.sleep(_POLL_S)

    def _take(self, line: str) -> None:
        found = _END.search(line)
        if found is not None and found["start"] == self._start:
            self._task(int(found["rank"])).fail(found["host"], int(found["status"]))
