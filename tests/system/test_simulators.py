"""What an env starts ends with its worker, however that ends: by a simulator that is a process of its own, which stays
in the worker's process group, has a session of its own, or has no parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from commands import start as start_command
from configurations import gym, start, worker_pids

from collectx.errors import WorkerTimeout

TESTS = Path(__file__).parents[1]
KINDS = {
    "child": {},
    "session": {"leaves_session": True},
    "daemon": {"flags": ["--daemon"]},
    "stubborn": {"flags": ["--daemon", "--stubborn"]},
}
# After SIGTERM, a process has a second.
SOON_S = 20.0


def first_port():
    """The port of the simulator for the spaces. Those of another process of tests are elsewhere."""
    return 12_000 + os.getpid() % 1000 * 20


class Simulators:
    """The simulators that have their port, by the number of their env."""

    def __init__(self, folder, wait_until):
        self.folder, self._wait_until, self._all = folder, wait_until, {}

    def pid(self, index):
        """Returns the process id of the simulator of env `index`."""
        path = self.folder / f"{first_port() + 1 + index}.pid"
        self._wait_until(lambda: path.exists() and path.read_text(), 200, str(path))
        return int(path.read_text())

    def __call__(self, index):
        """Returns the process id of the simulator of env `index`, which runs."""
        pid = self.pid(index)
        return self._all.setdefault(pid, psutil.Process(pid))

    def end(self, processes):
        """Waits for the end of processes."""
        self._wait_until(lambda: not any(map(is_alive, processes)), SOON_S, f"the end of {processes}")


def is_alive(process):
    """Whether a process runs, or that with an id."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def simulators(tmp_path, wait_until):
    started = Simulators(tmp_path / "simulators", wait_until)
    started.folder.mkdir()
    yield started
    left = [process for process in started._all.values() if is_alive(process)]
    for process in left:
        process.kill()
    assert left == []


def env(simulators, **kwargs):
    arguments = {"port": first_port(), "folder": str(simulators.folder), **kwargs}
    return gym(entry_point="worlds.simulated:SimulatedEnv", **arguments)


@pytest.mark.parametrize(
    "kind", ["stubborn", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("child", "session", "daemon"))]
)
def test_a_killed_worker_takes_its_simulator_along_and_leaves_those_of_others(simulators, kind):
    knobs = {"on_worker_failure": "restart", "total_frames": -1}
    with start("multi_sync", "local", env(simulators, **KINDS[kind]), **knobs) as collector:
        next(collector)
        first, other = simulators(0), simulators(1)
        os.kill(worker_pids(collector)[0], signal.SIGKILL)
        # Its port is free for the one of the replacement.
        for _ in range(4):
            next(collector)
        simulators.end([first])
        assert is_alive(other)
        assert simulators(0).pid != first.pid
        assert simulators(1).pid == other.pid
    simulators.end([other, simulators(0)])
    licences = list(simulators.folder.glob("*.licence"))
    assert bool(licences) is (kind == "stubborn")


@pytest.mark.ci
def test_the_trainer_ends_the_simulators_of_workers_that_end_with_the_fork_server(
    simulators, wait_until, fork_server_pid
):
    knobs = {"on_worker_failure": "restart", "total_frames": -1}
    with start("multi_sync", "local", env(simulators, **KINDS["daemon"]), **knobs) as collector:
        next(collector)
        before = [simulators(0), simulators(1)]
        workers = worker_pids(collector)
        os.kill(fork_server_pid(), signal.SIGKILL)
        # They end when the fork server is gone, and may fill a few small batches until then.
        wait_until(lambda: not any(map(is_alive, workers)), SOON_S, "the end of the workers")
        for _ in range(4):
            next(collector)
        simulators.end(before)
        after = [simulators(0), simulators(1)]
    simulators.end(after)


