"""`collectx plan`, `doctor` and `tune` as a user types them, and what they say compared with real runs."""

import json
import re
import shlex
import signal
import subprocess

import psutil
import pytest
from commands import COMMAND, COUNTING, collectx, environment, forked, result, start

from collectx.run import RunFolder


def mapped(pid: int, name: str) -> list[int]:
    """The sizes of the anonymous files of a name that a process maps."""
    with open(f"/proc/{pid}/maps") as file:
        rows = [line.split() for line in file if f"memfd:collectx-{name} " in line]
    return [int(end, 16) - int(begin, 16) for begin, end in (row[0].split("-") for row in rows)]


@pytest.mark.parametrize("words", [
    pytest.param([*COUNTING, "env.observation_size=5000"], id="sync"),
    pytest.param(
        ["env=counting", "policy=q_mlp", "trainer=dqn", "collector=multi_async"], id="dqn", marks=pytest.mark.nightly
    ),
    pytest.param(["inference=server", "env.num_envs=4"], id="server", marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_plan_says_what_the_run_has(words, tmp_path, wait_until):
    words = [*words, "collector.total_frames=-1"]
    (planned,) = json.loads(collectx("plan", *words, "--json", cwd=tmp_path).stdout)["runs"]
    assert not any(tmp_path.iterdir())
    process = start("run", *words, "hydra.run.dir=run", cwd=tmp_path)
    try:
        metrics = RunFolder(tmp_path / "run").metrics
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, 60, "the first batch")
        below = [each for each in psutil.Process(process.pid).children(recursive=True) if each.status() != "zombie"]
        memory, page = planned["memory"], 4096
        assert 1 + len(below) == planned["processes"]["total"]
        assert mapped(process.pid, "slab") == [-(-memory["shared_memory_bytes"] // page) * page]
        if replay := memory["replay_buffer_bytes"]:
            # Workers write to it; the trainer maps it when it samples.
            wait_until(lambda: max(mapped(process.pid, "replay")) == -(-replay // page) * page, 60, "a sample")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    written = {path.name for path in (tmp_path / "run").iterdir()} - {"lock"}
    named = {name for names in planned["files"] for name in names.split(", ")}
    assert written <= named, written - named
    assert all(
        size >= planned["files"]["each_checkpoint_at_least_bytes"] for size in checkpoint_sizes(tmp_path / "run")
    )


def checkpoint_sizes(folder):
    folders = [path for path in RunFolder(folder).checkpoints.iterdir() if path.is_dir()]
    return [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in folders]


def test_doctor(tmp_path):
    done = subprocess.run([COMMAND, "doctor"], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    levels = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert {*levels} <= {"ok", "absent", "warning", "problem"}
    assert done.returncode == ("problem" in levels), done.stdout + done.stderr
    assert re.search(r"^ok +python ", done.stdout, re.MULTILINE)
    assert re.search(r"^ok +backends +gloo$", done.stdout, re.MULTILINE)


SMALL = ["tune.minutes=0.1", "tune.seconds=0.2", "tune.warmup_s=0.1"]


def last_command(done):
    """Returns what `collectx tune` says at its end."""
    return shlex.split(re.search(r"run it: (collectx run .*)$", done.stdout, re.MULTILINE)[1])


def test_tune_writes_an_experiment_that_the_printed_command_runs(tmp_path):
    # A part of 1 ms for each step of a worker: one worker with more envs is faster.
    words = ["env=counting", "env.step_s=0.001", "policy=random", "trainer=meter", "seed=3", "run.max_batches=4"]
    done = collectx("tune", *words, *SMALL, "hydra.run.dir=run", cwd=tmp_path)
    assert "env.num_envs" in done.stdout.splitlines()[0]
    assert done.stdout.count(" frames/s\n") >= 2
    assert re.search(r"^point +status +measured +frames/s +std$", done.stdout, re.MULTILINE)
    assert re.search(r"kept \(your settings.* [\d,]+ ", done.stdout)
    command = last_command(done)
    rest = ["run.max_batches=4", "hydra.run.dir=run"]
    assert command == ["collectx", "run", "experiment=tuned", "--config-dir", "conf", *rest]
    assert {path.name for path in tmp_path.iterdir()} == {"conf"}  # nothing of the measured runs is left
    subprocess.run(
        [COMMAND, *command[1:]], cwd=tmp_path, env=environment(), check=True, capture_output=True, timeout=100
    )
    assert (result(tmp_path / "run")["status"], result(tmp_path / "run")["batches"]) == ("completed", 4)
    text = RunFolder(tmp_path / "run").config.read_text()
    assert all(line in text for line in ("kind: counting", "step_s: 0.001", "kind: meter", "seed: 3", "num_envs:"))


@pytest.mark.nightly
def test_tune_on_top_of_an_experiment_and_into_the_users_folder(tmp_path):
    (tmp_path / "mine" / "env").mkdir(parents=True)
    (tmp_path / "mine" / "env" / "count.yaml").write_text("kind: counting\nnum_envs: 4\nepisode_length: 7\n")
    words = ["experiment=throughput", "env=count", "collector.frames_per_batch=256", "--config-dir", "mine"]
    fixed = ["env.num_envs=4", "launcher.num_threads=1", "inference=local", "collector.num_slots=2"]
    output = ["--output", "mine/experiment/fast.yaml"]
    done = collectx("tune", *words, *fixed, *SMALL, *output, cwd=tmp_path)
    assert done.stdout.startswith("searching collector.num_workers: ")
    command = last_command(done)
    assert command == ["collectx", "run", "experiment=fast", "--config-dir", "mine"]
    assert "- throughput\n" in (tmp_path / "mine" / "experiment" / "fast.yaml").read_text()
    again = collectx(*command[1:], "--cfg", "job", cwd=tmp_path).stdout
    assert all(
        line in again for line in ("episode_length: 7", "frames_per_batch: 256", "kind: multi_async", "num_envs: 4")
    )
    # The file is replaced by the command that has written it; another one is not.
    (tmp_path / "mine" / "experiment" / "fast.yaml").write_text("seed: 1\n")
    assert "tune did not write it" in collectx("tune", *words, *output, cwd=tmp_path, status=2).stderr


@pytest.mark.parametrize(("words", "said"), [
    (["tune.minute=2"], "Did you mean tune.minutes?"),
    (["tune.minutes=-1"], "tune.minutes=-1 must be greater than 0"),
    (["--output", "here.yaml"], "Write it to DIR/experiment/NAME.yaml"),
    (["-m", "seed=1,2"], "Leave out -m"),
    (["launcher=slurm"], "launcher=slurm"),
    (["collector=single"], "nothing is left to search"),
])  # fmt: skip
def test_tune_refuses(words, said, tmp_path):
    assert said in forked("tune", *words, cwd=tmp_path, status=2).stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_measured_run_ends_with_tune(tmp_path, wait_until, number):
    tune = start("tune", "env=counting", "policy=random", "trainer=meter", cwd=tmp_path)
    # The run, its fork server, and what multiprocessing starts beside it.
    measured = psutil.Process(tune.pid).children
    wait_until(lambda: len(measured(recursive=True)) > 2)
    processes = measured(recursive=True)
    tune.send_signal(number)
    assert tune.wait(30) == (128 + number if number == signal.SIGTERM else -number)
    assert psutil.wait_procs(processes, timeout=40)[1] == []


@pytest.mark.nightly
def test_tune_with_a_configuration_that_fails(tmp_path):
    (tmp_path / "bad.py").write_text("def make(**kwargs):\n    raise OSError('no licence')\n")
    done = collectx("tune", "env=gym", "env.entry_point=bad:make", "env.num_envs=2", *SMALL, cwd=tmp_path, status=1)
    assert "OSError: no licence\n  raised while make() was making an env in this process" in done.stderr
    assert not (tmp_path / "conf").exists()
