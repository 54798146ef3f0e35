"""The processes of a job: how they find each other in the run folder, and signals."""

import os
import signal
import stat
from dataclasses import replace

import pytest
import torch
from composed_overrides import composed

from collectx import process
from collectx.errors import ConfigError, JobEnded, RendezvousError, WorkerDied
from collectx.jobs import entry, worker_jobs
from collectx.run import RunFolder, Status, execution
from collectx.run.folder import files
from collectx.run.folder.result import Failure, Result, exit_status
from collectx.transport.network.handshake import Endpoint
from collectx.worker import entry as worker_entry


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
        worker_jobs.announce_trainer(folder, endpoint, "7.0")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.secret.lstat().st_mode) == 0o600
    assert (tmp_path / "a_strangers").read_bytes() == b""
    assert b"secret" not in folder.rendezvous.read_bytes()
    assert worker_jobs.find_trainer(folder, "7.0", "knob", 0.0) == endpoint
    with pytest.raises(RendezvousError, match=r"within 0 s \(knob=0\)"):
        worker_jobs.find_trainer(folder, "8.0", "knob", 0.0)


@pytest.mark.parametrize("harm", ["mode", "owner", "link"])
def test_a_secret_or_a_pickle_that_is_not_the_users_alone_is_not_read(folder, within, harm):
    worker_jobs.announce_trainer(folder, Endpoint(("127.0.0.1",), 4000, b"secret"), "7.0")
    worker_jobs.JobSpec(composed("env=counting"), token="7.0").write(folder, [])
    for path in (folder.secret, folder.job_objects):
        if harm == "mode":
            path.chmod(0o620)
        elif harm == "link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to(path.with_name("elsewhere"))
    if harm == "owner":
        within(files, "os", geteuid=lambda: os.getuid() + 1)
    with pytest.raises(OSError, match=r"it must belong to user|symbolic links"):
        worker_jobs.find_trainer(folder, "7.0", "knob", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match=r"it must belong to user|symbolic links"):
        entry.main([str(folder.path), "--worker", "0"])
    signal.signal(signal.SIGTERM, before)


