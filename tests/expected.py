"""Whole results beside their tests: `expected(NAME, RESULT)` compares one with `expected/NAME.txt` or `.json`.

`pytest --update-expected` writes the files instead. Read what it wrote: a file says what is right, not what came out.
Results are small, and the same on every machine: no paths, times, process ids, versions, nor rounding of floats.
"""

import json
from dataclasses import dataclass
from pathlib import Path

# Of a line of JSON; a longer one is written in several.
_WIDTH = 120


@dataclass(frozen=True)
class Expected:
    """The files of a folder. The fixture `expected` is that of the folder `expected` beside the test's module.

    Attributes:
        is_update: write the results instead of comparing them.
    """

    folder: Path
    is_update: bool = False

    def __call__(self, name: str, result: object) -> None:
        """Compares text, or what JSON can say, with the file NAME.txt or NAME.json, with hyphens for spaces."""
        file = self.folder / f"{name.replace(' ', '-')}.{'txt' if isinstance(result, str) else 'json'}"
        text = (result if isinstance(result, str) else lines(result)).rstrip("\n") + "\n"
        if self.is_update:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"{file} is missing: pytest --update-expected writes it"
        assert text == file.read_text(), f"differs from {file}; if it is right, pytest --update-expected writes it"


def lines(value: object, indent: int = 0) -> str:
    """JSON, with every list and object that fits in one line in one. What JSON has no word for is as `str` says it."""
    short = json.dumps(value, ensure_ascii=False, default=str)
    if len(short) + indent <= _WIDTH or not isinstance(value, dict | list | tuple):
        return short
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key))}: {lines(each, indent + 1)}" for key, each in value.items()]
    else:
        items = [lines(each, indent + 1) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{margin}" + f",\n{margin}".join(items) + f"\n{' ' * indent}{end}"
