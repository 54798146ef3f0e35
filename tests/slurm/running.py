"""`collectx run` as a user of the cluster types it, on the login host, and what it leaves in its run folder."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import GRACE_S, Cluster
from commands import COMMAND
from machines import wait_until

from collectx.run import RunFolder

_LONG_S = 300

SMALL = [
    *("env=counting", "env.num_envs=1", "policy=random", "trainer=meter", "trainer.digest=true"),
    *("collector=multi_sync", "collector.num_workers=2", "collector.frames_per_batch=1000"),
    "collector.total_frames=10_000",
    # Importing torch takes long where many processes do it at once on few cores.
    "collector.start_timeout_s=280",
    *("hydra.run.dir=run", "hydra.sweep.dir=sweep"),
]
# Until the file `stop` is there. The trainer fails where a frame of the counting env is lost, repeated or torn.
ENDLESS = [
    *SMALL,
    *("trainer=custom", "trainer.target=watcher:Watcher", "env.step_s=0.002"),
    *("collector=multi_async", "collector.frames_per_batch=300", "collector.total_frames=-1"),
    "collector.worker_timeout_s=6",
]
LAUNCHERS = {
    "slurm": ["launcher=slurm", "launcher.nodes=3"],
    "submitit": ["launcher=submitit", "collector.close_timeout_s=60"],
    "submitit_delayed": ["launcher=submitit_delayed", "launcher.nodes=2", "launcher.trainer.gpus=1"],
}

_WATCHER = """
from pathlib import Path
from streams import StreamChecker

class Watcher:
    def train(self, collection):
        checker = StreamChecker(restarts=True)
        for batch in collection:
            checker.take(batch)
            if Path("stop").exists():
                break
"""


def nightly(*values: Any):
    return pytest.param(*values, marks=pytest.mark.nightly)


class Run:
    """A started `collectx run OVERRIDES` in the folder `cwd`, which all nodes see; `inside` are words before it, such
    as `salloc`. `files` is its run folder."""

    def __init__(self, cluster: Cluster, cwd: Path, overrides: Sequence[str], inside: Sequence[str] = ()):
        (cwd / "watcher.py").write_text(_WATCHER)
        shutil.copy(Path(__file__).parents[1] / "user_code" / "streams.py", cwd)
        self.cluster = cluster
        self.cwd = cwd
        self.files = RunFolder(cwd / "run")
        command = [*inside, COMMAND, "run", *overrides]
        with open(cwd / "output.txt", "w") as file:
            self.process = cluster.start(command, cwd=cwd, stdout=file, stderr=subprocess.STDOUT)

    def finish(self) -> int:
        """The exit status."""
        self.wait_until(lambda: self.process.poll() is not None, "the end of the command")
        return self.process.returncode

    def complete(self) -> None:
        """Ends an `ENDLESS` run as its trainer does, and checks that the run has completed."""
        (self.cwd / "stop").touch()
        assert self.finish() == 0, self.output
        assert self.result["status"] == "completed"

    def interrupt(self, number: int) -> None:
        """Signals the command, and checks that the run ends as interrupted."""
        self.process.send_signal(number)
        assert self.finish() == 130, self.output

    @property
    def output(self) -> str:
        """Returns what the command has printed so far."""
        return (self.cwd / "output.txt").read_text()

    @property
    def result(self) -> dict[str, Any]:
        return self.files.read_result() or {}

    @property
    def num_batches(self) -> int:
        """Returns the number of batches that have been delivered so far."""
        return len(list(self.files.read_metrics()))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name, as far as they are written."""
        return [event for event in self.files.read_events() if event["event"] == name]

    def wait_for(self, name: str, count: int) -> list[dict[str, Any]]:
        """Returns the first `count` events of that name, as soon as there are so many."""
        self.wait_until(lambda: len(self.events(name)) >= count, f"{count} of {name}")
        return self.events(name)[:count]

    def wait_for_more(self, num_batches: int = 5) -> None:
        """Until so many more batches are delivered."""
        count = self.num_batches + num_batches
        self.wait_until(lambda: self.num_batches >= count, f"{num_batches} more batches")

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Until the condition holds; fails with the command's output and logs when the command ends before."""

        def is_decided() -> bool:
            has_ended = self.process.poll() is not None
            return bool(condition()) or has_ended

        try:
            wait_until(is_decided, _LONG_S, what)
            assert condition(), f"the command ended before {what}"
        except (AssertionError, TimeoutError) as error:
            self.process.kill()
            logs = [self.cwd / "output.txt", *sorted(self.files.logs.glob("*.log"))]
            ends = [f"--- {log}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
            raise AssertionError("\n".join([str(error), *ends])) from None

    @property
    def jobs(self) -> list[str]:
        """The jobs that the command has printed it submitted."""
        return re.findall(r": job (\d+(?:_\d+)?), \d+ tasks", self.output)

    def states(self, *jobs: str) -> list[str]:
        """The states of these jobs, or of those that the command has submitted, when none is left in the cluster."""
        wait_until(lambda: self.cluster.jobs() == [], _LONG_S, "all jobs to end")
        return [state for job in jobs or self.jobs for state in self.cluster.job_states(job)]

    def status(self) -> list[str]:
        """Returns what `collectx status` says of each run of a sweep."""
        table = self.cluster.login([COMMAND, "status", "sweep"], cwd=self.cwd)
        rows = [line.split() for line in table.splitlines() if line.startswith(("collector.", "env.", "seed="))]
        return [row[1] for row in rows if not row[0].endswith(":")]


def urgent_job(started: Run, nodes: str = "--nodes=4") -> None:
    """Preempts all others, or those on some nodes, and ends."""
    cluster = started.cluster
    words = ["--parsable", "--partition=urgent", nodes, "--exclusive", "--output=/dev/null"]
    urgent = cluster.login(["sbatch", *words, "--wrap=true"], cwd=cluster.shared).strip()
    wait_until(lambda: cluster.job_states(urgent) == ["COMPLETED"], GRACE_S + 120, "the urgent job to run")


def finish_requeued(started: Run, delay_s: int = 0) -> int:
    """The exit status of the command. A requeued job starts after `delay_s`: SLURM makes it wait for two minutes, which
    is long enough for the processes of its first life to end where a node is lost."""
    cluster = started.cluster
    freed = set()

    def has_ended():
        for job in set(cluster.squeue("--states=pending", "--format=%i")) - freed:
            cluster.login(["scontrol", "update", f"JobId={job}", f"StartTime=now+{delay_s}seconds"], check=False)
            if delay_s:
                freed.add(job)
        return started.process.poll() is not None

    wait_until(has_ended, 600, "the end of the command")
    return started.finish()
