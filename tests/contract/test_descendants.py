"""Which processes are the envs', in a process whose other threads start some too."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from collectx.fork_server.descendants import EnvProcesses


def starts():
    return subprocess.Popen(["sleep", "60"])


@pytest.mark.skipif(sys.platform != "linux", reason="there are no marks")
def test_only_what_envs_start_ends_with_them():
    processes = EnvProcesses(num_looks=0)
    with ThreadPoolExecutor() as trainers:
        before = trainers.submit(starts).result()  # its thread is there before the env runs
        with processes.running():
            others = [before, trainers.submit(starts).result()]
            with ThreadPoolExecutor() as the_envs:
                theirs = [starts(), the_envs.submit(starts).result()]
        others.append(starts())
    try:
        processes.end()
        assert [process.poll() for process in others] == [None] * 3
        assert None not in [process.poll() for process in theirs]
    finally:
        for process in (*others, *theirs):
            process.kill()
            process.wait()
