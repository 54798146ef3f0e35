"""What a task of a SLURM job runs: `python -m collectx.run.task RUN`, or `RUN WORKER` for a worker that takes another's
place. RUN is a run folder with `jobs/run.json` in it.

Its rank is the one that srun gives it; see `collectx/run/role.py` for what the ranks do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from collectx.config import RunConfig, SlurmLauncherConfig, as_dict, from_dict
from collectx.launcher.slurm import hetjob
from collectx.launcher.slurm.job import JobTasksLauncher
from collectx.run.files import write_json
from collectx.run.folder import RunFolder
from collectx.run.role import announce, play, work


def write(files: RunFolder, cfg: RunConfig, argv: Sequence[str]) -> None:
    """Writes `jobs/run.json`; `argv` is what the user typed."""
    files.jobs.mkdir(parents=True, exist_ok=True)
    write_json(_description(files), {"cfg": as_dict(cfg), "argv": list(argv)})


def read(files: RunFolder) -> RunConfig | None:
    """The configuration in `jobs/run.json`; None where there is none."""
    try:
        return from_dict(json.loads(_description(files).read_text())["cfg"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main(argv: Sequence[str]) -> int:
    """Plays the role; returns the exit status."""
    files = RunFolder(argv[0])
    told = json.loads(_description(files).read_text())
    cfg = from_dict(told["cfg"])
    job, restarts = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")
    token = f"{job}.{restarts}"
    if len(argv) > 1:
        _leave_signals_to_the_trainer()
        return work(cfg, files.path, int(argv[1]), token)
    rank = int(os.environ["SLURM_PROCID"])
    if rank > 0:
        _leave_signals_to_the_trainer()
    launcher = cfg.launcher
    assert isinstance(launcher, SlurmLauncherConfig)
    command = [launcher.python or sys.executable, "-u", "-m", "collectx.run.task", str(files.path)]

    def log(worker: int) -> Path:
        return files.log(f"worker-{worker}")

    group = hetjob.WORKERS if launcher.kind == "submitit_delayed" else None
    begin = int((files.jobs / "log_begin").read_text())
    workers = JobTasksLauncher(
        launcher,
        command,
        os.environ,
        files.log("job"),
        begin,
        log,
        argv[0],
        group,
        lambda endpoint: announce(files, endpoint, token),
    )
    return play(cfg, files.path, told["argv"], rank, token, workers)


def _description(files: RunFolder) -> Path:
    return files.jobs / "run.json"


def _leave_signals_to_the_trainer() -> None:
    """SLURM signals all tasks of a job; a worker that died of it would look like one that has failed. It ends with the
    trainer's connection. An env's own processes, which fork takes along, die as they always do."""
    mine = os.getpid()

    def ignore(signum: int, frame: object) -> None:
        if os.getpid() != mine:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, ignore)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
