"""Runs of the real command that faults happen to, and what came of each fault."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from .leftovers import Leftovers
from .plan import FULL_DISK, TRAINER_FAULTS, WORKER_FAULTS, Fault, Plan

_COMMAND = str(Path(sys.executable).parent / "collectx")
_TESTS = Path(__file__).parents[1]
_NUM_ENVS, _STEPS = 5, 5
_PAUSE_S, _STEP_S, _SHORT_S, _TIMEOUT_S = 0.04, 0.0005, 0.5, 3.0
_KEEP = 2
# A run that does nothing for that long has not survived.
_PATIENCE_S = 400.0
_DISK_BYTES = 16 << 20


@dataclass
class Outcome:
    """What came of one fault. Times are None where there is nothing to notice or to recover from."""

    run: int
    collector: str
    rule: str
    moment: str
    fault: str
    survived: bool = False
    wrong_frames: int = 0
    notice_s: float | None = None
    recover_s: float | None = None
    # Whether it has cut a checkpoint that was being written.
    is_cut: bool = False
    note: str = ""


class Broken(Exception):
    """The run did not do what its rule says."""


class Run:
    """One run, in `folder`, and the processes that it started."""

    def __init__(self, plan: Plan, folder: Path):
        self.plan, self._folder = plan, folder
        self._pulse, self._said = folder / "pulse", folder / "said.txt"
        self._run = folder / "run"
        self._disk = folder if any(each.kind == FULL_DISK for each in plan.faults) else None
        is_sync = plan.collector.endswith("_sync")
        frames = _NUM_ENVS * _STEPS * (plan.num_workers if is_sync else 2)
        self.num_batches = 80 + 30 * len(plan.faults)
        self._words = [
            *(f"collector={plan.collector}", f"collector.on_worker_failure={plan.rule}"),
            *(f"collector.num_workers={plan.num_workers}", f"collector.frames_per_batch={frames}"),
            *(f"collector.total_frames={frames * self.num_batches}", "collector.max_restarts=1000"),
            *(f"collector.worker_timeout_s={_TIMEOUT_S}", "checkpoint.every_batches=10"),
            *("env=counting", f"env.num_envs={_NUM_ENVS}", f"env.step_s={_STEP_S}"),
            *("policy=custom", "policy.target=user_code.children:Policy"),
            *("trainer=custom", "trainer.target=user_code.checking:CheckingTrainer"),
            f"trainer.kwargs={{pulse: {self._pulse}, pause_s: {_PAUSE_S}, num_envs: {_NUM_ENVS}}}",
            f"hydra.run.dir={self._run}",
        ]
        self._trainer: subprocess.Popen | None = None
        self._leftovers: Leftovers
        self._batches_of_part = 0

    def play(self) -> list[Outcome]:
        """Blocks until the run is completed, or has broken."""
        plan, outcomes = self.plan, []
        self._folder.mkdir()
        self._leftovers = Leftovers(self._folder, can_mount=os.geteuid() == 0)
        if self._disk:
            self._run.mkdir()
            options = f"size={_DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(self._run)], check=True)
        outcome = Outcome(plan.number, plan.collector, plan.rule, "", "")
        try:
            self._start("run", *self._words)
            for fault in plan.faults:
                outcome = Outcome(plan.number, plan.collector, plan.rule, fault.moment, fault.kind)
                outcomes.append(outcome)
                self._suffer(fault, outcome)
                outcome.survived = True
            self._complete()
        except Broken as error:
            outcome.survived, outcome.note = False, f"{error} (run {plan.number}: {self._folder})"
            outcome.wrong_frames = int("AssertionError: env " in self._read(self._said))
            if self._disk:
                shutil.copytree(self._run, self._folder / "disk")
        finally:
            self._end()
        return outcomes

    # --- one fault ---

    def _suffer(self, fault: Fault, outcome: Outcome) -> None:
        self._wait_for(fault)
        before, struck_s = self._numbers(), time.time()
        if fault.kind in TRAINER_FAULTS:
            is_kill = fault.kind != "trainer terminated"
            self._trainer.send_signal(signal.SIGKILL if is_kill else signal.SIGTERM)
            self._continue(outcome, struck_s, -9 if is_kill else 130)
        elif fault.kind == FULL_DISK:
            self._fill_disk(outcome, struck_s)
        else:
            self._strike_workers(fault, before, outcome, struck_s)

    def _wait_for(self, fault: Fault) -> None:
        """Blocks until the moment of `fault`."""
        if fault.moment == "start-up":
            self._wait(lambda: self._workers(), "a worker process")
            time.sleep(0.5 * fault.chance)
            return
        at = self.num_batches - 2 if fault.moment == "at the end" else self._batches_of_part + 12
        if fault.moment == "at the end":
            Path(f"{self._pulse}.hurry").touch()
        self._wait(lambda: self._numbers()["batches"] >= at, f"batch {at}")
        if fault.moment == "while a checkpoint is written":
            with contextlib.suppress(ProcessLookupError):
                self._trainer.send_signal(signal.SIGUSR1)
            end_s = time.monotonic() + 5.0
            while time.monotonic() < end_s and not self._is_writing() and self._trainer.poll() is None:
                time.sleep(0.0005)
            time.sleep(0.005 * fault.chance)
        elif fault.moment == "within a batch":
            time.sleep(_PAUSE_S + _STEP_S * _STEPS * fault.chance)

    def _strike_workers(self, fault: Fault, before: dict, outcome: Outcome, struck_s: float) -> None:
        workers = self._workers()
        count = WORKER_FAULTS[fault.kind]
        victims = [workers[(int(fault.chance * 97) + i) % len(workers)] for i in range(min(count or 1, len(workers)))]
        if count is None:
            count, victims = len(workers), [server for server in [self._fork_server()] if server]
        children = [child for victim in victims for child in _children(victim.pid)]
        number = {"worker terminated": signal.SIGTERM}.get(fault.kind, signal.SIGKILL)
        number = signal.SIGSTOP if "stopped" in fault.kind else number
        for victim in victims or workers[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
        if fault.kind == "worker stopped for 0.5 s":
            time.sleep(_SHORT_S)
            for victim in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGCONT)
            return self._expect_batches(outcome, struck_s)
        if fault.kind == "worker terminated":
            # A worker that has only just been forked has the default action still.
            psutil.wait_procs(victims, _SHORT_S)
            if all(map(_is_alive, victims)):
                return self._expect_batches(outcome, struck_s)
            count = 1
        ends = self.plan.rule == "raise" or (self.plan.rule == "drop" and count >= len(workers))
        name = {"restart": "worker_restarted", "drop": "worker_dropped"}.get(self.plan.rule)

        def has_recovered() -> bool:
            if self._trainer.poll() is not None:
                return True
            if ends:
                return False
            if self.plan.rule == "restart":
                return self._numbers()["lives"] >= before["lives"] + count
            return len(self._events(name, struck_s)) >= count and self._numbers()["batches"] > before["batches"] + 2

        self._wait(has_recovered, f"the end of the run or {name}", check=False)
        self._wait(lambda: not any(map(_is_alive, children)), "the end of what the worker had started", check=False)
        failed = self._events("worker_failed", struck_s)
        if failed:
            outcome.notice_s = failed[0]["time"] - struck_s
        if self._trainer.poll() is None:
            outcome.recover_s = time.time() - struck_s
            return None
        if self._trainer.returncode == 0 and fault.moment == "at the end":
            return None
        if not ends or not failed:
            raise Broken(f"it ended with status {self._trainer.returncode}, {len(failed)} failures noticed")
        return self._continue(outcome, struck_s, 1)

    def _expect_batches(self, outcome: Outcome, struck_s: float) -> None:
        seen = self._numbers()["batches"]
        self._wait(lambda: self._trainer.poll() is not None or self._numbers()["batches"] > seen + 3, "batches")
        if failed := self._events("worker_failed", struck_s):
            raise Broken(f"{outcome.fault} is a failure: {failed}")
        if self._trainer.poll() not in (None, 0):
            raise Broken(f"{outcome.fault} ended the run: {self._trainer.returncode}")

    def _fill_disk(self, outcome: Outcome, struck_s: float) -> None:
        filler = self._run / "filler"
        with open(filler, "wb", buffering=0) as file:

            def has_ended() -> bool:
                # Also what the run itself has removed meanwhile.
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(1 << 12))
                return self._trainer.poll() is not None

            self._wait(has_ended, "the error of a full disk", check=False)
        filler.unlink()
        if self._trainer.returncode == 0 and outcome.moment == "at the end":
            return
        outcome.notice_s = time.time() - struck_s
        if "No space left on device" not in self._read(self._said):
            raise Broken("the full disk is not named")
        self._continue(outcome, struck_s, 1)

    def _continue(self, outcome: Outcome, struck_s: float, status: int) -> None:
        """Waits for the end of the trainer and all its processes, and resumes the run."""
        self._wait(lambda: self._trainer.poll() is not None, "the end of the trainer", check=False)
        outcome.is_cut = self._is_writing()
        self._wait_for_processes()
        ended_s, code = time.time(), self._trainer.returncode
        if code == 0 and outcome.moment == "at the end":
            return
        if code != status:
            raise Broken(f"exit status {code}, expected {status}")
        if outcome.notice_s is None:
            outcome.notice_s = ended_s - struck_s
        has_checkpoint = any((self._run / "checkpoints").glob("[0-9]" * 9))
        if outcome.fault == "trainer terminated" or not has_checkpoint:
            self._start("run", *self._words, "resume=auto")
        else:
            self._start("resume", str(self._run))
        self._wait(lambda: self._numbers()["batches"] > self._batches_of_part or self._trainer.poll() == 0, "a batch")
        outcome.recover_s = time.time() - ended_s

    # --- the run ---

    def _start(self, *argv: str) -> None:
        self._pulse.unlink(missing_ok=True)
        paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = os.environ | self._leftovers.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        environ.pop("OMP_NUM_THREADS", None)
        complete = sorted((self._run / "checkpoints").glob("[0-9]" * 9))
        self._batches_of_part = int(complete[-1].name) if complete else 0
        with open(self._said, "a") as said:
            said.write(f"\n$ collectx {' '.join(argv)}\n")
            said.flush()
            self._trainer = subprocess.Popen(
                [*self._leftovers.prefix, _COMMAND, *argv],
                cwd=self._folder,
                env=environ,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def _complete(self) -> None:
        Path(f"{self._pulse}.hurry").touch()
        self._wait(lambda: self._trainer.poll() is not None, "the end of the run", check=False)
        if self._trainer.returncode != 0:
            raise Broken(f"the last part ended with status {self._trainer.returncode}")
        self._wait_for_processes()
        if left := self._leftovers.problems(self._run, _KEEP):
            raise Broken(f"it has left {left}")
        result, numbers = json.loads((self._run / "result.json").read_text()), self._numbers()
        if (result["status"], result["frames"]) != ("completed", numbers["frames"]):
            raise Broken(f"result {result['status']} with {result['frames']} frames, checked {numbers['frames']}")
        begun = len(self._events("worker_restarted", 0.0))
        begun += sum(len(each["new_episodes"]) for each in self._events("resumed", 0.0))
        if numbers["lives"] > begun:
            raise Broken(f"workers began {numbers['lives']} lives, {begun} were reported")

    def _end(self) -> None:
        for process in self._leftovers.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._trainer is not None:
            self._trainer.wait()
        if self._disk:
            subprocess.run(["umount", "-l", str(self._run)], check=True)

    def _wait(self, condition: Callable[[], object], what: str, check: bool = True) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if check and self._trainer.poll() is not None and not condition():
                raise Broken(f"it ended with status {self._trainer.returncode} before {what}")
            if time.monotonic() > end_s:
                left = [
                    f"{each.pid} {each.status()} {sum(each.cpu_times()[:2]):.1f} s"
                    for each in self._leftovers.processes()
                ]
                raise Broken(
                    f"not within {_PATIENCE_S:g} s: {what}; processes, their states and processor time: {left}"
                )
            time.sleep(0.01)

    def _wait_for_processes(self) -> None:
        """Blocks until the trainer, which has ended, has no process any more."""
        processes = self._leftovers.processes()
        self._wait(lambda: not any(map(_is_alive, processes)), "the end of all processes", check=False)
        if left := self._leftovers.processes():
            raise Broken(f"processes without a trainer: {left}")

    def _numbers(self) -> dict:
        text = self._read(self._pulse)
        return json.loads(text) if text else {"batches": 0, "frames": 0, "lives": 0}

    def _events(self, name: str, since_s: float) -> list[dict]:
        lines = self._read(self._run / "events.jsonl").splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in events if each["event"] == name and each["time"] >= since_s]

    def _is_writing(self) -> bool:
        """Whether there is an incomplete checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            return any(name.startswith(".new-") for name in os.listdir(self._run / "checkpoints"))
        return False

    def _fork_server(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            trainer = psutil.Process(self._trainer.pid).cmdline()
            for child in _children(self._trainer.pid):
                # A fork of the trainer, or the Python that replaces it.
                if child.cmdline() == trainer or any("forkserver" in word for word in child.cmdline()):
                    return child
        return None

    def _workers(self) -> list[psutil.Process]:
        server = self._fork_server()
        return [] if server is None else [child for child in _children(server.pid) if _is_alive(child)]

    @staticmethod
    def _read(path: Path) -> str:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text()
        return ""


def _children(pid: int) -> list[psutil.Process]:
    """Returns the child processes in the order of their ids. Costs less than psutil, which reads all processes."""
    found: list[psutil.Process] = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(child)))
    return sorted(found, key=lambda child: child.pid)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def as_plain(outcome: Outcome) -> dict:
    return asdict(outcome)
