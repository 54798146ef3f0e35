"""Runs that are steps of an allocation, one after another."""

from pathlib import Path
from types import SimpleNamespace

from collectx.jobs import steps
from collectx.jobs.status import Outcome
from collectx.run import Status


def test_no_run_begins_after_an_interrupted_one(monkeypatch, capsys):
    ends = {"first": Status.COMPLETED, "second": Status.INTERRUPTED, "third": Status.COMPLETED}
    joined, results = [], []

    class Step:
        states = cancel = None

        def __init__(self, run, job, argv):
            self.join = lambda: joined.append(run)

    def watcher(runs, *functions, **options):
        return SimpleNamespace(watch=lambda: [Outcome(ends[runs[0][0]], Path(runs[0][0]))])

    monkeypatch.setattr(steps, "_Step", Step)
    monkeypatch.setattr(steps, "Watcher", watcher)
    monkeypatch.setattr(steps, "_size_problems", lambda run, job: [])
    steps.run_steps(list(ends), ["collectx", "run"], "17", results)
    assert joined == [each.folder.name for each in results] == ["first", "second"]
    assert "inside the allocation of job 17" in capsys.readouterr().err
