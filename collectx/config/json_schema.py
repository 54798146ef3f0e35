"""A JSON schema of the configuration, for editors that complete and check YAML.

Types, ranges, defaults and descriptions are those of the dataclasses.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from collectx.config.check import members
from collectx.config.problem import described
from collectx.config.registry import GROUPS, field_of, schemas
from collectx.config.schema.fields import ABSENT, BITS, Section, default_of, section_of
from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS, LoggerConfig

_DRAFT = "http://json-schema.org/draft-07/schema#"
# Placeholders for a value in a file that others complete.
_OPEN = {"type": "string", "pattern": r"^(\?\?\?$|\$\{)"}
_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string"}
_NULL = {"type": "null"}
_LIMITS = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum"}


def run_schema() -> dict[str, Any]:
    """Returns the schema of a complete run, such as an experiment file. Every group and every key is optional."""
    properties = {
        "defaults": {"type": "array", "description": "choices of groups, as `- override /env: pendulum`"},
        **{group: _choices(group) for group in GROUPS},
        "seed": _option(int, field_of("seed")) | _described(field_of("seed")),
        **{name: _section(cls) for name, cls in {**SECTIONS, **COMMAND_SECTIONS}.items()},
        "hydra": {"type": "object"},
    }
    return {
        "$schema": _DRAFT,
        "title": "a collectx run",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def loggers() -> dict[str, Any]:
    """Returns the schema of each logger, a section below the section `logger`."""
    hints = typing.get_type_hints(LoggerConfig).items()
    return {name: _subsection(cls, hint) for name, hint in hints if (cls := section_of(hint)) is not None}


def group_schema(group: str) -> dict[str, Any]:
    """Returns the schema of one file `<group>/<name>.yaml`."""
    return {"$schema": _DRAFT, **_choices(group)}


def _choices(group: str) -> dict[str, Any]:
    choices = []
    for kind, cls in schemas(group).items():
        section = _section(cls)
        section["title"] = f"{group}={kind}"
        if "kind" in section["properties"]:
            section["properties"]["kind"] = {"const": kind}
        choices.append(section)
    return {"title": group, "anyOf": choices}


def _section(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties: dict[str, Any] = {"defaults": {"type": "array"}}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        section = section_of(hint)
        option = _option(hint, field) if section is None else _subsection(section, hint)
        properties[field.name] = option | _described(field)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _subsection(cls: Any, hint: Any) -> dict[str, Any]:
    return _section(cls) if hint is cls else {"anyOf": [_section(cls), _NULL]}


def _option(hint: Any, field: dataclasses.Field) -> dict[str, Any]:
    """Returns the schema of one option: a value of its type within its limits, or an interpolation."""
    if hint is Any:
        return {}
    also = [{"const": value} for value in field.metadata.get("also", ())]
    return {"anyOf": [*(_typed(each, field.metadata) for each in members(hint)), *also, _OPEN]}


def _described(field: dataclasses.Field) -> dict[str, Any]:
    """Returns the default and the text of an option. A logger, which is a section that may be null, has neither."""
    if "text" not in field.metadata:
        return {}
    default: Any = default_of(field)
    values = {} if default is ABSENT else {"default": default}
    if isinstance(default, Section):
        values = {"default": dataclasses.asdict(default)}  # type: ignore[call-overload]
    kept = " Fixed on resume." if field.metadata.get("kept") else ""
    return values | {"description": described(field.metadata["text"]) + kept}


def _typed(hint: Any, limits: typing.Mapping[str, Any]) -> dict[str, Any]:
    origin = typing.get_origin(hint) or hint
    if hint is type(None):
        return _NULL
    if origin is list:
        (item,) = typing.get_args(hint)
        if item is Any:
            return {"type": "array"}
        kinds = [_typed(each, limits) for each in members(item)]
        return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
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
