"""The event log of a run: joins, deaths, publishes and signals, one line each, in the order in which they happened.

Handed to the collector as a plain callable, and called in the trainer's process from any thread. Must not know what
the events mean.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from collectx.run.folder import JsonLines, RunFolder


class EventLog:
    """`events(name, **fields)` appends `{"time": unix seconds, "event": name, **fields}` to `events.jsonl`."""

    def __init__(self, folder: RunFolder):
        self._lines = JsonLines(folder.events)
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, name: str, **fields: Any) -> None:
        line = {"time": round(time.time(), 6), "event": name} | fields
        with self._lock:
            # A watcher thread may still report an end while the run is being closed.
            if not self._closed:
                self._lines.append(line)

    def close(self) -> None:
        """Idempotent; what comes later is dropped."""
        with self._lock:
            self._closed = True
            self._lines.close()
