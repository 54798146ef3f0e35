"""Ctrl-C and SIGTERM: the run ends in order, with a result, and leaves no process. Ctrl-Z: it goes on afterwards."""

import os
import pty
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import COMMAND, COUNTING, RAY, environment, needs_ray, result, start

from collectx.errors import ConfigError
from collectx.run import RunFolder
from collectx.run.folder.layout import locked


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize(
    ("words", "number", "presses"),
    [
        pytest.param(["collector=multi_async"], signal.SIGINT, 1, id="local-ctrl_c"),
        pytest.param(["collector=multi_async"], signal.SIGINT, 2, id="local-ctrl_c_twice", marks=pytest.mark.nightly),
        pytest.param(["collector=multi_sync"], signal.SIGTERM, 1, id="local-sigterm", marks=pytest.mark.nightly),
        pytest.param(["collector=multi_sync"], signal.SIGHUP, 1, id="local-hangup", marks=pytest.mark.nightly),
        pytest.param(["collector=rpc"], signal.SIGINT, 1, id="rpc-ctrl_c", marks=pytest.mark.nightly),
        pytest.param(["collector=rpc"], signal.SIGTERM, 1, id="rpc-sigterm", marks=pytest.mark.nightly),
        pytest.param(RAY, signal.SIGINT, 1, id="ray-ctrl_c", marks=[needs_ray, pytest.mark.nightly]),
        pytest.param(RAY, signal.SIGTERM, 1, id="ray-sigterm", marks=[needs_ray, pytest.mark.nightly]),
    ],
)
def test_a_signal_ends_a_run_in_order_and_leaves_nothing(tmp_path, wait_until, words, number, presses):
    lines = tmp_path / "run" / "metrics.jsonl"
    command = start("run", *COUNTING, *words, "collector.total_frames=-1", "hydra.run.dir=run", cwd=tmp_path)
    wait_until(lambda: (lines.exists() and lines.read_text()) or command.poll() is not None, 200, "a batch")
    there = psutil.Process(command.pid).children(recursive=True)
    with (
        pytest.raises(ConfigError, match=f"process {command.pid} on "),
        locked(RunFolder(tmp_path / "run"), replace=True),
    ):
        pass
    for _ in range(presses):
        # A terminal signals the group, a scheduler the process.
        (os.kill if number is signal.SIGTERM else os.killpg)(command.pid, number)
    status, said = command.wait(200), (tmp_path / "said.txt").read_text()
    assert status == 130, said
    assert "Traceback" not in said
    assert said.count(f"collectx: interrupted by {number.name}\n") == 1
    assert said.splitlines()[-1] == f"run folder: {tmp_path / 'run'}"
    ended = result(tmp_path / "run")
    assert (ended["status"], ended["exit_reason"]) == ("interrupted", f"interrupted by {number.name}")
    assert ended["batches"] == len(lines.read_text().splitlines()) > 0
    assert len(there) >= 2
    wait_until(lambda: not psutil.wait_procs(there, 0)[1], what=f"the end of {there}")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "helpers", "error"),
    [
        (signal.SIGTERM, {"start_method": "fork"}, "DataLoader worker"),
        (signal.SIGINT, {"start_method": "spawn"}, "DataLoader worker"),
        # Forked helpers survive the first Ctrl-C; a Pool would wait for ever for the task of a process that died.
        (signal.SIGINT, {"start_method": "fork", "pool": True}, ""),
    ],
    ids=["loader-sigterm", "spawned-loader-ctrl_c", "pool-ctrl_c"],
)
def test_a_signal_that_ends_a_trainers_helpers_too_leaves_a_checkpoint(tmp_path, wait_until, number, helpers, error):
    kwargs = ", ".join(f"{name}: {value}" for name, value in helpers.items())
    words = ["trainer=custom", "trainer.target=user_code.processes:Helped", f"+trainer.kwargs={{{kwargs}}}"]
    run, tests = tmp_path / "run", str(Path(__file__).parents[1])
    words += ["env=counting", "policy=random", "collector.total_frames=-1", "hydra.run.dir=run"]
    command = start("run", *words, cwd=tmp_path, env=environment(PYTHONPATH=tests, PYTHONFAULTHANDLER="1"))
    lines, written = run / "metrics.jsonl", (tmp_path / "said.txt").read_text
    wait_until(lambda: (lines.exists() and lines.read_text()) or command.poll() is not None, 200, "a batch")
    known = set(psutil.Process(command.pid).children())

    def has_helpers():
        return command.poll() is not None or len(set(psutil.Process(command.pid).children()) - known) >= 2

    wait_until(has_helpers, 60, "helpers")
    os.killpg(command.pid, number)
    with suppress(subprocess.TimeoutExpired):
        command.wait(100)
    if command.poll() is None:  # seen once: all processes print where they are
        os.killpg(command.pid, signal.SIGABRT)
    assert command.wait(20) == 130, written()
    assert [each["event"] for each in RunFolder(run).read_events()].count("checkpoint") == 1, written()
    assert ("after the signal, the trainer raised RuntimeError: DataLoader worker" in written()) == bool(error)
    assert not error or error in (run / "logs" / "trainer.log").read_text()
    assert result(run)["status"] == "interrupted"


