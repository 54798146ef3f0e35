"""`execute` on real envs and collectors, with a trainer of the test's own."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from collectx import trainer as trainers
from collectx.cli.compose import compose
from collectx.config import GymEnvConfig, LauncherConfig
from collectx.errors import ConfigError, SpaceError
from collectx.run import RunFolder, Status, Verdict, compare, execute, job


class Meter:
    """Counts, and has a state."""

    def __init__(self):
        self.frames = 0

    def train(self, collection):
        for batch in collection:
            self.frames += batch.numel()
            collection.log(frames=self.frames)

    def state_dict(self):
        return {"frames": self.frames, "weight": torch.ones(2)}


class Raising(Meter):
    def train(self, collection):
        next(iter(collection))
        raise LookupError("no such luck")


class Leaving(Meter):
    def train(self, collection):
        next(iter(collection))


@pytest.fixture
def train_with(monkeypatch):
    """Makes `execute` use the given trainer."""

    def use(trainer):
        monkeypatch.setattr(trainers, "build", lambda *arguments: trainer, raising=False)

    return use


def read(folder):
    files = RunFolder(folder)
    return files, files.read_result(), list(files.read_metrics())


def test_a_whole_run(cfg, tmp_path, train_with, capsys):
    train_with(Meter())
    result = execute(cfg, tmp_path / "run", ["run", "seed=3"])
    files, saved, lines = read(tmp_path / "run")
    assert result.status is Status.COMPLETED
    assert result.exit_status == 0
    assert (saved["status"], saved["frames"], saved["batches"], saved["failures"]) == ("completed", 100, 5, [])
    assert saved["exit_reason"] == "all frames delivered"
    assert 0 < saved["start_s"] < saved["wall_s"]
    assert saved["frames_per_s"] > 0
    assert len(saved["digest"]) == 32
    assert [line["frames"] for line in lines] == [line["scalars"]["frames"] for line in lines] == [20, 40, 60, 80, 100]
    assert saved["num_episodes"] == sum(line["episodes"] for line in lines) > 0
    assert torch.load(files.final_checkpoint)["frames"] == 100
    assert json.loads(files.meta.read_text())["argv"] == ["run", "seed=3"]
    assert files.config.exists()
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == str(tmp_path / "run")
    assert "completed" in out
    assert not err


def test_the_meter(cfg, tmp_path):
    result = execute(cfg, tmp_path, [])
    assert (result.status, result.frames, result.batches) == (Status.COMPLETED, 100, 5)


@pytest.mark.parametrize(
    ("kind", "more"), [("ppo", []), ("impala", []), ("dqn", ["policy=q_mlp", "trainer.warmup_frames=64"])]
)
def test_a_learning_trainer(tmp_path, kind, more):
    frames = [*more, "env.num_envs=2", "collector.frames_per_batch=64", "collector.total_frames=256"]
    result = execute(compose([f"trainer={kind}", "collector=single", *frames]), tmp_path, [])
    files, _, lines = read(tmp_path)
    assert (result.status, result.frames) == (Status.COMPLETED, 256)
    assert all(line["scalars"] for line in lines)
    assert torch.load(files.final_checkpoint)
    assert [line["event"] for line in files.read_events()].count("publish") >= 3


def test_the_same_run_again_is_identical_and_another_one_differs(cfg, tmp_path):
    for name, each in {"old": cfg, "new": cfg, "other": dataclasses.replace(cfg, seed=4)}.items():
        execute(each, tmp_path / name, [])
    assert compare(tmp_path / "old", tmp_path / "new").identical
    other = compare(tmp_path / "old", tmp_path / "other")
    assert (other.verdict, other.first_different) == (Verdict.DIFFERENT, 0)


def test_a_trainer_may_end_the_run(cfg, tmp_path, train_with):
    train_with(Leaving())
    result = execute(cfg, tmp_path, [])
    assert result.status is Status.COMPLETED
    assert result.exit_reason == "the trainer ended the run after 20 frames"
    assert result.frames_per_s is None


def test_a_trainer_that_raises(cfg, tmp_path, train_with, capsys):
    train_with(Raising())
    result = execute(cfg, tmp_path, [])
    files, saved, lines = read(tmp_path)
    assert (result.status, result.exit_status) == (Status.FAILED, 1)
    assert saved["failures"] == [{"type": "LookupError", "message": "no such luck"}]
    assert saved["exit_reason"] == "LookupError: no such luck"
    assert (saved["frames"], len(lines)) == (20, 1)
    assert "Traceback" in files.log("trainer").read_text()
    out, err = capsys.readouterr()
    assert "LookupError: no such luck" in err
    assert "in train" in err
    assert str(files.log("trainer")) in err
    assert "failed" in out


def test_an_old_result_does_not_survive(cfg, tmp_path, train_with):
    train_with(Meter())
    execute(cfg, tmp_path, [])
    train_with(Raising())
    execute(cfg, tmp_path, [])
    _, saved, lines = read(tmp_path)
    assert (saved["status"], len(lines)) == ("failed", 1)


@pytest.mark.parametrize("error", [ConfigError(["one", "two"]), SpaceError("a space of words")])
def test_a_configuration_that_only_the_parts_can_refuse(cfg, tmp_path, monkeypatch, error):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr(trainers, "build", refuse, raising=False)
    with pytest.raises(ConfigError, match=str(error)):
        execute(cfg, tmp_path, [])
    assert RunFolder(tmp_path).read_result()["status"] == "failed"


def test_a_device_that_is_not_there(cfg, tmp_path):
    cfg = dataclasses.replace(cfg, devices=dataclasses.replace(cfg.devices, device="cuda:99"))
    with pytest.raises(ConfigError, match="cuda:99"):
        execute(cfg, tmp_path, [])


@pytest.fixture
def processes(cfg):
    """Two worker processes, endless."""
    collector = dataclasses.replace(
        cfg.collector, kind="multi_sync", num_workers=2, frames_per_batch=400, total_frames=-1
    )
    return dataclasses.replace(cfg, collector=collector, launcher=LauncherConfig("local", None, 1, False))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(processes, tmp_path, train_with, signum):
    class Interrupted(Meter):
        def train(self, collection):
            self.frames += next(iter(collection)).numel()
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signum))
            timer.start()
            super().train(collection)

    train_with(Interrupted())
    result = execute(processes, tmp_path, [])
    files, saved, lines = read(tmp_path)
    assert (result.status, result.exit_status) == (Status.INTERRUPTED, 130)
    assert saved["exit_reason"] == f"interrupted by {signum.name}"
    assert saved["frames"] == lines[-1]["frames"]
    assert saved["batches"] == len(lines)
    assert saved["failures"] == []
    assert torch.load(files.final_checkpoint)["frames"] > 0


FRAGILE = """
import gymnasium

