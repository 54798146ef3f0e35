"""`collectx list [GROUP] [-v]`: every choice with the first line of its file; with `-v`, the keys of a group."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from collectx.cli.arguments import Arguments, one_group, run_subcommand
from collectx.config.json_schema import group_schema
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError

_OPTIONAL = ("experiment", "debug")


_USAGE = """\
collectx list [GROUP] [-v] [--config-dir DIR]: every choice of each group, or of one, with a line about it.

  -v, --verbose   also the keys of the choices, with their defaults and their documentation"""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(["--verbose" if word == "-v" else word for word in argv], _USAGE, _print_choices, ["verbose"])


def _print_choices(arguments: Arguments) -> int:
    choices = find(arguments.config_dir)
    group = one_group(arguments, "list", choices)
    for name in choices if group is None else [group]:
        width = max(map(len, choices[name]))
        print(f"{name}:")
        for choice, line in choices[name].items():
            print(f"  {choice:{width}}  {line}".rstrip())
        if "verbose" in arguments.flags and name in GROUPS:
            _print_keys(name)
    return 0


def _print_keys(group: str) -> None:
    """Prints every key of a group with its documentation and its packaged default, by choice where they differ."""
    kinds = {choice["title"].partition("=")[2]: choice["properties"] for choice in group_schema(group)["anyOf"]}
    for key in dict.fromkeys(key for options in kinds.values() for key in options if key not in ("defaults", "kind")):
        # description -> default -> choices
        described: dict[str, dict[str, list[str]]] = {}
        for kind, option in ((kind, options[key]) for kind, options in kinds.items() if key in options):
            default = f"default {json.dumps(option['default'])}" if "default" in option else "must be given"
            described.setdefault(option.get("description", ""), {}).setdefault(default, []).append(kind)
        print(f"\n  {group}.{key}")
        for description, defaults in described.items():
            parts = [
                default + (f" ({', '.join(having)})" if len(having) < len(kinds) else "")
                for default, having in defaults.items()
            ]
            text = f"{', '.join(parts)}. {description}"
            print(textwrap.fill(text, 110, initial_indent="      ", subsequent_indent="      "))


def find(config_dir: str | None) -> dict[str, dict[str, str]]:
    """Group -> choice -> first line; groups in the order of the data path, then the user's.

    Raises:
        ConfigError: the folder does not exist.
    """
    choices: dict[str, dict[str, str]] = {group: {} for group in (*GROUPS, *_OPTIONAL)}
    roots = [resources.files("collectx.conf")]
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError([f"--config-dir {config_dir}: no such folder."])
        roots.append(Path(config_dir))
    for root in roots:
        for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
            if not folder.is_dir() or folder.name == "hydra" or folder.name.startswith(("_", ".")):
                continue
            for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
                name, dot, suffix = file.name.rpartition(".")
                if dot and suffix == "yaml" and not name.startswith("_"):
                    choices.setdefault(folder.name, {}).setdefault(name, first_line(file.read_text()))
    return {group: names for group, names in choices.items() if names}


def first_line(text: str) -> str:
    """The first sentence of a file's comment, without `# @package`."""
    sentence = ""
    for line in text.splitlines():
        comment = line.lstrip("# ").strip()
        if not line.startswith("#") or not comment or sentence.endswith((".", "?")):
            break
        if not line.startswith("# @package"):
            sentence = f"{sentence} {comment}".strip()
    return sentence
