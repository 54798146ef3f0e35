"""The processes of a job: how they find each other in the run folder, and signals."""

import os
import signal
import stat

import pytest
from composed_overrides import composed

from collectx.errors import JobEnded, RendezvousError
from collectx.jobs import entry, rendezvous
from collectx.run import RunFolder
from collectx.run.folder import files
from collectx.transport.network.handshake import Endpoint


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.begin()
    return made


def test_the_secret_is_for_the_owner_alone_and_of_one_start(folder, tmp_path):
    endpoint, before = Endpoint(("127.0.0.1",), 4000, b"secret"), os.umask(0)
    (tmp_path / "a_strangers").touch()
    folder.secret.symlink_to(tmp_path / "a_strangers")
    try:
        rendezvous.announce_trainer(folder, endpoint, "7.0")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.secret.lstat().st_mode) == 0o600
    assert (tmp_path / "a_strangers").read_bytes() == b""
    assert b"secret" not in folder.rendezvous.read_bytes()
    assert rendezvous.find_trainer(folder, "7.0", "knob", 0.0) == endpoint
    with pytest.raises(RendezvousError, match=r"within 0 s \(knob=0\)"):
        rendezvous.find_trainer(folder, "8.0", "knob", 0.0)


@pytest.mark.parametrize("harm", ["mode", "owner", "link"])
def test_a_secret_or_a_pickle_that_is_not_the_users_alone_is_not_read(folder, within, harm):
    rendezvous.announce_trainer(folder, Endpoint(("127.0.0.1",), 4000, b"secret"), "7.0")
    rendezvous.JobSpec(composed("env=counting"), token="7.0").write(folder, [])
    for path in (folder.secret, folder.job_objects):
        if harm == "mode":
            path.chmod(0o620)
        elif harm == "link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to(path.with_name("elsewhere"))
    if harm == "owner":
        within(files, "os", geteuid=lambda: os.getuid() + 1)
    with pytest.raises(OSError, match=r"it must belong to user|symbolic links"):
        rendezvous.find_trainer(folder, "7.0", "knob", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match=r"it must belong to user|symbolic links"):
        entry.main([str(folder.path), "--worker", "0"])
    signal.signal(signal.SIGTERM, before)


def test_a_worker_whose_job_is_ended_says_so(within, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    within(entry, "time", sleep=lambda seconds: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(JobEnded, match="preempted"):
            entry.main(["--wait", "100", str(tmp_path), "--worker", "0"])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_after_the_result_of_a_job_is_without_effect(within, folder):
    killed = []
    within(entry, "os", kill=lambda *arguments: killed.append(arguments))
    before = signal.getsignal(signal.SIGUSR1)
    folder.result.touch()
    entry._end_without_result(folder, signal.SIGUSR1)
    assert (killed, signal.getsignal(signal.SIGUSR1)) == ([], before)
    folder.result.unlink()
    entry._end_without_result(folder, signal.SIGUSR1)
    assert killed == [(os.getpid(), signal.SIGUSR1)]
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("gone", ["the trainer", "its node"])
def test_the_task_of_an_ended_worker_lasts_as_long_as_the_trainer(within, monkeypatch, folder, gone):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    folder.jobs.mkdir(exist_ok=True)
    node, waits = folder.node_note("7"), []
    node.parent.mkdir(exist_ok=True)
    node.write_text("n1")

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            (folder.jobs / "exit_status.7").touch() if gone == "the trainer" else node.unlink()

    within(entry, "time", sleep=sleep)
    entry._wait_for_trainer(composed("launcher=slurm"), folder)
    assert len(waits) == 3
