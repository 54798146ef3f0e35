"""Breaks copies of the product in seeded ways, one at a time, and tells which tests notice. Not collected by pytest.

    python tests/mutants.py [--seed 0] [--tiers test ci]

Each mutant is one changed expression or statement in one module of `TARGETS`. First, all tests of a tier run once, and
each line of the product gets the tests that execute it, also in processes that they start (`line_coverage.py`). Then a
mutant is killed if one of the tests that execute its statement fails, and passes without the change. What survives is
tried with the next tier. The exit status is 1 if more than 15% survive the first tier. Works in temporary folders
only, on as many mutants at a time as there are cores.
"""

import argparse
import ast
import collections
import compileall
import concurrent.futures
import itertools
import json
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Modules, or folders of modules without those that are here by themselves, and how many mutants they have.
TARGETS = {
    "cli": 9,
    "cli/hydra_plugins": 1,
    "collectx": 9,
    "collectx/batch.py": 3,
    "collectx/collector": 5,
    "collectx/collector/collector.py": 4,
    "collectx/config": 4,
    "collectx/config/schema": 4,
    "collectx/rules": 5,
    "collectx/data": 5,
    "collectx/env": 8,
    "collectx/env/torchrl": 5,
    "collectx/fork_server": 5,
    "collectx/jobs": 8,
    "collectx/place": 5,
    "collectx/place/slurm": 4,
    "collectx/library": 9,
    "collectx/policy": 7,
    "collectx/replay": 5,
    "collectx/report": 5,
    "collectx/rollout": 8,
    "collectx/run": 7,
    "collectx/run/after": 3,
    "collectx/run/folder": 6,
    "collectx/run/terminal": 5,
    "collectx/schedule": 3,
    "collectx/schedule/sync.py": 5,
    "collectx/state": 4,
    "collectx/trainer": 5,
    "collectx/transport": 3,
    "collectx/transport/slab.py": 4,
    "collectx/transport/supervisor.py": 4,
    "collectx/transport/network": 6,
    "collectx/worker": 5,
    "collectx/worker/inference": 3,
}
# What `make test` does not run: it needs a GPU, MPI, torch RPC, Ray or a scheduler.
UNCOVERED = {
    "collectx/place/mpi.py",
    "collectx/place/ray.py",
    "collectx/place/ray_actors.py",
    "collectx/library/slurm.py",
    "collectx/rollout/inference.py",
    *(f"collectx/transport/network/{name}.py" for name in ("mpi", "nccl", "rpc", "ucc")),
}
# What only draws: no test looks at its figures.
DRAWING = {"collectx/report/draw.py"}
# What only reports, and is not tested word by word.
REPORTS = {"add_note", "debug", "events", "_events", "info", "log", "note", "print", "say", "warn", "warning"}
SILENT = {"__repr__", "__str__"}
# By the names of their classes in `ast`.
OPERATORS = {
    **{"Lt": "LtE GtE", "LtE": "Lt Gt", "Gt": "GtE LtE", "GtE": "Gt Lt", "Eq": "NotEq", "NotEq": "Eq"},
    **{"Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In", "And": "Or", "Or": "And"},
    **{"Add": "Sub", "Sub": "Add", "Mult": "FloorDiv", "FloorDiv": "Mult", "Mod": "Mult"},
}
BOUNDS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """The bytes `start` to `end` of a file, replaced by `text`, in a statement of the lines `first` to `last`.

    Attributes:
        is_in_function: otherwise it is executed by the first test that imports the file.
    """

    file: str
    first: int
    last: int
    is_in_function: bool
    before: str
    text: str
    start: int
    end: int

    def applied(self) -> bytes:
        source = (ROOT / self.file).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]


@dataclass
class Coverage:
    """Which tests of a tier execute which lines.

    Attributes:
        tests: their node ids, quick ones first.
        lines: by file and line, a set of tests as the bits of an integer.
        failed: the tests that fail without any change.
    """

    tests: list[str]
    lines: dict[tuple[str, int], int]
    failed: list[str] = field(default_factory=list)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that execute the statement of a mutant; those of its file for what runs at the import or outside of
        tests."""
        found = 0
        for line in range(mutant.first, mutant.last + 1) if mutant.is_in_function else ():
            found |= self.lines.get((mutant.file, line), 0)
        if not found:
            for (file, _), tests in self.lines.items():
                found |= tests if file == mutant.file else 0
        return [test for number, test in enumerate(self.tests) if found >> number & 1 and test not in self.failed]


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yields each part of `node` that may change, with what replaces it."""

    def other(**fields: object) -> ast.AST:
        return type(node)(**{name: getattr(node, name, None) for name in node._fields} | fields)

    def operators(op: ast.AST) -> list:
        return [getattr(ast, name)() for name in OPERATORS.get(type(op).__name__, "").split()]

    match node:
        case ast.Compare(ops=[op]):
            yield from ((node, other(ops=[swap])) for swap in operators(op))
        case ast.BinOp(left=ast.List()):
            return
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            yield from ((node, other(op=swap)) for swap in operators(op))
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node, node.operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from ((node, ast.Constant(value + step)) for step in (1, -1))
        case ast.Expr(value=ast.Call()):
            yield node, ast.Pass()
        case ast.Call(func=ast.Name(id=name)) if name in BOUNDS:
            yield node, other(func=ast.Name(BOUNDS[name]))