# Failed once beside other tests, which was not explained; not in 50 repeats on a busy machine.
@pytest.mark.nightly
@pytest.mark.parametrize("where", ["init", "step"])
def test_a_debugger_waits_for_its_user_without_a_limit_and_nothing_draws_over_its_prompt(tmp_path, where):
    words = ["env=gym", "env.entry_point=user_code.debugged:make", f"env.kwargs.where={where}", "debug=inline"]
    words += ["policy=random", "trainer=meter", "collector.total_frames=1000", "collector.start_timeout_s=3"]
    variables = environment(PYTHONPATH=str(Path(__file__).parents[1]), TERM="xterm", COLUMNS="120")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(COMMAND, [COMMAND, "run", *words, "hydra.run.dir=run"], variables)
    said = b""

    def read_until(is_enough, limit_s):
        nonlocal said
        end_s = time.monotonic() + limit_s
        while (
            not is_enough()
            and (left_s := end_s - time.monotonic()) > 0
            and select.select([terminal], [], [], left_s)[0]
        ):
            try:
                said += os.read(terminal, 65536)
            except OSError:  # the process has closed the terminal
                return

    read_until(lambda: b"(Pdb) " in said, 100)
    size = len(said)
    assert b"(Pdb) " in said, said
    read_until(lambda: False, 8)
    assert said[size:] == b""
    os.write(terminal, b"p where\nc\n")
    read_until(lambda: b"run folder: " in said, 100)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, said
    assert f"'{where}'\r\n(Pdb) ".encode() in said


@pytest.mark.parametrize("collector", ["multi_sync", pytest.param("distributed", marks=pytest.mark.nightly)])
def test_a_run_that_was_stopped_for_longer_than_its_timeouts_goes_on_with_its_workers(tmp_path, wait_until, collector):
    lines, shape = tmp_path / "run" / "metrics.jsonl", ["collector.worker_timeout_s=2", "collector.total_frames=-1"]
    command = start("run", *COUNTING, f"collector={collector}", *shape, "hydra.run.dir=run", cwd=tmp_path)

    def has_batches(more_than):
        wait_until(lambda: (lines.exists() and lines.stat().st_size > more_than) or command.poll() is not None, 200)
        return command.poll() is None and lines.stat().st_size

    size = has_batches(0)
    os.killpg(command.pid, signal.SIGSTOP)
    resume_s = time.monotonic() + 3.0
    wait_until(lambda: time.monotonic() > resume_s)
    os.killpg(command.pid, signal.SIGCONT)
    assert has_batches(lines.stat().st_size) > size, (tmp_path / "said.txt").read_text()
    command.terminate()
    assert command.wait(200) == 130
    assert result(tmp_path / "run")["failures"] == []


def test_the_fork_server_of_a_run_that_is_interrupted_during_its_start_ends_with_it(tmp_path, wait_until):
    command = start("run", *COUNTING, "collector=multi_sync", "hydra.run.dir=run", cwd=tmp_path)

    def servers():
        """Returns the child that has the trainer's command line for good. A child that executes another program has it
        for a moment, during which the trainer waits for it (vfork)."""
        trainer = psutil.Process(command.pid)
        children = trainer.children()
        if trainer.status() == psutil.STATUS_DISK_SLEEP:
            return []
        return [each for each in children if each.cmdline() == trainer.cmdline()]

    wait_until(lambda: command.poll() is not None or servers(), 200, "the fork server")
    (server,) = servers()
    # It does not notice that its trainer has ended.
    server.suspend()
    command.send_signal(signal.SIGINT)
    assert command.wait(200) == 130
    try:
        assert not server.is_running()
    finally:
        if server.is_running():
            server.kill()
    assert result(tmp_path / "run")["exit_reason"] == "interrupted by SIGINT"


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(["collector=single"], id="inline", marks=pytest.mark.nightly),
        pytest.param(["collector=multi_async"], id="local"),
    ],
)
def test_the_signals_of_a_run_are_its_own_whatever_handlers_its_env_installs(tmp_path, wait_until, place):
    env = ["env=gym", "env.num_envs=1", "env.entry_point=user_code.signalling:make"]
    words = [*env, "policy=random", "trainer=meter", *place, "collector.total_frames=-1", "hydra.run.dir=run"]
    run, tests = tmp_path / "run", str(Path(__file__).parents[1])
    command = start("run", *words, cwd=tmp_path, env=environment(PYTHONPATH=tests, PYTHONFAULTHANDLER="1"))
    lines, written = run / "metrics.jsonl", (tmp_path / "said.txt").read_text
    wait_until(lambda: (lines.exists() and lines.read_text()) or command.poll() is not None, 200, "a batch")
    command.send_signal(signal.SIGUSR1)
    wait_until(lambda: list(run.glob("checkpoints/0*")) or command.poll() is not None, 60, "a checkpoint")
    # A scheduler may signal all processes of a run.
    os.killpg(command.pid, signal.SIGTERM)
    assert command.wait(60) == 130, written()
    assert result(run)["exit_reason"] == "interrupted by SIGTERM"
    assert (run / "checkpoints" / f"{result(run)['batches']:09d}").exists()
    note = "note: env.entry_point=user_code.signalling:make replaced the handlers of SIGINT, SIGTERM, SIGUSR1"
    assert written().count(note) == 1
    assert "the env has taken a signal" not in written() + "".join(log.read_text() for log in run.glob("logs/*"))
