"""`collectx run` as a user of the cluster gives it: on the login host, and what it leaves in its run folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster import Cluster

COLLECTX = str(Path(sys.executable).with_name("collectx"))

SMALL = [
    "env=counting",
    "env.num_envs=1",
    "policy=random",
    "collector=multi_async",
    "collector.num_workers=3",
    "collector.frames_per_batch=999",
    "collector.total_frames=99_900",
    # Importing torch takes long where many do it at once on few cores.
    "collector.start_timeout_s=180",
    "trainer=meter",
    "hydra.run.dir=run",
    "hydra.sweep.dir=sweep",
]
# The trainer fails where a frame of the counting env is lost, repeated or torn; it ends when `stop` is there.
WATCHED = [*SMALL, "trainer=custom", "trainer.target=watcher:Watcher"]
# Slowly enough for something to happen meanwhile. A batch takes less than a second.
ENDLESS = [
    *WATCHED,
    "collector.frames_per_batch=300",
    "collector.total_frames=-1",
    "env.step_s=0.002",
    "collector.worker_timeout_s=10",
]

_WATCHER = """
from pathlib import Path
from collectx.env.counting import StreamChecker

class Watcher:
    def __init__(self):
        self._checker = StreamChecker(restarts=True)

    def train(self, collection):
        for batch in collection:
            self._checker.take(batch)
            if Path("stop").exists():
                break
"""


class Run:
    """A started command.

    Args:
        folder: where it is given; all nodes see it.
        overrides: of its configuration.
        prefix: a command that runs it, as srun does.

    Attributes:
        said: what the user has seen, after `finish`.
    """

    def __init__(self, cluster: Cluster, folder: Path, overrides: Sequence[str], prefix: Sequence[str] = ()):
        (folder / "watcher.py").write_text(_WATCHER)
        self.cluster = cluster
        self.cwd = folder
        self.folder = folder / "run"
        self.said = ""
        self._output = folder / "output.txt"
        with open(self._output, "w") as output:
            self.process = cluster.start(
                [*prefix, COLLECTX, "run", *overrides],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def finish(self, timeout_s: float = 200) -> int:
        """The exit status."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still going on after {timeout_s:g} s:\n{self.seen()}{self._logs()}") from None
        self.said = self.seen()
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Lets the trainer end in an orderly way."""
        (self.cwd / "stop").touch()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name, as far as they are written."""
        return [event for event in _lines(self.folder / "events.jsonl") if event["event"] == name]

    def batches(self) -> list[dict[str, Any]]:
        """What is written of every delivered batch, so far."""
        return _lines(self.folder / "metrics.jsonl")

    def wait_for(self, name: str, count: int, timeout_s: float = 150) -> dict[str, Any]:
        """The event of that name that makes them so many."""
        self.wait_until(lambda: len(self.events(name)) >= count, f"{count} of {name}", timeout_s)
        return self.events(name)[count - 1]

    def wait_for_more(self, num_batches: int = 5, timeout_s: float = 150) -> None:
        """Until so many more batches are delivered."""
        wanted = len(self.batches()) + num_batches
        self.wait_until(lambda: len(self.batches()) >= wanted, f"{num_batches} more batches", timeout_s)

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = 150) -> None:
        """Until it holds; fails with what the user has seen when the command ends before."""
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None
            if condition():
                return
            if has_ended or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"not within {timeout_s:g} s: {what}:\n{self.seen()}{self._logs()}")
            time.sleep(0.1)

    def wait_for_state(self, job: str, state: str) -> None:
        """Until SLURM says that of a job; the command may have ended."""
        deadline = time.monotonic() + 90
        while (now := self.cluster.job_state(job)) != state:
            assert time.monotonic() < deadline, f"job {job} is {now}, not {state}"
            time.sleep(0.1)

    def seen(self) -> str:
        """What the user sees so far."""
        return self._output.read_text()

    def _logs(self) -> str:
        """The ends of the logs, for somebody who wonders why a test has failed."""
        logs = sorted(self.folder.glob("logs/*.log"))
        return "".join(f"\n--- {log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def jobs(self) -> list[str]:
        """The jobs that the command has said it submitted."""
        return re.findall(r": job (\d+(?:_\d+)?), \d+ tasks", self.seen())

    def states(self, *jobs: str) -> list[str]:
        """How these jobs have ended, or, where none are named, those that the command has submitted."""
        self.wait_for_no_job()
        return [self.cluster.job_state(job) for job in jobs or self.jobs]

    def wait_for_no_job(self) -> None:
        """Until none is left in the cluster; one that was cancelled takes some seconds."""
        deadline = time.monotonic() + 90
        while left := self.cluster.jobs():
            assert time.monotonic() < deadline, f"jobs that do not end: {left}"
            time.sleep(0.1)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
