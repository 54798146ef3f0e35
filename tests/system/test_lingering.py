"""User code that would keep a command for ever: it ends, and says what it waited for."""

import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, environment, result

SHAPE = ["collector=single", "collector.frames_per_batch=20", "collector.total_frames=40", "hydra.run.dir=run"]
THREAD = "threads of an env or of other code of yours still run: telemetry, telemetry. Start such"
MADE = "making the trainer's own env (env.entry_point=user_code.lingering:never_made)"


@pytest.mark.parametrize(
    ("env", "options", "status", "parts"),
    [
        pytest.param("threaded", [], 0, [THREAD], id="thread"),
        pytest.param(
            "never_made",
            ["collector.start_timeout_s=7"],
            1,
            [
                f"collectx: {MADE} has taken more than 5 s; it is killed after 7 s (collector.start_timeout_s=7). It",
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
    assert str(tmp_path / "run") in ended.stdout.splitlines()
