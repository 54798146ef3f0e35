"""How far this process, a worker, has come: for whoever waits for it, in the memory of its transport (`report_to`).

counts[STEPS]   steps of the batch that is being collected
counts[OTHERS]  what else takes time: envs that were made or reset, progress of workers of this process
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

STEPS, OTHERS = 0, 1
# Steps, others.
Counts = tuple[int, int]
# int64, one of each.
NBYTES = 16
counts = memoryview(array("q", [0, 0]))
_notify: Callable[[], object] | None = None


def report_to(target: memoryview, notify: Callable[[], object] | None = None) -> None:
    """Counts in `target`, `[2]` int64, from now on.

    Args:
        notify: called after `one_more`, where nobody reads the memory.
    """
    global counts, _notify
    counts, _notify = target, notify


def one_more() -> None:
    """Counts something other than a step."""
    counts[OTHERS] += 1
    if _notify is not None:
        _notify()
