"""Run folders of earlier formats are read. A run of `argv` in its meta.json has written `tests/run_folders/format_N`;
the states of checkpoints are left out there, as only the version that wrote them reads them."""

import json
import shutil
from pathlib import Path
from unittest.mock import ANY

import pytest
from commands import forked

from collectx.run.folder import snapshot

FOLDERS = sorted((Path(__file__).parents[1] / "run_folders").iterdir())


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request, tmp_path):
    return shutil.copytree(request.param, tmp_path / "run")


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_an_earlier_format_is_shown_and_reproduced(folder):
    cwd = folder.parent
    assert "completed" in forked("status", ".", cwd=cwd).stdout
    # On another processor floating-point results may differ, and with them the actions.
    numerics = json.loads((folder / "snapshot" / "meta.json").read_text())["numerics"]
    is_same = numerics["processor"] == snapshot.processor()
    done = forked("reproduce", "run", cwd=cwd, status=0 if is_same else ANY)
    assert ("all 4 batches are identical" if done.returncode == 0 else "processor: ") in done.stdout + done.stderr
    # Equal configurations: nothing is left to run.
    assert "completed" in forked("resume", "run", cwd=cwd).stdout


def test_a_checkpoint_of_an_earlier_format_is_refused_and_the_folder_stays_as_it_was(folder):
    before = content(folder)
    said = forked("resume", "run", "collector.total_frames=256", cwd=folder.parent, status=2).stderr
    assert "uses format 2, but this version of collectx reads format 3. Use the version that wrote it" in said
    assert {path: data for path, data in content(folder).items() if path.name != "lock"} == before


def test_a_folder_of_a_newer_format_is_refused(folder):
    meta = folder / "snapshot" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format": 99, "packages": {"collectx": "9.8"}}))
    for command in ("reproduce", "resume"):
        said = forked(command, "run", cwd=folder.parent, status=2).stderr
        assert "has format 99, but collectx 0.1.0 only reads formats up to 2" in said
        assert "Use the version of collectx that wrote it, 9.8" in said