def name_of(node: ast.AST) -> str | None:
    """Returns the name of a definition, or of what is called."""
    called = getattr(node, "func", None)
    return getattr(called, "attr", getattr(called, "id", getattr(node, "name", None)))


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, without what only describes or reports."""
    is_report = isinstance(node, ast.Call) and name_of(node) in REPORTS
    is_typing = getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING"
    is_check = getattr(node, "arg", None) == "strict" or isinstance(node, ast.Raise | ast.Assert)
    if is_report or is_typing or is_check or name_of(node) in SILENT or isinstance(node, ast.JoinedStr):
        return
    if not (isinstance(node, ast.Expr) and not list(parts(node.value))):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts(child)


def mutants(file: str) -> list[Mutant]:
    """Every mutant of a file."""
    source = (ROOT / file).read_bytes()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    found = []
    tree = ast.parse(source)
    # The innermost statement of each line: of a compound one, its head.
    heads, in_functions = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            in_functions.update(range(node.body[0].lineno, node.end_lineno + 1))
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1 if isinstance(body, list) else node.end_lineno)
            heads |= dict.fromkeys(range(node.lineno, last + 1), (node.lineno, last))
    for node in parts(tree):
        for old, new in changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            text = ast.unparse(new)
            text = f"({text})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Call) else text
            first, last = heads.get(old.lineno, (old.lineno, old.end_lineno))
            found.append(Mutant(file, first, last, first in in_functions, source[start:end].decode(), text, start, end))
    return found


def chosen(seed: int) -> list[Mutant]:
    """Returns the mutants of each target, as many as it is to have."""
    draw = random.Random(seed)
    pools = [
        ([mutant for file in modules(target) for mutant in mutants(file)], size) for target, size in TARGETS.items()
    ]
    picked = [mutant for pool, size in pools for mutant in draw.sample(pool, size)]
    draw.shuffle(picked)  # a run that is ended early has tried some of all
    return picked


def modules(target: str) -> list[str]:
    """The files of a target."""
    if target.endswith(".py"):
        return [target]
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / target).glob("*.py"))]
    return [file for file in found if file not in {*UNCOVERED, *DRAWING, *TARGETS}]


def copied(root: Path) -> Path:
    """Copies the repository there, so that its tests import from the copy."""
    ignored = shutil.ignore_patterns(".git", ".venv", ".bench", "site", "outputs", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, root, symlinks=True, ignore=ignored)
    for part in ("cli", "conf"):
        (root / "collectx" / part).symlink_to(root / part)
    _make_environment(root)
    # Byte code is known by its source's time in seconds and its size, which a mutant may share with what it replaces.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(root, quiet=1, invalidation_mode=mode)
    return root


def _make_environment(root: Path) -> None:
    """Makes `.venv` in the copy in `root`: this Python's packages, and the copy before them, also for processes whose
    `PYTHONPATH` a test sets."""
    venv.create(root / ".venv", symlinks=True)
    lines = [
        f"import sys; sys.path.insert(0, {str(root)!r})",
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})",
    ]
    (_packages(root) / "copy.pth").write_text("\n".join([*lines, ""]))
    binaries = root / ".venv" / "bin"
    for script in filter(Path.is_file, Path(sys.executable).parent.iterdir()):
        text = script.read_bytes()
        if text.startswith(b"#!") and b"python" in text.partition(b"\n")[0] and not (binaries / script.name).exists():
            (binaries / script.name).write_bytes(f"#!{binaries / 'python'}\n".encode() + text.partition(b"\n")[2])
            (binaries / script.name).chmod(0o755)


def _packages(root: Path) -> Path:
    """The folder of the packages of the copy's environment."""
    (found,) = (root / ".venv" / "lib").glob("python*/site-packages")
    return found


