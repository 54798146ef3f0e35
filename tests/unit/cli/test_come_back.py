"""`collectx watch`, `cancel` and `logs`: of jobs, with a stand-in for SLURM, and what they refuse. Real processes:
tests/system/test_resume.py."""

import json

import pytest
from composing import composed

from collectx.cli import attach, cancel, logs
from collectx.cli.run_status import SubmittedRun, write_job
from collectx.run import RunFolder, snapshot


@pytest.fixture
def job(queue, tmp_path):
    """The folder of a run that is job 7, in a sweep."""
    files = RunFolder(tmp_path / "sweep" / "seed=0")
    files.begin()
    files.jobs.mkdir()
    snapshot.write(composed("launcher=slurm"), files, [])
    write_job(files, "7")
    files.log("job").write_text("begin\nend")
    queue.states = {"7": "RUNNING"}
    return files


@pytest.mark.parametrize("folder", ["sweep", "sweep/seed=0"])
def test_a_job_is_watched_to_its_end(queue, job, capsys, folder):
    def end(command):
        queue.write_result(job.path, "failed", "LeverError: stuck")
        return "7|FAILED||n1\n"

    queue.squeue = end
    assert attach.main([folder]) == 1
    del queue.squeue
    queue.write_result(job.path, "completed")
    assert attach.main([folder]) == 0
    assert "512" in capsys.readouterr().out


def test_ctrl_c_leaves_a_watched_run(queue, job, capsys, monkeypatch):
    def press(self, view):
        raise KeyboardInterrupt

    monkeypatch.setattr(attach.Watcher, "_update", press)
    assert attach.main(["sweep"]) == 130
    assert "left; job 7 goes on" in capsys.readouterr().err
    assert queue.states == {"7": "RUNNING"}


def test_a_job_is_cancelled_and_one_that_has_ended_is_left(queue, job, capsys):
    assert cancel.main(["sweep"]) == 0
    assert queue.states == {"7": "CANCELLED"}
    assert "interrupted: job 7 ended as CANCELLED" in capsys.readouterr().out
    assert cancel.main(["sweep"]) == 0
    assert "had ended" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--now"], []])
def test_a_job_that_does_not_end_by_its_signal_is_cancelled(queue, job, monkeypatch, words):
    monkeypatch.setattr(SubmittedRun, "grace_s", 0.0)
    queue.deaf = {"7"}
    assert cancel.main(["sweep", *words]) == 0
    assert queue.states == {"7": "CANCELLED"}


def test_a_process_of_another_host_is_not_cancelled(job, capsys):
    job.job_note.unlink()
    job.meta.write_text(json.dumps({"host": "elsewhere"}))
    job.lock.write_text("process 1 on elsewhere\n")
    assert cancel.main(["sweep"]) == 2
    assert "cancel it on elsewhere" in capsys.readouterr().err


def test_logs_are_those_of_all_roles_or_of_one(job, capsys):
    job.log("worker-0").write_text("hello\n")
    assert logs.main(["sweep"]) == logs.main(["sweep/seed=0", "job"]) == 0
    assert capsys.readouterr().out == "job | begin\njob | end\nworker-0 | hello\nbegin\nend\n"


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (logs.main, ["sweep", "wroker-0"], "did you mean worker-0?"),
        (logs.main, ["sweep", "-x"], "no such flag"),
        (attach.main, [], "needs one folder"),
        (cancel.main, ["nowhere"], "neither the folder of a run nor of a sweep"),
    ],
)
def test_wrong_usage(job, capsys, main, argv, message):
    job.log("worker-0").touch()
    assert main(argv) == 2
    assert message in capsys.readouterr().err