def test_a_worker_whose_job_is_ended_says_so(within, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    within(process, "time", sleep=lambda seconds: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(JobEnded, match="preempted"):
            entry.main(["--wait", "100", str(tmp_path), "--worker", "0"])
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def task(folder, monkeypatch, queue):
    """`task(rank, words, **variables)` runs a task of SLURM's job 7, whose log is at its beginning; returns its exit
    status."""
    files = [os.dup(descriptor) for descriptor in (1, 2)]
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    handlers, threads = [signal.getsignal(number) for number in numbers], torch.get_num_threads()
    queue.states = {"7": "RUNNING"}
    folder.jobs.mkdir(exist_ok=True)
    (folder.jobs / "log_begin").write_text("0")
    folder.log("job").touch()
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "3"}

    def run(rank, words="", *more, token=None, **further):
        for name, value in (variables | {"SLURM_PROCID": str(rank)} | further).items():
            monkeypatch.setenv(name, value)
        cfg = composed(f"launcher=slurm trainer=meter launcher.max_requeues=3 {words}")
        worker_jobs.JobSpec(cfg, ("run", "seed=1"), token).write(folder)
        try:
            return entry.main([str(folder.path), *more])
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            for descriptor, file in zip((1, 2), files, strict=True):
                os.dup2(file, descriptor)
            torch.set_num_threads(threads)

    yield run
    for file in files:
        os.close(file)


TERM, INT = "interrupted by SIGTERM", "interrupted by SIGINT"
LOST = Failure(f"{WorkerDied.__module__}.{WorkerDied.__qualname__}", "no answer", worker=1)


@pytest.mark.parametrize(
    ("words", "reason", "failure", "restarts", "state", "said"),
    [
        ("launcher.requeue=true", "all frames delivered", None, 0, "RUNNING", ""),
        ("launcher.requeue=true", TERM, None, 0, "PENDING", f"the job was requeued: {TERM}"),
        ("launcher.requeue=true", TERM, None, 3, "RUNNING", "requeued 3 times (launcher.max_requeues=3)"),
        ("launcher.requeue=false", TERM, None, 0, "RUNNING", ""),
        ("launcher.requeue=true", INT, None, 0, "CANCELLED", ""),
        ("launcher.requeue=true", "WorkerDied", LOST, 0, "PENDING", "requeued: n1, the node of worker 1, is lost"),
        ("launcher.requeue=true", "WorkerDied", replace(LOST, worker=None), 0, "RUNNING", ""),
        ("launcher.requeue=true", "WorkerDied", replace(LOST, type="ValueError"), 0, "RUNNING", ""),
        ("launcher.requeue=false", "WorkerDied", LOST, 0, "RUNNING", ""),
    ],
)
def test_what_becomes_of_the_job_when_its_run_has_ended(
    task, folder, queue, monkeypatch, capsys, words, reason, failure, restarts, state, said
):
    status = Status.FAILED if failure else Status.INTERRUPTED if "interrupted" in reason else Status.COMPLETED
    failures = (failure,) if failure else ()
    ended, calls = Result(status, reason, 1, 1, 1.0, 0.0, None, None, None, 0, None, failures, folder.path), []
    monkeypatch.setattr(execution, "execute", lambda *arguments: calls.append(arguments) or ended)
    monkeypatch.setattr(entry, "is_lost", lambda node: node == "n1")
    node = folder.node_note("7")
    node.parent.mkdir(exist_ok=True)
    node.write_text("n1")
    assert task(0, words, SLURM_RESTART_COUNT=str(restarts)) == exit_status(status)
    ((cfg, path, argv, open_launcher),) = calls
    assert (path, argv) == (folder.path, ["run", "seed=1"])
    with open_launcher(print) as launcher:
        assert launcher.describe(1) == f"worker 1 (log: {folder.worker_log(1)})"
    assert cfg.run.resume == ("never" if restarts else composed("launcher=slurm").run.resume)
    assert queue.states["7"] == state
    assert said in capsys.readouterr().err
    events = [event["reason"] for event in folder.read_events() if event["event"] == "requeued"]
    assert events == ([said.rpartition("requeued: ")[2]] if state == "PENDING" else [])
    result = folder.read_result()
    assert result is None if not restarts else result["exit_reason"].startswith(f"{TERM}: job 7 is not requeued")


def test_a_run_that_is_a_step_of_an_allocation_does_not_cancel_it_and_a_wrong_configuration_is_said(
    task, folder, queue, monkeypatch, capsys
):
    ended = Result(Status.INTERRUPTED, INT, 1, 1, 1.0, 0.0, None, None, None, 0, None, (), folder.path)
    monkeypatch.setattr(execution, "execute", lambda *arguments: ended)
    assert task(0) == exit_status(Status.INTERRUPTED)
    assert queue.states["7"] == "RUNNING"

    def wrong(*arguments):
        raise ConfigError("one is wrong", "two is wrong")

    monkeypatch.setattr(execution, "execute", wrong)
    assert task(0) == 2
    assert capsys.readouterr().err == "one is wrong\ntwo is wrong\n"


@pytest.mark.parametrize("nested", [1, 2])
def test_a_worker_writes_to_its_log_and_uses_its_threads(task, folder, monkeypatch, capsys, nested):
    calls = []

    def work(*arguments):
        calls.append((*arguments, torch.get_num_threads()))
        os.write(1, b"printed\n")
        os.write(2, b"warned\n")
        if nested == 2:
            raise OSError("no way")

    worker_jobs.announce_trainer(folder, Endpoint(("127.0.0.1",), 4000, b"secret"), "7.0")
    monkeypatch.setattr(worker_entry, "run_remote_worker", work)
    words = f"launcher.num_threads=3 collector.start_timeout_s=50 collector.num_workers_per_collector={nested}"
    words += " collector=distributed_sync" * (nested == 2)
    assert task(2, words) == nested - 1
    ((endpoint, worker, timeout_s, objects, build, threads),) = calls
    assert (endpoint.port, worker, timeout_s, objects, threads) == (4000, 1, 50.0, None, 3)
    assert (build is not None) == (nested == 2)
    assert folder.worker_log(1).read_text() == "printed\nwarned\n"
    assert ("OSError: no way" in capsys.readouterr().err) == (nested == 2)
    # A replacement has its index from the command line, and a worker's job that SLURM has requeued has none to join.
    assert task(0, words, "--worker", "0") == nested - 1
    assert calls[-1][1] == 0
    assert task(0, words, "--worker", "0", token="7.0", SLURM_RESTART_COUNT="1") == 1
    assert len(calls) == 2


def test_a_worker_that_slurm_requeues_ends(task, capsys):
    """The trainer has submitted another job for it."""
    before = signal.getsignal(signal.SIGTERM)
    assert task(0, "", "--worker", "1", token="t", SLURM_RESTART_COUNT="1") == 1
    assert "the trainer has already submitted another one for this worker" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("rank", "more", "variables", "token", "worker"),
    [
        (2, (), {}, None, (1, "7.0")),
        (2, (), {"SLURM_RESTART_COUNT": "3"}, None, (1, "7.3")),
        (0, ("--worker", "4"), {}, None, (4, "7.0")),
        (0, ("--worker", "0"), {}, "t", (0, "t")),
    ],
)
def test_which_worker_a_process_of_a_job_is(task, monkeypatch, rank, more, variables, token, worker):
    found = []
    monkeypatch.setattr(
        entry, "_run_worker", lambda cfg, files, number, token, objects=None: found.append((number, token)) or 5
    )
    assert task(rank, "", *more, token=token, **variables) == 5
    assert found == [worker]


def test_a_signal_ends_a_job_only_before_its_result(task, folder, within, monkeypatch):
    ended = Result(Status.COMPLETED, "", 1, 1, 1.0, 0.0, None, None, None, 0, None, (), folder.path)
    killed = []

    def execute(*arguments):
        for has_result in (False, True):
            if has_result:
                folder.result.touch()
            handler = signal.getsignal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, handler)
        return ended

    monkeypatch.setattr(execution, "execute", execute)
    within(entry, "os", kill=lambda *target: killed.append(target))
    assert task(0) == 0
    assert killed == [(os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize("gone", ["the trainer", "its node"])
def test_the_task_of_an_ended_worker_lasts_as_long_as_the_trainer(task, folder, within, monkeypatch, gone):
    monkeypatch.setattr(worker_entry, "run_remote_worker", lambda *arguments: None)
    worker_jobs.announce_trainer(folder, Endpoint(("127.0.0.1",), 4000, b"secret"), "7.0")
    node, waits = folder.node_note("7"), []
    node.parent.mkdir(exist_ok=True)
    node.write_text("n1")

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            folder.exit_status("7").touch() if gone == "the trainer" else node.unlink()

    within(process, "time", sleep=sleep)
    assert task(1) == 0
    assert len(waits) == 3


def test_a_worker_that_finds_no_trainer_says_where_it_looked(folder, capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert entry.main(["--wait", "0.3", str(folder.path), "--worker", "0"]) == 1
    signal.signal(signal.SIGTERM, before)
    assert f"no trainer within 0.3 s (queue_timeout_s=0.3): {folder.job_spec} does not" in capsys.readouterr().err
