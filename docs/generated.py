"""A hook of MkDocs: the pages of the site that are generated from the code.

`reference/configuration.md` has every option with type, range, default and meaning, from the dataclasses of
`collectx/config/schema`. `reference/commands.md` has the help of every subcommand. Drawings
become part of their page, so that their lines and texts have its colour (`currentColor`). The foot of every page names
the version that the site documents.
"""

import dataclasses
import enum
import inspect
import json
import re
import subprocess
import sys
import tomllib
from html import escape, unescape
from pathlib import Path
from typing import Any

import griffe
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

from collectx import __version__
from collectx.cli.main import SUBCOMMANDS
from collectx.config.json_schema import group_schema, run_schema
from collectx.config.registry import GROUPS, KEPT_GROUPS, marked
from collectx.library import keywords


class Docstrings(griffe.Extension):
    """Prepares docstrings, which are written for `help()`, for the pages of `reference/python`."""

    def __init__(self) -> None:
        paths = re.findall(r"^::: (collectx\.\S+)$", _python_pages(), re.MULTILINE)
        self._documented = {name: path for path in paths for name in (path, path.rpartition(".")[2])}

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Gives a class of keywords the docstring and the defaults that it has at run time."""
        if not cls.path.startswith("collectx.library.keywords.") or not cls.docstring:
            return
        actual = getattr(keywords, cls.name)
        cls.docstring.value = inspect.getdoc(actual) or ""
        for each in dataclasses.fields(actual):
            if each.name in cls.members and each.default is not dataclasses.MISSING:
                default = each.default.name if isinstance(each.default, enum.Enum) else each.default
                cls[each.name].value = repr(default)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Gives every argument an entry, and makes links of pages and documented classes."""
        if not obj.docstring:
            return
        text = _SECTION.sub(_entries, inspect.cleandoc(obj.docstring.value))
        own = {*obj.path.split("."), obj.path}
        for name, path in self._documented.items():
            if name not in own and (name == path or name[0].isupper()):
                text = text.replace(f"`{name}`", f"[`{name}`][{path}]", 1)
        obj.docstring.value = _PAGE.sub(_page_link, text)


def _python_pages() -> str:
    return "\n".join(path.read_text() for path in sorted((_ROOT / "docs/reference/python").glob("*.md")))


def _entries(section: re.Match) -> str:
    """The section with an entry for each name, and descriptions that begin with a capital letter."""
    return f"{section[1]}\n{_ENTRY.sub(_entry, section[2])}"


def _entry(entry: re.Match) -> str:
    names, text = [entry[1]] if "Error" in entry[1] else entry[1].split(", "), entry[2]
    if not re.match(r"\w*[._]\w", text):  # a name
        text = text[0].upper() + text[1:]
    others = text if len(text) < 120 else f"See `{names[0]}`."
    return "\n".join(f"    {name}: {others if index else text}" for index, name in enumerate(names))


def _page_link(reference: re.Match) -> str:
    """A link from a page of `reference/python` to another page, or to a section of it."""
    path, section = reference[1], " ".join((reference[2] or "").split())
    titles = re.findall(r"^#+ (.*)$", (_ROOT / "docs" / path).read_text(), re.MULTILINE)
    if section and section not in titles:
        raise ValueError(f"a docstring names the section {section!r} of docs/{path}, which has no such section")
    anchor = f"#{slugify(section, '-')}" if section else ""
    return f"[{section or titles[0]}](../../{path.removesuffix('.md')}.html{anchor})"


