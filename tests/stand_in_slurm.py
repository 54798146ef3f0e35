"""A stand-in for SLURM's commands, in this process (the fixture `queue` of tests/unit), and runs that are submitted to
it."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from composed_overrides import composed

from collectx.errors import LauncherError
from collectx.jobs.status import NamedRun
from collectx.jobs.submit import run_jobs
from collectx.place.slurm import commands


def write_result(folder: Path, status: str, reason: str = "", **fields) -> None:
    result = {"status": status, "exit_reason": reason, "frames": 512, "batches": 1, "wall_s": 0.5, "start_s": 0.1}
    result |= {"frames_per_s": 1000.0, "mean_return": None, "num_episodes": 0, "digest": None, "failures": []}
    (folder / "result.json").write_text(json.dumps(result | fields))


class Queue:
    """SLURM's commands. A job plays a role by its seed as soon as it is submitted, unless `is_held`:

        0 completes    1 fails with a traceback    2 runs on    3 is killed, and leaves no result

    Attributes:
        states: of every job; a test may change them.
        scripts: in the order in which they were submitted.
        preempted: the names of partitions that preempt.
        error, refusal: what every command, or a submission, fails with; `error_type` is the type of the former.
    """

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self.scripts: list[str] = []
        self.preempted: list[str] = []
        self.error = self.refusal = ""
        self.error_type = LauncherError
        self.is_held = False
        self.deaf: set[str] = set()

    write_result = staticmethod(write_result)

    def run(self, command: Sequence[str]) -> str:
        if self.error:
            raise self.error_type(self.error)
        return getattr(self, command[0])(command)

    def sbatch(self, command: Sequence[str]) -> str:
        if self.refusal:
            raise LauncherError(self.refusal)
        text = Path(command[-1]).read_text()
        number = 100 + len(self.scripts)
        self.scripts.append(text)
        folders = [Path(line.strip()) for line in text.partition("runs=(\n")[2].partition("\n)\n")[0].splitlines()]
        for index, folder in enumerate(folders):
            job = f"{number}_{index}" if "#SBATCH --array" in text else f"{number}"
            self.states[job] = "PENDING"
            self.folders[job] = folder
        return f"{number}\n"

    def play(self, folder: Path) -> str:
        seed = json.loads((folder / "jobs" / "task.json").read_text())["cfg"]["seed"]
        state = {1: "FAILED", 2: "RUNNING", 3: "FAILED"}.get(seed, "COMPLETED")
        if seed == 1:
            (folder / "logs" / "trainer.log").write_text("Traceback (most recent call last):\nLeverError: stuck\n")
            failure = {"type": "LeverError", "message": "stuck", "worker": 0}
            write_result(folder, "failed", "LeverError: stuck", failures=[failure])
        elif state == "COMPLETED":
            write_result(folder, "completed")
        return state

    def squeue(self, command: Sequence[str]) -> str:
        return "".join(f"{job}|{state}|Resources|n1\n" for job, state in self.states.items())

    def scontrol(self, command: Sequence[str]) -> str:
        if command[1] == "requeue":
            self.states[command[2]] = "PENDING"
        if command[1:3] == ["show", "hostnames"]:
            return command[3]
        if command[1] == "release":
            jobs = [job for job in self.folders if job.partition("_")[0] == command[2] and not self.is_held]
            self.states |= {job: self.play(self.folders[job]) for job in jobs}
        modes = {"REQUEUE": self.preempted, "OFF": ["cpu"]}
        lines = [f"PartitionName={name} Default=NO PreemptMode={mode}" for mode in modes for name in modes[mode]]
        return "\n".join(lines)

    def scancel(self, command: Sequence[str]) -> str:
        """Behaves as SLURM 22.05: with a state or a signal, it fails without a message for a job that has ended, and
        acts on the others; a state means all pending tasks of an array; a signal is for jobs that run."""
        named = {job: state for job, state in self.states.items() if job in command}
        states = [word.removeprefix("--state=") for word in command if word.startswith("--state=")]
        is_signal = "--signal=INT" in command
        if is_signal and not states and "PENDING" in named.values():
            raise LauncherError("Job can not be altered now, try again later")
        has_ended = not {*named.values()} <= {"PENDING", "RUNNING"}
        jobs = {job for job, state in named.items() if state in (states or ["PENDING", "RUNNING"])}
        if states == ["PENDING"]:
            arrays = {job.partition("_")[0] for job in jobs}
            jobs |= {job for job in self.states if self.states[job] == "PENDING" and job.partition("_")[0] in arrays}
        # A trainer that SIGINT interrupts cancels its job.
        self.states |= dict.fromkeys(jobs - (self.deaf if is_signal else set()), "CANCELLED")
        if has_ended and (states or is_signal):
            raise commands.NoMessage("scancel failed with exit status 1, and printed no reason")
        return ""


def missing(script: str, *options: str) -> list[str]:
    return [option for option in options if f"#SBATCH --{option}\n" not in script]


def start(*lines: str) -> SimpleNamespace:
    """Submits runs of these configurations as those of a sweep, and follows those that are not to be left."""
    lines = [f"launcher=slurm run.overwrite=true {line}" for line in lines]
    runs = [NamedRun(f"point{i}", Path(f"point{i}").absolute(), composed(line)) for i, line in enumerate(lines)]
    results = []
    return SimpleNamespace(is_detached=run_jobs(runs, ["run"], Path.cwd(), results), results=results)