def executed(root: Path, tier: str) -> Coverage:
    """Runs the tests of a tier in the copy in `root`."""
    folder = root / ".lines"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start = f"import sys\nsys.path.append({str(root / 'tests')!r})\nimport line_coverage\nline_coverage.start()\n"
    # Every process of the environment imports it.
    customize = _packages(root) / "sitecustomize.py"
    customize.write_text(start)
    options = ["-n", str(os.cpu_count()), "--dist", "loadgroup", f"--tier={tier}", "-p", "line_coverage"]
    _, text = pytest(root, options, 3 * 3600, LINE_COVERAGE=str(folder))
    customize.unlink()
    if not (folder / "seconds").exists():
        raise RuntimeError(f"no test ran: {text[-2000:]}")
    seconds = dict(map(json.loads, (folder / "seconds").read_text().splitlines()))
    coverage = Coverage(sorted(seconds, key=seconds.__getitem__), collections.defaultdict(int))
    coverage.failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?:@\w+)?(?: - |$)", text, re.MULTILINE)
    bits = {test: 1 << number for number, test in enumerate(coverage.tests)}
    for path in folder.glob("*.jsonl"):
        for row in path.read_text().splitlines():
            test, file, lines = json.loads(row)
            for line in lines:
                coverage.lines[file, line] |= bits.get(test, 0)
    return coverage


def pytest(root: Path, options: Sequence[str], limit_s: float, **variables: str) -> tuple[int | None, str]:
    """The exit status, None after `limit_s`, and the output of pytest in the copy in `root`."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [
        str(root / ".venv" / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        *options,
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        output.seek(0)
        return status, output.read()


def first_failure(root: Path, tests: list[str]) -> str | None:
    """Returns the first of these tests that fails in the copy in `root`; None if none does."""
    names = root / ".tests"
    names.write_text("\n".join(tests))
    # A test that hangs with a mutant is ended after two minutes, unless it has a limit of its own.
    status, text = pytest(root, ["-x", "--tier=all", "-n", "0", "--timeout=120", f"@{names}"], 1800)
    if status is None:
        return "timed out"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    return (failed[1] if failed else f"status {status}: {text.strip()[-200:]}") if status else None


def killer_of(root: Path, mutant: Mutant, tests: list[str]) -> str | None:
    """Returns the first of these tests that fails with the mutant in the copy in `root`, or None. A test that fails
    without the mutant as well is left out."""
    tests = list(tests)
    while tests:
        (root / mutant.file).write_bytes(mutant.applied())
        killer = first_failure(root, tests)
        shutil.copy(ROOT / mutant.file, root / mutant.file)
        if killer is None:
            return None
        # What is no test is a file that cannot be imported, or a run that did not end.
        blamed = [killer] if killer in tests else [test for test in tests if test.startswith(killer)] or tests[:1]
        if first_failure(root, blamed[:1]) is None:
            return killer
        print(f"fails without any change: {blamed[0]}")
        tests.remove(blamed[0])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiers", nargs="+", default=["test"], choices=["test", "ci", "nightly"])
    options = parser.parse_args()
    left = picked = chosen(options.seed)
    survived = []
    with tempfile.TemporaryDirectory(prefix="collectx-mutants-") as folder:
        roots = [copied(Path(folder) / str(number)) for number in range(os.cpu_count() or 1)]
        for tier in options.tiers:
            coverage = executed(roots[0], tier)
            print(f"tier {tier}: {len(coverage.tests)} tests, without any change fail: {coverage.failed}", flush=True)
            free = list(roots)

            def killer(mutant: Mutant, coverage=coverage, free=free) -> str | None:
                root = free.pop()
                try:
                    return killer_of(root, mutant, coverage.of(mutant))
                finally:
                    free.append(root)

            with concurrent.futures.ThreadPoolExecutor(len(roots)) as pool:
                killers = {}
                for mutant, found in zip(left, pool.map(killer, left), strict=True):
                    killers[mutant] = found
                    change = f"{mutant.before} -> {mutant.text}".replace("\n", " ")
                    print(f"{mutant.file}:{mutant.first}  {change}\n    {found or 'SURVIVED'}", flush=True)
            left = [mutant for mutant in left if killers[mutant] is None]
            survived.append(len(left))
            print(f"{len(left)} of {len(picked)} mutants survived tier {tier} (seed {options.seed})", flush=True)
    return int(survived[0] > 0.15 * len(picked))


if __name__ == "__main__":
    sys.exit(main())
