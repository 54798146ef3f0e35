"""The examples of CONTRIBUTING.md: applied to a copy of the sources, they work as it says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from pages import ROOT, blocks

PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text()
SCRIPT = """
import gymnasium

from collectx import MultiSyncCollector

ENVS = {
    "one": lambda: gymnasium.make("CartPole-v1"),
    "same_step": lambda: gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": "SameStep"}),
    "next_step": lambda: gymnasium.make_vec("CartPole-v1", 2),
}

if __name__ == "__main__":
    for name, make in ENVS.items():
        with MultiSyncCollector([make, make], frames_per_batch=64, total_frames=64, reward_scale=3.0) as collector:
            for batch in collector:
                print(name, batch["next", "reward"].unique().tolist())
"""


@pytest.fixture
def sources(tmp_path):
    """A folder to import from, with the packages where an installation has them."""
    for source, place in {
        "collectx": "collectx",
        "cli": "collectx/cli",
        "conf": "collectx/conf",
        "cli/hydra_plugins": "hydra_plugins/collectx",
    }.items():
        shutil.copytree(ROOT / source, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(sources, *words):
    """Runs Python; returns its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=sources, env=environment(PYTHONPATH=str(sources)), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout


def block_with(text: str) -> str:
    """The block of the page that begins with this text."""
    (found,) = (block.text for block in blocks(PAGE) if block.text.lstrip().startswith(text))
    return found


def insert(path: Path, after: str, text: str) -> None:
    """Inserts lines below the first line that contains `after`."""
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if after in line)
    path.write_text("".join([*lines[: at + 1], text, *lines[at + 1 :]]))


def described(text: str) -> str:
    """`text`, which the page must have in backticks."""
    assert f"`{text}`" in TEXT, text
    return text


@pytest.mark.ci
def test_a_backend(sources):
    for block in blocks(PAGE):
        if block.title:
            (sources / "collectx" / block.title.removeprefix("collectx/")).write_text(block.text)
    insert(sources / "collectx/config/registry.py", '"ucc": Kind(', block_with('"echo": Kind('))
    assert run(sources, ROOT / ".ci/conf.py") == (0, "")
    command = described("collectx run backend=echo collector=distributed_sync debug=tiny").split()
    status, printed = run(sources, "-m", *command, "hydra.run.dir=run")
    assert status == 0, printed
    assert "kind: echo" in (sources / "run/snapshot/config.yaml").read_text()


@pytest.mark.ci
def test_an_option_of_the_collector(sources):
    package = sources / "collectx"
    insert(package / "config/schema/collector.py", '"The schedule."', block_with("reward_scale: float = option(1.0"))
    assert run(sources, ROOT / ".ci/conf.py") == (0, "")
    assert (
        "# Factor of all rewards, above 0.\nreward_scale: 1.0\n"
        in (package / "conf/collector/multi_sync.yaml").read_text()
    )
    options = package / "rollout/wrappers.py"
    insert(options, "may_end_early: bool = False", f"    {described('reward_scale: float = 1.0')}\n")
    insert(
        options, "check_finite=options.check_finite", f"            {described('reward_scale=options.reward_scale')},\n"
    )
    wrappers = package / "rollout/wrappers.py"
    text = wrappers.read_text() + "\n\n" + block_with("class ScaledRewardEnv")
    line = block_with("if options.reward_scale != 1.0")
    wrappers.write_text(
        re.sub(r'(def wrapped\(.*?""".*?"""\n)', lambda found: found[1] + line, text, count=1, flags=re.DOTALL)
    )
    field = described('reward_scale: float = sets("collector.reward_scale", note="")')
    insert(package / "library/keywords.py", ' = sets("collector.set_truncated"', f"    {field}\n")

    (sources / "script.py").write_text(SCRIPT)
    status, printed = run(sources, "script.py")
    assert status == 0, printed
    assert printed.splitlines() == ["one [3.0]", "same_step [3.0]", "next_step [3.0]"]
    status, printed = run(sources, "-m", "collectx", "run", "debug=tiny", "collector.reward_scale=0")
    assert status == 2, printed
    assert described("collector.reward_scale=0 must be greater than 0.") in printed
