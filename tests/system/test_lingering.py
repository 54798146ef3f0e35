"""User code that would keep a command for ever: it ends, and says what it waited for."""

import os
import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, collectx, environment, forked, result

SHAPE = ["collector=single", "collector.frames_per_batch=20", "collector.total_frames=40", "hydra.run.dir=run"]
THREAD = "some threads of your code are still running: telemetry, telemetry. Start such"
MADE = "making or resetting the trainer's own env (env.entry_point=user_code.lingering:never_made)"


@pytest.mark.parametrize(
    ("env", "options", "status", "parts"),
    [
        pytest.param("threaded", [], 0, [THREAD], id="thread", marks=pytest.mark.nightly),
        pytest.param(
            "never_made",
            ["collector.start_timeout_s=7"],
            1,
            [
                f"collectx: {MADE} has taken more than 5 s; it will be ended after 7 s without progress (",
                f"collectx: TimeoutError: {MADE} took more than 7 s (collector.start_timeout_s=7).",
                "lingering.py",
            ],
            id="constructor",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "never_closed",
            ["collector.close_timeout_s=1"],
            0,
            ["closing the envs took more than 1 s (collector.close_timeout_s=1).", "lingering.py"],
            id="close",
        ),
    ],
)
def test_a_command_ends_although_its_env_does_not(tmp_path, env, options, status, parts):
    words = [
        "env=gym",
        "env.num_envs=1",
        f"env.entry_point=user_code.lingering:{env}",
        "policy=random",
        "trainer=meter",
    ]
    variables = environment(PYTHONPATH=str(Path(__file__).parents[1]))
    run = [COMMAND, "run", *words, *SHAPE, *options]
    # It ends by itself: killed after the timeout, it would not have this status.
    ended = subprocess.run(run, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=150)
    said = ended.stdout + ended.stderr
    assert ended.returncode == status, said
    assert result(tmp_path / "run")["status"] == ("failed" if status else "completed")
    for part in parts:
        assert part in said
    assert f"run folder: {tmp_path / 'run'}" in ended.stdout.splitlines()


@pytest.mark.parametrize(
    "env",
    ["never_made", pytest.param("never_interrupted", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("command", ["plan", "eval"])
def test_plan_and_eval_end_although_the_constructor_of_an_env_does_not(tmp_path, monkeypatch, command, env):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    run = ["policy=random", "trainer=meter", "debug=tiny", "hydra.run.dir=run"]
    if command == "eval":
        forked("run", "env=gym", "env.id=CartPole-v1", *run, cwd=tmp_path)
    words = {"plan": ["env=gym", *run], "eval": ["run", "env.id=null"]}[command]
    hangs = [f"env.entry_point=user_code.lingering:{env}", "collector.start_timeout_s=1"]
    ended = collectx(command, *words, *hangs, cwd=tmp_path, status=1)
    more = "If that is normal, raise collector.start_timeout_s."
    limit = f"took more than 1 s (collector.start_timeout_s=1). {more}\nIt was at:\n"
    # The notes of an error that was raised are indented.
    said = ended.stderr.replace("  It was at:", "It was at:")
    assert f"TimeoutError: making an env (env.entry_point=user_code.lingering:{env}) {limit}" in said
    assert "lingering.py" in said.partition(limit)[2]


@pytest.mark.ci
def test_a_killed_worker_leaves_no_word_of_leaked_semaphores(tmp_path):
    (tmp_path / "cruel.py").write_text(
        "import os, signal, gymnasium\n"
        "class Cruel(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "        return super().step(action)\n"
    )
    words = ["env=gym_vector", "env.id=CartPole-v1", "env.num_envs=2", "policy=random", "trainer=meter"]
    processes = ["env.vectorization_mode=async", "env.context=spawn", "env.wrappers=[{_target_: cruel.Cruel}]"]
    size = ["collector=multi_sync", "collector.num_workers=2", *SHAPE[1:]]
    ended = collectx("run", *words, *processes, *size, cwd=tmp_path, status=1)
    assert "was killed by signal 9 (SIGKILL)" in ended.stderr
    assert "leaked" not in ended.stderr
