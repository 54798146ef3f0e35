"""Files of a run folder that are truncated, altered or missing: one message that names the file, and no traceback."""

import json
import random
import re
import shutil
from dataclasses import asdict

import pytest

from collectx.cli import reproduce, resume, run, status
from collectx.run import RunFolder
from collectx.run.folder.saved_config import readable_config

_WORDS = [
    *("env=counting", "env.num_envs=2", "policy=mlp", "collector=single", "collector.frames_per_batch=20"),
    *("collector.total_frames=100", "trainer=meter", "trainer.digest=true", "launcher=inline"),
    *("run.max_batches=3", "checkpoint.every_batches=1"),
]
_FILES = [
    *("snapshot/config.yaml", "snapshot/meta.json", "metrics.jsonl", "events.jsonl", "result.json", "lock"),
    *("checkpoints/{}/manifest.json", "checkpoints/{}/state.pt"),
]
_COMMANDS = {"resume": resume.main, "reproduce": reproduce.main, "status": status.main}
_ARGUMENTS = {"resume": ["run.max_batches=4"], "reproduce": ["hydra.run.dir=again", "run.overwrite=true"], "status": []}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A completed run of three batches."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run.main([*_WORDS, f"hydra.run.dir={folder}"]) == 0
    return folder


def _alter(generator, content):
    # What stands before the files in a manifest may have other values, such as the time.
    place = generator.randrange(max(0, content.find(b'"files"')), len(content))
    return content[:place] + bytes([content[place] ^ generator.randrange(1, 256)]) + content[place + 1 :]


_DAMAGES = {
    "missing": lambda generator, content: None,
    "empty": lambda generator, content: b"",
    "truncated": lambda generator, content: content[: generator.randrange(1, len(content))],
    **dict.fromkeys((f"altered-{i}" for i in range(2)), _alter),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize(
    "damage",
    [
        "missing",
        "truncated",
        pytest.param("empty", marks=pytest.mark.nightly),
        pytest.param("altered-0", marks=pytest.mark.ci),
        pytest.param("altered-1", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_is_named(whole, tmp_path, monkeypatch, capsys, name, damage, command):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "run")
    newest = max((tmp_path / "run" / "checkpoints").glob("[0-9]*")).name
    path = tmp_path / "run" / name.format(newest)
    content = _DAMAGES[damage](random.Random(f"{name} {damage}"), path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    done = _COMMANDS[command](["run", *_ARGUMENTS[command]])
    said = "".join(capsys.readouterr())
    assert "traceback" not in said.lower(), said
    # Without some of its lines, a run differs from its repetition.
    assert done in (0, 2) or re.search("^different: (batch |.* contains no batch )", said, re.MULTILINE), said
    # An altered value may be a valid one, or a wrong one of a key that the message names.
    if done == 2 and "config.yaml" not in name:
        assert str(path) in said or path.name in said, said
    if "checkpoints/" in name and command == "resume":
        assert re.search(rf"{path.parent}/.*: .*The run continues from an earlier checkpoint", said), said
        assert RunFolder("run").read_result()["batches"] == 4


@pytest.mark.parametrize(
    ("name", "damage", "command", "arguments"),
    [
        ("result.json", {"failures": None}, resume, []),
        ("result.json", {"failures": [{"kind": "x"}]}, resume, []),
        ("metrics.jsonl", {"digest": 5}, reproduce, ["hydra.run.dir=again"]),
    ],
)
def test_an_entry_of_another_type_is_named_before_anything_runs(
    whole, tmp_path, monkeypatch, capsys, name, damage, command, arguments
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "run")
    path = tmp_path / "run" / name
    lines = [path.read_text()] if name.endswith(".json") else path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(lines[0]) | damage), *lines[1:], ""]))
    assert command.main(["run", *arguments]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("content", ["", "{", "seed: x", "seed: 1\nrun: 3\ncheckpoint: {keep: x}"])
def test_a_run_with_a_damaged_configuration_can_be_watched(tmp_path, content):
    files = RunFolder(tmp_path)
    files.begin()
    files.config.write_text(content)
    cfg = readable_config(files)
    assert asdict(cfg)["checkpoint"]["keep"] == 2
    assert cfg.seed == ("1" in content)
