"""`collectx docs [PAGE]`: lists the pages of the documentation, or prints one of them."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectx.cli.arguments import Arguments, UsageError, subcommand
from collectx.config import other_names
from collectx.config.problem import did_you_mean, either, page
from collectx.run.terminal import printing

_USAGE = """\
collectx docs [PAGE]: list the pages of the documentation, or print one: formatted on a terminal, as Markdown into a
pipe or a file. A path, such as docs/how-to/resume.md, names its page too.

Example: collectx docs first-run

Exit status: 0 printed, 2 wrong usage."""

# In an installed package, and in a checkout.
_DOCS = Path(__file__).parents[1] / "docs"
_FOLDERS = ("tutorials", "how-to", "explanation", "reference")
# What only the site shows or hides, and what stands for it. The title of a block of code is the name of its file.
_REPLACED = {
    r"<!--.*?-->\n?": "",
    r"^</?(?:div|figure|figcaption|details)\b[^>]*>\n": "",
    r"<summary>(.*?)</summary>": r"**\1**",
    r"!\[(.*?)\]\(.*?\)": r"*Figure: \1*",
    r"^!!! warning\n +": "> **Warning:** ",
    r'^( *)(```\w+) title="(.*?)"$': r"\1`\3`:\n\n\1\2",
    r"\{ \.md-button.*?\}": "",
}
_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")


def pages() -> dict[str, Path]:
    """Returns the file of each page by its name: the file's stem, after its folder if two pages have the same stem."""
    files = [_DOCS / "index.md", *(file for folder in _FOLDERS for file in sorted((_DOCS / folder).glob("*.md")))]
    counts = Counter(file.stem for file in files)
    return {file.stem if counts[file.stem] == 1 else f"{file.parent.name}/{file.stem}": file for file in files}


def _docs(arguments: Arguments) -> int:
    if not arguments.words:
        _list()
    elif sys.stdout.isatty():
        _format(_page(arguments.words))
    else:
        print(_page(arguments.words), end="")
    return 0


def _list() -> None:
    names = pages()
    width = max(map(len, names))
    for folder in _FOLDERS:
        print(f"{folder}:")
        for name, file in names.items():
            if file.parent.name == folder:
                title = re.findall("^# (.*)", file.read_text("utf-8"), re.MULTILINE)[0]
                printing.say(f"  {name:{width}}  {title}")
    printing.say(f"\nTo find a page by what you want to do: {page('index')}")


def _page(words: Sequence[str]) -> str:
    """Returns the page that the user named, as Markdown that needs no site: links to pages become commands, and figures
    their titles. Raises `UsageError` if there is no such page, or more than one."""
    names = pages()
    # The words of a title, a path, or a page at the end of a sentence.
    name = re.sub(r"^[./]+|\.md$|\.$", "", "-".join(words).lower())
    found = [each for each, file in names.items() if str(file).endswith(f"/{name}.md")]
    if len(found) > 1:
        raise UsageError(f"'{name}' names {len(found)} pages. Did you mean {either(map(page, found))}?")
    if not found:
        near = did_you_mean(
            name.rpartition("/")[2],
            {*names, *(file.stem for file in names.values())},
            page(""),
            "To list all: collectx docs",
        )
        raise UsageError(f"there is no page '{name}'{near}")
    file = names[found[0]]
    name_of = {each: name for name, each in names.items()}

    def command(link: re.Match[str]) -> str:
        name = name_of.get(Path(os.path.normpath(file.parent / link[2])))
        return link[1] if name is None else f"{link[1]} (`{page(name)}`)"

    text = file.read_text("utf-8").replace("<!-- names -->", other_names.TABLE.read_text())
    for pattern, new in _REPLACED.items():
        text = re.sub(pattern, new, text, flags=re.MULTILINE | re.DOTALL)
    return _LINK.sub(command, text)


def _format(text: str) -> None:
    """Prints Markdown on a terminal, in colours that suit its background."""
    from rich.console import Console
    from rich.markdown import Markdown, TableDataElement
    from rich.theme import Theme

    class Cell(TableDataElement):
        """Breaks words that are longer than their column, which rich cuts."""

        def __init__(self, justify: Any) -> None:
            super().__init__(justify)
            self.content.overflow = "fold"

    class Page(Markdown):
        elements = Markdown.elements | {"td_open": Cell, "th_open": Cell}

    console = Console(theme=Theme({"markdown.code": "cyan"}))
    # Longer lines are hard to read.
    console.print(Page(text, code_theme="ansi_dark", hyperlinks=False), width=min(console.width, 120))


main = subcommand("docs", _docs, _USAGE)
