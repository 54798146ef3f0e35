"""`collectx list [GROUP [CHOICE]] [-v]`: choices with the first line of their files; keys of a group or of a choice."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from collectx.cli.arguments import Arguments, UsageError, one_group, subcommand
from collectx.cli.compose import Composer
from collectx.cli.overrides import no_such_choice
from collectx.config.check import UNSET
from collectx.config.json_schema import group_schema, loggers, run_schema
from collectx.config.registry import GROUPS, KINDS
from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS
from collectx.run import preflight

# How `collectx list` orders groups.
_ORDER = (*GROUPS, "logger", "experiment", "debug")
_USAGE = """\
collectx list [GROUP [CHOICE]] [-v] [--config-dir DIR]: list the choices of every group, or of one group, with a line
about each, or the keys of one choice. For run, checkpoint, sweep and tune, which have no choices, list the keys.

  -v, --verbose      also list the keys of each choice, with defaults and documentation
  --config-dir DIR   also list your own choices in DIR

Example: collectx list env -v

Exit status: 0 listed, 2 wrong usage."""


def show(arguments: Arguments) -> int:
    """Prints the choices of all groups, or of the one that `arguments` name; returns the exit status."""
    overrides = [word for word in arguments.words if "=" in word]
    composer = Composer(arguments.config_dir, arguments.config_name)
    choices = find(composer, overrides)
    words = [word for word in arguments.words if word not in overrides]
    if not words and len(overrides) == 1 and (chosen := overrides[0].split("="))[0] in choices:
        words, overrides = chosen, []
    if len(words) > 2:
        raise UsageError(f"name a group, or a group and its choice, not {len(words)} words ({' '.join(words)}).")
    if len(words) == 2 and words[0] in ("experiment", "debug") and words[1] in choices[words[0]]:
        raise UsageError(
            f"{words[0]}={words[1]} has no keys of its own. To see what it sets: collectx run "
            f"{'='.join(words)} --cfg job"
        )
    if len(words) == 2 and words[0] in (*GROUPS, "logger") and words[1] not in (*choices, *SECTIONS):
        _show_choice(composer, overrides, words[0], words[1], choices[words[0]])
        return 0
    group = one_group(
        words,
        arguments.argv[1],
        [*dict.fromkeys([*choices, *SECTIONS, *COMMAND_SECTIONS])],
        choices,
    )
    if group is not None and group not in choices:
        print(f"{group}:", end="")
        _print_keys(group, {group: run_schema()["properties"][group]["properties"]})
        return 0
    for name in choices if group is None else [group]:
        width = max(map(len, choices[name]))
        print(f"{name}:")
        for choice, line in choices[name].items():
            print(_filled(line, f"  {choice:{width}}  ") or f"  {choice}")
        if "verbose" in arguments.flags and name in GROUPS:
            kinds = group_schema(name)["anyOf"]
            _print_keys(name, {kind["title"].partition("=")[2]: kind["properties"] for kind in kinds})
        elif "verbose" in arguments.flags and name == "logger":
            for logger, schema in loggers().items():
                _print_keys(f"logger.{logger}", {logger: schema["anyOf"][0]["properties"]})
    return 0


def _show_choice(
    composer: Composer, overrides: Sequence[str], group: str, choice: str, choices: Mapping[str, str]
) -> None:
    """Prints one of the choices of a group, and its keys with the values that its file sets. Raises `UsageError` if
    there is no such choice."""
    if choice not in choices:
        raise UsageError(no_such_choice(group, choice, [*choices]))
    print(f"{group}={choice}:  {choices[choice]}".rstrip(": "))
    if group == "logger":
        _print_keys(f"logger.{choice}", {choice: loggers()[choice]["anyOf"][0]["properties"]})
        return
    values: Any = OmegaConf.to_container(composer.load([*overrides, f"{group}={choice}"])[group], resolve=False)
    schemas = {each["title"].partition("=")[2]: each["properties"] for each in group_schema(group)["anyOf"]}
    kind = str(values.get("kind")) if KINDS[group] else next(iter(schemas))
    if kind not in schemas:
        raise UsageError(f"{group}={choice} has no known kind. To see what to change: collectx run {group}={choice}")
    set_here = {key: {"default": value} for key, value in values.items() if value != UNSET}
    keys = {key: option | set_here.get(key, {}) for key, option in schemas[kind].items()}
    _print_keys(group, {choice: keys | _arguments(group, values)})


def _arguments(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns schemas of the arguments that the class or function of a choice takes, as keys such as `kwargs.size`;
    none if it cannot be imported."""
    key = next((key for key in ("target", "entry_point") if isinstance(values.get(key), str)), None)
    if key is None or values[key] == UNSET:
        return {}
    found = {}
    for name, argument in preflight.arguments_of_user(values[key], f"{group}.{key}").items():
        hint = argument.annotation
        kind = "" if hint is argument.empty else f" ({getattr(hint, '__name__', hint)})"
        has_default = {} if argument.default is argument.empty else {"default": argument.default}
        set_here = {"default": values["kwargs"][name]} if name in (values.get("kwargs") or {}) else {}
        found[f"kwargs.{name}"] = {"description": f"An argument of {values[key]}{kind}."} | has_default | set_here
    return found


