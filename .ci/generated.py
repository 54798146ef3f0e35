"""A hook of MkDocs: the parts of the site that are generated from the code.

`<!-- options -->` in `reference/configuration.md` becomes every option with type, range, default and meaning, from the
dataclasses of `collectx/config/schema`. `<!-- commands -->` in `reference/commands.md` becomes the help of every
subcommand, `<!-- names -->` in `reference/names.md` the table of `collectx/config/other_names.md`. The docstrings of
`reference/python` get links and defaults. CHANGELOG and CONTRIBUTING are pages too. Tables of what works together get
short titles. Drawings become part of their page, so that their lines and texts have its colour (`currentColor`). The
foot of every page names the version that the site documents.
"""

import dataclasses
import enum
import functools
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection
from html import escape, unescape
from pathlib import Path
from typing import Any

import griffe
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from collectx import __version__
from collectx.cli.compose import Composer
from collectx.cli.docs import pages
from collectx.cli.list import find
from collectx.cli.main import SUBCOMMANDS
from collectx.config import other_names
from collectx.config.json_schema import group_schema, run_schema
from collectx.config.registry import GROUPS, KEPT_GROUPS, marked
from collectx.library import collectors, keywords


class Docstrings(griffe.Extension):
    """Prepares docstrings, which are written for `help()`, for the pages of `reference/python`."""

    def __init__(self) -> None:
        paths = re.findall(r"^::: (collectx\.\S+)$", _python_pages(), re.MULTILINE)
        self._documented = {name: path for path in paths for name in (path, path.rpartition(".")[2])}

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Gives a class of keywords the docstring and the defaults that it has at run time, and a collector's
        signature the arguments that most scripts pass."""
        if cls.path.startswith("collectx.library.collectors.") and "__init__" in cls.members:
            parameters = inspect.signature(getattr(collectors, cls.name)).parameters.values()
            shown = [each for each in parameters if each.kind != each.KEYWORD_ONLY or each.name in _SHOWN]
            others = griffe.Parameter("keywords", kind=griffe.ParameterKind.var_keyword)
            cls["__init__"].parameters = griffe.Parameters(griffe.Parameter("self"), *map(_parameter, shown), others)
        if not cls.path.startswith("collectx.library.keywords.") or not cls.docstring:
            return
        actual = getattr(keywords, cls.name)
        cls.docstring.value = inspect.getdoc(actual) or ""
        for each in dataclasses.fields(actual):
            if each.name in cls.members and each.default is not dataclasses.MISSING:
                default = each.default.name if isinstance(each.default, enum.Enum) else each.default
                cls[each.name].value = repr(default)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replaces names of types that only the code knows."""
        attr.annotation = _MEANT.get(str(attr.annotation), attr.annotation)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Replaces names of types that only the code knows."""
        for each in func.parameters:
            each.annotation = _MEANT.get(str(each.annotation), each.annotation)
        func.returns = _MEANT.get(str(func.returns), func.returns)

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


def _parameter(actual: inspect.Parameter) -> griffe.Parameter:
    default = None if actual.default is actual.empty else repr(actual.default)
    return griffe.Parameter(actual.name, kind=griffe.ParameterKind[actual.kind.name.lower()], default=default)


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
    path, section = pages()[reference[1]], " ".join((reference[2] or "").split())
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    if section and section not in titles:
        raise ValueError(f"a docstring names the section {section!r} of {path}, which has no such section")
    anchor = f"#{slugify(section, '-')}" if section else ""
    return f"[{section or titles[0]}](../../{path.parent.name}/{path.name}{anchor})"


# The keywords in the signature of a collector, and types in place of names that only the code knows.
_SHOWN = ("frames_per_batch", "total_frames")
_MEANT = {
    "Any": "object",
    "CreateEnv": "Callable | Env | VectorEnv | list",
    "Devices": "device | str | list | None",
    "PerWorker": "dict | list[dict] | None",
}
# A section of a docstring whose entries have names, and an entry.
_SECTION = re.compile(r"^(Args:|Attributes:|Raises:)\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {5,}.*)*)", re.MULTILINE)
# A page, and a section of it, in a docstring.
_PAGE = re.compile(r'`collectx docs ([\w/-]+)`(?:,\s+"([^"]+)")?')
# The maximum number of entries of a page's contents: little more than fits on a screen.
_MAX_CONTENTS = 45
_DRAWING = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*images/([\w-]+\.svg)" ?/?>')
_CODE = re.compile(r'<div class="language-(?!console|text)\w+(?: doc-signature)? highlight">.*?</pre>', re.DOTALL)
_CONSOLE = re.compile(
    r'<div class="language-(?P<kind>console|text) highlight">(?P<head><pre>.*?<code>)(?P<code>.*?)</code></pre>',
    re.DOTALL,
)
# A gap between two columns of what a command prints, the furthest column at which wrapped words hang, and the least
# width of these.
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_MAX_HANG = 42
_LAST_COLUMN = 22
# The columns of code, and of a terminal in its smallest type, that fit a phone: wider blocks scroll.
_PHONE, _PHONE_TERMINAL = 42, 57
# A short head of a column of numbers, which stays in one line.
_HEAD = re.compile(r'<th (style="text-align: right;">(?=[^<]{1,18}</th>))')
# Code at the begin of a row that is too long for one line, and that breaks at its spaces.
_LONG = re.compile(r"(?<=<tr>\n<td>)((?:<code>[^<]*</code>[^<]*)*?)<code>(?=[^<]{40,}</code>)(?=[^<]* )")
_HEAD_CODE = re.compile(r"<th[^>]*>(?:(?!</th>).)*</th>")
# Words that browsers would break after a hyphen or a slash, and the column up to which a phone keeps them whole.
_WORD = re.compile(r"[^\s<>]*[-/][^\s<>]*(?![^<]*>)")
_MAX_WORD = 40
# Commands, flags, folders and options in a sentence.
_WORDS = re.compile(
    r"(?<![\w.\[/])(collectx [a-z]+(?: (?:DIR|tune))?|--[a-z]+|[A-Z]+_DIR(?:/(?:[\w.]*\w)?/?)?"
    r"|[a-z_]+(?:\.[a-z_]+)+(?:=\w+)?|[a-z_]+=\w+)(?![\w(*])"
)
_COMBINATIONS = re.compile(r"^\| works with \|.*\n(?:\|.*\n)+", re.MULTILINE)
# How much a match counts in the search, by the page's folder or file; elsewhere 1.
_BOOSTS = {"tutorials": 2, "how-to": 2, "changelog.md": 0.5, "contributing.md": 0.5}
_ROOT = Path(__file__).parents[1]
_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict", "string": "str"}
_TYPES |= {"null": "`null`"}
_SLURM = {"slurm", "submitit", "submitit_delayed"}
# If more choices than this differ from the others, they are "otherwise".
_MANY = 3
# The schema of an option, by its path and by the choice of its group.
Variants = dict[str, dict[str, Any]]


def on_config(config: Any) -> None:
    """Sets the version at the foot of the pages, and the link to the repository."""
    is_released = "\n## Unreleased\n" not in (_ROOT / "CHANGELOG.md").read_text()
    config.copyright = f"collectx {__version__}{'' if is_released else ' and the unreleased changes since'}"
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")


def on_files(files: Files, config: Any) -> None:
    """Adds pages for files beside `docs/`, without their links to what the site does not contain."""
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (_ROOT / name).read_text().replace("](docs/", "](page:")
        text = re.sub(r"\[([^]]+)\]\((?!page:|https:|#)[^)]*\)", r"\1", text).replace("](page:", "](")
        files.append(File.generated(config, name.lower(), content=text))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adds what is generated, and the page's weight in the search. Removes the comment at the top, the page's tier:
    MkDocs takes the title from a heading in the first line only. The home page has no columns beside it."""
    if (boost := _BOOSTS.get(page.file.src_uri.split("/")[0])) is not None:
        page.meta["search"] = {"boost": boost}
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    if "<!-- names -->" in markdown:  # a wide table
        page.meta["hide"] = ["toc"]
    for marker, content in (("options", options), ("commands", commands), ("names", names)):
        markdown = re.sub(rf"<!-- {marker} -->\n", lambda _, content=content: content(), markdown)
    # These lines are for readers of the file.
    markdown = re.sub(r"^\*Outside of the site.*\*\n\n", "", markdown, flags=re.MULTILINE)
    markdown = _COMBINATIONS.sub(_combinations, markdown)
    return re.sub(r"\A<!-- .*? -->\n", "", markdown)


