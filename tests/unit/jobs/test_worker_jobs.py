"""Jobs of workers that are submitted together with their trainer's, and how the processes of a run find each other."""

import json
import sys
from dataclasses import replace

import pytest
from composed_overrides import composed

from collectx import process
from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.errors import LauncherError, RendezvousError
from collectx.jobs import worker_jobs
from collectx.jobs.worker_jobs import (
    JobSpec,
    PresubmittedJobs,
    announce_trainer,
    find_trainer,
    read_objects,
    submit_and_follow,
    submitted_workers,
    worker_command,
)
from collectx.place.slurm.commands import JobState
from collectx.run import RunFolder
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import UserObjects

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


# --- rendezvous ---


@pytest.fixture
def files(tmp_path):
    files = RunFolder(tmp_path / "run")
    files.begin()
    return files


def test_a_worker_finds_the_trainer_of_its_attempt(files, within):
    """An address of an earlier attempt, or one that is only partly written, is ignored."""
    old, new = (Endpoint(("127.0.0.1",), port, secret) for port, secret in ((7, b"old"), (8, b"new")))
    now, written = (
        [0.0],
        [lambda: files.rendezvous.write_text('{"token": "n'), lambda: announce_trainer(files, new, "n")],
    )

    def sleep(seconds):
        now[0] += seconds
        if written:
            written.pop(0)()

    within(process, "time", monotonic=lambda: now[0], sleep=sleep)
    announce_trainer(files, old, "o")
    assert find_trainer(files, "n", "collector.start_timeout_s", 5.0) == new
    assert now[0] == pytest.approx(0.2)
    assert json.loads(files.rendezvous.read_text()) == {"addresses": ["127.0.0.1"], "port": 8, "token": "n"}
    with pytest.raises(RendezvousError, match=r"no trainer within 5 s \(collector.start_timeout_s=5\).* exists, but"):
        find_trainer(files, "o", "collector.start_timeout_s", 5.0)
    assert now[0] == pytest.approx(5.2, abs=0.15)
    with pytest.raises(RendezvousError, match=r"folder .*nowhere does not exist"):
        find_trainer(RunFolder(files.path / "nowhere"), "o", "x", 0.5)


def test_a_job_reads_what_was_written_for_it(files):
    cfg = composed("launcher=slurm seed=3")
    JobSpec(cfg, ("collectx", "run"), "t").write(files)
    assert JobSpec.read(files) == JobSpec(cfg, ("collectx", "run"), "t")
    assert read_objects(files, 0) is None
    with_numbers = replace(cfg, env=replace(cfg.env, kwargs={"table": {1: 0.5, None: [{True: "x"}]}}))
    JobSpec(with_numbers).write(files)
    assert JobSpec.read(files).cfg == with_numbers
    JobSpec(cfg).write(files, [UserObjects(hooks=None), UserObjects(hooks=3)])
    read = JobSpec.read(files)
    assert (read.cfg.env.kind, read.cfg.policy.kind, read.cfg.seed, read.token) == ("python", "python", 3, None)
    assert files.job_objects.stat().st_mode & 0o777 == 0o600


def test_the_command_of_a_workers_job(files):
    assert worker_command(files, "py", 2.5)[:6] == ["py", "-u", "-m", "collectx.jobs.entry", "--wait", "2.5"]
    assert worker_command(files, "py")[4:] == [str(files.path), "--worker"]


@pytest.mark.parametrize(("words", "requeues"), [("", 0), ("launcher.requeue=true launcher.max_requeues=3", 3)])
def test_workers_are_submitted_with_the_task_that_they_read(files, monkeypatch, words, requeues):
    cfg = composed(f"launcher=submitit {words} collector.num_workers=2 launcher.python=py launcher.queue_timeout_s=9")
    with submitted_workers(cfg, files, print, [UserObjects(hooks=None), UserObjects(hooks=4)]) as launcher:
        token = JobSpec.read(files).token
        assert len(token) == 16
        assert read_objects(files, 1).open().hooks == 4
        assert f"py -u -m collectx.jobs.entry {files.path} --worker" in (files.jobs / "worker.sh").read_text()
        launcher.announce(Endpoint(("127.0.0.1",), 8, b"new"))
        assert json.loads(files.rendezvous.read_text())["token"] == token
        assert launcher.join_timeout(0) == ("launcher.queue_timeout_s", 9.0)
        assert launcher.max_requeues == requeues
