"""What pages of the documentation say about the code: messages, files and functions."""

import ast
import functools
import re
from pathlib import Path

import pytest

from collectx.cli.docs import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined(path: Path) -> set[str]:
    """Names of the functions, classes and methods of a file, methods as `Class.method`."""
    names = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


@pytest.mark.ci
def test_messages_are_printed_by_the_code():
    texts = {
        node.value
        for folder in ("collectx", "cli")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    page = (DOCS / "reference" / "messages.md").read_text()
    lines = re.findall(r"^\*\*Message\.\*\* (.+)$", page, re.MULTILINE)
    messages = [message for line in lines for message in re.findall("`([^`]+)`", line)]
    parts = {part.strip(" ") for message in messages for part in message.split("...")} - {""}
    assert len(messages) >= 25
    others = {"CUDA out of memory", "No space left on device"}  # torch's, the system's
    assert not {part for part in parts - others if not any(part in text for text in texts)}


def test_messages_and_docstrings_name_pages_that_exist():
    sources = [path for folder in ("collectx", "cli") for path in (ROOT / folder).rglob("*.py")]
    sources += [*(ROOT / "conf").rglob("*.yaml"), *DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    command = r"""\bpage\(['"]([^'"]+)|\bcollectx docs ([a-z][a-z/-]+)"""
    named = {name for path in sources for names in re.findall(command, path.read_text()) for name in names if name}
    assert len(named) >= 10
    assert named <= {*pages()}
    # Others than the developers of collectx have no folder docs/.
    shown = [path for path in sources if re.search(r"[\"'( ]docs/[a-z-]+/[a-z-]+\.md", path.read_text())]
    assert {path.name for path in shown if path.suffix == ".py"} <= {"docs.py", "loop.py", "rollout.py", "pickles.py"}


def test_the_architecture_names_files_and_functions_that_exist():
    page = "".join((DOCS / "explanation" / f"{name}.md").read_text() for name in ("architecture", "decisions"))
    drawings = "".join(path.read_text() for path in sorted((DOCS / "images").glob("walk-*.svg")))
    paths = set(re.findall(r"`((?:collectx|cli|benchmarks|tests|\.ci)/[\w/.-]+)`", page))
    assert not {path for path in paths if not (ROOT / path).exists()}
    # Rows of the walks: a file, then its functions.
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ((?:`[\w.]+`(?:, )?)+) \|", page, re.MULTILINE)
    named = [(path, name) for path, names in rows for name in re.findall(r"`([\w.]+)`", names)]
    # In the reasons: "`Class.method` in `path`".
    named += [(path, name) for name, path in re.findall(r"`([A-Z][\w.]+)` in `([\w/]+\.py)`", page)]
    drawn = re.findall(r">([\w/]+\.py): ([\w., ]+?)<", drawings)
    classes = [(f"collectx/{path}", name) for path, names in drawn for name in names.split(", ")[:1]]
    assert len(named) >= 25
    assert len(classes) >= 20
    assert not [each for each in (*named, *classes) if each[1] not in defined(ROOT / each[0])]
