"""`collectx status`: nothing that is dead is said to run, with SLURM and without."""

import json
import os
import shutil
import socket
from contextlib import closing, suppress

import pytest

from collectx.cli import status
from collectx.jobs import status as jobs_status
from collectx.run import RunFolder
from collectx.run.folder.events import EventLog
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import locked
from collectx.run.terminal.display import log_errors


@pytest.fixture
def folder(tmp_path):
    """A run that is job 7."""
    files = RunFolder(tmp_path / "run")
    files.begin()
    files.jobs.mkdir()
    jobs_status.write_job(files, "7")
    return files


def said(capsys, files: RunFolder) -> tuple[str, str]:
    """The word in the table, and all that was printed."""
    capsys.readouterr()
    assert status.main([str(files.path)]) == 0
    out, err = capsys.readouterr()
    return out.splitlines()[1].split()[1], out + err


def test_where_slurm_cannot_be_asked_the_folder_is_read_and_it_says_so(queue, folder, capsys, within):
    write_json(folder.result, {"status": "completed"})
    queue.error = "Unable to contact slurm controller"
    word, text = said(capsys, folder)
    assert word == "completed"
    assert f"this machine cannot query SLURM ({queue.error})" in text
    within(status, "shutil", which=lambda name: None)
    assert "(squeue is not on PATH)" in said(capsys, folder)[1]


def test_a_run_here_lives_as_long_as_a_process_holds_its_lock(tmp_path, capsys):
    files = RunFolder(tmp_path)
    files.begin()
    files.meta.write_text(json.dumps({"host": socket.gethostname()}))
    files.lock.touch()
    numbers = dict.fromkeys(("batch", "frames", "waited_s", "version", "lag", "episodes"), 0)
    line = numbers | {"time": 0.0, "frames_per_s": None, "mean_return": None, "workers": [], "taking_part": [2, 3]}
    files.metrics.write_text(json.dumps(line) + "\n")
    with locked(files, replace=True):
        word, text = said(capsys, files)
        assert (word, "2 of 3 workers take part" in text) == ("running", True)
    word, text = said(capsys, files)
    assert (word, "it was probably killed" in text, "all nodes" in text) == ("failed", True, False)
    files.meta.write_text(json.dumps({"host": "elsewhere"}))
    assert said(capsys, files)[0] == "unknown"


def test_a_run_here_has_the_ids_of_its_processes(tmp_path, capsys):
    files = RunFolder(tmp_path)
    files.begin()
    files.meta.write_text(json.dumps({"host": socket.gethostname()}))
    pid, stderr = os.getpid(), os.dup(2)
    with open(files.log("worker-0"), "w") as log, locked(files, replace=True):
        assert "worker-0" not in said(capsys, files)[1]
        os.dup2(log.fileno(), 2)  # this process stands in for a worker
        try:
            assert f"process ids: trainer {pid}, worker-0 {pid}\n" in said(capsys, files)[1]
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def test_a_killed_trainer_is_not_blamed_on_an_earlier_failure_of_a_worker(tmp_path, capsys):
    files = RunFolder(tmp_path)
    files.begin()
    files.meta.write_text(json.dumps({"host": socket.gethostname()}))
    files.lock.touch()
    with closing(EventLog(files)) as events:
        events("worker_failed", worker=1, type="WorkerDied", message="memory ran out")
        events("worker_restarted", worker=1, restarts=1, after="WorkerDied")
    text = said(capsys, files)[1]
    assert "The trainer left no error in " in text
    assert "was restarted" not in text
    with suppress(ValueError):
        raise (error := ValueError("of the trainer"))
    log_errors([error], files.log("trainer"))
    text = said(capsys, files)[1]
    assert "trainer.log ends with:" in text
    assert "ValueError: of the trainer" in text


def test_workers_whose_jobs_wait_are_told_with_slurms_reason(queue, tmp_path, capsys, monkeypatch):
    files = RunFolder(tmp_path)
    files.begin()
    files.jobs.mkdir()
    files.meta.write_text(json.dumps({"host": socket.gethostname()}))
    files.worker_jobs.write_text("7_0 0\n7_1 1\n7_2 2\n9_1 1\n")
    queue.states = {"7_0": "RUNNING", "7_1": "FAILED", "7_2": "PENDING", "9_1": "PENDING"}
    monkeypatch.setattr(jobs_status, "is_locked", lambda files: True)
    word, text = said(capsys, files)
    assert word == "running"
    assert f"{tmp_path.name}: workers 2 and 1 are PENDING (Resources: the nodes it needs are in use) on n1\n" in text
    assert text.count(": workers ") == 1
    queue.error = "Unable to contact slurm controller"
    assert f"cannot tell whether worker jobs are waiting in the queue: {queue.error}" in said(capsys, files)[1]


