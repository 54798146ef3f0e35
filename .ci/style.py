"""Rules of style that ruff does not know, of the product and of the tests; `make check` runs it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
# Threads, time and processes belong to all code of a process: a thread of the package, or of pytest, may call
# `time.sleep` while a test runs. See the fixture `within`.
_SHARED = r".*setattr\(['\"]?([a-z_]+\.)*(os|time|signal|shutil|socket|subprocess|threading)(, |\.)"
# Rule, folder of the tests, what its files neither import nor call, and the files that may.
TEST_RULES = [
    ("unit tests start no process", "unit", r"(subprocess|multiprocessing)\b(?!\.(Pipe|connection))", r"$^"),
    (
        "wait for a condition, not for a time",
        "",
        r"time\.sleep(\(|$)",
        r"(chaos|user_code|slurm|scripts|worlds)/|conftest\.py|machines\.py",
    ),
    ("contract suites take their ways from ways.py", "contract", r"([\w.]*\.)?\w+Transport(\(|$)", r"$^"),
    ("nothing imports a test module", "", r"([\w.]*\.)?test_\w+(\.\w+)?(\(|$)", r"$^"),
    ("replace a name of our modules, not an attribute of a shared module", "", _SHARED, r"$^"),
]


def used(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every import (`collectx.a.name`) and call of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node)


def problems_of_tests() -> Iterator[str]:
    """What the tests' files use against a rule."""
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        rules = [rule for rule in TEST_RULES if name.startswith(rule[1]) and not re.match(rule[3], name)]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                decorators = [ast.unparse(each) for each in node.decorator_list]
                if any(each.startswith("pytest.fixture") for each in decorators):
                    yield f"tests/{name}:{node.lineno}: a fixture called {node.name} is a test that never runs"
        for line, text in used(path):
            yield from (f"tests/{name}:{line}: {rule}" for rule, _, forbidden, _ in rules if re.match(forbidden, text))


# The name of a section within a line, or without an empty line before it.
_SECTION = re.compile(r"(\S *|[^\n]\n *)\b(Args|Attributes|Returns|Raises):|\b(Args|Attributes|Returns|Raises): *\S")
# An empty line after the name of a section.
_GAP = re.compile(r"\b(Args|Attributes|Returns|Raises):\n *\n")


def joined(docstring: str, indent: int) -> bool:
    """Whether an indented table or list was filled like prose: it has no columns, and a line ends only where the first
    word of the next would not fit."""
    blocks = (block.split("\n") for block in re.split(r"\n *\n", docstring))
    blocks = (lines for lines in blocks if all(re.fullmatch(r"    \S+( \S+)*", line) for line in lines))
    return any(
        indent + len(line) + 1 + len(following.split()[0]) > 120 and not re.match(r" *\d+\.", following)
        for lines in blocks
        for line, following in pairwise(lines)
    )


def problems_of_product() -> Iterator[str]:
    """Tiny files, threads without a name by which tests see that they end, broken docstrings, and articles before the
    name of a type."""
    for path in sorted([*(ROOT / "collectx").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]):
        text, name = path.read_text(), path.relative_to(ROOT)
        if len(text.splitlines()) < 15 and path.name not in ("__init__.py", "__main__.py"):
            yield f"{name}: fewer than 15 lines: put them where they are used, or add a docstring"
        if len(re.findall(r"threading\.(?:Thread|Timer)\(", text)) > text.count('"collectx-'):
            yield f'{name}: a thread without a name "collectx-...": see `nothing_left_behind` in tests/conftest.py'
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            docstring, line = ast.get_docstring(node) or "", getattr(node, "lineno", 1)
            if not isinstance(node, ast.Module) and _SECTION.search(docstring):
                yield f"{name}:{line}: Args, Attributes, Returns and Raises stand alone, after an empty line"
            if _GAP.search(docstring):
                yield f"{name}:{line}: an empty line after Args, Attributes, Returns or Raises"
            if joined(docstring, getattr(node, "col_offset", -4) + 4):
                yield f"{name}:{line}: the lines of a table or list were joined"
        if re.search(r"\ban? \{type\(", text):
            yield f'{name}: an article before the name of a type: it would be "a AsyncCollector"'


# What a page shows of code, and the columns that fit it at 1,280 px. ruff keeps Python in docs/ to them; lines of a
# terminal wrap.
_SHOWN = re.compile(r"^( *)```(?:python|yaml|sh)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_COLUMNS = 88


def problems_of_pages() -> Iterator[str]:
    """Code that a reader would have to scroll sideways."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = path.read_text()
        for block in _SHOWN.finditer(text):
            first = text.count("\n", 0, block.start(2)) + 1
            for line, shown in enumerate(block[2].splitlines(), first):
                if len(shown.removeprefix(block[1])) > _COLUMNS:
                    yield f"{path.relative_to(ROOT)}:{line}: code is wider than {_COLUMNS} columns, which fit a page"


if __name__ == "__main__":
    problems = [*problems_of_tests(), *problems_of_product(), *problems_of_pages()]
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))
