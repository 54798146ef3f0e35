"""The user code that a configuration names, and digests of its source files: the snapshot records them, and `collectx
reproduce` names the ones that changed. Imports none of this code.

Files of installed packages are not read, as the snapshot records the package versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from collectx.config.schema.env import GymnasiumConfig
from collectx.config.schema.run import RunConfig
from collectx.installed import is_installed
from collectx.user_objects import HYDRA_KEYS, named_call, named_objects


class Target(NamedTuple):
    """A class or function that a configuration names.

    Attributes:
        key: the option that names it.
        name: its import path.
        kwargs_key: the option that contains its keyword arguments.
        kwargs: its keyword arguments.
    """

    key: str
    name: str
    kwargs_key: str
    kwargs: Mapping[str, Any]


def targets(cfg: RunConfig) -> Iterator[Target]:
    """Yields the classes and functions of user code and Gymnasium that a configuration names by import path. Options
    that failed their check are left out."""
    sections = {name: getattr(cfg, name, None) for name in ("env", "policy", "trainer", "logger")}
    sections["logger.custom"] = getattr(sections.pop("logger"), "custom", None)
    for path, section in sections.items():
        for name in ("entry_point", "target"):
            if target := getattr(section, name, None):
                yield Target(f"{path}.{name}", target, f"{path}.kwargs", getattr(section, "kwargs", {}))
        yield from _objects(getattr(section, "kwargs", None), f"{path}.kwargs")
    if isinstance(env := sections["env"], GymnasiumConfig):
        if ":" in (name := getattr(env, "id", None) or ""):
            yield Target("env.id", name, "env.kwargs", {})
        for index, item in enumerate(getattr(env, "wrappers", ())):
            target, arguments = named_call(item)
            kwargs = arguments if isinstance(arguments, Mapping) else {}
            yield Target(f"env.wrappers[{index}]", str(target), f"env.wrappers[{index}]", kwargs)
            yield from _objects(kwargs, f"env.wrappers[{index}]")


def _objects(kwargs: Any, where: str) -> Iterator[Target]:
    for path, node in named_objects(kwargs, where):
        arguments = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
        yield Target(f"{path}._target_", str(node["_target_"]), path, arguments)


def digests(cfg: RunConfig) -> dict[str, str]:
    """Returns, for each `key=import path` of `targets`, the digest of the module's file, or of all Python files of a
    package. Leaves out installed packages, and modules without a source file."""
    modules = {f"{each.key}={each.name}": _module(each.name) for each in targets(cfg)}
    return {name: _digest(path) for name, path in modules.items() if path is not None}


def _module(target: str) -> Path | None:
    """Returns the file of an import path's module, or the folder of its package."""
    first, *others = target.partition(":")[0].split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return None
    path = Path(spec.origin)
    if is_installed(path):
        return None
    for name in others if path.name == "__init__.py" else ():
        # Not by find_spec, which imports the packages above.
        following = [path.parent / f"{name}.py", path.parent / name / "__init__.py"]
        if not (there := [each for each in following if each.is_file()]):
            break
        path = there[-1]
    return path.parent if path.name == "__init__.py" else path


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    files: Iterable[Path] = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            content = b""
        digest.update(f"{file.relative_to(path.parent)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