class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 250:
            raise ZeroDivisionError("the pole is gone")
        return self.observation_space.sample(), 0.0, False, False, {}
"""


def test_an_env_that_raises_in_a_worker(processes, tmp_path, train_with, capsys, monkeypatch):
    (tmp_path / "fragile_env.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    train_with(Meter())
    env = GymEnvConfig("gym", 1, None, "fragile_env:Fragile")
    result = execute(dataclasses.replace(processes, env=env), tmp_path / "run", [])
    files, saved, _ = read(tmp_path / "run")
    assert (result.status, result.frames) == (Status.FAILED, 400)
    (failure,) = saved["failures"]
    assert failure["type"] == "ZeroDivisionError"
    assert failure["message"] == "the pole is gone"
    assert failure["worker"] in (0, 1)
    err = capsys.readouterr().err
    assert "ZeroDivisionError: the pole is gone" in err
    assert f"worker {failure['worker']}" in err
    assert str(files.log(f"worker-{failure['worker']}")) in err
    assert "fragile_env.py" in err
    assert "fragile_env.py" in files.log("trainer").read_text()


def test_a_worker_that_is_killed(processes, tmp_path, train_with, capsys):
    class Killing(Meter):
        def train(self, collection):
            next(iter(collection))
            (victim,) = (each for each in multiprocessing.active_children() if each.name.endswith("-1"))
            os.kill(victim.pid, signal.SIGKILL)
            super().train(collection)

    train_with(Killing())
    result = execute(processes, tmp_path, [])
    assert result.status is Status.FAILED
    (failure,) = result.failures
    assert failure.type == "collectx.errors.WorkerDied"
    assert failure.worker == 1
    assert "worker 1" in capsys.readouterr().err
    assert not multiprocessing.active_children()


def test_importing_the_job_leaves_torch_out():
    code = "import sys, collectx.run.job; assert 'torch' not in sys.modules; assert 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


ENDLESS = """
import sys
from pathlib import Path

from collectx import trainer as trainers
from collectx.config import *
from collectx.run import execute


class Telling:
    def train(self, collection):
        for _ in collection:
            print("batch", flush=True)

    def state_dict(self):
        return {}


trainers.build = lambda *arguments: Telling()
cfg = RunConfig(
    env=CountingEnvConfig("counting", 2, 5, 3, 0.0),
    policy=RandomPolicyConfig("random"),
    collector=CollectorConfig(
        *("multi_async", 2, 20, -1, "random", 2, False, "raise", 10, 60.0, 60.0, 10.0, 1, "sync", None, None, False),
        *(False, "batch", None, None, "padded", False, None),
    ),
    backend=BackendConfig("auto"),
    launcher=LauncherConfig("local", None, 1, False),
    devices=DevicesConfig("cpu", None, None, None),
    trainer=MeterTrainerConfig("meter", False),
    seed=0,
)
if __name__ == "__main__":
    sys.exit(execute(cfg, Path(sys.argv[1]), sys.argv).exit_status)
"""


def members(group):
    """The living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
            if rest[0] != "Z" and int(rest[2]) == group:
                found.append(pid)
    return found


@pytest.mark.parametrize("presses", [pytest.param(1, marks=pytest.mark.ci), 2])
def test_ctrl_c_on_a_terminal_reaches_everyone_and_leaves_nothing(tmp_path, wait_until, presses):
    (tmp_path / "endless.py").write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py"), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.stdout.readline() != "batch\n":
        assert process.poll() is None, process.stderr.read()
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=200)
    _, saved, lines = read(tmp_path / "run")
    assert process.returncode == 130, err
    assert (saved["status"], saved["exit_reason"]) == ("interrupted", "interrupted by SIGINT")
    assert saved["batches"] == len(lines) > 0
    assert err == "collectx: interrupted by SIGINT\n"
    assert out.splitlines()[-1] == str(tmp_path / "run")
    wait_until(lambda: not members(process.pid), what=f"all of its processes end: {members(process.pid)}")


@pytest.mark.parametrize(("num_cpus", "expected"), [(1, 1), (2, 1), (4, 3)])
def test_the_trainer_leaves_cores_to_the_workers(cfg, tmp_path, monkeypatch, num_cpus, expected):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(job, "num_cpus", lambda: num_cpus)
    torch.set_num_threads(4)
    try:
        execute(cfg, tmp_path, [])
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("hard", "allowed"), [(8192, 4256), (1000, 1000)])
def test_many_workers_may_have_as_many_open_files_as_they_need(hard, allowed):
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (500, {hard}))\n"
        "from collectx.run.job import allow_descriptors; allow_descriptors(1000)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(hard)]
