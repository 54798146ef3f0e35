"""`collectx cancel`, `watch` and `logs` as typed, on runs that are starting and on folders of another version."""

import re
import subprocess
from contextlib import ExitStack

from commands import COMMAND, COUNTING, collectx, environment, result, start

ENDLESS = [*COUNTING, "collector=multi_async", "collector.total_frames=-1"]


def test_runs_that_start_and_runs_of_another_version_are_cancelled_with_the_others(tmp_path, wait_until):
    sweep = tmp_path / "sweep"
    other, damaged, starting = sweep / "a", sweep / "b", sweep / "c"
    (damaged / "snapshot").mkdir(parents=True)
    (damaged / "result.json").write_text("{")
    words = {"cwd": tmp_path, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack:

        def run(folder, sign):
            process = start("run", *ENDLESS, f"hydra.run.dir={folder}", cwd=tmp_path)
            stack.callback(process.kill)
            wait_until(lambda: sign.exists() or process.poll() is not None, 200, str(sign))
            return process

        runs = [run(other, other / "metrics.jsonl")]
        config = other / "snapshot" / "config.yaml"
        saved = config.read_text()
        assert "  num_workers: 2\n" in saved
        saved = saved.replace("  num_workers: 2\n", "  num_workers: 2\n  of_tomorrow: 1\n")
        config.write_text(saved.replace("  close_timeout_s: ", "  close_timeout_s: soon # "))
        roles = collectx("logs", str(other), "worker-9", cwd=tmp_path, status=2).stderr
        assert "trainer, worker-0, worker-1" in roles
        runs.append(run(starting, starting / "snapshot"))
        watch = subprocess.Popen([COMMAND, "watch", str(starting)], **words)
        stack.callback(watch.kill)
        cancelled = collectx("cancel", str(sweep), cwd=tmp_path)
        first, *ended = cancelled.stdout.splitlines()
        assert first == "1 of 3 runs has already ended."
        assert sorted(ended) == [f"{run}: interrupted: interrupted by SIGTERM" for run in (other, starting)]
        # A slow start says that it imports packages.
        assert [line for line in cancelled.stderr.splitlines() if not line.startswith("collectx: starting")] == []
        for folder, process in zip((other, starting), runs, strict=True):
            assert process.wait(200) == 130
            assert result(folder)["exit_reason"] == "interrupted by SIGTERM"
        said, error = watch.communicate(timeout=200)
        assert watch.returncode == 130, said + error
        assert "cannot be read" not in error


def test_a_sweep_is_watched_from_its_first_point_to_its_last(tmp_path, wait_until):
    """Also if it is interrupted: points that never begin are waited for as long as another could begin."""
    words = ["debug=tiny", "trainer=meter", "run.max_batches=3", "hydra.sweep.dir=sweep"]
    process = start("run", "-m", *words, "seed=0,1,2", cwd=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "sweep" / "seed=0" / "snapshot").exists(), 200, "the first point")
        watched = collectx("watch", "sweep", cwd=tmp_path).stdout
        assert process.wait(200) == 0
    finally:
        process.kill()
    rows = [line.split()[:2] for line in watched.splitlines() if line.startswith("seed=")]
    assert rows == [[f"seed={seed}", "completed"] for seed in range(3)]
    with open(tmp_path / "sweep" / "multirun.yaml", "r+") as file:
        text = file.read()
        assert "seed=0,1,2" in text
        file.seek(0)
        file.write(text.replace("seed=0,1,2", "seed=0,1,2,3"))
    watched = collectx("watch", "sweep", cwd=tmp_path).stdout
    assert re.search(r"^seed=3 +not started", watched, re.M), watched
