"""`collectx watch`, `cancel` and `logs`: of jobs, with a stand-in for SLURM, and what they refuse. Real processes:
tests/system/test_resume.py."""

import json
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from composed_overrides import composed

from collectx.cli import cancel, logs, watch
from collectx.errors import ConfigError, LauncherError
from collectx.jobs import cancel as jobs_cancel
from collectx.jobs.status import NamedRun, write_job
from collectx.place.slurm import commands
from collectx.run import RunFolder
from collectx.run.folder import snapshot
from collectx.run.folder.layout import locked


def make(folder, job):
    """The folder of a run that is this job."""
    files = RunFolder(folder)
    files.begin()
    files.jobs.mkdir()
    snapshot.write(composed("launcher=slurm"), files, [])
    write_job(files, job)
    files.log("job").write_text("begin\nend")
    return files


@pytest.fixture
def job(queue, tmp_path):
    """The folder of a run that is job 7, in a sweep."""
    queue.states = {"7": "RUNNING"}
    return make(tmp_path / "sweep" / "seed=0", "7")


@pytest.fixture
def array(queue, tmp_path):
    """A sweep of four points: one waits, one runs, one ends after it is asked for twice, and one waits."""
    queue.states = {"8_0": "PENDING", "8_1": "RUNNING", "8_2": "RUNNING", "8_3": "PENDING"}
    squeue, calls = queue.squeue, []

    def ask(command):
        calls.append(command)
        told = squeue(command)
        if len(calls) == 2 and queue.states["8_2"] == "RUNNING":
            queue.states["8_2"] = "COMPLETED"
        return told

    queue.squeue = ask
    for index, job in enumerate(queue.states):
        make(tmp_path / "sweep" / f"seed={index}", job)


@pytest.mark.parametrize("folder", ["sweep", "sweep/seed=0"])
def test_a_job_is_watched_to_its_end(queue, job, capsys, folder):
    def end(command):
        queue.write_result(job.path, "failed", "LeverError: stuck")
        return "7|FAILED||n1\n"

    queue.squeue = end
    assert watch.main([folder]) == 1
    del queue.squeue
    queue.write_result(job.path, "completed")
    assert watch.main([folder]) == 0
    assert "512" in capsys.readouterr().out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_but_not_the_run(queue, job, capsys, monkeypatch, signum):
    monkeypatch.setattr(watch.Watcher, "_update", lambda self, view: signal.raise_signal(signum))
    assert watch.main(["sweep"]) == 130
    assert "stopped watching; job 7 continues" in capsys.readouterr().err
    assert queue.states == {"7": "RUNNING"}


def test_a_job_is_cancelled_and_one_that_has_ended_is_left(queue, job, capsys):
    assert cancel.main(["sweep"]) == 0
    assert queue.states == {"7": "CANCELLED"}
    out = capsys.readouterr().out
    assert "interrupted: job 7 ended as CANCELLED" in out
    assert "already ended" not in out
    assert cancel.main(["sweep"]) == 0
    assert "seed=0 has already ended, so there is nothing to cancel.\n" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "end"), [(["--now"], "CANCELLED"), ([], "COMPLETED")])
def test_every_job_of_a_sweep_is_cancelled_in_whatever_state_it_is(queue, array, words, end, capsys):
    assert cancel.main(["sweep", *words]) == 0
    assert queue.states == {"8_0": "CANCELLED", "8_1": "CANCELLED", "8_2": end, "8_3": "CANCELLED"}
    out, err = capsys.readouterr()
    assert (err, "already ended" in out) == ("", False)
    assert cancel.main(["sweep", *words]) == 0
    assert "4 of 4 runs have already ended, so there is nothing to cancel.\n" in capsys.readouterr().out


def test_jobs_that_wait_are_cancelled_before_others_end_and_make_place(queue, array, monkeypatch):
    scancel, called = queue.scancel, []
    monkeypatch.setattr(queue, "scancel", lambda command: called.append(command) or scancel(command))
    assert cancel.main(["sweep"]) == 0
    assert ["--signal=INT" in command for command in called] == [False, True]


def test_one_point_of_an_array_is_cancelled_alone(queue, array):
    assert cancel.main(["sweep/seed=3"]) == 0
    assert queue.states == {"8_0": "PENDING", "8_1": "RUNNING", "8_2": "COMPLETED", "8_3": "CANCELLED"}


