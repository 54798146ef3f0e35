"""The installed command, in processes of its own."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
COMMAND = which("collectx", path=_PATH) or "collectx"
# A run without a learner.
COUNTING = ["env=counting", "policy=random", "trainer=meter"]
RAY = ["collector=ray", "launcher=ray", "launcher.ray_init_config={num_cpus: 2, address: local}"]
_started: list[subprocess.Popen[str]] = []
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


def environment(**changes: str) -> dict[str, str]:
    """Returns a user's environment: the command is on PATH, and the number of torch's threads is not set."""
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"PATH": _PATH} | changes


def collectx(*argv: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, which must have this exit status."""
    done = subprocess.run([COMMAND, *argv], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=250)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@functools.cache
def _forking() -> Any:
    from forked_commands import Forking

    return Forking()


def forked(*argv: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command as `collectx` does, in less time: the process is forked from one that has imported what commands
    import (`forked_commands.py`). Use it for a test's further commands, unless the test is about how a command
    starts."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder, "stdout"), Path(folder, "stderr")
        ended = _forking().run(argv, cwd, outputs)
        said, error = (path.read_text() if path.exists() else "" for path in outputs)
    assert ended == status, said + error
    return subprocess.CompletedProcess([COMMAND, *argv], ended, said, error)


def start(*argv: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Starts the command in a process group of its own; what it prints goes to `said.txt`. If it runs at the end of the
    test, which has failed, it is killed."""
    options = {"env": environment()} | options
    with open(cwd / "said.txt", "w") as said:
        command = subprocess.Popen(
            [COMMAND, *argv],
            cwd=cwd,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
    _started.append(command)
    return command


def kill_started() -> None:
    """Kills what `start` has started and still runs, so that it does not disturb the next tests."""
    for command in _started:
        if command.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait(10)
    _started.clear()


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def debian(command: str, package: str) -> str:
    """The path of a command that a package of Debian has, which is installed where this user may; otherwise the test is
    skipped."""
    install = f"apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends {package}"
    if which(command) is None and which("apt-get") is not None and os.geteuid() == 0:
        variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        script = f"{install} || (apt-get update && {install})"
        subprocess.run(["sh", "-c", script], env=variables, capture_output=True, timeout=280)
    if (path := which(command)) is None:
        pytest.skip(f"{command} is not installed: apt-get install {package}, as root")
    return path
