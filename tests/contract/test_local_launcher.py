"""The local launcher: one process per element, its own log, its own threads, deaf to Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
from worlds import launched

from collectx.launcher.local import LocalLauncher


def test_each_element_gets_a_process_with_the_threads_and_the_log_it_was_told(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    launcher = LocalLauncher(num_threads=2, log_dir=tmp_path)
    processes = [launcher.start(launched.report, (theirs, name), index) for index, name in enumerate("ab")]
    told = sorted((ours.recv() for _ in processes), key=lambda each: each["name"])
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    ours.close()
    theirs.close()
    assert [each["name"] for each in told] == ["a", "b"]
    assert sorted(each["pid"] for each in told) == sorted(process.pid for process in processes)
    assert os.getpid() not in {each["pid"] for each in told}
    assert {each["num_threads"] for each in told} == {2}
    assert {each["omp"] for each in told} == {"1"}
    assert {each["sigint"] for each in told} == {signal.SIG_IGN}
    assert (tmp_path / "worker-0.log").read_text().startswith("out of ")
    assert "err of b" in (tmp_path / "worker-1.log").read_text()
    assert launcher.describe(1) == f"worker 1 (log: {tmp_path}/worker-1.log)"
    assert LocalLauncher(1).describe(1) == "worker 1"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no core affinity")
def test_pinned_workers_share_the_cores_of_the_trainer_out():
    ours, theirs = multiprocessing.Pipe()
    launcher = LocalLauncher(1, pin_cores=True)
    processes = [launcher.start(launched.report, (theirs, worker), worker) for worker in range(3)]
    cores = {}
    for _ in processes:
        message = ours.recv()
        cores[message["name"]] = message["cores"]
    for process in processes:
        process.join(100)
    available = sorted(os.sched_getaffinity(0))
    assert cores == {worker: {available[worker % len(available)]} for worker in range(3)}


def test_the_trainers_environment_is_left_as_it_was():
    before = dict(os.environ)
    from collectx.launcher.local import warm_up

    warm_up()
    warm_up()
    assert dict(os.environ) == before