def _print_keys(group: str, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints every key of a group with its documentation and its packaged default, for each choice if these differ.
    `kinds` contains, for each choice, the JSON schemas of its keys."""
    for key in dict.fromkeys(key for options in kinds.values() for key in options if key not in ("defaults", "kind")):
        # description -> default -> choices
        described: dict[str, dict[str, list[str]]] = {}
        for kind, option in ((kind, options[key]) for kind, options in kinds.items() if key in options):
            default = json.dumps(option["default"], default=str) if "default" in option else ""
            described.setdefault(option.get("description", ""), {}).setdefault(default, []).append(kind)
        print(f"\n  {group}.{key}")
        for description, defaults in described.items():
            shown = [
                (default or "required") + (f" ({', '.join(having)})" if len(having) < len(kinds) else "")
                for default, having in sorted(defaults.items(), key=lambda each: not each[0])
            ]
            text = f"{'default ' if any(defaults) else ''}{', '.join(shown)}. {description}"
            print(_filled(text, " " * 6, 110))


def _filled(text: str, margin: str, width: int = 10_000) -> str:
    """Breaks a text, after a margin, into lines of at most `width` characters, fewer on a narrower terminal."""
    if sys.stdout.isatty():
        width = min(width, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text, width, initial_indent=margin, subsequent_indent=" " * len(margin), break_long_words=False
    )


def find(composer: Composer, overrides: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns group -> choice -> first sentence of the choice's file. Groups are in the order of the data path, then
    those of the user. Raises `ConfigError` if `overrides`, such as `hydra.searchpath=[...]`, are wrong."""
    sources = composer.load(overrides).hydra.runtime.config_sources
    roots = [_folder(source.schema, source.path) for source in sources if source.schema in ("pkg", "file")]
    choices = composer.choices(overrides)
    lines: dict[str, dict[str, str]] = {}
    for group in sorted(choices, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        for name in choices[group]:
            files = (root / group / f"{name}.yaml" for root in roots)
            # `run` says what is wrong with a file that is not UTF-8.
            text = next((file.read_text("utf-8", "replace") for file in files if file.is_file()), "")
            lines.setdefault(group, {})[name] = first_line(text)
    return lines


def _folder(schema: str, path: str) -> Any:
    return Path(path) if schema == "file" else resources.files(path.replace("/", "."))


def first_line(text: str) -> str:
    """Returns the first sentence of a file's comment, without `# @package`."""
    sentence = ""
    for line in text.splitlines():
        comment = line.lstrip("# ").strip()
        if not line.startswith("#") or not comment or sentence.endswith((".", "?")):
            break
        if not line.startswith("# @package"):
            sentence = f"{sentence} {comment}".strip()
    return sentence


main = subcommand("list", show, _USAGE)