def test_a_damaged_run_does_not_keep_the_others_of_its_sweep_from_being_told(tmp_path, capsys):
    for name, text in {"a": "{", "b": '{"status": "completed"}'}.items():
        files = RunFolder(tmp_path / name)
        files.begin()
        files.result.write_text(text)
    assert status.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["a", "damaged"], ["b", "completed"]]
    assert "a: " + str(tmp_path / "a" / "result.json") in out
    assert status.main([str(tmp_path / "a")]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_a_run_elsewhere_lives_as_long_as_jobs_of_its_workers(queue, tmp_path, capsys):
    files = RunFolder(tmp_path)
    files.begin()
    files.jobs.mkdir()
    files.meta.write_text(json.dumps({"host": "elsewhere"}))
    files.worker_jobs.write_text("7_0\n7_1\n")
    queue.states = {"7_0": "FAILED", "7_1": "RUNNING"}
    word, text = said(capsys, files)
    assert (word, "on elsewhere" in text) == ("running", True)
    queue.states["7_1"] = "CANCELLED"
    assert said(capsys, files)[0] == "unknown"


def test_without_a_folder_the_newest_runs_of_outputs_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert status.main([]) == 2
    assert "there are no runs here yet" in capsys.readouterr().err
    names = [f"day/{number}" for number in range(9)] + ["day/time-sweep/seed=0", "day/time-sweep/seed=1", "mine"]
    for time_s, name in enumerate(reversed(names)):
        files = RunFolder(tmp_path / "outputs" / name)
        files.begin()
        files.result.write_text('{"status": "failed", "exit_reason": "first line\\nsecond line"}')
        os.utime(files.snapshot, (time_s, time_s))
    assert status.main([]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:11]] == list(reversed(names))[2:]
    assert "day/0: first line\n" in out
    assert "second line" not in out
    assert "the newest 10 of 12 runs" in err
    for folder in (".", "outputs", "outputs/day"):
        assert status.main([folder]) == 0
        out = capsys.readouterr().out
        assert out.count("  failed  ") == (11 if folder == "outputs/day" else 12)
        assert "second line" in out
    # What a shell makes of outputs/day/*, with a file that is no run, and of a folder named twice.
    (tmp_path / "outputs/day/notes.txt").touch()
    days = [f"outputs/day/{name}" for name in (*range(9), "notes.txt")]
    assert status.main([*days, "outputs/mine", "outputs"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert (names[1:11], names.count("mine")) == ([f"day/{number}" for number in range(9)] + ["mine"], 1)
    assert status.main(["outputs/mine", "nowhere"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err
    # Runs whose hydra.run.dir or hydra.sweep.dir is here are shown too, with or without outputs.
    for name in ("first", "sweep/seed=0"):
        RunFolder(tmp_path / name).begin()
    assert status.main([]) == 0
    out, err = capsys.readouterr()
    assert {"first", "sweep/seed=0", "outputs/day/0"} <= {line.split()[0] for line in out.splitlines() if line}
    assert "the newest 10 of 14 runs. To see all: collectx status ." in err
    shutil.rmtree(tmp_path / "outputs")
    assert status.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == ["first", "sweep/seed=0"]


@pytest.mark.parametrize(("reason", "said"), [("all frames delivered", False), ("trainer.target_return=9 is", True)])
def test_a_run_that_ended_before_its_last_frame_says_why(tmp_path, capsys, reason, said):
    files = RunFolder(tmp_path)
    files.begin()
    write_json(files.result, {"status": "completed", "exit_reason": reason})
    assert status.main([str(tmp_path)]) == 0
    assert (f"{tmp_path.name}: {reason}\n" in capsys.readouterr().out) == said


@pytest.mark.parametrize("ended", ["failed", "interrupted", "killed"])
def test_a_run_that_ended_early_says_how_to_go_on(tmp_path, capsys, ended):
    files = RunFolder(tmp_path)
    files.begin()
    files.meta.write_text(json.dumps({"host": socket.gethostname()}))
    files.lock.touch()
    if ended != "killed":
        write_json(files.result, {"status": ended, "exit_reason": "the reason"})
    assert "contains no checkpoint to continue from. To start over, repeat what" in said(capsys, files)[1]
    (files.checkpoints / "000000003").mkdir(parents=True)
    assert f"to continue from the newest checkpoint: collectx resume {tmp_path}\n" in said(capsys, files)[1]


def test_a_folder_that_is_no_run(tmp_path, capsys):
    assert status.main([str(tmp_path)]) == 2
    assert status.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere'. To list the runs here" in capsys.readouterr().err
