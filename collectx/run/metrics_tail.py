"""The numbers and the news of a run from its folder, for who looks on from another process, or from another host.

Used by the command line. Must not know who writes the lines.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFile
from collectx.run.folder import RunFolder, decode
from collectx.run.statistics import Statistics, WorkerTotals


class Lines:
    """The objects of a JSON lines file that grows."""

    def __init__(self, path: Path):
        """Reads nothing yet."""
        self.path = path
        self._read = self._number = 0
        self._file: int | None = None

    def added(self) -> tuple[list[dict[str, Any]], bool]:
        """The whole lines since the last call, and whether the file was begun anew before them, by another start of the
        job. Blocks for the disk only.

        Raises:
            DamagedFile: a line cannot be read.
        """
        anew = False
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file is not None and (status.st_ino != self._file or status.st_size < self._read):
                    anew, self._read, self._number = True, 0, 0
                self._file = status.st_ino
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return [], False
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        found = [decode(self.path, f"line {number}", line) for number, line in enumerate(lines, self._number + 1)]
        self._read += len(whole)
        self._number += len(lines)
        return found, anew


class Replay(Statistics):
    """`Statistics` that reads `metrics.jsonl`; times are those of its lines, in unix seconds."""

    def __init__(self, folder: RunFolder, total_frames: int):
        """Reads nothing yet."""
        super().__init__(total_frames)
        self._lines = Lines(folder.metrics)

    def update(self) -> bool:
        """Takes in the lines that were added since the last call; whether there were any. Blocks for the disk only. A
        file that was begun anew is read from its beginning.

        Raises:
            DamagedFile: a line cannot be read, or is of another kind.
        """
        lines, anew = self._lines.added()
        if anew:
            super().__init__(self.total_frames)
        try:
            for line in lines:
                self._take(line)
        except (KeyError, TypeError) as error:
            raise DamagedFile([f"{self._lines.path}: a line is not of a batch: {error!r}"]) from error
        return bool(lines)

    def _take(self, line: dict[str, Any]) -> None:
        if self.first_s is None:
            self.first_s = line["time"]
            self._first_frames = line["batch_frames"]
        self.last_s = line["time"]
        self.rate = line["frames_per_s"]
        self.frames = line["frames"]
        self.batches = line["batch"] + 1
        self.waited_s += line["waited_s"]
        self.version = line["version"]
        self.lag = line["lag"]
        self.num_episodes += line["episodes"]
        self.mean_return = math.nan if line["mean_return"] is None else line["mean_return"]
        self.scalars = self.scalars | line.get("scalars", {})
        for part in line["workers"]:
            if part["worker"] not in self.workers:
                self.workers = self.workers | {part["worker"]: WorkerTotals()}
            totals = self.workers[part["worker"]]
            for name in ("env_s", "policy_s", "wait_s", "send_s", "frames"):
                setattr(totals, name, getattr(totals, name) + part[name])
            totals.lag = part["lag"]
