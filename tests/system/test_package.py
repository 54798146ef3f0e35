"""The wheel and the source distribution: their metadata, and the command without the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ci
def test_the_wheel_runs_without_the_repository(tmp_path):
    def run(*words, **variables):
        environment = os.environ | {"PIP_NO_INDEX": "1"} | variables
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # A copy, as the build writes into its folder.
    source = tmp_path / "source"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if name.startswith(("collectx/", "cli/", "conf/", "examples/custom_trainer_project/")) or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run("build", "--no-isolation", "--outdir", "dist", str(source))
    files = sorted(str(path) for path in (tmp_path / "dist").iterdir())
    assert [Path(path).suffix for path in files] == [".whl", ".gz"]
    run("twine", "check", "--strict", *files)
    run("pip", "install", "--quiet", "--no-deps", "--target", "installed", files[0])
    installed = {"PYTHONPATH": str(tmp_path / "installed")}
    version = run("collectx", "--version", **installed).split()[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert str(tmp_path / "installed") in run("pip", "show", "--files", "collectx", **installed)
    assert "cartpole" in run("collectx", "list", "env", **installed)
    assert "completed" in run("collectx", "run", "debug=tiny", "env=counting", "trainer=meter", **installed)
    # The project is that of a checkout.
    run("collectx", "init", "mine", **installed)
    mine, folder = tmp_path / "mine", "examples/custom_trainer_project/"
    files = sorted(str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_file())
    assert files == sorted(name.removeprefix(folder) for name in tracked.splitlines() if name.startswith(folder))
