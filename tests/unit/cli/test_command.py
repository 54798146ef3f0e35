"""The installed command, in processes of its own: start time, completion by a real bash, a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectx import __version__
from collectx.cli.main import SUBCOMMANDS, help_text
from collectx.run import order

COMMAND = Path(sys.executable).parent / "collectx"
SMALL = [
    "env=counting",
    "policy=random",
    "trainer=meter",
    "trainer.digest=true",
    "collector.frames_per_batch=64",
    "collector.total_frames=256",
]


def collectx(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *argv], cwd=cwd, capture_output=True, text=True, timeout=200)


def test_version_and_unknown_subcommand(tmp_path: Path):
    assert collectx("--version", cwd=tmp_path).stdout == f"collectx {__version__}\n"
    done = collectx("rnu", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean run?" in done.stderr


def test_help_names_every_subcommand():
    assert all(f"  {name} " in help_text() for name in SUBCOMMANDS)


@pytest.mark.parametrize("argv", [["--version"], ["list"], ["run", "env=nothing"], ["-sc", "query=bash"]])
def test_nothing_heavy_is_imported_before_it_is_needed(argv: list[str], tmp_path: Path):
    code = (
        "import sys\nfrom collectx.cli.main import main\n"
        f"try: main({argv!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'tensordict', 'rich'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    environment = {**os.environ, "COMP_LINE": "collectx run env="}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def completion(tmp_path_factory) -> str:
    """What `eval "$(collectx -sc install=bash)"` evaluates."""
    return collectx("-sc", "install=bash", cwd=tmp_path_factory.mktemp("install")).stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("collectx r", {"run", "reproduce"}),
        ("collectx run env=cart", {"env=cartpole"}),
        (
            "collectx run -m trainer=",
            {"trainer=custom", "trainer=dqn", "trainer=impala", "trainer=meter", "trainer=ppo"},
        ),
        ("collectx run --config-dir conf seed=1 env=mi", {"env=mine"}),
        ("collectx run collector.num_workers_", {"collector.num_workers_per_collector="}),
    ],
)
def test_completion_by_bash(line: str, expected: set[str], completion: str, tmp_path: Path):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").write_text("kind: counting\n")
    # What bash does on <TAB>: calls the function registered for the command, with these variables.
    script = f"""
        eval "$COMPLETION"
        COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; words=($COMP_LINE); COMP_CWORD=$((${{#words[@]}} - 1))
        function=$(complete -p collectx | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "COMPLETION": completion}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def test_run_then_reproduce(tmp_path: Path):
    done = collectx("run", *SMALL, "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["frames"], result["batches"]) == ("completed", 256, 4)
    # Wherever its workers come up.
    again = collectx("reproduce", "run", "launcher=inline", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "identical: all 4 batches are identical" in again.stdout


@pytest.mark.ci
def test_an_async_run_is_reproduced_in_its_order(tmp_path: Path):
    asked = ["collector=multi_async", "trainer=impala", "trainer.digest=true"]
    size = ["collector.frames_per_batch=128", "collector.total_frames=4096", "env.num_envs=2"]
    run = collectx("run", *asked, *size, "hydra.run.dir=run", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    again = collectx("reproduce", "run", "hydra.run.dir=again", cwd=tmp_path)
    assert (again.returncode, "identical: all 32 batches" in again.stdout) == (0, True), again.stdout + again.stderr
    assert order.read(tmp_path / "again") == order.read(tmp_path / "run")


def test_a_sweep_with_its_table(tmp_path: Path):
    done = collectx("run", "-m", *SMALL, "collector=single", "seed=0,1", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"seed=0", "seed=1", "multirun.yaml"}
    assert [line.split()[:2] for line in done.stdout.splitlines()[-3:-1]] == [
        ["seed=0", "completed"],
        ["seed=1", "completed"],
    ]
