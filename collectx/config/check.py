"""From a composed configuration to the typed one: types, ranges, missing values, unknown keys, all problems at once.

Called by every subcommand that runs something, after Hydra has composed and before anything starts. The composition
itself is untyped on purpose: Hydra would stop at the first problem, and its advice to put a `+` before an unknown key
would switch its own check off. Must not know command lines or run folders.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator
from importlib import resources
from typing import Any

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collectx.config import GROUPS, KINDS, DevicesConfig, RunConfig, RunOptions, SweepConfig
from collectx.config.suggest import did_you_mean

_SEED = next(field for field in dataclasses.fields(RunConfig) if field.name == "seed")
_ABSENT = object()


def typed(node: DictConfig, ignore: frozenset[str] = frozenset()) -> tuple[RunConfig, list[str]]:
    """Checks `node` against the schema.

    Args:
        node: the whole configuration, without Hydra's own part.
        ignore: groups whose choice is already known to be wrong; they stay empty, and nothing is said about them.

    Returns:
        The configuration, and one text for each problem. A field with a problem holds MISSING.
    """
    problems: list[str] = []
    groups = {}
    for group in GROUPS:
        if group in ignore:
            groups[group] = _empty(group)
        else:
            groups[group] = _group(group, _child(node, group), problems)
    seed = _field("seed", _SEED, int, _child(node, "seed"), problems)
    options = _child(node, "run")
    run = _part("run", RunOptions, {} if options is _ABSENT else options, problems)
    sweep = _child(node, "sweep")
    if sweep is not _ABSENT:
        _part("sweep", SweepConfig, sweep, problems)
    for key in node:
        name = str(key)
        if name not in GROUPS and name not in ("seed", "run", "sweep"):
            problems.extend(_unknown(path) for path in _leaves(name, _child(node, name)) if path not in ignore)
    return RunConfig(**groups, seed=seed, run=run), problems


def known_paths() -> list[str]:
    """Every key that some choice of some group has, as `collector.num_workers`."""
    paths = dict.fromkeys(["seed", *_paths("run", RunOptions), *_paths("sweep", SweepConfig)])
    for group in GROUPS:
        for cls in {*KINDS[group].values()} or {DevicesConfig}:
            paths |= dict.fromkeys(_paths(group, cls))
    return list(paths)


def _paths(name: str, cls: Any) -> Iterator[str]:
    for field in dataclasses.fields(cls):
        path, hint = f"{name}.{field.name}", _hints(cls)[field.name]
        yield from _paths(path, hint) if dataclasses.is_dataclass(hint) else [path]


def _group(group: str, section: Any, problems: list[str]) -> Any:
    """The dataclass of one group."""
    if not isinstance(section, DictConfig) or section._is_none():
        problems.append(f"{group}: nothing is chosen: give {group}=NAME (`collectx list {group}`).")
        return _empty(group)
    cls = _class(group, section, problems)
    if cls is None:
        return _empty(group)
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in section:
        if str(key) not in fields:
            kind = _child(section, "kind")
            whose = f"{group}={kind}" if isinstance(kind, str) else group
            for path in _leaves(f"{group}.{key!s}", _child(section, str(key))):
                problems.append(_unknown(path, whose, list(fields)))
    values = {}
    for name, field in fields.items():
        value = _child(section, name)
        if value is _ABSENT:
            value = _packaged(group, _child(section, "kind")).get(name, _ABSENT)
        values[name] = _field(f"{group}.{name}", field, hints[name], value, problems)
    return cls(**values)


def _class(group: str, section: DictConfig, problems: list[str]) -> type | None:
    """Which dataclass describes the section: its `kind` says so."""
    if not KINDS[group]:
        return DevicesConfig
    kind = _child(section, "kind")
    if kind is _ABSENT or kind is None or kind == MISSING:
        problems.append(f"{group}.kind is not set: it is one of {', '.join(KINDS[group])}.")
        return None
    if kind not in KINDS[group]:
        problems.append(f"{group}.kind={kind} is not known{did_you_mean(str(kind), KINDS[group])}")
        return None
    return KINDS[group][kind]


def _field(path: str, field: dataclasses.Field, hint: Any, value: Any, problems: list[str]) -> Any:
    """The value of one field as its type, or MISSING with a problem added."""
    if isinstance(value, _Unresolved):
        problems.append(f"{path}: {value.reason}")
        return MISSING
    if dataclasses.is_dataclass(hint):
        return _part(path, hint, value, problems)
    if value is _ABSENT:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        value = field.default
    if _is_missing(value):
        problems.append(f"{path} is not set: give {path}=VALUE.")
        return MISSING
    try:
        converted = _convert(value, hint)
    except (TypeError, ValueError):
        problems.append(f"{path}={_shown(value)}: must be {_described(hint)}.")
        return MISSING
    wrong = _out_of_range(converted, field.metadata)
    if wrong:
        problems.append(f"{path}={_shown(value)}: must be {wrong}")
        return MISSING
    return converted


def _part(path: str, cls: Any, value: Any, problems: list[str]) -> Any:
    """A part that has fields, such as `launcher.trainer`. Fields without a default are null where left out."""
    if isinstance(value, DictConfig):
        value = {str(key): _child(value, str(key)) for key in value}
    if not isinstance(value, dict):
        problems.append(f"{path}={_shown(value)}: must be a mapping.")
        return MISSING
    fields = {each.name: each for each in dataclasses.fields(cls)}
    for key in value:
        if key not in fields:
            problems.append(f"{path}.{key}: no such key{did_you_mean(str(key), list(fields), prefix=f'{path}.')}")
    values = {}
    for name, each in fields.items():
        unset = None if each.default == MISSING else _ABSENT
        values[name] = _field(f"{path}.{name}", each, _hints(cls)[name], value.get(name, unset), problems)
    return cls(**values)


def _convert(value: Any, hint: Any) -> Any:
    """`value` as `hint`; ValueError or TypeError where it is something else. 1e6 is an integer, "8" (as an environment
    variable gives it) a number, 3 a text; 2.5 is no integer, and 1 no truth value."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return None if value is None else _convert(value, inner)
    if origin is list:
        if not isinstance(value, list):
            raise TypeError
        return [_convert(item, typing.get_args(hint)[0]) for item in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return hint(value)


def _out_of_range(value: Any, rule: Any) -> str | None:
    """What `value` must be, where it is not; see the functions that make metadata in `collectx/config.py`."""
    if value is None or value in rule.get("also", ()):
        return None
    if "choices" in rule and value not in rule["choices"]:
        return f"one of {', '.join(rule['choices'])}{did_you_mean(str(value), rule['choices'], listed=False)}"
    for number in value if isinstance(value, list) else [value]:
        if "minimum" in rule and not number >= rule["minimum"]:
            also = "".join(f", or {other}" for other in rule.get("also", ()))
            upper = f" and at most {rule['maximum']}" if "maximum" in rule else ""
            return f"at least {rule['minimum']}{upper}{also}."
        if "maximum" in rule and not number <= rule["maximum"]:
            return f"at least {rule['minimum']} and at most {rule['maximum']}."
        if "above" in rule and not number > rule["above"]:
            return f"greater than {rule['above']}."
    return None


def _described(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if arg is type(None) else _described(arg) for arg in typing.get_args(hint))
    if origin is list:
        inner = typing.get_args(hint)[0]
        return "a list" if inner is Any else f"a list of {_described(inner).split(' ', 1)[-1]}s, such as [1,2]"
    if origin is dict:
        return "a mapping"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a text"}.get(hint, str(hint))


def _unknown(path: str, whose: str | None = None, names: list[str] | None = None) -> str:
    """The sentence about a key that the schema does not have."""
    if names is None:
        # A top-level name that does not exist: the same key below its right group is the likeliest meaning, then the
        # nearest group.
        last = path.rpartition(".")[2]
        same = [known for known in known_paths() if known.rpartition(".")[2] == last]
        if len(same) == 1 or (same and "." not in path):
            return f"{path}: no such key; did you mean {' or '.join(same[:3])}?"
        return f"{path}: no such key{did_you_mean(path.partition('.')[0], [*GROUPS, 'seed', 'sweep'])}"
    group, key = path.split(".", 1)
    hint = did_you_mean(key, names, prefix=f"{group}.")
    return f"{path}: {whose} has no such key{hint}"


def _child(node: DictConfig, key: str) -> Any:
    """What `node` holds under `key`: groups as they are, everything else as resolved plain data."""
    if key not in node:
        return _ABSENT
    if OmegaConf.is_missing(node, key):
        return MISSING
    try:
        value = node[key]
        if isinstance(value, DictConfig) and key in GROUPS:
            return value
        if isinstance(value, (DictConfig, ListConfig)):
            return OmegaConf.to_container(value, resolve=True)
        return value
    except OmegaConfBaseException as error:
        return _Unresolved(str(error).splitlines()[0])


@dataclasses.dataclass(frozen=True)
class _Unresolved:
    """An interpolation that leads nowhere."""

    reason: str


def _leaves(path: str, value: Any) -> Iterator[str]:
    """The full names of all values below an unknown key, so that the user sees what was typed."""
    if isinstance(value, (dict, DictConfig)) and value:
        for key in value:
            yield from _leaves(f"{path}.{key!s}", value[key] if isinstance(value, dict) else _child(value, str(key)))
    else:
        yield path


def _empty(group: str) -> Any:
    """Stands for a group that cannot be read; all its fields are MISSING."""
    return typing.get_type_hints(RunConfig)[group]()


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _packaged(group: str, kind: Any) -> dict[str, Any]:
    """The values of `conf/<group>/<kind>.yaml` and what it inherits: a user's own file that only says `kind:` gets the
    rest from there, so that no default is written twice."""
    name = kind if isinstance(kind, str) else "cpu"
    file = resources.files("collectx.conf") / group / f"{name}.yaml"
    if not file.is_file():
        return {}
    content = OmegaConf.to_container(OmegaConf.create(file.read_text()))
    assert isinstance(content, dict)
    values: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            values |= _packaged(group, entry)
    return values | {str(key): value for key, value in content.items()}


def _is_missing(value: Any) -> bool:
    return value is dataclasses.MISSING or (isinstance(value, str) and value == MISSING)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