def _combinations(table: re.Match) -> str:
    """A table of what works together, with short titles and visible exceptions: a group is named once."""
    head, rule, *rows = table[0].splitlines()
    corner, *titles = head.strip("| ").split(" | ")
    groups = set(re.findall(r"`(\w+=)", head))
    if len(groups) == 1 and all(title.startswith("`") for title in titles):
        group = groups.pop()
        corner, titles = f"{corner} `{group}`", [title.replace(f"`{group}", "`") for title in titles]
        titles = [re.sub(r"`(\w+) ([^`]+)`", r"`\1` with `\2`", title) for title in titles]
    lines = [f"| {corner} | {' | '.join(titles)} |", rule]
    for row in rows:
        name, *cells = row.strip("| ").split(" | ")
        name = re.sub(r"`(\w+=)[^`]*`(?:, `\1[^`]*`)+", lambda names: _named_once(names[0], names[1]), name)
        lines.append(f"| {name} | {' | '.join('**no**' if cell == 'no' else cell for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _named_once(names: str, group: str) -> str:
    first, *others = names.split(", ")
    return ", ".join([first, *(each.replace(f"`{group}", "`") for each in others)])


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Replaces the images of drawings by the drawings, and marks prompts and output, which are not copied. Long
    contents lose their lowest levels."""
    levels = [[*page.toc]]
    while inner := [each for entry in levels[-1] for each in entry.children]:
        levels.append(inner)
    while sum(map(len, levels)) > _MAX_CONTENTS and len(levels) > 2:  # h1 and h2 remain
        levels.pop()
        for entry in levels[-1]:
            entry.children = []
    html = _HEAD.sub(r'<th class="whole" \1', html)
    html = _LONG.sub(r'\1<code class="breaks">', html)
    html = _HEAD_CODE.sub(lambda head: re.sub(r"(\.\w+=|_)(?=\w+</code>)", r"\1<wbr>", head[0]), html)
    return _CONSOLE.sub(_terminal, _CODE.sub(_code, _DRAWING.sub(_drawing, html)))


def _code(block: re.Match) -> str:
    """Marks code that scrolls on a phone."""
    lines = unescape(re.sub(r"<[^>]*>", "", block[0])).splitlines()
    return block[0].replace(' highlight">', f' highlight{_wide(max(map(len, lines)), _PHONE)}">', 1)


def _wide(columns: int, fitting: int) -> str:
    return " wide" if columns > fitting else ""


def _terminal(block: re.Match) -> str:
    """Marks the lines of a terminal's block, whose copy button copies the commands without prompts and output. On a
    narrow screen, rows of a table stay whole, in smaller type; other lines wrap below their last column."""
    lines = block["code"].rstrip("\n").split("\n")
    texts = [unescape(re.sub(r"<[^>]*>", "", line)) for line in lines]
    commands: list[str] = []
    columns = 1
    for index, text in enumerate(texts):
        if text.startswith("$ ") or (commands and commands[-1].endswith("\\")):
            commands.append(text.removeprefix("$ "))
            hang = 4
        else:
            *_, hang = 0, *(gap.end() for gap in _GAP.finditer(text))
            if hang and (hang > _MAX_HANG or " " not in text[hang:]):
                columns = max(columns, len(text))
                lines[index] = f'<span class="row">{lines[index]}</span>'
                continue
            columns = max(columns, min(len(text), hang + _LAST_COLUMN)) if hang else columns
            hang = hang or len(text) - len(text.lstrip()) + 2
        if text:
            words = _WORD.sub(lambda word, hang=hang: _whole(word[0], hang), lines[index])
            lines[index] = f'<span class="hangs" style="--hang: {hang}ch">{words}</span>'
    copied = escape("\n".join(commands or texts))
    code = "\n".join(lines)
    return (
        f'<div class="language-{block["kind"]} highlight{_wide(columns, _PHONE_TERMINAL)}" '
        f'style="--columns: {columns}" data-copy="{copied}">'
        f"{block['head']}{code}\n</code></pre>"
    )


def _whole(word: str, hang: int) -> str:
    kind = "whole" if hang + len(unescape(word)) <= _MAX_WORD else "whole long"
    return f'<span class="{kind}">{word}</span>'


def _drawing(image: re.Match) -> str:
    text, name = image.groups()
    svg = (_ROOT / "docs" / "images" / name).read_text()
    if "currentColor" not in svg:
        return image[0]
    # The style is for viewers of the file alone.
    svg = re.sub(r"<style>.*?</style>\n", "", svg, flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{text}" ', 1)


def commands() -> str:
    """The help of every command, in the order of the table of `commands.md`."""
    page = (_ROOT / "docs/reference/commands.md").read_text()
    names = re.findall(r"\| \[`(\w+)`\]\(#collectx-", page)
    if missing := {*names} ^ {*SUBCOMMANDS}:
        raise ValueError(f"the table of commands.md and the commands differ in {missing}")
    parts = []
    for name in names:
        words = [sys.executable, "-m", "collectx", name, "--help"]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if name == "run":  # what follows are all choices and the configuration
            text = text.partition("\n\nGroups and their choices")[0]
        parts.append(f"## collectx {name}\n\n{_help(text.rstrip())}\n")
    return "\n".join(parts)


def _help(text: str) -> str:
    """A help text as Markdown: sentences as paragraphs, which fit any width, and aligned lines as they are."""
    parts = []
    for block in text.split("\n\n"):
        if re.search(r"\S {2,}\S|^ ", block, re.MULTILINE):
            parts.append(f"```text\n{block}\n```")
            continue
        sentences = " ".join(block.split())
        if sentences.startswith("collectx "):
            usage, _, sentences = sentences.partition(": ")
            parts.append(f"```text\n{usage}\n```")
            sentences = sentences[:1].upper() + sentences[1:]
        quoted = [part if part[:1] == "`" else _WORDS.sub(r"`\1`", part) for part in re.split("(`[^`]*`)", sentences)]
        parts.append("".join(quoted).replace("<", "&lt;"))
    return "\n\n".join(parts)


def names() -> str:
    """The options with their names in each library, and what differs below the option; without names of no library."""
    head, _, *rows = (line.strip("|").split("|") for line in other_names.TABLE.read_text().splitlines())
    lines = [head[:-2], ["---"] * len(head[:-2])]
    for option, *libraries, _, note in rows:
        if any(cell.strip() for cell in libraries):
            first = re.sub(r"=\[.*\]`", "`", option) + (f"<br>{note}" if note.strip() else "")
            lines.append([first, *(cell.replace(", ", "<br>") for cell in libraries)])
    table = "".join(f"|{'|'.join(line)}|\n" for line in lines)
    return f'<div class="names" markdown>\n\n{table}\n</div>\n'


def options() -> str:
    """Every option of the configuration, by section, in the order of the table of `configuration.md`."""
    page = (_ROOT / "docs/reference/configuration.md").read_text()
    first = re.findall(r"^\| \[`(\w+)`\]", page, re.MULTILINE)
    schema = run_schema()["properties"]
    sections: dict[str, Variants] = {name: _variants(name) for name in GROUPS}
    sections["seed"] = {"seed": {"": schema["seed"]}}
    sections |= {"experiment": {}, "debug": {}}
    for name in schema.keys() - sections.keys() - {"defaults", "hydra"}:
        sections[name] = {path: {"": each} for path, each in _flat(schema[name]["properties"], f"{name}.").items()}
    if missing := sections.keys() ^ set(first):
        raise ValueError(f"the table of configuration.md and the schema differ in {missing}")
    paths = {path for variants in sections.values() for path in variants}
    parts = []
    for name in first:
        parts.append(f"## {name}\n\n{_choices(name)}")
        components = [_components(sections[name])] if name == "launcher" else []
        parts += [*(_option(path, each, name, paths) for path, each in sections[name].items()), *components]
    return "\n".join(parts)


def _components(options: Variants) -> str:
    """One entry for all options of `launcher.trainer` and `launcher.worker`, which are those of `launcher` again. Takes
    them out of `options`."""
    twins = [path for path in options if path.startswith(("launcher.trainer.", "launcher.worker."))]
    names = dict.fromkeys(path.rpartition(".")[2] for path in twins)
    for path in twins:
        del options[path]
    listed = _listed([f"[`{name}`](#launcher.{name})" for name in names], "and")
    return (
        "### `launcher.trainer.*`, `launcher.worker.*` { #launcher.trainer }\n\n"
        "only with `launcher=submitit_delayed`\n\n"
        "Resources of the trainer's component and of the workers' component, which has `collector.num_workers` tasks: "
        f"{listed}, each as the option of `launcher` with this name. `null`: the value of that option.\n"
    )


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


def _variants(group: str) -> Variants:
    variants: Variants = {}
    for each in group_schema(group)["anyOf"]:
        for path, option in _flat(each["properties"], f"{group}.").items():
            variants.setdefault(path, {})[each["title"].partition("=")[2]] = option
    return variants


@functools.cache
def _lines() -> dict[str, dict[str, str]]:
    """The first sentence of every choice, by group."""
    return find(Composer(), [])


def _choices(group: str) -> str:
    """The choices of a group, and what a resume keeps."""
    text = ""
    if lines := _lines().get(group):
        rows = "\n".join(f"| `{group}={name}` | {_cell(line)} |" for name, line in lines.items())
        text = f"| choice | what it is |\n|---|---|\n{rows}\n"
    if group in KEPT_GROUPS:
        text += "\nA resume cannot change any option of this group.\n"
    elif group in GROUPS and "kind" in marked(group, "kept"):
        text += "\nA resume cannot change the choice.\n"
    return text


def _option(path: str, variants: dict[str, Any], section: str, paths: set[str]) -> str:
    """The heading of an option, its type and default, and its meaning."""
    choices = (
        {each["title"].partition("=")[2] for each in group_schema(section)["anyOf"]} if section in GROUPS else {""}
    )
    facts = [_by_choice(variants, _types), _by_choice(variants, _default).replace(", default ", ", ")]
    if set(variants) != choices:
        facts.append(f"only with {_any_of(variants, section)}")
    meanings = _same(variants, lambda option: _meaning(option, section, paths - {path}))
    lines = [
        text if len(meanings) == 1 else f"{_or_otherwise(f'with {_any_of(held, section)}', held).capitalize()}: {text}"
        for text, held in meanings.items()
    ]
    heading = "" if path == section else f"### `{path}` {{ #{path} }}\n\n"
    return heading + " · ".join(facts) + "\n\n" + "\n\n".join(lines) + "\n"


def _same(variants: dict[str, Any], text_of: Callable[[dict[str, Any]], str]) -> dict[str, list[str]]:
    """The choices with the same text, by text."""
    texts: dict[str, list[str]] = {}
    for choice, option in variants.items():
        texts.setdefault(text_of(option), []).append(choice)
    return dict(sorted(texts.items(), key=lambda each: len(each[1]) > _MANY))


def _or_otherwise(condition: str, choices: list[str]) -> str:
    return "otherwise" if len(choices) > _MANY else condition


def _by_choice(variants: dict[str, Any], text_of: Callable[[dict[str, Any]], str]) -> str:
    texts = _same(variants, text_of)
    if len(texts) == 1:
        return next(iter(texts))
    parts = [
        (text, _or_otherwise(f"for {_listed([f'`{each}`' for each in held], 'and')}", held))
        for text, held in texts.items()
    ]
    return ", ".join(f"{text} {condition}" for text, condition in parts)


def _any_of(choices: Collection[str], group: str) -> str:
    """Choices of a group, which is named once."""
    if group == "launcher" and {*choices} == _SLURM:
        return "the [SLURM launchers](slurm.md)"
    first, *others = choices
    return _listed([f"`{group}={first}`", *(f"`{each}`" for each in others)], "or")


def _listed(texts: list[str], word: str) -> str:
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _types(option: dict[str, Any]) -> str:
    texts: list[str] = []
    for each in option.get("anyOf", [option]):
        if "pattern" not in each:
            texts += [f"`{value}`" for value in each["enum"]] if "enum" in each else [_type(each)]
    return _listed(list(dict.fromkeys(text for text in texts if text)) or ["any value"], "or")


def _type(each: dict[str, Any]) -> str:
    if "const" in each:
        return f"`{each['const']}`"
    # A text may be written as a number too.
    kind = "string" if isinstance(each.get("type"), list) else each.get("type", "")
    low, above, high = each.get("minimum"), each.get("exclusiveMinimum"), each.get("maximum")
    if (kind, low, high) == ("integer", 0, 1):
        return "`0` or `1`"
    limit = f" above {above}" if above is not None else "" if low is None else f" at least {low}"
    if high is not None:
        limit = (
            f" at most {high}"
            if not limit
            else f" from {low} to {high}"
            if above is None
            else f"{limit}, at most {high}"
        )
    return f"{_TYPES.get(kind, f'`{kind}`')}{limit}" if kind else ""


def _default(option: dict[str, Any]) -> str:
    if "default" not in option:
        return "required"
    value = option["default"]
    shown = "empty" if value == "" else f"`{json.dumps(value) if not isinstance(value, str) else value}`"
    return f"default {shown}"


def _meaning(option: dict[str, Any], section: str, paths: set[str]) -> str:
    """The text of an option, with links to other options and without the range and the values, which its type has."""
    text = re.sub(
        r", (?:(?:at least|above) \d[\d.]*(?<!\.)(?:,(?= ))?|0 to 1(?=[.;]))", "", _cell(option.get("description", ""))
    )
    choices = [str(each) for one in option.get("anyOf", [option]) for each in one.get("enum", ())]
    text = re.sub(rf": {re.escape(_listed(choices, 'or'))}(?=[.,])", "", text) if choices else text
    values = {"true", "false", "null", *choices}
    names = "|".join(re.escape(str(each)) for each in sorted(values, key=str))
    text = re.sub(rf"(^|[.?] )({names}|-?\d+): ", r"\1`\2`: ", text)

    def link(word: re.Match) -> str:
        for path in (word[1], f"{section}.{word[1]}"):
            if path in paths:
                return f"[`{word[0]}`](#{path})"
        return f"`{word[0]}`" if "=" in word[0] else word[0]

    text = text.replace("`collectx docs envs`", "[Envs](envs.md#envs-on-a-gpu)")
    return re.sub(r"(?<![\w`.\[])([a-z]\w*(?:[._][a-z]\w*)+)(?:=[\w.-]*\w)?(?![\w`(\]])", link, text)


def _cell(text: str) -> str:
    """A text in which choices and keys are code."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    text = re.sub(r"(?<!`)\b(_\w+_)\b(?!`)", r"`\1`", text)  # not as emphasis
    text = re.sub(rf"(?<![\w`'\[])((?:{'|'.join(GROUPS)})=\w+)(?![\w`])", r"`\1`", text)
    return re.sub(r'(?<!`)(\("\w+"(?:, (?:"\w+"|name))+\))', r"`\1`", text)
