"""Run folders of other formats. `tests/run_folders/format_2` is a whole run that is still read; `argv` in its
`snapshot/meta.json` is the command that wrote it."""

import json
import shutil
from pathlib import Path
from unittest.mock import ANY

import pytest
from commands import forked, result

from collectx import __version__
from collectx.run.folder import snapshot

KEPT = Path(__file__).parents[1] / "run_folders" / "format_2"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(KEPT, tmp_path / "run")


def change_meta(folder, **facts):
    """Replaces facts in `meta.json`; None removes one."""
    path = folder / "snapshot" / "meta.json"
    meta = json.loads(path.read_text()) | facts
    path.write_text(json.dumps({name: value for name, value in meta.items() if value is not None}))


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_folder_of_an_earlier_format_that_is_the_same_is_read(folder):
    cwd = folder.parent
    assert "completed" in forked("status", ".", cwd=cwd).stdout
    assert "2 episodes" in forked("eval", "run", "episodes=2", cwd=cwd).stdout
    assert "written to" in forked("report", "run", cwd=cwd).stdout
    # On another processor floating-point results may differ, and with them the actions.
    numerics = json.loads((folder / "snapshot" / "meta.json").read_text())["numerics"]
    is_same = numerics["processor"] == snapshot.processor()
    done = forked("reproduce", "run", cwd=cwd, status=0 if is_same else ANY)
    assert ("all 3 batches are identical" if done.returncode == 0 else "processor: ") in done.stdout + done.stderr
    assert "continues after 3 batches" in forked("resume", "run", "run.max_batches=4", cwd=cwd).stdout
    assert result(folder)["frames"] == 128


@pytest.mark.parametrize("facts", [{"format": None, "id": None}, {"format": 2, "id": None}], ids=str)
def test_a_folder_of_another_format_is_refused_and_stays_as_it_was(folder, facts):
    change_meta(folder, **facts)
    before = content(folder)
    for words in (["reproduce", "run"], ["resume", "run", "run.max_batches=4"], ["eval", "run"]):
        said = forked(*words, cwd=folder.parent, status=2).stderr
        assert (
            f"run has format 1, but collectx {__version__} reads format 3. Use the version that wrote it, 0.1.0" in said
        )
        assert "or start a new run" in said
    argv = json.loads((folder / "snapshot" / "meta.json").read_text())["argv"]
    said = forked(*argv[1:], "run.max_batches=4", "run.resume=auto", cwd=folder.parent, status=2).stderr
    assert "has format 1, but" in said
    assert content(folder) == before
    assert "completed" in forked("status", ".", cwd=folder.parent).stdout


def test_a_folder_of_a_newer_format_is_refused(folder):
    change_meta(folder, format=99, packages={"collectx": "9.8"})
    for command in ("reproduce", "resume"):
        said = forked(command, "run", cwd=folder.parent, status=2).stderr
        assert f"has format 99, but collectx {__version__} reads format 3" in said
        assert "Use the version that wrote it, 9.8" in said
