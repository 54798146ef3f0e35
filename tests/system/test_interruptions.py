"""Ctrl-C and SIGTERM: the run ends in order, with a result, and leaves no process."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from commands import COUNTING, RAY, needs_ray, result, start

from collectx.errors import ConfigError
from collectx.run import RunFolder
from collectx.run.lock import locked


@pytest.mark.parametrize(
    ("words", "number", "presses"),
    [
        pytest.param(["collector=multi_async"], signal.SIGINT, 1, id="local-ctrl_c"),
        pytest.param(["collector=multi_async"], signal.SIGINT, 2, id="local-ctrl_c_twice"),
        pytest.param(["collector=multi_sync"], signal.SIGTERM, 1, id="local-sigterm"),
        pytest.param(["collector=multi_sync"], signal.SIGHUP, 1, id="local-hangup"),
        pytest.param(["collector=rpc"], signal.SIGINT, 1, id="rpc-ctrl_c"),
        pytest.param(["collector=rpc"], signal.SIGTERM, 1, id="rpc-sigterm"),
        pytest.param(RAY, signal.SIGINT, 1, id="ray-ctrl_c", marks=needs_ray),
        pytest.param(RAY, signal.SIGTERM, 1, id="ray-sigterm", marks=needs_ray),
    ],
)
def test_a_signal_ends_a_run_in_order_and_leaves_nothing(tmp_path, wait_until, words, number, presses):
    lines = tmp_path / "run" / "metrics.jsonl"
    command = start("run", *COUNTING, *words, "collector.total_frames=-1", "hydra.run.dir=run", cwd=tmp_path)
    wait_until(lambda: (lines.exists() and lines.read_text()) or command.poll() is not None, 200, "a batch")
    there = psutil.Process(command.pid).children(recursive=True)
    with (
        pytest.raises(ConfigError, match=f"process {command.pid} on "),
        locked(RunFolder(tmp_path / "run"), replace=True),
    ):
        pass
    for _ in range(presses):
        # A terminal signals the group, a scheduler the process.
        (os.kill if number is signal.SIGTERM else os.killpg)(command.pid, number)
    status, said = command.wait(200), (tmp_path / "said.txt").read_text()
    assert status == 130, said
    assert "Traceback" not in said
    assert said.count(f"collectx: interrupted by {number.name}\n") == 1
    assert said.splitlines()[-1] == str(tmp_path / "run")
    ended = result(tmp_path / "run")
    assert (ended["status"], ended["exit_reason"]) == ("interrupted", f"interrupted by {number.name}")
    assert ended["batches"] == len(lines.read_text().splitlines()) > 0
    assert len(there) >= 2
    wait_until(lambda: not psutil.wait_procs(there, 0)[1], what=f"the end of {there}")
