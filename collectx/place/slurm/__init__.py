"""SLURM's jobs, steps and commands, used by trainers and by the command that submits runs.

The files of a run folder that jobs share with the trainer; `collectx.run.folder.layout` adds all others.
"""

from __future__ import annotations

from pathlib import Path


class JobFiles:
    """The paths of these files. The folder, and the arguments of methods, may be variables of the shell, as in a job's
    script: `JobFiles(Path("$run")).log("job")` is `$run/logs/job.log`."""

    def __init__(self, path: Path):
        self.path = path
        self.result = path / "result.json"
        self.logs = path / "logs"
        self.jobs = path / "jobs"
        self.job_spec = self.jobs / "task.json"
        self.worker_script = self.jobs / "worker.sh"
        self.worker_jobs = self.jobs / "workers.txt"
        self.log_begin = self.jobs / "log_begin"

    def log(self, role: str) -> Path:
        """Returns the log file of a role: "trainer", "job" or "worker-0"."""
        return self.logs / f"{role}.log"

    def worker_log(self, worker: int | str) -> Path:
        return self.log(f"worker-{worker}")

    def node_note(self, job: str) -> Path:
        """Returns the file in which a job's batch script records its node, on which the trainer runs too."""
        return self.jobs / f"node.{job}"

    def exit_status(self, job: str) -> Path:
        """Returns the file with the trainer's exit status in a job."""
        return self.jobs / f"exit_status.{job}"

    def idle_note(self, job: str) -> Path:
        """Returns the file that says that a job was requeued without having delivered a batch."""
        return self.jobs / f"idle.{job}"

    def note_of_end(self, job: str) -> Path:
        """Returns the file that a worker writes when SLURM ends its job (SIGTERM): SLURM records a job as failed if its
        process ends before SLURM kills it."""
        return self.jobs / f"ended.{job}"
