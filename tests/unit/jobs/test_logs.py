"""Logs of a run, as they are and as they grow."""

import pytest
from composed_overrides import composed

from collectx import process
from collectx.cli import logs
from collectx.jobs.status import NamedRun, RunStatus, write_job
from collectx.run import RunFolder, Status


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of two workers, whose trainer and first worker have written logs."""
    files = RunFolder(tmp_path / "run")
    files.begin()
    files.log("trainer").write_text("one\ntwo\n")
    files.worker_log(0).write_text("three")
    cfg = composed("collector=multi_sync collector.num_workers=2")
    monkeypatch.setattr(logs, "named_run", lambda run: NamedRun("run", run.path, cfg))
    return files


def test_the_roles_are_those_with_a_log_or_a_process(run):
    assert logs.roles(run) == ["trainer", "worker-0", "worker-1"]
    run.log("evaluator").touch()
    run.jobs.mkdir()
    write_job(run, "7")
    assert logs.roles(run) == ["job", "trainer", "worker-0", "worker-1", "evaluator"]


@pytest.mark.parametrize(
    ("role", "out"),
    [(None, "trainer | one\ntrainer | two\nworker-0 | three\n"), ("trainer", "one\ntwo\n"), ("worker-1", "")],
)
def test_a_log_is_printed_with_its_role_if_it_is_one_of_several(run, capsys, role, out):
    assert logs.print_logs(run, role, follows=False) is bool(out)
    assert capsys.readouterr().out == out


def test_a_log_is_followed_until_the_run_ends(run, capsys, monkeypatch, within):
    now_s, states = [0.0], []

    def statuses(runs):
        states.append(now_s[0])
        return [RunStatus(Status.COMPLETED if now_s[0] >= 4 else Status.RUNNING)]

    def sleep(seconds):
        now_s[0] += seconds
        with open(run.worker_log(0), "a") as file:
            file.write(f" {now_s[0]}" + "\n" * (now_s[0] == 1.0))

    monkeypatch.setattr(logs, "statuses", statuses)
    within(process, "time", monotonic=lambda: now_s[0], sleep=sleep)
    assert logs.print_logs(run, "worker-0", follows=True)
    # Whole lines; at the end also what is no line.
    first, last = capsys.readouterr().out.splitlines()
    assert first == "three 0.25 0.5 0.75 1.0"
    assert last.startswith(" 1.25 ")
    assert last.endswith(" 4.0")
    assert states == [0.0, 2.0, 4.0]
