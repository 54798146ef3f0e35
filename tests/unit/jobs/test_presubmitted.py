"""Jobs that are submitted together with their trainer's, over a scheduler that a test scripts."""

import json
import sys

import pytest

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.errors import LauncherError
from collectx.jobs import worker_jobs
from collectx.jobs.worker_jobs import PresubmittedJobs, submit_and_follow
from collectx.place.slurm.commands import JobState
from collectx.run import RunFolder

QUEUED = JobState("PENDING", False, False)
RUNNING = JobState("RUNNING", False, True)
COMPLETED = JobState("COMPLETED", True, True)
FAILED = JobState("FAILED", True, True, "NonZeroExitCode")


@pytest.fixture
def jobs(monkeypatch, within, tmp_path):
    """`jobs([state of the trainer, of worker 0, of worker 1], ...)`: follows jobs that have these states, one list for
    each time that SLURM is asked. Returns the numbers of the cancelled jobs, and the pauses."""

    def follow(*states, log="", joined=False):
        files = RunFolder(tmp_path / "run")
        left, cancelled, pauses, scripts = list(states), [], [], []

        def submit(script, *options, arguments=()):
            scripts.append(script.read_text())
            return str(6 + len(scripts))

        def asked(ids):
            found = dict(zip(ids, left.pop(0), strict=True))
            if joined:
                files.events.write_text(json.dumps({"event": "worker_joined", "worker": 0}) + "\n")
            if log:
                text = log.encode()
                files.log("trainer").write_bytes(text[: -len(left)] if left else text)
            return {job: state for job, state in found.items() if state is not None}

        monkeypatch.setattr(worker_jobs.commands, "submit", submit)
        monkeypatch.setattr(worker_jobs.commands, "states", asked)
        monkeypatch.setattr(worker_jobs.commands, "cancel", cancelled.extend)
        monkeypatch.setattr(worker_jobs.commands, "largest_array", lambda: 1000)
        within(worker_jobs, "time", sleep=pauses.append)
        resources = SubmititLauncherConfig(kind="submitit", partition="cpu", setup=["module load cuda"])
        asked_for = PresubmittedJobs(str(tmp_path / "run"), 2, "gloo", None, 60.0)
        try:
            submit_and_follow(files, asked_for, resources, resources)
        finally:
            (name, value), (script, _) = asked_for.as_environment(), scripts
            monkeypatch.setenv(name, value)
            assert PresubmittedJobs.from_environment() == asked_for
            lines = script.splitlines()
            assert {"#SBATCH --partition=cpu", "#SBATCH --ntasks=1", "#SBATCH --no-requeue", "module load cuda"} <= {
                *lines
            }
            assert f"export {name}='{value}'" in lines
            assert any(sys.executable in line for line in lines)
            assert cancelled == ["7", "8_0", "8_1"]
        return pauses

    return follow


def test_the_trainers_output_is_copied_until_its_job_has_completed(jobs, capsys):
    pauses = jobs(
        [QUEUED, QUEUED, QUEUED], [RUNNING, RUNNING, QUEUED], [COMPLETED, RUNNING, FAILED], log="a line\nthe last é\n"
    )
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("collectx: job 7, its workers 8_0, 8_1; log: ")
    assert rest == ["a line", "the last é"]
    assert pauses == [1.0, 1.0]


def test_slurm_is_asked_less_often_while_nothing_is_printed(jobs):
    assert jobs(*[[RUNNING] * 3] * 8, [COMPLETED] * 3) == pytest.approx([1.5**n for n in range(1, 6)] + [10.0] * 3)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([FAILED, RUNNING, RUNNING], r"the trainer's job 7 ended as FAILED \(NonZeroExitCode\). Its log: .*trainer"),
        ([None, RUNNING, RUNNING], "the trainer's job 7 ended as GONE"),
        ([RUNNING, RUNNING, FAILED], r"the job 8_1 of worker 1 ended as FAILED \(NonZeroExitCode\). Its log: .*1"),
        ([RUNNING, None, RUNNING], "the job 8_0 of worker 0 ended as GONE"),
    ],
)
def test_a_job_that_fails_before_a_worker_has_joined_ends_the_others(jobs, states, message):
    with pytest.raises(LauncherError, match=message):
        jobs(states)


def test_lost_workers_are_the_trainers_affair_once_one_has_joined(jobs):
    jobs([RUNNING, FAILED, RUNNING], [COMPLETED, FAILED, RUNNING], joined=True)


def test_workers_that_have_completed_are_no_failure(jobs):
    jobs([RUNNING, COMPLETED, RUNNING], [COMPLETED] * 3)
