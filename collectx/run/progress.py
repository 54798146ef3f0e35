"""Live progress: a rich display on a terminal, a plain line every few seconds elsewhere.

Drawn by a thread of the trainer's process that reads `Statistics`; deliveries never wait for it. As the thread shares
the interpreter with the trainer, it draws at most 4 times a second and spends at most 2 % of its time drawing. Must not
know collectors or trainers.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from collectx.run.statistics import Statistics
from collectx.run.view import Sampler, line, panel

REFRESH_S = 0.25
PLAIN_S = 5.0
DRAWING_SHARE = 0.02


class Progress:
    """Shows a run while the `with` block lasts; afterwards the cursor is back and the last state stays on screen."""

    def __init__(
        self,
        statistics: Statistics,
        console: Console | None = None,
        start_s: float | None = None,
    ):
        """
        Args:
            console: where to draw; standard output unless given.
            start_s: start of the elapsed time by `time.monotonic`; now unless given.
        """
        self._console = console or Console()
        self._sampler = Sampler(statistics, time.monotonic() if start_s is None else start_s)
        self._statistics = statistics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collectx-progress", daemon=True)
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)
        if self._live is not None:
            # A run that ended before its first batch leaves nothing to look at.
            self._live.transient = not self._statistics.batches
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the display. From any thread."""
        self._console.print(f"collectx: {text}", soft_wrap=True, markup=False, highlight=False)

    def _run(self) -> None:
        try:
            least_s = interval_s = REFRESH_S if self._live is not None else PLAIN_S
            while not self._stop.wait(interval_s):
                started_s = time.thread_time()
                self._draw()
                interval_s = max(least_s, (time.thread_time() - started_s) / DRAWING_SHARE)
            if self._statistics.batches:
                self._draw()
        except Exception as error:  # a display that cannot be drawn (a closed pipe) is no reason to end a run
            print(f"collectx: progress display stopped: {type(error).__name__}: {error}", file=sys.stderr)

    def _draw(self) -> None:
        view = self._sampler.view(time.monotonic())
        if self._live is not None:
            self._live.update(panel(view), refresh=True)
        else:
            self._console.print(line(view), soft_wrap=True, markup=False, highlight=False)
