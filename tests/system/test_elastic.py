"""A run of the command that begins with one of its two workers, is joined by the other one, and is cut and resumed."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest
from commands import COUNTING, collectx, result, start
from user_code.gates import Gates

from collectx.run import RunFolder

TESTS = Path(__file__).parents[1]
MEMBERS = ["collector.on_worker_failure=drop", "collector.min_workers=1", "collector.close_timeout_s=2"]
SIZE = ["collector.num_workers=2", "collector.frames_per_batch=128", "collector.total_frames=40000", "env.step_s=0.002"]


@pytest.mark.parametrize(
    "collector", ["collector=multi_sync", pytest.param("collector=distributed_sync", marks=pytest.mark.nightly)]
)
def test_the_display_tells_how_many_workers_have_stepped(collector, tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    policy = ["policy=custom", "policy.target=user_code.gates:late_policy", f"+policy.kwargs.folder={tmp_path}"]
    gates, said = Gates(tmp_path), tmp_path / "said.txt"
    gates.open(0)
    words = ["debug=tiny", "env=counting", "trainer=meter", collector, *policy, "hydra.run.dir=run"]
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: "waiting for the first batch (1 of 2 workers have stepped)" in said.read_text(), 60, "a worker")
    gates.open(1)
    assert command.wait(100) == 0, said.read_text()
    assert result(tmp_path / "run")["frames"] == 128


@pytest.mark.nightly
def test_members_of_the_moment(tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    gates, files = Gates(tmp_path), RunFolder(tmp_path / "run")
    policy = ["policy=custom", "policy.target=user_code.gates:late_policy", f"+policy.kwargs.folder={tmp_path}"]

    def lines():
        return list(files.read_metrics()) if files.metrics.exists() else []

    def sizes():
        """The frames of each batch."""
        return [after - before for before, after in pairwise([0, *(line.frames for line in lines())])]

    def wait(command, frames, more=5):
        """Until so many batches of that size are there."""
        before = len(lines())

        def is_there():
            return command.poll() is not None or sizes()[before:].count(frames) >= more

        wait_until(is_there, 200, f"batches of {frames} frames")
        assert command.poll() is None, (tmp_path / "said.txt").read_text()

    gates.open(0)
    command = start("run", *COUNTING, *policy, *MEMBERS, *SIZE, "hydra.run.dir=run", cwd=tmp_path)
    wait(command, 64)
    assert "1 of 2 workers take part" in collectx("status", "run", cwd=tmp_path).stdout
    gates.open(1)
    wait(command, 128)
    command.send_signal(signal.SIGTERM)
    assert command.wait(200) == 130
    num_batches = len(lines())
    gates.close(0)
    resumed = start("resume", "run", cwd=tmp_path)
    wait(resumed, 64)
    gates.open(0)
    assert resumed.wait(200) == 0, (tmp_path / "said.txt").read_text()
    # The two runs are one. A worker that is ready in the middle of a batch has no part in it.
    assert [line.batch for line in lines()] == list(range(len(lines())))
    ready = [(line.taking_part or [2, 2])[0] - size // 64 for line, size in zip(lines(), sizes(), strict=True)]
    assert set(ready) <= {0, 1}
    assert sum(ready) <= 2
    assert lines()[-1].frames == result(files.path)["frames"] >= 40000
    ready = [each for each in files.read_events() if each["event"] == "worker_ready"]
    assert [each["worker"] for each in ready] == [0, 1, 1, 0]
    assert all(each["new_episodes"] is None for each in ready)
    assert ready[2]["batches"] == num_batches < ready[3]["batches"]
    text = files.log("trainer").read_text()
    assert f"worker 0 joined after {ready[3]['batches']} batches: 2 of 2 workers" in text
