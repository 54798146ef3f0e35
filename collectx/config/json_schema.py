"""A JSON schema of the configuration, for editors that complete and check YAML.

Types and ranges are those of the dataclasses; defaults and descriptions are the values and the comments of the packaged
YAML files.
"""

from __future__ import annotations

import dataclasses
import typing
from importlib import resources
from typing import Any

import yaml

from collectx.config.convert import members
from collectx.config.registry import GROUPS, limits_of, packaged_values, schemas
from collectx.config.schema.fields import BITS, section_of
from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS, LoggerConfig

_DRAFT = "http://json-schema.org/draft-07/schema#"
# Placeholders for a value in a file that others complete.
_OPEN = {"type": "string", "pattern": r"^(\?\?\?$|\$\{)"}
_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string"}
_NULL = {"type": "null"}
_LIMITS = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum"}


def run_schema() -> dict[str, Any]:
    """The schema of a complete run, such as an experiment file. Every group and every key is optional."""
    comments = _comments("config")
    values = yaml.safe_load((resources.files("collectx.conf") / "config.yaml").read_text())
    properties = {
        "defaults": {"type": "array", "description": "choices of groups, as `- override /env: pendulum`"},
        **{group: _choices(group) for group in GROUPS},
        "seed": _option(int, limits_of("seed"))
        | {"default": values["seed"]}
        | _described(comments, "seed", limits_of("seed")),
        **{
            name: _section(cls, values[name], comments, f"{name}.")
            for name, cls in {**SECTIONS, **COMMAND_SECTIONS}.items()
        },
        "hydra": {"type": "object"},
    }
    properties["logger"]["properties"] |= loggers()
    return {
        "$schema": _DRAFT,
        "title": "a collectx run",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def loggers() -> dict[str, Any]:
    """The schema of each logger, a section below the section `logger`."""
    hints = typing.get_type_hints(LoggerConfig)
    sections = {name: cls for name, hint in hints.items() if (cls := section_of(hint)) is not None}
    return {name: {"anyOf": [_logger(name, cls), _NULL]} for name, cls in sections.items()}


def _logger(name: str, cls: Any) -> dict[str, Any]:
    return _section(cls, packaged_values("logger", name)[name], _comments(f"logger/{name}"), f"{name}.")


def group_schema(group: str) -> dict[str, Any]:
    """Returns the schema of one file `<group>/<name>.yaml`."""
    return {"$schema": _DRAFT, **_choices(group)}


def _choices(group: str) -> dict[str, Any]:
    choices = []
    for kind, cls in schemas(group).items():
        section = _section(cls, packaged_values(group, kind), _comments(f"{group}/{kind}"))
        section["title"] = f"{group}={kind}"
        if "kind" in section["properties"]:
            section["properties"]["kind"] = {"const": kind}
        choices.append(section)
    return {"title": group, "anyOf": choices}


def _section(cls: Any, defaults: dict[str, Any], comments: dict[str, str], prefix: str = "") -> dict[str, Any]:
    """The schema of a dataclass. `prefix` is the path of its keys in the file of the comments, such as `eval.`."""
    hints = typing.get_type_hints(cls)
    properties: dict[str, Any] = {"defaults": {"type": "array"}}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if (section := section_of(hint)) is not None:
            option = _section(section, {}, comments, f"{prefix}{field.name}.")
        else:
            option = _option(hint, field.metadata)
        if defaults.get(field.name, "???") != "???":
            option["default"] = defaults[field.name]
        properties[field.name] = option | _described(comments, prefix + field.name, field.metadata)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _option(hint: Any, limits: typing.Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of one option: a value of its type within its limits, or an interpolation."""
    if hint is Any:
        return {}
    also = [{"const": value} for value in limits.get("also", ())]
    return {"anyOf": [*(_typed(each, limits) for each in members(hint)), *also, _OPEN]}


def _typed(hint: Any, limits: typing.Mapping[str, Any]) -> dict[str, Any]:
    origin = typing.get_origin(hint) or hint
    if hint is type(None):
        return _NULL
    if origin is list:
        (item,) = typing.get_args(hint)
        return {"type": "array"} if item is Any else {"type": "array", "items": _typed(item, limits)}
    if origin is dict:
        return {"type": "object"}
    if "choices" in limits:
        return {"enum": list(limits["choices"])}
    # A text may be written without quotes, such as 30 for a time.
    kind: Any = ["string", "number"] if hint is str else _SCALARS[hint]
    ranges: dict[str, Any] = {name: limits[key] for key, name in _LIMITS.items() if key in limits}
    if hint is int:
        ranges["exclusiveMaximum"] = 2 ** limits.get("bits", BITS)
    return {"type": kind} | ranges


def _described(comments: dict[str, str], path: str, marks: typing.Mapping[str, Any]) -> dict[str, str]:
    # The keys of a part of a job have the comments of the section around it.
    text = comments.get(path) or comments.get(path.rpartition(".")[2])
    kept = " A resume may not change it." if marks.get("is_kept") else ""
    return {"description": f"{text}{kept}"} if text else {}


def _comments(path: str) -> dict[str, str]:
    """The comment above every key of `conf/<path>.yaml`, and of the files that it inherits, by the path of the key."""
    file = resources.files("collectx.conf").joinpath(f"{path}.yaml")
    if not file.is_file():
        return {}
    group = path.rpartition("/")[0]
    inherited: dict[str, str] = {}
    comments: dict[str, str] = {}
    block: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        key, colon, _ = line.strip().partition(":")
        if line.startswith("  - ") and group and line != "  - _self_":
            inherited |= _comments(f"{group}/{line.removeprefix('  - ').strip()}")
        if line.lstrip().startswith("#"):
            block.append(line.lstrip("# "))
            continue
        if colon and key.isidentifier():
            indent = len(line) - len(line.lstrip())
            parents = [*(parent for parent in parents if parent[0] < indent), (indent, key)]
            if block:
                comments[".".join(name for _, name in parents)] = " ".join(block)
        block = []
    return inherited | comments
