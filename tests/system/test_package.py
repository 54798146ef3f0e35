"""The wheel and the source distribution: their metadata, and the command without the repository. The image of the
`Containerfile`, where it can be built."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "Containerfile"


@pytest.mark.ci
def test_the_wheel_runs_without_the_repository(tmp_path):
    def run(*words, **variables):
        environment = os.environ | {"PIP_NO_INDEX": "1"} | variables
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # A copy, as the build writes into its folder, of what the Containerfile copies.
    source = tmp_path / "source"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    copied = [name for line in re.findall("^COPY (.*) \\S+$", CONTAINERFILE.read_text(), re.M) for name in line.split()]
    assert "collectx" in copied
    for name in tracked.splitlines():
        if any(name == each or name.startswith(f"{each}/") for each in copied):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run("build", "--no-isolation", "--outdir", "dist", str(source))
    files = sorted(str(path) for path in (tmp_path / "dist").iterdir())
    assert [Path(path).suffix for path in files] == [".whl", ".gz"]
    run("twine", "check", "--strict", *files)
    run("pip", "install", "--quiet", "--no-deps", "--target", "installed", files[0])
    installed = {"PYTHONPATH": str(tmp_path / "installed")}
    version = run("collectx", "--version", **installed).split()[1]
    released = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert Version(released) <= Version(version)
    assert f"## {released}" in (ROOT / "CHANGELOG.md").read_text()
    assert str(tmp_path / "installed") in run("pip", "show", "--files", "collectx", **installed)
    assert "cartpole" in run("collectx", "list", "env", **installed)
    assert "  does-not-learn " in run("collectx", "docs", **installed)
    assert "# Find out why a run does not learn" in run("collectx", "docs", "does-not-learn", **installed)
    assert "completed" in run("collectx", "run", "debug=tiny", "env=counting", "trainer=meter", **installed)
    # The project is that of a checkout.
    run("collectx", "init", "mine", **installed)
    mine, folder = tmp_path / "mine", "examples/custom_trainer_project/"
    files = {str(path.relative_to(mine)).replace("mine/", "docking/") for path in mine.rglob("*") if path.is_file()}
    assert files == {name.removeprefix(folder) for name in tracked.splitlines() if name.startswith(folder)}


def test_the_containerfile_passes_its_linter():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def _builder():
    """Returns the program that builds images on this machine; None if there is none, or its daemon does not run."""
    for name in ("podman", "docker"):
        if shutil.which(name) and not subprocess.run([name, "info"], capture_output=True, timeout=60).returncode:
            return name
    return None


@pytest.mark.nightly
def test_the_image_runs_a_command():
    if (builder := _builder()) is None:
        pytest.skip("neither podman nor docker runs here")
    build = [builder, "build", "--file", CONTAINERFILE, "--tag", "collectx-test", ROOT]
    subprocess.run(build, check=True, timeout=1500)
    command = [builder, "run", "--rm", "collectx-test", "run", "debug=tiny"]
    assert "completed" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
