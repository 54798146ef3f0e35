"""The installed packages are those of the tree, and imports go from higher layers to lower ones only."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

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


def folder(package: str) -> Path:
    mapped = SETUPTOOLS["package-dir"]
    return ROOT / mapped[package] if package in mapped else ROOT / package.replace(".", "/")


def sources():
    for path in sorted([*(ROOT / "collectx").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = "cli" if parts[0] == "cli" else parts[1]
        if name != "__init__":
            yield pytest.param(path, name, id=str(path.relative_to(ROOT)))


def imported(path: Path):
    """Every name of ours that a file imports, anywhere in it: `collectx.a.b` and `collectx.a.b.name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_list_of_packages_is_the_tree():
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "collectx").rglob("__init__.py")}
    found |= {f"collectx.{name}" for name in ("cli", "conf")}
    assert set(SETUPTOOLS["packages"]) == found


def test_every_folder_with_sources_is_a_package():
    for package in SETUPTOOLS["packages"]:
        assert (folder(package) / "__init__.py").is_file(), package
    for path in (ROOT / "collectx").rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), path


def test_every_part_has_a_layer():
    parts = {
        path.stem for path in (ROOT / "collectx").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__pycache__"} <= set(LEVEL)


@pytest.mark.parametrize(("path", "part"), list(sources()))
def test_imports_go_down(path, part):
    for name in imported(path):
        if not name.startswith("collectx."):
            continue
        other = name.split(".")[1]
        if other == part or other not in LEVEL or any(part == a and name.startswith(b) for a, b in SEAMS):
            continue
        assert LEVEL[other] < LEVEL[part], f"{part} imports {name}, which is not below it"
