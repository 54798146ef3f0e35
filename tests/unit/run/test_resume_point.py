"""Checkpoints whose files are as they were written, but of something else: the one before is taken."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch

from collectx.checkpoints import _describe
from collectx.cli import reproduce, resume
from collectx.config.schema.run import RunOptions
from collectx.run import Status, execute
from collectx.run.resume import ResumePoint

_MISSING = object()
_WRONG = ["x", [], torch.zeros(3)]
_STATE = [
    *("trainer", "collector", "assembler", "statistics", "wall_s", "generators", "generators.torch"),
    *(f"collector.{name}" for name in ("frames", "batches", "frames_by_worker", "version", "lives", "workers")),
    *("collector.workers.0", "collector.workers.0.rollout", "collector.workers.0.rollout.num_random_batches"),
    *(f"collector.workers.0.rollout.episodes{name}" for name in ("", ".traj_ids", ".returns")),
    *(f"statistics.{name}" for name in ("sums", "elapsed_s", "scalars", "workers", "workers.0.frames")),
    *(f"statistics.sums.{name}" for name in ("frames", "batches", "mean_return", "_first_frames")),
]
_ALLOWED = {
    "trainer": _WRONG,
    "generators.torch": [_MISSING, _WRONG[1]],
    "collector.workers.0": [_MISSING],
    **dict.fromkeys((f"collector.workers.0.rollout.episodes.{name}" for name in ("traj_ids", "returns")), _WRONG[2:]),
}


@pytest.fixture
def ended(cfg, folder):
    """The folder of a run of 5 batches, with checkpoints of 4 and of 5."""
    for batches in (4, 5):
        run = RunOptions(resume="auto", max_batches=batches)
        assert execute(replace(cfg, run=run), folder.path, []).status is Status.COMPLETED
    return folder


def _replaced(content, path, value):
    """A copy with another value, or without one."""
    content = inner = copy.deepcopy(content)
    *names, last = (int(name) if name.isdigit() else name for name in path.split("."))
    for name in names:
        inner = inner[name]
    if value is _MISSING:
        del inner[last]
    else:
        inner[last] = value
    return content


def _state_cases(state):
    yield from ([], None, {}, torch.zeros(3))
    yield _replaced(state, "statistics.sums.batches", 4)
    yield _replaced(state, "collector.frames", -1)
    for index, path in enumerate(_STATE):
        for value in (_MISSING, _WRONG[index % len(_WRONG)]):
            if not any(value is each for each in _ALLOWED.get(path, ())):
                yield _replaced(state, path, value)


def _falls_back(cfg, ended):
    """Whether the run continues from the older checkpoint, and names the newer one."""
    point = ResumePoint(ended, cfg)
    return point.batches == 4 and len(point.damaged) == 1 and str(ended.checkpoints / "000000005") in point.damaged[0]


@pytest.mark.ci
def test_a_state_of_the_wrong_content_falls_back_to_the_checkpoint_before(cfg, ended):
    newest, state_file = ended.checkpoints / "000000005", ended.checkpoints / "000000005" / "state.pt"
    manifest = json.loads((newest / "manifest.json").read_text())
    for content in _state_cases(torch.load(state_file, weights_only=True)):
        torch.save(content, state_file)
        files = manifest["files"] | {"state.pt": _describe(state_file)}
        (newest / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
        assert _falls_back(cfg, ended), content


def test_a_manifest_of_the_wrong_content_falls_back_to_the_checkpoint_before(cfg, ended):
    path = ended.checkpoints / "000000005" / "manifest.json"
    manifest = json.loads(path.read_text())
    wrong = [manifest | {name: value} for name in manifest for value in (None, "x", [])]
    wrong += [{name: manifest[name] for name in manifest if name != left_out} for left_out in manifest]
    for content in [*wrong, manifest | {"frames": -1}, [], None, 3, {}]:
        path.write_text(json.dumps(content))
        assert _falls_back(cfg, ended), content


def test_files_of_other_checkpoints_fall_back_to_the_checkpoint_before(cfg, ended):
    older, newest = ended.checkpoints / "000000004", ended.checkpoints / "000000005"
    for name in ("manifest.json", "state.pt"):
        before = (newest / name).read_bytes()
        shutil.copy(older / name, newest / name)
        assert _falls_back(cfg, ended), name
        (newest / name).write_bytes(before)
    assert ResumePoint(ended, cfg).batches == 5


@pytest.mark.parametrize("option", ["run.max_batches=3", "collector.total_frames=60"])
def test_an_end_before_what_is_done_is_refused_by_the_command(cfg, ended, capsys, option):
    before = {path: path.stat().st_mtime_ns for path in ended.checkpoints.iterdir()}
    assert resume.main([str(ended.path), option]) == 2
    number, what = (5, "batches") if "max" in option else (100, "frames")
    assert (
        f"{option}: {ended.checkpoints}/000000005 has {number} {what} already: choose more." in capsys.readouterr().err
    )
    assert {path: path.stat().st_mtime_ns for path in ended.checkpoints.iterdir()} == before


@pytest.mark.parametrize("line", [0, 2, 4])
@pytest.mark.parametrize("command", [resume.main, reproduce.main])
def test_missing_lines_are_noticed_by_the_command(cfg, ended, capsys, monkeypatch, tmp_path, line, command):
    monkeypatch.chdir(tmp_path)
    lines = ended.metrics.read_bytes().splitlines(keepends=True)
    # More batches than the checkpoint has.
    lines.append(lines[-1].replace(b'"batch":4', b'"batch":5'))
    del lines[line]
    ended.metrics.write_bytes(b"".join(lines))
    assert command([str(ended.path)] + ["run.max_batches=6"] * (command is resume.main)) == 2
    said = capsys.readouterr().err
    assert f"{ended.metrics}: line {line + 1} is of batch {line + 1}, not {line}: lines are missing" in said
