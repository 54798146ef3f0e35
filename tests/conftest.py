"""For every test: what it started is gone when it ends, and nothing of it is left in memory or in /dev/shm.

Also puts this folder on the import path, so that worker processes find `faulty`, `toyworker`, `collecting` and
`countedframes` by name.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, here)

# A shell starts what runs in its background deaf to Ctrl-C, and children would inherit that from these tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SHM = Path("/dev/shm")


def _shared_descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{name}")
            if "collectx-slab" in file or "collectx-replay" in file:
                found.add(name)
        except OSError:
            pass
    return found


def _shared_files() -> set[str]:
    # Semaphores (`sem.*`) are of an env's own processes; multiprocessing's tracker removes a killed one's at the end.
    return {path.name for path in _SHM.iterdir() if not path.name.startswith("sem.")} if _SHM.is_dir() else set()


def _wait_until(condition, timeout_s: float = 10.0, what: str = "condition") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)


@pytest.fixture
def wait_until():
    """`wait_until(condition, timeout_s, what)` polls until the condition holds, or fails."""
    return _wait_until


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fails a test that leaves a worker process, an open descriptor of shared memory or a file in /dev/shm."""
    files, slabs = _shared_files(), _shared_descriptors()
    yield
    workers = [child for child in multiprocessing.active_children() if child.name.startswith("collectx-")]
    for child in workers:
        child.kill()
        child.join(10)
    if _shared_descriptors() - slabs:
        gc.collect()  # a failure's traceback keeps a collector alive in a cycle
    left = _shared_descriptors() - slabs
    assert not workers, f"worker processes left: {workers}"
    assert not left, f"descriptors of shared memory left open: {sorted(left)}"
    # Other programs use /dev/shm too, for moments.
    if _shared_files() - files:
        _wait_until(lambda: not _shared_files() - files, 5, f"files left in /dev/shm: {_shared_files() - files}")