def test_what_cannot_be_cancelled_is_told_and_the_rest_is_cancelled(queue, array, tmp_path, capsys, monkeypatch):
    def refuse(command):
        if command[0] != "scancel":
            return getattr(queue, command[0])(command)
        if "--signal=INT" in command:
            with suppress(commands.NoMessage):
                queue.scancel(command)
        raise LauncherError("Access/permission denied")

    other = make(tmp_path / "sweep" / "seed=4", "9")
    other.job_note.unlink()
    other.meta.write_text(json.dumps({"host": "elsewhere"}))
    other.lock.write_text("process 1 on elsewhere\n")
    monkeypatch.setattr(jobs_cancel, "_MARGIN_S", 0.0)
    monkeypatch.setattr(NamedRun, "grace_s", 0.0)
    monkeypatch.setattr(commands, "_run", refuse)
    assert cancel.main(["sweep"]) == 2
    assert queue.states == {"8_0": "PENDING", "8_1": "CANCELLED", "8_2": "COMPLETED", "8_3": "PENDING"}
    err = capsys.readouterr().err
    assert "Use collectx cancel on elsewhere" in err
    assert "could not end every job: Access/permission denied. To see which are left: collectx status\n" in err
    assert "did not end within" not in err  # what SLURM refuses is not waited for
    other.job_note.parent.rename(tmp_path / "away")
    other.result.write_text('{"status": "interrupted"}')
    assert cancel.main(["sweep"]) == 1


@pytest.mark.parametrize("words", [["--now"], []])
def test_a_job_that_does_not_end_by_its_signal_is_cancelled(queue, job, monkeypatch, words):
    monkeypatch.setattr(NamedRun, "grace_s", 0.0)
    queue.deaf = {"7"}
    assert cancel.main(["sweep", *words]) == 0
    assert queue.states == {"7": "CANCELLED"}


def test_a_process_of_another_host_is_not_cancelled(job, capsys):
    job.job_note.unlink()
    job.meta.write_text(json.dumps({"host": "elsewhere"}))
    job.lock.write_text("process 1 on elsewhere\n")
    assert cancel.main(["sweep"]) == 2
    assert "Use collectx cancel on elsewhere" in capsys.readouterr().err


def test_logs_are_those_of_all_roles_or_of_one(job, capsys):
    job.log("worker-0").write_text("hello\n")
    assert logs.main(["sweep"]) == logs.main(["sweep/seed=0", "job"]) == 0
    assert capsys.readouterr().out == "job | begin\njob | end\nworker-0 | hello\nbegin\nend\n"


