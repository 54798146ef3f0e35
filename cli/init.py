"""`collectx init DIR`: writes a project with an env, a policy and a trainer, which runs at once."""

from __future__ import annotations

import keyword
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from collectx.cli.arguments import Arguments, UsageError, subcommand, synopsis
from collectx.run.folder.layout import folder_errors
from collectx.run.terminal import printing

_USAGE = """\
collectx init DIR: write a project to the new or empty folder DIR: an env, a policy and a trainer of your own, their
choices in conf/, tests, and a README that says how to run it. Their package has the name of DIR if Python can import
it by that name, otherwise docking.

Exit status: 0 written, 2 wrong usage, or DIR is not empty."""

# In an installed package, and in a checkout.
_SOURCES = (Path(__file__).parent / "project", Path(__file__).parents[1] / "examples" / "custom_trainer_project")
# What runs and tests of the project in a checkout leave there.
_LEFT = ("__pycache__", "outputs", "multirun", ".*")


def _init(arguments: Arguments) -> int:
    if len(arguments.words) != 1:
        raise UsageError(f"name one folder. {synopsis(_USAGE)}")
    target = Path(arguments.words[0])
    with folder_errors(target, "project", "collectx init DIR"):
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise UsageError(f"{target} exists and is not an empty folder. Name a new one: collectx init DIR")
        source = next(path for path in _SOURCES if path.is_dir())
        is_free = _is_free(name := target.resolve().name)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_LEFT), dirs_exist_ok=True)
        if is_free:
            _name_package(target, name)
    printing.say(
        f"wrote a project to {printing.typed(target)}. To run it:\n"
        f"  cd {shlex.quote(str(target))}\n  collectx run --config-dir conf experiment=docking"
    )
    return 0


def _is_free(name: str) -> bool:
    """Whether a package may have this name: no other module has it."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return False
    spec = find_spec(name)
    return spec is None or spec.origin is None  # None: a folder without __init__.py, such as the new one


def _name_package(project: Path, name: str) -> None:
    """Renames the package `docking`, but not the env and the experiment of that name."""
    (project / "docking").rename(project / name)
    for path in filter(Path.is_file, project.rglob("*")):
        path.write_text(re.sub(r"\bdocking(?=[./][\w`])", name, path.read_text()))


main = subcommand("init", _init, _USAGE)
