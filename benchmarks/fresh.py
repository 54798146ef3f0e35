"""Runs a measurement in a new process, so that none inherits threads, caches or imports of another.

parent: run("benchmarks.peer", case="cartpole_32", cores=[0])  --argv: JSON-->  child: serve(measure)
                                                <--last line of stdout: JSON--

Or several measurements on request, so that two sides can be measured in short turns:

parent: Session("benchmarks.bare", case="cartpole_32", cores=[0])  --argv: JSON-->  child: serve_turns(measuring)
        .turn(0.5)                                           --seconds-->
                                                     <--a line of stdout: JSON--
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter
from typing import Any, Self

# Thread pools are sized when their libraries load; envs and policy use one thread on every side.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_RESULT = "benchmark result: "
_ENVIRONMENTS = Path(__file__).parents[1] / ".bench"
# Warm-up of `turns`: at first, and before every turn, which takes what accumulated since the last one.
_WARM_S = (1.0, 0.2)


class Failed(Exception):
    """The measurement's process ended without a result."""


def run(module: str, timeout_s: float = 120.0, **arguments: Any) -> dict[str, Any]:
    """Returns the result of `measure(**arguments)` of `module` in a new Python process, which is pinned to
    `arguments["cores"]` before heavy imports. Kills its process group after `timeout_s`."""
    process = _start(module, arguments, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"{module} {arguments} took more than {timeout_s:g} s") from error
        raise
    for line in reversed(output.splitlines()):
        if line.startswith(_RESULT):
            return json.loads(line.removeprefix(_RESULT))
    raise Failed(f"{module} {arguments} ended with {process.returncode}: {errors[-2000:]}")


class Session:
    """A new process, started as by `run` but in `folder`, that measures in turns until the context ends.

    Args:
        stopped: whether its process group is stopped between turns, as by SIGSTOP. Without, its workers may fill
            queues while another side is measured.
        python: the interpreter; `module` must import there what it needs.

    Raises:
        Failed: by any method: the process ended without an answer, or took more than `timeout_s`.
    """

    def __init__(
        self,
        module: str,
        timeout_s: float = 120.0,
        folder: Path | None = None,
        stopped: bool = False,
        python: str = sys.executable,
        **arguments: Any,
    ):
        self._name, self._timeout_s, self._is_ready = f"{module} {arguments}", timeout_s, False
        self._stopped = stopped
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = _start(module, arguments, python, cwd=folder, **pipes)

    def wait_until_ready(self) -> None:
        """Blocks until the process has prepared its measurement."""
        if not self._is_ready:
            self._answer()
            self._is_ready = True
            self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> dict[str, Any]:
        """Returns a measurement of so many seconds, after a warm-up. Blocks."""
        self.wait_until_ready()
        self._signal(signal.SIGCONT)
        print(seconds, file=self._process.stdin, flush=True)
        result = self._answer()
        self._signal(signal.SIGSTOP)
        return result

    def _signal(self, number: signal.Signals) -> None:
        if self._stopped:
            os.killpg(self._process.pid, number)

    def _answer(self) -> dict[str, Any]:
        watchdog = threading.Timer(self._timeout_s, os.killpg, (self._process.pid, signal.SIGKILL))
        watchdog.start()
        output: deque[str] = deque(maxlen=30)
        try:
            for line in self._process.stdout or ():
                if line.startswith(_RESULT):
                    return json.loads(line.removeprefix(_RESULT))
                output.append(line)
        finally:
            watchdog.cancel()
        raise Failed(f"{self._name} ended with {self._process.wait()}: {''.join(output)[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes standard input, which ends the process."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _start(module: str, arguments: dict[str, Any], python: str = sys.executable, **pipes: Any) -> subprocess.Popen:
    command = [python, "-W", "ignore", "-m", module, json.dumps(arguments)]
    environment = {**os.environ, **_ONE_THREAD}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True, **pipes
    )


def serve_turns(measuring: Callable[..., Generator[dict[str, Any], float, None]]) -> None:
    """Main function of the child of a `Session`: pins itself, prepares, then measures once per line of standard input.

    Args:
        measuring: yields once when it is ready; then receives seconds and yields the measurement.
    """
    answer(measuring(**arguments()))


def answer(turns: Generator[dict[str, Any], float, None]) -> None:
    """Answers the requests of a `Session` for measurements; see `serve_turns`."""
    out = sys.__stdout__  # `sys.stdout` may be a terminal
    print(_RESULT + json.dumps(next(turns)), file=out, flush=True)
    for line in sys.stdin:
        print(_RESULT + json.dumps(turns.send(float(line))), file=out, flush=True)
    turns.close()


def turns(take: Callable[[], int], **about: Any) -> Generator[dict[str, Any], float, None]:
    """The turns of `serve_turns` over calls of `take`, which returns how many frames it took. `about` is added to every
    measurement."""
    taken(take, _WARM_S[0])
    seconds = yield {}
    while True:
        taken(take, _WARM_S[1])
        frames, elapsed_s = taken(take, seconds)
        seconds = yield {"frames": frames, "seconds": elapsed_s, **about}


def taken(take: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Calls `take` for so many seconds; returns how many frames it took, and seconds."""
    frames, began = 0, perf_counter()
    while (elapsed_s := perf_counter() - began) < seconds:
        frames += take()
    return frames, elapsed_s


def serve(measure: Callable[..., dict[str, Any]]) -> None:
    """Main function of the child of `run`: pins itself, measures, prints the result."""
    print(_RESULT + json.dumps(measure(**arguments())), flush=True)


def python_of(name: str) -> str:
    """The interpreter of the environment `.bench/NAME` of another library, which make installs; without one, this."""
    environment = _ENVIRONMENTS / name
    return str(environment / "bin" / "python") if (environment / ".installed").exists() else sys.executable


def arguments() -> dict[str, Any]:
    """The arguments of the child's measurement; pins the process to `cores` of them."""
    values = json.loads(sys.argv[1])
    if values.get("cores"):
        os.sched_setaffinity(0, values["cores"])
    return values


def cores() -> list[int]:
    """The first two cores that this process may use; comparisons use only those, so that two workers fill them."""
    return sorted(os.sched_getaffinity(0))[:2]
