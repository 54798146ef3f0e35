"""Handles of workers that are no processes of this machine."""

import contextlib
import os
import signal

from collectx.place.launcher import RemoteHandle


def test_a_handle_says_its_end_once_and_leaves_no_descriptor():
    handle = RemoteHandle()
    descriptors = (handle.sentinel, handle._end)
    handle.finish(3)
    handle.finish(4)
    assert (handle.exitcode, os.read(handle.sentinel, 2)) == (3, b"\0")
    files = {os.fstat(each).st_ino for each in descriptors}
    del handle
    for descriptor in descriptors:  # which another file may have by now
        with contextlib.suppress(OSError):
            assert os.fstat(descriptor).st_ino not in files


def test_a_handle_waits_only_for_an_end_that_is_known_at_once_and_then_frees_the_worker():
    stopped = []
    placed = set()
    handle = RemoteHandle(lambda handle, signum: stopped.append(signum), lambda handle: bool(placed))
    handle.join(1000)
    placed.add(handle)
    handle.join(0.01)
    assert stopped == []
    handle.terminate()
    handle.finish(0)
    handle.join(1000)
    handle.kill()
    assert stopped == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
    RemoteHandle().kill()  # ends with the trainer's connection
