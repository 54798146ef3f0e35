"""The layers of the product, the list of packages that are installed, and the tests of the differences from TorchRL.
Rules of style are in `.ci/style.py`."""

import ast
import functools
import graphlib
import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
# What TorchRL does, by the rows of the same table.
THEIRS = TESTS / "conformance" / "test_differences.py"
# Parts of the product, low to high; those of one row do not import each other.
LAYERS = [
    {"hydra_state"},
    {
        "errors",
        "fork_server",
        "batch",
        "imports",
        "memory",
        "progress",
        "random_state",
    },
    {"checkpoints", "loggers", "process", "trajectories"},
    {"config"},
    {"state", "user_objects", "data"},
    {"env", "policy", "transport", "replay"},
    {"rollout", "schedule"},
    {"worker"},
    {"place"},
    {"rules"},
    {"collector"},
    {"trainer"},
    {"run"},
    {"jobs"},
    {"report", "plan", "doctor", "tune"},
    {"cli", "library"},
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
# What a policy may know of envs: their spaces and leaves, not the adapters.
SEAMS = {("policy", "collectx.env.base"), ("policy", "collectx.env.action_masks")}


@functools.cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Returns line and name of every import, anywhere in a file: `collectx.a.b` and `collectx.a.b.name`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{'.' * node.level}{node.module}.{alias.name}") for alias in node.names]
    return found


def test_imports_go_down():
    files = {path: path.relative_to(ROOT / "collectx").parts[0] for path in (ROOT / "collectx").rglob("*.py")}
    parts = {path: part.removesuffix(".py") for path, part in files.items()}
    parts |= dict.fromkeys([*(ROOT / "cli").rglob("*.py"), ROOT / "collectx" / "__main__.py"], "cli")
    assert set(parts.values()) - {"__init__"} == set(LEVEL)
    upwards = []
    for path, part in parts.items():
        for line, name in imported(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            is_seam = any(part == seam and name.startswith(base) for seam, base in SEAMS)
            is_down = part == "__init__" or other in (part, "__version__") or LEVEL.get(other, -1) < LEVEL[part]
            if not package or (package == "collectx" and not is_seam and not is_down):
                upwards.append(f"{path}:{line}: {part} imports {name}, which is not below it")
    assert not upwards, "\n".join(upwards)


def product():
    """The files of the product, by the names of their modules."""
    for folder in ("collectx", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "collectx" else ("collectx", *parts))
            yield name.removesuffix(".__init__"), path


def test_no_circle_of_imports():
    files = dict(product())
    graph = {}
    for name, path in files.items():
        names = {each if each in files else each.rpartition(".")[0] for _, each in imported(path)}
        graph[name] = (names & files.keys()) - {name}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a circle


def test_the_list_of_packages_is_the_tree():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    # The folders of packages that are not named like them.
    elsewhere = {package: ROOT / path for package, path in setuptools["package-dir"].items() if package != "collectx"}
    folders = {path.parent for path in (ROOT / "collectx").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(setuptools["packages"]) == found | set(elsewhere)
    data = {elsewhere["collectx.cli.project"], elsewhere["collectx.docs"]}
    assert {folder for folder in (*folders, *elsewhere.values()) if not (folder / "__init__.py").is_file()} == data


def differences(path):
    """The arguments of all `pytest.mark.difference(...)` of a file."""
    text = path.read_text()
    nodes = ast.walk(ast.parse(text)) if "pytest.mark.difference(" in text else ()
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    marks = [node for node in calls if ast.unparse(node.func) == "pytest.mark.difference"]
    return {ast.literal_eval(cell) for mark in marks for cell in mark.args}


def test_every_difference_from_torchrl_has_a_test():
    table = (ROOT / "docs" / "reference" / "torchrl-differences.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 20
    files = {path: differences(path) for path in TESTS.rglob("*.py")}
    assert files.pop(THEIRS) <= set(rows)
    assert set().union(*files.values()) == set(rows)
