"""Counts the progress of a worker process. The counters lie in the transport's memory, where the trainer reads them
(`report_to`).

counts[STEPS]   steps of the current batch
counts[OTHERS]  envs that were made or reset, and the progress of this process's own workers
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

STEPS, OTHERS = 0, 1
# The two counters as plain numbers, and their size in memory.
Counts = tuple[int, int]
NBYTES = 16
counts = memoryview(array("q", [0, 0]))
_notify: Callable[[], object] | None = None


def report_to(target: memoryview, notify: Callable[[], object] | None = None) -> None:
    """Moves the counters to `target`, `[2]` int64. `notify` is called by `one_more`, if the trainer cannot read the
    memory itself."""
    global counts, _notify
    counts, _notify = target, notify


def one_more() -> None:
    """Counts something other than a step."""
    counts[OTHERS] += 1
    if _notify is not None:
        _notify()


def stepped(num_steps: int) -> None:
    """Counts the steps of the current batch. A slow reset may follow, so the trainer hears of them at once."""
    counts[STEPS] = num_steps
    if _notify is not None:
        _notify()
