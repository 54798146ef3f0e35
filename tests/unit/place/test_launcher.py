"""Handles of workers that are no processes of this machine."""

import contextlib
import os

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
