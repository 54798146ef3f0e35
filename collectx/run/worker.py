"""One worker of a run as a process of its own: `python -m collectx.run.worker [--wait S] TASK INDEX`, as a scheduler's
job.

    S        how long TASK may take to be there, in seconds
    TASK     a file written by `write`: which run, with which configuration; plain data. Objects that only Python can
             give lie in a file beside it
    INDEX    which of its workers

Ends with status 0 when the trainer said stop, with 1 when the worker failed or found no trainer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from collectx.config import EnvConfig, PolicyConfig, RunConfig, as_dict, from_dict
from collectx.errors import LauncherError
from collectx.run.files import read_private, write_json, write_private
from collectx.run.folder import RunFolder
from collectx.run.role import work
from collectx.user_objects import UserObjects

_PAUSE_S = 0.25


def write(path: Path, cfg: RunConfig, files: RunFolder, token: str, given: Sequence[UserObjects] | None = None) -> None:
    """Writes TASK.

    Args:
        token: that of `collectx.run.role.play`.
        given: what each worker has of its own; None: nothing.
    """
    if given is not None:
        write_private(_objects(path), pickle.dumps(given))
    plain = (
        cfg
        if given is None
        else dataclasses.replace(cfg, env=EnvConfig(kind="given", num_envs=0), policy=PolicyConfig(kind="given"))
    )
    write_json(path, {"folder": str(files.path), "token": token, "cfg": as_dict(plain)})


def main(argv: Sequence[str]) -> int:
    """Works; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("task", type=Path)
    parser.add_argument("index", type=int)
    told = parser.parse_args(argv)
    path, worker = told.task, told.index
    signal.signal(signal.SIGTERM, _end)
    deadline = time.monotonic() + told.wait
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    if not path.exists():
        print(
            f"no trainer within {told.wait:g} s (queue_timeout_s={told.wait:g}): {path} is not there: the trainer's "
            "job waits in the queue, has failed before it made its collector, or sees another file system.",
            file=sys.stderr,
        )
        return 1
    task = json.loads(path.read_text())
    given = pickle.loads(read_private(_objects(path)))[worker] if _objects(path).exists() else None
    return work(from_dict(task["cfg"]), Path(task["folder"]), worker, task["token"], given=given)


def _end(signum: int, frame: object) -> None:
    """The trainer learns why, before its connection breaks."""
    raise LauncherError(
        "SLURM ends the job of this worker (SIGTERM): it is preempted, cancelled (scancel) or at its time limit."
    )


def _objects(path: Path) -> Path:
    return path.with_suffix(".pkl")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
