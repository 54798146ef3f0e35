"""Runs that are steps of an allocation, one after another."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from composed_overrides import composed

from collectx import process
from collectx.jobs import submit
from collectx.jobs.status import NamedRun, Outcome
from collectx.place.slurm.commands import JobState
from collectx.run import RunFolder, Status


def test_no_run_begins_after_an_interrupted_one(monkeypatch, capsys):
    ends = {"first": Status.COMPLETED, "second": Status.INTERRUPTED, "third": Status.COMPLETED}
    joined, results = [], []

    class Step:
        states = cancel = None

        def __init__(self, run, job, argv):
            self.join = lambda: joined.append(run)

    def watcher(runs, *functions, **options):
        return SimpleNamespace(watch=lambda: [Outcome(ends[runs[0][0]], Path(runs[0][0]))])

    monkeypatch.setattr(submit, "_Step", Step)
    monkeypatch.setattr(submit, "Watcher", watcher)
    monkeypatch.setattr(submit, "_size_problems", lambda run, job: [])
    submit.run_steps(list(ends), ["collectx", "run"], "17", results)
    assert joined == [each.folder.name for each in results] == ["first", "second"]
    assert "inside the allocation of job 17" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("exit_code", "is_cancelled", "word"), [(0, False, "COMPLETED"), (3, False, "FAILED"), (-15, True, "CANCELLED")]
)
def test_a_step_ends_with_srun_and_is_killed_after_the_grace_time(
    monkeypatch, within, tmp_path, exit_code, is_cancelled, word
):
    now, calls = [100.0], []

    def sleep(seconds):
        now[0] += seconds

    srun = SimpleNamespace(exitcode=None, terminate=lambda: calls.append("terminate"))
    srun.kill = lambda: (calls.append("kill"), setattr(srun, "exitcode", exit_code))
    monkeypatch.setattr(submit, "start_step", lambda command, log: srun)
    within(submit, "time", monotonic=lambda: now[0])
    within(process, "time", monotonic=lambda: now[0], sleep=sleep)
    files = RunFolder(tmp_path)
    cfg = composed("launcher=slurm launcher.nodes=2 launcher.cpus_per_task=3 collector.num_workers=4")
    run = NamedRun("0", files.path, cfg)
    files.jobs.mkdir(parents=True)
    (files.jobs / "exit_status.17").write_text("0")  # of an earlier attempt
    step = submit._Step(run, "17", ["collectx", "run"])
    assert not (files.jobs / "exit_status.17").exists()
    assert (files.jobs / "log_begin").read_text() == "0\n"
    script = (files.jobs / "step.sh").read_text()
    for option in ("jobid=17", "overlap", "ntasks=5", "nodes=2", "cpus-per-task=3", "kill-on-bad-exit=0", "no-kill"):
        assert (f"--{option}" in script) == (option != "no-kill")
    now[0] += 1000
    assert step.states(()) == {"17": JobState("RUNNING", False, True)}
    if is_cancelled:
        step.cancel(["17"])
    begin_s = now[0]
    step.join()
    assert step.states(()) == {"17": JobState(word, True, True)}
    assert calls == ["terminate"] * is_cancelled + ["kill"]
    assert now[0] - begin_s == pytest.approx(run.workers_grace_s, abs=1)
