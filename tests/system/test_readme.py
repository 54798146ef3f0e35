"""The examples of the README and of docs/ as they are written. Stand-ins only for what they leave to the reader."""

import re
import shlex
from pathlib import Path

import pages
import pytest
from commands import collectx, result

from collectx.cli import sweep
from collectx.cli.arguments import split
from collectx.cli.compose import Composer, parsed

ROOT = Path(__file__).parents[2]
PAGES = pages.PAGES
TEXT = "\n".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
# Commands of blocks that the pages' own test does not run (`pages.Block.skipped`), or only at night.
NOT_RUN = [
    re.sub(r"\s+(\d?>|&|\|).*", "", command.replace("\\\n", " ").replace(" resume=auto", " run.resume=auto"))
    for page in PAGES
    for block in pages.blocks(page)
    if block.language == "console" and (block.skipped or pages.tier(page) == "nightly")
    for command, _ in block.commands()[: -1 if block.status else None]
    if "# exit status" not in command
]
COMMANDS = [
    line.partition("collectx run")[2]
    for line in [*(line for language, text in BLOCKS if language == "sh" for line in text.splitlines()), *NOT_RUN]
    if re.match(r"(\.venv/bin/|ray job submit .* -- |RAY_AUTH_MODE=token )?collectx run", line)
] + re.findall(r"`collectx run ([^`]*)`", TEXT)


def block(language: str, part: str) -> str:
    (text,) = (text for each, text in BLOCKS if each == language and part in text)
    return text


def test_the_commands_are_found():
    assert len(COMMANDS) >= 16


def write_files(folder: Path) -> None:
    """The YAML files, which have their path as the block's title or in a comment."""
    for block in (block for page in PAGES for block in pages.blocks(page) if block.language == "yaml"):
        path = folder / (block.title or re.search(r"^# (\S+\.yaml)$", block.text, re.MULTILINE)[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_a_valid_configuration(line, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_TMPDIR", "/scratch/7")
    arguments = split(shlex.split(line, comments=True))
    composer = Composer(arguments.config_dir)
    checked = composer.check(arguments.words)
    overrides = parsed(checked.overrides)
    is_drawn = any(each.is_sweep_override() and not each.is_discrete_sweep() for each in overrides)
    for point in [sweep.sample(overrides)] if is_drawn else sweep.product(overrides):
        assert composer.examine(point).problems == []


def test_the_targets_of_make_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z-]+)", TEXT), *re.findall(r"^make (\S+)", TEXT, re.MULTILINE)} <= {*targets}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(name):
    """A link's anchor is the title of a section, in lower case and with hyphens. MkDocs checks those of docs/."""
    for path, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", (ROOT / name).read_text()):
        titles = re.findall(r"^#+ (.*)", (ROOT / path).read_text(), re.MULTILINE)
        assert not anchor or anchor in [title.lower().replace(" ", "-") for title in titles]


def test_an_env_a_policy_and_a_trainer_of_ones_own(tmp_path, monkeypatch):
    trainer = block("python", "class MyTrainer")
    make = """
import gymnasium, torch
from user_code.cartpoles import Argmax

gymnasium.register("MyEnv-v0", "gymnasium.envs.classic_control:CartPoleEnv")

def make_policy(spec, width):
    return Argmax()

"""
    write_files(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "my_module.py").write_text(make + trainer)
    words = [word for kind in ("policy", "trainer") for word in re.search(f"`({kind}=custom [^`]*)`", TEXT)[1].split()]
    size = ["collector.frames_per_batch=64", "collector.total_frames=256", "hydra.run.dir=run"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    collectx("run", "--config-dir", "my_conf", "env=mine", *words, *size, cwd=tmp_path)
    ended = result(tmp_path / "run")
    assert (ended["status"], ended["frames"]) == ("completed", 256)
    assert '"loss"' in (tmp_path / "run" / "metrics.jsonl").read_text()
