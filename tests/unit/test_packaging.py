"""The installed packages are those of the tree, and imports go from higher layers to lower ones only."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
# Where the packages lie whose folder is not named like them.
ELSEWHERE = {package: ROOT / path for package, path in SETUPTOOLS["package-dir"].items() if package != "collectx"}
# Low to high; those of one row do not import each other.
LAYERS = [
    {"errors", "batch", "config"},
    {"given"},
    {"env", "policy", "transport", "launcher", "replay"},
    {"rollout"},
    {"collector"},
    {"trainer"},
    {"run"},
    {"cli", "library"},
]
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
# The contract that a policy is made for: what an env's spaces and leaves are, not the adapters.
SEAMS = {("policy", "collectx.env.base")}


def sources() -> dict[Path, str]:
    """Every source file, with the part of the product that it belongs to."""
    files = {path: path.relative_to(ROOT / "collectx").parts[0] for path in (ROOT / "collectx").rglob("*.py")}
    return {path: part.removesuffix(".py") for path, part in files.items()} | dict.fromkeys(
        (ROOT / "cli").rglob("*.py"), "cli"
    )


def imported(path: Path):
    """Every name that a file imports, anywhere in it: `collectx.a.b` and `collectx.a.b.name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def test_the_list_of_packages_is_the_tree():
    folders = {path.parent for path in (ROOT / "collectx").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(SETUPTOOLS["packages"]) == found | set(ELSEWHERE)
    assert [folder for folder in (*folders, *ELSEWHERE.values()) if not (folder / "__init__.py").is_file()] == []


def test_every_part_has_a_layer():
    assert set(sources().values()) - {"__init__"} == set(LEVEL)


def test_imports_go_down():
    upwards = []
    for path, part in sources().items():
        for name in imported(path):
            if name.startswith("."):
                upwards.append(f"{path}: relative import of {name}")
            if part == "__init__" or not name.startswith("collectx.") or name.split(".")[1] in (part, "__version__"):
                continue
            if any(part == seam and name.startswith(base) for seam, base in SEAMS):
                continue
            if LEVEL[part] <= LEVEL.get(name.split(".")[1], -1):
                upwards.append(f"{path}: {part} imports {name}, which is not below it")
    assert not upwards, "\n".join(upwards)
