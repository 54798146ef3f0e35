"""Writes the options of the files in `conf/` from the dataclasses of `collectx/config/schema`: `make config`.

Written by hand are the first comment of each file, the defaults list of `conf/config.yaml`, experiments, and choices
that set other values of a kind, such as `conf/env/cartpole.yaml`. With `--check`, as in `make check`, it writes nothing
and fails if a file is stale.
"""

from __future__ import annotations

import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import Field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from collectx.config.problem import described
from collectx.config.registry import GROUPS, KINDS, schemas
from collectx.config.schema.fields import ABSENT, Section, default_of, section_of
from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS, LoggerConfig, RunConfig

CONF = Path(str(resources.files("collectx.conf")))
# The part of a file that is written by hand.
HEAD = re.compile(r"(#.*\n)*(\ndefaults:  #.*\n(  - .*\n)+\n)?")


def contents() -> Iterator[tuple[str, str]]:
    """Every file with options, and what it contains below its head."""
    sections = {**SECTIONS, **COMMAND_SECTIONS}
    seed = _option(RunConfig.__dataclass_fields__["seed"])
    yield "config.yaml", "\n".join([seed, *(_section(name, cls) for name, cls in sections.items())])
    for name, hint in typing.get_type_hints(LoggerConfig).items():
        if cls := section_of(hint):
            yield f"logger/{name}.yaml", _section(name, cls)
    for group in GROUPS:
        for kind in schemas(group):
            yield f"{group}/{kind}.yaml", _choice(group, kind)


def _choice(group: str, kind: str) -> str:
    """The options of a kind. It inherits another one, of the same class or a base class, if they share several."""
    classes = schemas(group)
    depths = {name: len(cls.__mro__) for name, cls in classes.items()}
    order = sorted(classes, key=lambda name: depths[name])
    bases = [name for name in order[: order.index(kind)] if issubclass(classes[kind], classes[name])]
    options, head = fields(classes[kind]), ""
    if bases:
        base = max(bases, key=lambda name: depths[name])
        own = tuple(field for field in options if field.name == "kind" or field not in fields(classes[base]))
        if len(own) < len(options) - 1:
            options, head = own, f"defaults:\n  - {base}\n  - _self_\n"
    return head + "".join("\n" + _option(field, kind if KINDS[group] else None) for field in options)


def _section(name: str, cls: Any, has_texts: bool = True) -> str:
    # A section that is null, as a logger, is in a file of its own.
    options = [field for field in fields(cls) if "text" in field.metadata]
    lines = [_option(field, width=118, has_text=has_texts) for field in options]
    return f"{name}:\n" + textwrap.indent(("\n" if has_texts else "").join(lines), "  ")


def _option(field: Field, kind: str | None = None, width: int = 120, has_text: bool = True) -> str:
    """An option with its text as a comment."""
    value = kind if field.name == "kind" and kind else default_of(field)
    lines = described(field.metadata["text"]) if has_text else ""
    comment = textwrap.wrap(lines, width - 2, break_long_words=False, break_on_hyphens=False)
    text = "".join(f"# {line}\n" for line in comment)
    if isinstance(value, Section):  # its options have the texts of the section around it
        return text + _section(field.name, type(value), has_texts=False)
    shown = yaml.safe_dump([value], default_flow_style=True, width=1000).strip()[1:-1] if value is not ABSENT else "???"
    return f"{text}{field.name}: {shown}\n"


def main() -> int:
    """Writes the files, or with `--check` names the stale ones."""
    stale = []
    for name, options in contents():
        path = CONF / name
        before = path.read_text() if path.is_file() else ""
        if not before.startswith("#"):
            sys.exit(f"{path}: begin it with a comment that says what this choice is, then run `make config` again.")
        after = HEAD.match(before)[0] + options  # type: ignore[index]
        if before != after:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after)
    if stale and "--check" in sys.argv:
        print(f"stale in conf/, run `make config`: {', '.join(stale)}")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
