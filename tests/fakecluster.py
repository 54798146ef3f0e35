"""A stand-in for SLURM: its commands on PATH, and what tests change or look at. See `fakeslurm/scheduler.py`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "fakeslurm"
ROLE = HERE / "role.py"


class FakeSlurm:
    """Its state lies in `folder`; `close` ends all that its jobs have started."""

    def __init__(self, folder: Path, monkeypatch: Any):
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("FAKESLURM", str(folder))
        monkeypatch.setenv("FAKESLURM_PYTHON", sys.executable)
        monkeypatch.setenv("PATH", f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def knobs(self, **knobs: Any) -> None:
        """Sets all of them; those not named are off."""
        temporary = self.folder / "knobs.tmp"
        temporary.write_text(json.dumps(knobs))
        temporary.rename(self.folder / "knobs.json")

    def states(self) -> dict[str, str]:
        """The state of every job."""
        jobs = [json.loads(path.read_text()) for path in sorted((self.folder / "jobs").glob("*.json"))]
        return {job["id"]: job["state"] for job in jobs}

    def wait(self, *states: str) -> dict[str, str]:
        """Waits until every job is in one of these states."""
        deadline = time.monotonic() + 100
        while not (now := self.states()) or not set(now.values()) <= set(states):
            assert time.monotonic() < deadline, f"not within 100 s: {states}: {now}"
            time.sleep(0.02)
        return now

    def scripts(self) -> list[str]:
        """The scripts, in the order in which they were submitted."""
        return [path.read_text() for path in sorted((self.folder / "jobs").glob("*.sh"))]

    def close(self) -> None:
        mark = f"FAKESLURM={self.folder}".encode()
        deadline = time.monotonic() + 60
        while mine := [pid for pid in _pids() if mark in _environment(pid) and pid != os.getpid()]:
            assert time.monotonic() < deadline, f"processes left: {mine}"
            for pid in mine:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