@pytest.mark.ci
def test_a_hung_worker_takes_its_simulator_along(simulators):
    knobs = {"num_workers": 1, "worker_timeout_s": 1.0, "close_timeout_s": 0.0}
    with start("multi_sync", "local", env(simulators, hangs_at=15, leaves_session=True), **knobs) as collector:
        next(collector)
        simulator = simulators(0)
        with pytest.raises(WorkerTimeout):
            list(collector)
    simulators.end([simulator])


@pytest.mark.parametrize("kind", ["child", "daemon"])
@pytest.mark.parametrize("closes", [False, True])
def test_a_collector_that_is_closed_leaves_no_simulator(simulators, kind, closes):
    with start("single", "inline", env(simulators, closes=closes, **KINDS[kind])) as collector:
        next(collector)
        stepped = simulators(0)
        assert is_alive(stepped)
        # Of the env that shows its spaces.
        assert not is_alive(simulators.pid(-1))
    simulators.end([stepped])


# The second word is the signal that ends the trainer; None: the run ends by itself.
COMMANDS = [
    pytest.param("single", "child", None, id="single"),
    pytest.param("single", "stubborn", signal.SIGKILL, id="single-killed"),
    pytest.param("multi_sync", "stubborn", signal.SIGKILL, id="local-killed"),
    pytest.param("multi_async", "session", signal.SIGINT, id="local-ctrl_c"),
    pytest.param("distributed_sync", "daemon", signal.SIGKILL, id="network-killed"),
]


@pytest.mark.sample(2)
@pytest.mark.ci
@pytest.mark.parametrize(("collector", "kind", "number"), COMMANDS)
def test_a_run_leaves_no_simulator(tmp_path, simulators, wait_until, monkeypatch, collector, kind, number):
    """Trainers are killed while their envs take a step that does not end."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    kwargs = {"port": first_port(), "folder": str(simulators.folder), **KINDS[kind]}
    if number == signal.SIGKILL:
        kwargs["hangs_at"] = 20
    written = ", ".join(f"{name}: {value}" for name, value in kwargs.items()).replace("'", "")
    words = ["env=gym", "env.num_envs=1", "env.entry_point=worlds.simulated:SimulatedEnv", f"env.kwargs={{{written}}}"]
    words += [f"collector={collector}", "collector.frames_per_batch=32", "policy=random", "trainer=meter"]
    words += [f"collector.total_frames={64 if number is None else -1}", "hydra.run.dir=run"]
    words += ["collector.num_workers=2"] * (collector != "single")
    command = start_command("run", *words, cwd=tmp_path)
    stepping = [simulators(index) for index in range(1 if collector == "single" else 2)]
    if number is not None:
        lines = tmp_path / "run" / "metrics.jsonl"
        hang = [simulators.folder / f"{first_port() + 1 + index}.hangs" for index in range(len(stepping))]
        is_there = lines.exists if number == signal.SIGINT else lambda: all(path.exists() for path in hang)
        wait_until(lambda: is_there() or command.poll() is not None, 200, "a batch or a step that hangs")
        (os.killpg if number == signal.SIGINT else os.kill)(command.pid, number)
    status, said = command.wait(200), (tmp_path / "said.txt").read_text()
    assert status == {None: 0, signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number], said
    simulators.end(stepping)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from collectx import Collector
from worlds.simulated import SimulatedEnv

if __name__ == "__main__":
    collector = Collector(
        lambda env_index: SimulatedEnv(int(sys.argv[2]), sys.argv[3], env_index, flags=["--daemon"]),
        frames_per_batch=10,
    )
    next(iter(collector))
    raise SystemExit(3)
"""


@pytest.mark.ci
def test_a_script_that_forgets_to_close_leaves_no_simulator(tmp_path, simulators, wait_until):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "train.py", str(TESTS), str(first_port()), str(simulators.folder)]
    assert subprocess.run(words, cwd=tmp_path, timeout=200, check=False).returncode == 3
    wait_until(lambda: not is_alive(simulators.pid(0)), SOON_S, "the end of the simulator")
