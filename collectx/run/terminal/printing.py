"""Prints messages on standard error and run tables on standard output, with colours on a terminal.

Used at the end of a run, by `collectx.jobs`, and by the command line. Texts may quote files, so control characters are
escaped.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from collectx.config.schema.run import OF_EVALUATION
from collectx.errors import ConfigError, DamagedFileError, printable
from collectx.progress import erase
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The statistics of an objective over the seeds.
SPREAD = ("mean", "std", "min", "max")
COLUMNS = ("point", "status", "frames", "frames/s", "return", "wall_s")
# The numbers in a run's row, as `result.json` names them, and their formats.
_NUMBERS = {"frames": ",.0f", "frames_per_s": ",.0f", "mean_return": None, "wall_s": ".1f"}
# Smaller and larger numbers have an exponent.
_TINY, _HUGE = 1e-4, 1e15
# On a terminal with fewer columns, the tables of runs do not fit.
_NARROW = 60
# Objectives of which less is better.
_LESS_IS_BETTER = ("wall_s", "start_s")
# The seed in the name of a point, such as `collector.num_workers=2,seed=1`.
# What one copies: a command, up to the end of its line or sentence, or several options.
_COMMAND = re.compile(r"\b(?:collectx [a-z]|pip install |chmod ).*?(?=[.;,)] |$)|[\w.]+=\S+(?: [\w.]+=\S+)+")
_SEED = re.compile(r"(?:^|,)seed=\d+(?=,|$)")
_STYLES: dict[str, str] = {
    **{Status.COMPLETED: "green", Status.RUNNING: "green"},
    **{Status.FAILED: "red", **dict.fromkeys((Status.INTERRUPTED, Status.STOPPED, Status.WAITING), "yellow")},
}


def error(text: str) -> None:
    """Prints an error to standard error, on a terminal with its first line in red."""
    head, *rest = f"collectx: {text}".split("\n", 1)
    print_message(head, "bold red")
    for lines in rest:
        print_message(lines)


# The notes that wait for the start of a run; None: notes are printed at once.
_waiting: list[str] | None = None
# The notes that this sweep has told; None outside of a sweep.
_told: set[str] | None = None


def note(text: str) -> None:
    """Prints a warning, or information that helps the user, to standard error; in a sweep, once."""
    if _waiting is not None:
        _waiting.append(text)
    elif is_new(text):
        print_message(f"note: {text}", "yellow")


@contextmanager
def telling_once() -> Iterator[None]:
    """Makes `is_new` true for each text once within the block, which runs the points of a sweep."""
    global _told
    _told = set()
    try:
        yield
    finally:
        _told = None


def is_new(text: str) -> bool:
    """Whether to tell a note: false if an earlier point of the sweep has told the same."""
    if _told is None:
        return True
    before = len(_told)
    _told.add(text)
    return len(_told) > before


@contextmanager
def notes_wait() -> Iterator[None]:
    """Keeps the notes of the block until `print_notes`, or its end. A `ConfigError` drops them: they are about a run
    that does not start."""
    global _waiting
    _waiting = []
    try:
        yield
    except ConfigError:
        _waiting = None
        raise
    finally:
        print_notes()


def print_notes() -> None:
    """Prints the notes that wait; later ones do not."""
    global _waiting
    texts, _waiting = _waiting or (), None
    for text in texts:
        note(text)


def message(text: str) -> None:
    """Prints to standard error what happens to a run."""
    print_message(f"collectx: {text}")


def print_message(text: str, style: str = "") -> None:
    """Prints a text to standard error, on a terminal in a style of rich."""
    if sys.stderr.isatty():
        from rich.console import Console

        erase(sys.stderr)
        print_line(Console(stderr=True), text, style)
    else:
        print(printable(text), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints a text to standard output; on a terminal, long lines are broken between words."""
    if sys.stdout.isatty():
        from rich.console import Console

        print_line(Console(), text)
    else:
        print(printable(text), flush=True)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Prints a text without markup and highlights; on a terminal, long lines are broken between words."""
    lines = printable(text).split("\n")
    if console.is_terminal:
        lines = [part for line in lines for part in _broken(line, console.width)]
    console.print("\n".join(lines), style=style, soft_wrap=True, markup=False, highlight=False)


def _broken(line: str, width: int) -> list[str]:
    """Breaks a line that is longer than `width` between words. A command is one word, and long words are left to the
    terminal, so that both can be copied."""
    if len(line) <= width:
        return [line]
    margin = " " * (len(line) - len(line.lstrip(" -")) or 2)
    kept = _COMMAND.sub(lambda match: match[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(
        kept, width, subsequent_indent=margin, expand_tabs=False, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace("\0", " ") for part in parts]


def cells(name: str, status: str, numbers: Mapping[str, Any] | None, form: str | None = None) -> tuple[str, ...]:
    """Returns a run's row in a table of `COLUMNS`. `numbers` are named as in `result.json`; None if there are none.
    `form` is the format of returns, for several rows."""
    if numbers is None:
        return (name, status, *[""] * len(_NUMBERS))
    return (name, status, *(number_cell(numbers.get(key), each or form) for key, each in _NUMBERS.items()))


def number_cell(value: Any, form: str | None = None) -> str:
    """Returns a number in a format, by default that of `number_form`; `-` for None and NaN."""
    if not isinstance(value, (int, float)) or math.isnan(value):
        return "-"
    return format(value, form or number_form([value]))


def number_cells(values: Iterable[Any], form: str | None = None) -> list[str]:
    """Returns the numbers of a column in one format, in which they line up."""
    values = list(values)
    form = form or number_form(values)
    return [number_cell(value, form) for value in values]


def number_form(values: Iterable[Any]) -> str:
    """Returns the format of numbers that are compared: the largest has four significant digits, and all have its
    decimals, at least one. From a quadrillion on, and below 0.0001, they have exponents."""
    largest = max((abs(each) for each in values if isinstance(each, (int, float)) and math.isfinite(each)), default=0.0)
    is_common = largest == 0 or _TINY <= largest < _HUGE
    return f",.{max(1, num_decimals(largest))}f" if is_common else ".3e"


def num_decimals(largest: float) -> int:
    """Returns with how many decimals a number has four significant digits: 2 for 12.34."""
    return max(0, 3 - int(f"{largest:.3e}".partition("e")[2]))


def clock(seconds: float) -> str:
    """Formats `75.2` as `1:15`, `3675` as `1:01:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """Formats a number for a display: `12,345`, `3.14`, `0.00021`, `1.72e+25`, `-` for unknown."""
    if value is None or math.isnan(value):
        return "-"
    if 999.5 <= abs(value) < _HUGE:  # 999.5 rounds to 1,000
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scalar(value: float) -> str:
    """Formats a value that a trainer logged, like `number`, but `nan`, which is no unknown value, as it is."""
    return "nan" if math.isnan(value) else number(value)


def typed(folder: Path) -> str:
    """Returns a path as the user would type it: relative if it is below the current folder."""
    with suppress(OSError, ValueError):  # the current folder was deleted, or is another one
        return str(folder.relative_to(Path.cwd()))
    return str(folder)


def print_run(name: str, status: str, numbers: Mapping[str, Any] | None, folder: Path) -> None:
    """Prints the table of one run, and its folder."""
    print()
    print_table([cells(name, status, numbers)], ("run", *COLUMNS[1:]))
    say(f"run folder: {folder}")


def print_sweep(
    root: Path,
    points: Iterable[tuple[str, Path]],
    statuses: Mapping[Path, Status] | None = None,
    objective: str = "mean_return",
    took_s: float | None = None,
) -> None:
    """Prints a table of the points (name and run folder) ranked by `objective`, the sweep folder, how long the sweep
    took, and the command of its report. If seeds were swept, the first table is not ranked, and a second one ranks the
    statistics over seeds. Run folders without a result that are not in `statuses` are "not started"."""
    rows: list[tuple[str, str, Mapping[str, Any] | None]] = []
    for name, folder in points:
        try:
            result = RunFolder(folder).read_result()
            status = (statuses or {}).get(folder) or (result or {"status": "not started"})["status"]
            rows.append((name, str(status), result))
        except DamagedFileError:
            rows.append((name, Status.DAMAGED, None))
    # Stopped points have had fewer frames.
    seeds = [] if any(status == Status.STOPPED for _, status, _ in rows) else _over_seeds(rows, objective)
    if not seeds:
        rows.sort(key=lambda row: rank((row[2] or {}).get(objective), objective))
    print()
    # A column of its own, unless the table has it.
    more = [objective] * (objective not in _NUMBERS and any(objective in (result or {}) for _, _, result in rows))
    numbers = {name: [(result or {}).get(name) for _, _, result in rows] for name in ("mean_return", *more)}
    form = number_form(numbers["mean_return"])
    lines = [cells(*row, form) for row in rows]
    for name in more:
        lines = [(*line, cell) for line, cell in zip(lines, number_cells(numbers[name]), strict=True)]
    print_table(lines, (*COLUMNS, *more))
    if seeds:
        print()
        print_table(seeds, ("point", "seeds", objective, *SPREAD[1:]))
    say(f"sweep folder: {root}")
    if any(f"{OF_EVALUATION}{objective}" in (result or {}) for _, _, result in rows):
        note_evaluations(objective, [typed(root)])
    elif took_s is not None:
        command = f"collectx report {shlex.quote(typed(root))}"
        message(f"the sweep took {clock(took_s)}. To compare its runs on one page: {command}")


def note_evaluations(objective: str, words: Sequence[str]) -> None:
    """Notes the command that ranks by evaluations what was ranked by `objective`; `words` are the folders to report."""
    how = shlex.join([*words, f"objective={OF_EVALUATION}{objective}"])
    note(f"{objective} is that of training. To rank by evaluations: collectx report {how}")


def _over_seeds(rows: Sequence[tuple[str, str, Mapping[str, Any] | None]], objective: str) -> list[tuple[str, ...]]:
    """Returns the statistics of the objective over completed points that differ only in their seeds; empty if no seeds
    were swept, or no result contains the objective."""
    values: dict[str, list[float]] = {}
    names = [_SEED.sub("", name).strip(",") for name, _, _ in rows]
    if len(set(names)) == len(names):
        return []
    for name, (_, status, result) in zip(names, rows, strict=True):
        value = (result or {}).get(objective)
        values.setdefault(name, []).extend([float(value)] if status == Status.COMPLETED and value is not None else [])
    if not any(values.values()):
        return []
    spreads = {name: spread(numbers) for name, numbers in values.items()}
    names = sorted(values, key=lambda name: rank(spreads[name][0], objective))
    form = number_form(chain(*spreads.values()))
    return [(name or "all", str(len(values[name])), *number_cells(spreads[name], form)) for name in names]


def spread(values: Sequence[float]) -> tuple[float | None, ...]:
    """Returns mean, standard deviation, minimum and maximum of an objective over the seeds; None without values."""
    if not values:
        return (None,) * len(SPREAD)
    return fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values)


def rank(value: float | None, objective: str) -> float:
    """Returns the key by which points are sorted: the best first, those without a value last."""
    if value is None or math.isnan(value):
        return math.inf
    return value if objective in _LESS_IS_BETTER else -value


def print_table(rows: Sequence[Sequence[str]], head: Sequence[str] = COLUMNS) -> None:
    """Prints a table to standard output, as plain text if that is not a terminal. The first two columns are texts, the
    second one the status. On a narrow terminal where it does not fit, each cell has a line, so that no number is
    cut."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and columns < _NARROW and sum(width + 3 for width in widths) > columns:
        title = max(map(len, head))
        lines = ["\n".join(f"{name:{title}}  {cell}" for name, cell in zip(head, row, strict=True)) for row in rows]
        print("\n\n".join(lines), flush=True)
        return
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console

        Console().print(table(rows, head, 2, box=box.SIMPLE, show_edge=False))
        return
    for texts in (head, *rows):
        indexed = enumerate(zip(texts, widths, strict=True))
        padded = [text.ljust(width) if index < 2 else text.rjust(width) for index, (text, width) in indexed]
        print("  ".join(padded).rstrip(), flush=True)


def _lines(parts: Iterable[str], width: int) -> list[str]:
    """Joins parts of a name to lines that are, where the parts allow it, not longer than `width`."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def table(rows: Iterable[Sequence[str]], head: Sequence[str], num_texts: int, **style: Any) -> Table:
    """Returns a rich table. `num_texts` is how many of the first columns are texts; the others are numbers. Where a row
    does not fit on the terminal, the names in the first column are broken after commas, slashes and spaces, and the
    other texts between words."""
    from rich.table import Table
    from rich.text import Text

    rows = [*rows]
    # The space between two columns, and around the table: without a box it is narrower.
    gap, around = (3, 3) if style.get("box", True) else (2, 2)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    if (room := shutil.get_terminal_size().columns - sum(width + gap for width in widths[1:]) - around) < widths[0]:
        rows = [("\n".join(_lines(re.split("(?<=[,/ ])", name), room)), *others) for name, *others in rows]
    made = Table(**style)
    for index, title in enumerate(head):
        is_text = index < num_texts
        words = [] if index == 0 else [word for row in rows for word in row[index].split()]
        least = max(map(len, words), default=None)
        justify: Any = "left" if is_text else "right"
        made.add_column(title, justify=justify, overflow="fold", no_wrap=not is_text, min_width=least)
    for row in rows:
        made.add_row(*(Text(printable(text), _STYLES.get(text, "")) for text in row))
    return made
