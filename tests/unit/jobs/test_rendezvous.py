"""How the processes of a run find each other, and what a job reads, on a shared file system."""

import json

import pytest
from composed_overrides import composed

from collectx import process
from collectx.errors import RendezvousError
from collectx.jobs.worker_jobs import (
    JobSpec,
    announce_trainer,
    find_trainer,
    read_objects,
    submitted_workers,
    worker_command,
)
from collectx.run import RunFolder
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import UserObjects


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
