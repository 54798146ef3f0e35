"""Commands whose standard streams are closed, as cron and daemons leave them, or are pipes that nobody reads."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest
from commands import COMMAND, COUNTING, environment, result

ENDLESS = [*COUNTING, "collector=multi_async", "collector.total_frames=-1"]
ALL = "<&- >&- 2>&-"
SCRIPT = """
import gymnasium
from collectx import MultiSyncCollector

if __name__ == "__main__":
    make = lambda: gymnasium.make("CartPole-v1")
    with MultiSyncCollector([make] * 2, None, frames_per_batch=20, total_frames=40) as collector:
        sum(batch.numel() for batch in collector) == 40 and open("done", "w").close()
"""


@pytest.fixture
def unread():
    """A pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    "streams", [pytest.param(ALL, id="closed"), pytest.param(">&-", id="no_output", marks=pytest.mark.nightly)]
)
def test_a_run_and_a_script_need_no_standard_streams(tmp_path, streams):
    run = f"{COMMAND} run {' '.join(COUNTING)} collector=multi_sync collector.total_frames=2000 hydra.run.dir=run"
    done = {"cwd": tmp_path, "env": environment(), "text": True, "timeout": 200}
    subprocess.run(["sh", "-c", f"{run} {streams}"], stdout=subprocess.DEVNULL, check=True, **done)
    assert result(tmp_path / "run")["status"] == "completed"
    assert not any(log.read_text() for log in (tmp_path / "run" / "logs").iterdir())
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(["sh", "-c", f"{sys.executable} script.py {streams}"], capture_output=True, **done)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "done").exists()


def test_only_commands_that_print_end_with_their_reader(tmp_path, wait_until, unread):
    def run(*argv, **streams):
        words = {"cwd": tmp_path, "env": environment(), "stdout": unread, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([COMMAND, *argv], **(words | streams))

    def finish(process, note):
        _, error = process.communicate(timeout=200)
        # A busy machine says what it imports.
        assert re.sub("collectx: starting .*\n", "", error) == note
        return process.returncode

    with ExitStack() as stack:
        folders = [tmp_path / "runs" / name for name in ("a",)]
        # As with 2>&1.
        runs = [run("run", *ENDLESS, f"hydra.run.dir={folder}", stderr=unread) for folder in folders]
        for folder, process in zip(folders, runs, strict=True):
            stack.callback(process.kill)
            lines = folder / "metrics.jsonl"
            wait_until(lambda: (lines.exists() and lines.read_text()) or process.poll() is not None, 200)  # noqa: B023
        assert finish(run("list"), "") == 0
        note = "collectx run: standard output was closed, so the command continues without it.\n"
        assert finish(run("run", "--cfg", "job"), note) == 0
        assert finish(run("cancel", "runs"), "") == 0
        for folder, process in zip(folders, runs, strict=True):
            assert process.wait(200) == 130
            assert result(folder)["exit_reason"] == "interrupted by SIGTERM"