@pytest.mark.parametrize("role", ["trainer", "worker-1"])
def test_a_role_that_has_written_nothing_is_told_from_one_that_does_not_exist(job, capsys, role):
    assert logs.main(["sweep/seed=0", role]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert f"{role} has no log" in err
    assert f"{job.path} contains no records yet." in err
    assert logs.main(["sweep", "worker-2"]) == 2
    assert (
        "there is no role 'worker-2'. Did you mean worker-0 or worker-1? Valid names: job, trainer, worker-0, worker-1."
        in (capsys.readouterr().err)
    )
    assert logs.main(["sweep", "worker", "0"]) == 2
    assert "logs: write the role as one word: worker-0" in capsys.readouterr().err


def test_logs_without_a_line_name_the_files_that_have_the_output(job, capsys):
    job.log("job").write_text("")
    queue_result = {"status": "completed", "exit_reason": "all frames delivered"}
    job.result.write_text(json.dumps(queue_result))
    assert logs.main(["sweep"]) == 0
    out, err = capsys.readouterr()
    assert not out
    words = ("no logs", f"{job.path} contains result.json (how the run ended)", f"collectx watch {job.path}")
    assert [word for word in words if word not in err] == []
    assert "metrics.jsonl" not in err
    job.metrics.write_text("")
    assert logs.main(["sweep"]) == 0
    assert "contains metrics.jsonl (one line per batch), result.json" in capsys.readouterr().err


def test_a_dead_run_with_many_batches_is_watched_to_its_end_by_the_last_of_them(queue, tmp_path, capsys):
    files = RunFolder(tmp_path / "run")
    files.begin()
    snapshot.write(composed("trainer=meter"), files, [])
    line = {"batch": 0, "time": 0.0, "frames": 0, "frames_per_s": 50.0, "waited_s": 0.0, "version": 0, "lag": 0.0}
    last = line | {"batch": 999_999, "frames": 123_456, "episodes": 1, "num_episodes": 77, "mean_return": 3.5}
    with open(files.metrics, "w") as file:
        file.write("not read\n" * 1000)
        file.writelines(f"{json.dumps(each)}\n" for each in (*[line | {"long": "-" * 100_000}] * 50, last))
    assert watch.main(["run"]) == 1
    out, err = capsys.readouterr()
    assert "123,456/" in out
    assert "77 episodes" in out
    assert out.splitlines()[-2].split()[:3] == ["run", "failed", "123,456"]
    assert "its process ended without a result" in err


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (logs.main, ["sweep", "wroker-0"], "Did you mean worker-0?"),
        (logs.main, ["sweep", "-x"], "logs: unknown flag -x. Usage: collectx logs DIR [ROLE] [-f]"),
        (logs.main, ["sweep", "job", "trainer"], "logs: name one role, such as job, not 2 (job, trainer)"),
        (watch.main, [], "watch: which run? Usage: collectx watch DIR"),
        (logs.main, ["", "job"], "logs: the folder name is empty"),
        (cancel.main, ["nowhere"], "cancel: there is no folder 'nowhere'. To list your runs: collectx status"),
        (watch.main, [str(Path(__file__))], "is a file, not a run folder"),
        (cancel.main, ["a", "b"], "cancel: name one folder, not 2 (a, b). Usage: collectx cancel DIR [--now]"),
    ],
)
def test_wrong_usage(job, capsys, main, argv, message):
    job.log("worker-0").touch()
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("is_known", [True, False])
def test_jobs_of_workers_whose_trainer_is_gone_are_cancelled(queue, job, capsys, monkeypatch, is_known):
    queue.states = {"7": "COMPLETED", "9_0": "RUNNING", "9_1": "COMPLETED"}
    queue.write_result(job.path, "completed")
    workers = {"9_0": commands.JobState("RUNNING", False, True), "9_1": commands.JobState("COMPLETED", True, True)}
    unknown = LauncherError("squeue: Unable to contact slurm controller")
    monkeypatch.setattr(jobs_cancel, "query_workers", lambda run: workers if is_known else unknown)
    assert cancel.main(["sweep"]) == 0
    assert "already ended" in capsys.readouterr().out
    assert queue.states == {"7": "COMPLETED", "9_0": "CANCELLED" if is_known else "RUNNING", "9_1": "COMPLETED"}


def test_a_run_that_ends_before_its_process_is_looked_for_has_ended(job, capsys, monkeypatch):
    def end(files):
        files.result.write_text('{"status": "interrupted", "exit_reason": "interrupted by SIGINT"}')
        return None, socket.gethostname()

    job.job_note.unlink()
    job.meta.write_text(json.dumps({"host": socket.gethostname()}))
    monkeypatch.setattr(jobs_cancel, "holder", end)
    with locked(job, replace=True):
        assert cancel.main(["sweep"]) == 0
    assert f"{job.path}: interrupted: interrupted by SIGINT\n" in capsys.readouterr().out


def test_the_points_of_a_sweep_may_lie_deeper_and_runs_elsewhere_not(job, tmp_path):
    point = tmp_path / "outputs" / "sweep" / "by" / "n" / "2"
    shutil.copytree(job.path, point)
    with pytest.raises(ConfigError, match="contains neither a run nor a sweep"):
        watch.runs_of("watch", [str(tmp_path / "outputs" / "sweep")], "")
    (tmp_path / "outputs" / "sweep" / "multirun.yaml").touch()
    (found,) = watch.runs_of("watch", [str(tmp_path / "outputs" / "sweep")], "")
    assert found.path == point
    assert found.name_below(tmp_path / "outputs" / "sweep") == "by/n/2"
    with pytest.raises(ConfigError):
        watch.runs_of("cancel", [str(tmp_path / "outputs")], "")