# A section of a docstring whose entries have names, and an entry.
_SECTION = re.compile(r"^(Args:|Attributes:|Raises:)\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {5,}.*)*)", re.MULTILINE)
# A page, and a section of it, in a docstring.
_PAGE = re.compile(r'docs/([\w/-]+\.md)(?:,\s+"([^"]+)")?')
_DRAWING = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*images/([\w-]+\.svg)" ?/?>')
_CONSOLE = re.compile(r'(<div class="language-console highlight")>(<pre>.*?</code></pre>)', re.DOTALL)
_ROOT = Path(__file__).parents[1]
_CONF = _ROOT / "conf"
_NAMES = {"integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "mapping"}


def on_config(config: Any) -> None:
    """Sets the version at the foot of the pages, and the link to the repository."""
    is_released = "\n## Unreleased\n" not in (_ROOT / "CHANGELOG.md").read_text()
    config.copyright = f"collectx {__version__}{'' if is_released else ' and the unreleased changes since'}"
    url = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    if ".example/" not in url:  # a placeholder leads nowhere
        config.repo_url = url


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for path, page in (("configuration", configuration()), ("commands", commands())):
        files.append(File.generated(config, f"reference/{path}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Removes the comment at the top, the page's tier: MkDocs takes the title from a heading in the first line only."""
    return re.sub(r"\A<!-- .*? -->\n", "", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replaces the images of drawings by the drawings, and marks prompts and output, which are not copied."""
    return _CONSOLE.sub(_commands_only, _DRAWING.sub(_drawing, html))


def _commands_only(block: re.Match) -> str:
    """A console block whose copy button copies the commands without prompts and output."""
    lines = unescape(re.sub(r"<[^>]*>", "", block[2])).splitlines()
    commands = []
    for line in lines:
        if line.startswith("$ ") or (commands and commands[-1].endswith("\\")):
            commands.append(line.removeprefix("$ "))
    text = escape("\n".join(commands))
    return f'{block[1]} data-copy="{text}">{block[2]}' if commands else block[0]


def _drawing(image: re.Match) -> str:
    text, name = image.groups()
    svg = (Path(__file__).parent / "images" / name).read_text()
    if "currentColor" not in svg:
        return image[0]
    # The style is for viewers of the file alone.
    svg = re.sub(r"<style>.*?</style>\n", "", svg, flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{text}" ', 1)


def commands() -> str:
    """The page of the commands."""
    parts = ["# Commands\n\nExit status: 0 completed, 1 failed, 2 wrong configuration or usage, 130 interrupted.\n"]
    for name in ("", *SUBCOMMANDS):
        words = [sys.executable, "-m", "collectx", *([name] if name else []), "--help"]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if name == "run":  # what follows are all choices and the configuration
            text = text.partition("\n\nThe configuration these")[0]
        parts.append(f"## collectx{' ' * bool(name)}{name}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def configuration() -> str:
    """The page of the configuration."""
    parts = [
        "# Configuration\n\nEvery option of `collectx run`. `GROUP=CHOICE` selects a choice, `GROUP.KEY=VALUE` sets a "
        "value. A key that only some choices have names them in its last column.\n"
    ]
    schema = run_schema()["properties"]
    parts.append(_section("seed", {"seed": schema["seed"]}, None))
    for name, section in schema.items():
        if name not in (*GROUPS, "defaults", "seed", "hydra"):
            parts.append(_section(name, _flat(section["properties"], f"{name}."), None))
    for group in GROUPS:
        choices = {
            each["title"].partition("=")[2]: _flat(each["properties"], f"{group}.")
            for each in group_schema(group)["anyOf"]
        }
        parts.append(_group(group, choices))
    return "\n".join(parts)


def _flat(properties: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The options with their paths; those of sections within a section too."""
    options: dict[str, Any] = {}
    for key, option in properties.items():
        if key in ("defaults", "kind"):
            continue
        inner = option.get("properties") or next(
            (each["properties"] for each in option.get("anyOf", ()) if "properties" in each), None
        )
        if inner:
            options |= _flat(inner, f"{prefix}{key}.")
        else:
            options[f"{prefix}{key}"] = option
    return options


def _group(group: str, choices: dict[str, dict[str, Any]]) -> str:
    merged: dict[str, dict[str, Any]] = {}
    holders: dict[str, list[str]] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for choice, options in choices.items():
        for path, option in options.items():
            merged.setdefault(path, option)
            holders.setdefault(path, []).append(choice)
            text = f"{option.get('description', '')} (default {_default(option)})"
            texts.setdefault(path, {}).setdefault(text, []).append(choice)
    for path, variants in texts.items():
        if len(variants) > 1:  # the choices differ in meaning or default
            lines = [f"{', '.join(f'`{each}`' for each in held)}: {text}" for text, held in variants.items()]
            merged[path] = {key: value for key, value in merged[path].items() if key != "default"}
            merged[path] |= {"description": " ".join(lines), "differs": True}
    where = {
        path: "" if len(held) == len(choices) else ", ".join(f"`{each}`" for each in held)
        for path, held in holders.items()
    }
    named = ", ".join(f"`{group}={path.stem}`" for path in sorted((_CONF / group).glob("*.yaml")))
    kept = " All of these options are fixed on resume." if group in KEPT_GROUPS else ""
    if "kind" in marked(group, "kept"):
        kept = " The kind is fixed on resume."
    return _section(group, merged, where, f"Choices: {named}.{kept}\n")


def _section(title: str, options: dict[str, Any], where: dict[str, str] | None, text: str = "") -> str:
    head = ["key", "type and range", "default", "meaning", *([] if where is None else ["only with"])]
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for path, option in options.items():
        cells = [f"`{path}`", _types(option), _default(option), _cell(option.get("description", ""))]
        rows.append(f"| {' | '.join(cells + ([] if where is None else [where[path]]))} |")
    # On a phone, `extra.css` shows rows as lists.
    table = '<div class="options" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n"
    return f"## {title}\n\n{text}\n{table}"


def _types(option: dict[str, Any]) -> str:
    texts = [_type(each) for each in option.get("anyOf", [option]) if "pattern" not in each]
    return " or ".join(dict.fromkeys(text for text in texts if text)) or "any"


def _type(each: dict[str, Any]) -> str:
    if "enum" in each:
        return ", ".join(f"`{value}`" for value in each["enum"])
    if "const" in each:
        return f"`{each['const']}`"
    # A text may be written as a number too.
    kind = "text" if isinstance(each.get("type"), list) else each.get("type", "")
    name = _NAMES.get(kind, kind)
    limits = [
        *([f"at least {each['minimum']}"] if "minimum" in each else []),
        *([f"above {each['exclusiveMinimum']}"] if "exclusiveMinimum" in each else []),
        *([f"at most {each['maximum']}"] if "maximum" in each else []),
    ]
    return " ".join([name, *limits]).strip()


def _default(option: dict[str, Any]) -> str:
    if option.get("differs"):
        return "see the meaning"
    if "default" not in option:
        return "required"
    value = option["default"]
    return "empty" if value == "" else f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<!`)\b(_\w+_)\b(?!`)", r"`\1`", text)  # not as emphasis
