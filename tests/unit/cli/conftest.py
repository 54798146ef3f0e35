"""Stand-ins, in this process, for `collectx.run.execute` and for SLURM. Real processes are in tests/system."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import collectx.run
from collectx.cli import status
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError
from collectx.jobs import watcher
from collectx.launcher.slurm import commands
from collectx.run import RunFolder, preflight, snapshot


def write_result(folder: Path, status: str, reason: str = "", **fields) -> None:
    result = {"status": status, "exit_reason": reason, "frames": 512, "batches": 1, "wall_s": 0.5, "start_s": 0.1}
    result |= {"frames_per_s": 1000.0, "mean_return": None, "num_episodes": 0, "digest": None, "failures": []}
    (folder / "result.json").write_text(json.dumps(result | fields))


class Stub:
    """Records every run and writes what it leaves: batches with these digests, from these workers. `status` maps a
    configuration to how its run ends, `mean_return` to its result's."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, Path, list[str]]] = []
        self.status: Callable[[RunConfig], str] = lambda cfg: "completed"
        self.mean_return: Callable[[RunConfig], float | None] = lambda cfg: None
        self.digests, self.workers = ["0", "1", "2"], [0, 1, 1]

    def execute(self, cfg: RunConfig, folder: Path, argv: list[str]) -> SimpleNamespace:
        self.calls.append((cfg, folder, argv))
        status, files = self.status(cfg), RunFolder(folder)
        files.begin()
        snapshot.write_config(cfg, files.config)
        files.meta.write_text(json.dumps({"numerics": {"torch threads of the trainer": len(self.calls)}}))
        for index, (digest, worker) in enumerate(zip(self.digests, self.workers, strict=True)):
            line = {"version": index, "workers": [{"worker": worker, "policy_version": index}]}
            with open(files.metrics, "a") as file:
                file.write(json.dumps(line | ({"digest": digest} if cfg.trainer.digest else {})) + "\n")
        fields = {"digest": "d" if cfg.trainer.digest else None, "mean_return": self.mean_return(cfg)}
        write_result(folder, status, **fields)
        return SimpleNamespace(status=collectx.run.Status(status), folder=folder)


class Queue:
    """SLURM's commands. A job plays a role by its seed as soon as it is submitted, unless `is_held`:

        0 completes    1 fails with a traceback    2 runs on    3 is killed, and leaves no result

    Attributes:
        states: of every job; a test may change them.
        scripts: in the order in which they were submitted.
        preempted: the names of partitions that preempt.
        error, refusal: what every command, or a submission, fails with.
    """

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self.scripts: list[str] = []
        self.preempted: list[str] = []
        self.error = self.refusal = ""
        self.is_held = False
        self.deaf: set[str] = set()

    write_result = staticmethod(write_result)

    def run(self, command: Sequence[str]) -> str:
        if self.error:
            raise LauncherError(self.error)
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
        if command[1] == "release":
            jobs = [job for job in self.folders if job.partition("_")[0] == command[2] and not self.is_held]
            self.states |= {job: self.play(self.folders[job]) for job in jobs}
        modes = {"REQUEUE": self.preempted, "OFF": ["cpu"]}
        lines = [f"PartitionName={name} Default=NO PreemptMode={mode}" for mode in modes for name in modes[mode]]
        return "\n".join(lines)

    def scancel(self, command: Sequence[str]) -> str:
        """As SLURM 22.05: with a state or a signal, it fails without a message for a job that has ended, and acts on
        the others; a state means all pending tasks of an array; a signal is for jobs that run."""
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
            raise commands.NoMessage("scancel: exit status 1")
        return ""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """Takes the place of the run layer; the working directory is `tmp_path`."""
    stub = Stub()
    monkeypatch.setattr(collectx.run, "execute", stub.execute)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    return stub


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, within: Callable[..., None], tmp_path: Path) -> Queue:
    """Takes the place of SLURM, which is asked without pauses; the working directory is `tmp_path`."""
    queue = Queue()
    monkeypatch.setattr(commands, "_run", queue.run)
    for module in (commands, preflight, status):
        within(module, "shutil", which=lambda name: f"/usr/bin/{name}")
    for name in ("REFRESH_S", "_MIN_QUERY_S", "_SETTLE_S"):
        monkeypatch.setattr(watcher, name, 0)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    return queue
