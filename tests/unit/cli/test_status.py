"""`collectx status`: nothing that is dead is said to run, with accounting and without, with SLURM and without."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fakecluster import ROLE, FakeSlurm

from collectx.cli import fate, run, status
from collectx.launcher.jobs import JobState
from collectx.run import RunFolder

LEAVE = ["launcher=slurm", f"launcher.python={ROLE}", "launcher.wait=false", "hydra.run.dir=run"]


def word(capsys: pytest.CaptureFixture[str], folder: str = "run") -> str:
    capsys.readouterr()
    assert status.main([folder]) == 0
    return capsys.readouterr().out.splitlines()[1].split()[1]


def test_a_running_job_then_one_that_was_cancelled(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], wait_until):
    assert run.main([*LEAVE, "seed=2"]) == 0
    wait_until(Path("run/is_running").exists, 90, "the job runs")
    assert word(capsys) == "running"
    subprocess.run(["scancel", "100"], check=True)
    slurm.wait("CANCELLED")
    wait_until(lambda: word(capsys) == "interrupted", 90, "interrupted")


@pytest.mark.parametrize("knobs", [{}, {"forget": True}, {"forget": True, "accounting": True}])
def test_a_job_that_died_without_a_word_is_failed(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], knobs: dict[str, bool]
):
    assert run.main([*LEAVE, "seed=3"]) == 0
    slurm.wait("FAILED")
    slurm.knobs(**knobs)
    assert word(capsys) == "failed"
    status.main(["run"])
    knows = "FAILED" if knobs != {"forget": True} else "SLURM knows no job 100 any more"
    assert knows in capsys.readouterr().out


@pytest.mark.parametrize(("state", "advice"), [("TIMEOUT", "launcher.time"), ("PREEMPTED", "launcher.requeue=true")])
def test_a_run_that_slurm_has_interrupted_says_why(tmp_path: Path, state: str, advice: str):
    files = RunFolder(tmp_path)
    files.result.write_text(json.dumps({"status": "interrupted", "exit_reason": "interrupted by SIGTERM"}))
    found = fate.fate(files, "7", {"7": JobState(state, True, True)})
    assert found.word == "interrupted"
    assert found.detail.startswith(f"interrupted by SIGTERM: job 7 ended as {state}: ")
    assert advice in found.detail
    assert fate.fate(files, "7", {"7": JobState("CANCELLED", True, True)}).detail == "interrupted by SIGTERM"


def test_a_silent_controller_is_no_sign_of_life(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    assert run.main([*LEAVE, "seed=3"]) == 0
    slurm.wait("FAILED")
    slurm.knobs(silent=True)
    assert word(capsys) == "unknown"


def test_without_slurm_on_the_machine_it_says_so(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert run.main([*LEAVE, "seed=0"]) == 0
    slurm.wait("COMPLETED")
    monkeypatch.setenv("PATH", str(tmp_path))
    capsys.readouterr()
    assert status.main(["run"]) == 0
    out, err = capsys.readouterr()
    assert "completed" in out
    assert "SLURM cannot be asked" in err


def test_a_run_here_lives_as_long_as_a_process_has_its_events_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wait_until
):
    folder = tmp_path / "run"
    (folder / "snapshot").mkdir(parents=True)
    (folder / "snapshot" / "meta.json").write_text(json.dumps({"host": socket.gethostname()}))
    code = (
        f"import sys; file = open({str(folder / 'events.jsonl')!r}, 'ab'); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert word(capsys, str(folder)) == "running"
        process.kill()
    assert word(capsys, str(folder)) == "failed"
    (folder / "snapshot" / "meta.json").write_text(json.dumps({"host": "elsewhere"}))
    assert word(capsys, str(folder)) == "unknown"


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert status.main([str(tmp_path)]) == 2
    assert status.main([str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err
