"""Counts the files and lines of collectx that run for a frame, a publish, a lost worker, a checkpoint and a resume.

    python -m benchmarks.walks [--files]

Runs the command with two sync workers, over shared memory and over gloo, with the env and the trainer of this module,
and resumes the first run. Every process traces the lines that it executes (`sys.settrace`) and appends new lines to a
file. Workers trace from the import of their env on. Lines that run when a module is imported are not counted.
"""

import argparse
import inspect
import json
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).parents[1]
SOURCES = (f"{ROOT}/collectx/", f"{ROOT}/cli/")
# Phases of a run; lines of the phase "" are not recorded.
PHASES = ("", "start", "frame", "publish", "replacement", "checkpoint", "resume")
# After which batch a phase begins. The first batch ends "start" or "resume".
BEGINS = {1: "", 5: "frame", 8: "", 10: "publish", 13: "", 15: "replacement", 18: "", 20: "checkpoint", 21: ""}
# Title, backend, phase, the phases whose lines are subtracted, and whether lines of the workers count.
TABLE = (
    ("a frame, shared memory", "auto", "frame", (), True),
    ("a frame, gloo", "gloo", "frame", (), True),
    ("a publish, shared memory", "auto", "publish", ("frame",), True),
    ("a publish, gloo", "gloo", "publish", ("frame",), True),
    ("a worker killed and replaced, shared memory, in the trainer", "auto", "replacement", ("frame",), False),
    ("a checkpoint, in the trainer", "auto", "checkpoint", ("frame",), False),
    ("a resume, in the trainer", "auto", "resume", ("start", "frame"), False),
)
OPTIONS = [
    *("env=gym", "env.entry_point=benchmarks.walks:Walk", "env.num_envs=1"),
    *("trainer=custom", "trainer.target=benchmarks.walks:Trainer"),
    *("collector.frames_per_batch=16", "collector.total_frames=-1", "collector.on_worker_failure=restart"),
    *("run.max_batches=22", "checkpoint.every_batches=20"),
]


class Tracer:
    """Records lines of this process, while `control[0]`, which all processes share, is the index of a phase."""

    def __init__(self, folder: Path):
        self._log = os.open(folder / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(folder / "control", "r+b") as file:
            # The phase, and whether a worker shall kill itself.
            self.control = mmap.mmap(file.fileno(), 2)
        self._seen: set[tuple[int, str, int]] = set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = self._call(frame, "call", None)
            frame = frame.f_back

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # otherwise a module or the body of a class
        return self._line if is_function and code.co_filename.startswith(SOURCES) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        line = self.control[0], frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line[0] and line not in self._seen:
            self._seen.add(line)
            os.write(self._log, f"{json.dumps([*line, IS_TRAINER])}\n".encode())
        return self._line


IS_TRAINER = multiprocessing.parent_process() is None
TRACER = Tracer(Path(os.environ["WALKS"])) if "WALKS" in os.environ and __name__ != "__main__" else None


class Walk(gymnasium.Env):
    """Episodes of 10 frames; kills its process when the trainer orders it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        if TRACER is not None and TRACER.control[1]:
            TRACER.control[1] = 0
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(4, np.float32), 1.0, self._steps == 10, False, {}


class Trainer:
    """Switches from phase to phase."""

    def __init__(self, policy: Any):
        self._policy = policy

    def train(self, collection: Any) -> None:
        assert TRACER is not None
        for batch, _ in enumerate(collection, start=1):
            phase = BEGINS.get(batch, PHASES[TRACER.control[0]])
            TRACER.control[0] = PHASES.index(phase)
            TRACER.control[1] = BEGINS.get(batch) == "replacement"
            if phase == "publish":
                collection.publish(self._policy)


def traced(folder: Path, phase: str, argv: list[str]) -> dict[tuple[str, bool], set[tuple[str, int]]]:
    """Runs the command and returns the lines that ran, by phase and whether the trainer's process ran them."""
    (folder / "control").write_bytes(bytes([PHASES.index(phase), 0]))
    (folder / "lines").write_text("")
    code = "from benchmarks import walks; walks.command()"
    environment = os.environ | {"WALKS": str(folder)}
    subprocess.run(
        [sys.executable, "-c", code, *argv], env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    lines = defaultdict(set)
    for text in (folder / "lines").read_text().splitlines():
        index, path, line, is_trainer = json.loads(text)
        lines[PHASES[index], is_trainer].add((path, line))
    return lines


def command() -> None:
    """The traced command."""
    from collectx.cli.main import main

    main(sys.argv[1:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__.partition("\n")[0])
    parser.add_argument("--files", action="store_true", help="also print the files, with their lines that run")
    options = parser.parse_args()
    lines = {}
    with tempfile.TemporaryDirectory() as temporary:
        for backend in ("auto", "gloo"):
            folder = Path(temporary, backend)
            folder.mkdir()
            run = f"{folder}/run"
            lines[backend] = traced(folder, "start", ["run", *OPTIONS, f"backend={backend}", f"hydra.run.dir={run}"])
            if backend == "auto":
                lines[backend] |= traced(folder, "resume", ["resume", run, "run.max_batches=23"])
    print(f"{'':60}{'files':>6}{'lines':>7}{'that run':>10}")
    for title, backend, phase, others, with_workers in TABLE:
        of_run = lines[backend]
        ran = of_run[phase, True] | (of_run[phase, False] if with_workers else set())
        ran -= {each for other in others for each in of_run[other, True] | of_run[other, False]}
        files = Counter(path for path, _ in ran)
        total = sum(len(Path(path).read_text().splitlines()) for path in files)
        print(f"{title:60}{len(files):6}{total:7,}{len(ran):10,}")
        if options.files:
            for path, count in sorted(files.items()):
                print(
                    f"    {Path(path).relative_to(ROOT)!s:56}{len(Path(path).read_text().splitlines()):13,}{count:10,}"
                )


if __name__ == "__main__":
    main()
