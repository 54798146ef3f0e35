"""The rules of the tests' folders."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Folder, names that its files neither import nor use, and paths that may.
RULES = {
    "unit tests start no process": ("unit", r"(subprocess|multiprocessing)\b(?!\.(Pipe|connection))", r"$^"),
    "tests wait for a condition, not for a time": (
        ".",
        r"time\.sleep$",
        r"(worlds|slurm|scripts)/|conftest\.py",
    ),
    "contract suites take their ways from ways.py": ("contract", r"(.*\.)?\w+Transport$", r"$^"),
    "nothing imports a test module": (".", r"(.*\.)?test_\w+(\.\w+)?$", r"$^"),
}


def names(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize("rule", RULES)
def test_layout(rule):
    folder, forbidden, exempt = RULES[rule]
    files = {str(path.relative_to(TESTS)): path for path in sorted((TESTS / folder).rglob("*.py"))}
    found = {
        f"{file}:{line}: {name}"
        for file, path in files.items()
        if not re.match(exempt, file)
        for line, name in names(path)
        if re.match(forbidden, name)
    }
    assert not found, "\n".join(sorted(found))
