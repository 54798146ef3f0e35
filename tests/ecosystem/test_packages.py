"""The page on packages that were tried (`docs/reference/ecosystem.md`): the commands of each of its sections run as
they stand, in a virtual environment of its own."""

import os
import re
import subprocess
import venv
from pathlib import Path

import pages
import pytest
from commands import environment

PAGE = pages.ROOT / "docs" / "reference" / "ecosystem.md"
# Each begins with the line of its title.
SECTIONS = [text for text in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:] if "```console" in text]
TIMEOUT_S = 600.0

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("packages")]


def new_environment(folder: Path, *options: str, base: Path | None = None) -> Path:
    """Makes a virtual environment with collectx, which also has what the environment `base` has. Returns the folder of
    its commands."""
    venv.create(folder, with_pip=base is None)
    python = folder / "bin" / "python"
    if base is not None:
        # Its own packages come first, so a section may install another version of one.
        (folder / packages(folder) / "base.pth").write_text(f"{base / packages(base)}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, "--editable", "."]
    subprocess.run(install, cwd=pages.ROOT, check=True)
    # `pip` of the environment, not of the one below it.
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
    pip.chmod(0o755)
    return folder / "bin"


def packages(folder: Path) -> Path:
    """The folder of the packages of a virtual environment, relative to it."""
    return next(folder.glob("lib/python*/site-packages")).relative_to(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """An environment in which collectx is installed without extras, with the versions of constraints.txt."""
    folder = tmp_path_factory.mktemp("packages") / "base"
    new_environment(folder, "--constraint", "constraints.txt")
    return folder


@pytest.mark.parametrize("section", [pytest.param(text, id=text.partition("\n")[0]) for text in SECTIONS])
def test_a_package_that_was_tried(section, base, tmp_path):
    commands = new_environment(tmp_path / "environment", "--no-deps", base=base)
    page, folder = tmp_path / "section.md", tmp_path / "user"
    page.write_text(section)
    folder.mkdir()
    pages.run(page, folder, TIMEOUT_S, PATH=f"{commands}{os.pathsep}{os.environ['PATH']}")
    for run in re.findall(r"hydra\.run\.dir=(\S+)", section):
        collectx(commands, "resume", run, "run.max_batches=7", cwd=folder)
        assert len((folder / run / "metrics.jsonl").read_text().splitlines()) == 7
        if "trainer=meter" not in section and "trainer=record" not in section:
            collectx(commands, "eval", run, "episodes=2", cwd=folder)


def collectx(commands: Path, *words: str, cwd: Path) -> None:
    """Runs the command of an environment, which must succeed."""
    command, variables = [commands / "collectx", *words], environment(PYTHONPATH=str(cwd))
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
