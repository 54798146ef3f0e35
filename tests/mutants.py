"""Breaks copies of the product in seeded ways, one at a time, and tells which tests notice. Not collected by pytest.

    python tests/mutants.py [--seed 0] [--whole]

Each mutant is one changed expression or statement in one module of `TARGETS`. It is killed if a test that covers the
file fails that passes without the change, or if the tests do not end in half an hour; with --whole, what survives these
is run against all of `make test`. The exit status is 1 if more than 3 mutants in 40 survive. Works in temporary folders
only.
"""

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Modules, or folders of modules without those that are here by themselves: how many mutants they have, and the tests
# that cover them, quick ones first: patterns below tests/.
TARGETS = {
    "cli": (10, "unit/cli unit/test_doctor.py"),
    "collectx": (10, "unit/test_*.py unit/report unit/run contract library"),
    "collectx/batch.py": (3, "unit/test_batch.py unit/rollout contract"),
    "collectx/collector": (6, "unit/collector contract unit/run library"),
    "collectx/collector/collector.py": (4, "contract library"),
    "collectx/config": (6, "unit/config unit/run unit/cli contract"),
    "collectx/rules": (5, "unit/config unit/collector/test_devices.py contract/test_collector_contract.py"),
    "collectx/data": (5, "contract/test_data_contract.py library/test_datasets.py unit/run"),
    "collectx/env": (8, "unit/env contract library"),
    "collectx/env/torchrl": (5, "unit/env contract library"),
    "collectx/jobs": (9, "unit/jobs unit/cli contract/test_slurm_commands.py"),
    "collectx/place": (5, "unit/place contract library"),
    "collectx/place/slurm": (4, "unit/place unit/jobs contract/test_slurm_commands.py"),
    "collectx/library": (10, "library conformance contract"),
    "collectx/policy": (8, "unit/policy contract library"),
    "collectx/replay": (6, "unit/replay contract library"),
    "collectx/report": (5, "unit/report"),
    "collectx/rollout": (11, "unit/rollout contract/test_transition_contract.py library/test_lengths.py contract"),
    "collectx/run": (10, "unit/run unit/cli contract"),
    "collectx/schedule": (3, "unit/schedule contract library"),
    "collectx/schedule/sync.py": (5, "unit/schedule contract library"),
    "collectx/state": (4, "unit/state contract library"),
    "collectx/trainer": (5, "unit/trainer unit/run contract"),
    "collectx/transport": (3, "unit/transport contract library"),
    "collectx/transport/slab.py": (4, "unit/transport contract"),
    "collectx/transport/supervisor.py": (4, "unit/transport contract"),
    "collectx/transport/network": (7, "unit/transport contract"),
    "collectx/worker": (5, "unit/rollout unit/worker contract library"),
}
# What `make test` does not run: it needs a GPU, MPI, torch RPC, Ray or a scheduler.
UNCOVERED = {
    "collectx/place/mpi.py",
    "collectx/place/ray.py",
    "collectx/place/ray_cluster.py",
    "collectx/library/slurm.py",
    "collectx/library/submitit.py",
    "collectx/rollout/inference.py",
    *(f"collectx/transport/network/{name}.py" for name in ("mpi", "nccl", "rpc", "ucc")),
}
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
    """The bytes `start` to `end` of a file, replaced by `text`."""

    file: str
    line: int
    before: str
    text: str
    start: int
    end: int

    def applied(self) -> bytes:
        source = (ROOT / self.file).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What may stand in the place of a part of `node`: that part, and what replaces it."""

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
    """Of a definition, or of what is called."""
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
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts(child)


def mutants(file: str) -> list[Mutant]:
    """Every mutant of a file."""
    source = (ROOT / file).read_bytes()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    found = []
    for node in parts(ast.parse(source)):
        for old, new in changes(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            text = ast.unparse(new)
            text = f"({text})" if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Call) else text
            found.append(Mutant(file, old.lineno, source[start:end].decode(), text, start, end))
    return found


def chosen(seed: int) -> Iterator[tuple[Mutant, str]]:
    """Of every target as many mutants as it is to have, with its tests."""
    draw = random.Random(seed)
    for target, (share, tests) in TARGETS.items():
        pool = [mutant for file in modules(target) for mutant in mutants(file)]
        yield from ((mutant, tests) for mutant in draw.sample(pool, share))


def modules(target: str) -> list[str]:
    """The files of a target."""
    if target.endswith(".py"):
        return [target]
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / target).glob("*.py"))]
    return [file for file in found if file not in UNCOVERED and file not in TARGETS]


def covering(patterns: str) -> list[str]:
    """The tests that these patterns match, each once."""
    matching = [sorted((ROOT / "tests").glob(pattern)) for pattern in patterns.split()]
    assert all(matching), f"of {patterns} one matches nothing"
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys(itertools.chain(*matching))]


def copied(root: Path) -> Path:
    """Copies the repository there, so that its tests import from the copy."""
    ignored = shutil.ignore_patterns(".git", ".venv", "outputs", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, root, symlinks=True, ignore=ignored)
    for part in ("cli", "conf"):
        (root / "collectx" / part).symlink_to(root / part)
    return root


def first_failure(root: Path, tests: list[str], left_out: Sequence[str] = ()) -> str | None:
    """What fails first of some tests of the copy in `root`, by default all of `make test`; None if nothing does."""
    # Byte code is known by its source's time in seconds and its size: it would be that of another mutant.
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    command += ["-n", "2", "--dist", "loadgroup", *(f"--deselect={test}" for test in left_out), *tests]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(1800)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "timed out"
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    return (failed[1] if failed else f"status {status}: {text.strip()[-200:]}") if status else None


def killer_of(root: Path, mutant: Mutant, tests: list[str]) -> str | None:
    """What fails first of these tests with the mutant in the copy in `root`; None if nothing does. A test that fails
    without the mutant as well is left out."""
    left_out: list[str] = []
    while True:
        (root / mutant.file).write_bytes(mutant.applied())
        killer = first_failure(root, tests, left_out)
        shutil.copy(ROOT / mutant.file, root / mutant.file)
        if killer is None:
            return None
        test = killer.partition("[")[0]
        is_test = test.startswith("tests/")
        reason = first_failure(root, [test] if is_test else tests, left_out)
        if reason is None:
            return killer
        if not is_test:
            raise SystemExit(f"without any change: {reason}")
        print(f"fails without any change: {test}")
        left_out.append(test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="run survivors against all of `make test`")
    options = parser.parse_args()
    picked, survivors = list(chosen(options.seed)), 0
    with tempfile.TemporaryDirectory(prefix="collectx-mutants-") as folder:
        root = copied(Path(folder) / "repository")
        if failed := first_failure(root, []):
            print(f"without any change: {failed}")
            return 1
        for mutant, patterns in picked:
            killer = killer_of(root, mutant, covering(patterns))
            if killer is None and options.whole:
                killer = killer_of(root, mutant, [])
            survivors += killer is None
            change = f"{mutant.before} -> {mutant.text}".replace("\n", " ")
            print(f"{mutant.file}:{mutant.line}  {change}\n    {killer or 'SURVIVED'}", flush=True)
    print(f"{survivors} of {len(picked)} mutants survived (seed {options.seed})")
    return int(survivors * 40 > 3 * len(picked))


if __name__ == "__main__":
    sys.exit(main())
