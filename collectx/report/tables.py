"""Writes the results of runs and groups as tables: for a terminal and a page, as CSV, and for LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectx.config.problem import counted
from collectx.report.draw import EVALUATED, RETURN, in_words
from collectx.report.read import Group, Run, centre, improvement, interval
from collectx.run import Status
from collectx.run.statistics import FEW
from collectx.run.terminal.printing import number_cells, number_form, rank, spread

# The columns of runs: entries of `result.json` and their formats; and the parts of a run's time.
_MEASURES = {"frames": ",.0f", "frames_per_s": ",.0f", "wall_s": ".1f"}
_PARTS = ("start_s", "waiting_s", "learning_s", "checkpoints_s", "evaluations_s")
_WAITS = ("learners wait for workers (s)", "for each other (s)")


@dataclass(frozen=True)
class Column:
    """A column of a table: what people read, and by names what a CSV has in its place, by default the same. `is_hidden`
    says whether a terminal has no room for it."""

    head: str
    texts: Sequence[str]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_hidden: bool = False


@dataclass(frozen=True)
class Table:
    """A table, in files called `name`. The first two columns are left-aligned."""

    name: str
    title: str
    columns: Sequence[Column]

    @property
    def head(self) -> tuple[str, ...]:
        """The heads of the columns."""
        return tuple(column.head for column in self.columns)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows, as people read them."""
        return [*zip(*(column.texts for column in self.columns), strict=True)]

    def csv(self) -> str:
        """Returns the table with ten digits of its numbers, a column for each of them; nothing where one is unknown."""
        values = [each for column in self.columns for each in (column.values or {column.head: column.texts}).items()]
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([name for name, _ in values])
        rows = zip(*(column for _, column in values), strict=True)
        lines.writerows([f"{each:.10g}" if isinstance(each, float) else each for each in row] for row in rows)
        return text.getvalue()

    def latex(self) -> str:
        """Returns the table as people read it, for the package booktabs."""
        head, *rows = (" & ".join(map(_latex, row)) + r" \\" for row in (self.head, *self.rows))
        begin = rf"\begin{{tabular}}{{ll{'r' * (len(self.columns) - 2)}}}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def group_table(groups: Sequence[Group], objective: str, name: str, title: str) -> Table:
    """Returns the table of some groups: how many seeds count, the interquartile mean of the objective, its interval,
    the chance of the first group against each other, the frames of the seeds, mean and standard deviation, the lowest
    and the highest value. Of groups that are all too small for an interval: mean and standard deviation, the lowest
    and the highest value, and the frames."""
    values, frames = ([group.values(number) for group in groups] for number in (objective, "frames"))
    are_few = all(len(each) < FEW for each in values)
    least, form, words = 2 if are_few else FEW, number_form(np.concatenate(values)), in_words(objective)
    means, stds, lows, highs = zip(*(spread(each.tolist()) for each in values), strict=True)
    begins, ends = zip(*(interval(each) if len(each) >= least else (None, None) for each in values), strict=True)
    fewest, most = zip(*((min(each), max(each)) if len(each) else (None, None) for each in frames), strict=True)
    seeds = [
        f"{len(each)} of {len(group.runs)}"
        + ", stopped" * any(run.status.status is Status.STOPPED for run in group.counted)
        + (f" ({counted(len(group.repeats), 'repeat')})" if group.repeats else "")
        for group, each in zip(groups, values, strict=True)
    ]
    columns = [
        Column("point", [group.name for group in groups]),
        Column("seeds", seeds, {"seeds": [*map(len, values)], "runs": [len(group.runs) for group in groups]}),
    ]
    of_frames = Column("frames", _pairs(fewest, "to", most, ",.0f"), {"frames_min": fewest, "frames_max": most})
    what = {"objective": [objective] * len(groups)}
    spreads, ranges = _pairs(means, "±", stds, form), _pairs(begins, "to", ends, form)
    if are_few:
        columns.append(Column(f"{words} (mean ± std)", spreads, {**what, "mean": means, "std": stds}))
        columns.append(Column("lowest to highest", ranges, {"min": begins, "max": ends}))
        return Table(name, title, [*columns, of_frames])
    centres = [centre_of(group, objective) for group in groups]
    columns.append(Column(f"{words} (IQM)", number_cells(centres, form), {**what, "iqm": centres}))
    columns.append(Column("95% CI", ranges, {"ci_low": begins, "ci_high": ends}))
    if any(chances := _chances(groups, objective)):
        columns.append(Column("P(first is better)", number_cells(chances, ".0%"), {"p_first_is_better": chances}, True))
    columns += [of_frames, Column("mean ± std", spreads, {"mean": means, "std": stds}, True)]
    for head, each in (("min", lows), ("max", highs)):
        columns.append(Column(head, number_cells(each, form), {head: each}, True))
    return Table(name, title, columns)


def run_table(runs: Sequence[Run], objective: str, name: str, options: Mapping[str, Sequence[Any]]) -> Table:
    """Returns the table of the runs, whose CSV has some options of each. A column has a number at least."""
    metrics = dict.fromkeys(name for run in runs for name in run.options.get("env.metrics") or ())
    numbers = {RETURN: "return", EVALUATED: "evaluated", **{name: name for name in metrics if "success" in name}}
    values: dict[tuple[str, str], Sequence[float | None]] = {
        (number, head): [run.number(number) for run in runs]
        for number, head in ({objective: in_words(objective)} | numbers).items()
    }
    values["best_return", "best return"] = [run.best_return() for run in runs]
    values |= {(name, in_words(name)): [run.number(name) for run in runs] for name in _MEASURES}
    for part, seconds in zip(_PARTS, zip(*(run.parts_s() for run in runs), strict=True), strict=True):
        values[part, f"{part.removesuffix('_s')} (s)"] = seconds
    columns = [
        Column(head, number_cells(each, _MEASURES.get(number, ".1f" if number in _PARTS else None)), {number: each})
        for (number, head), each in values.items()
    ]
    for index, head in enumerate(_WAITS):
        waits = [number_cells((each[index] for each in run.learners.values()), ".1f") for run in runs]
        columns.append(Column(head, [" / ".join(each) or "-" for each in waits]))
    names, statuses = [run.name for run in runs], [str(run.status.status) for run in runs]
    known = [column for column in columns if {*column.texts} != {"-"}]
    return Table(name, "", [Column("run", names, {"run": names, **options}), Column("status", statuses), *known])


def text_table(name: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Returns a table of texts."""
    return Table(name, title, [Column(*each) for each in zip(head, zip(*rows, strict=True), strict=True)])


def centre_of(group: Group, number: str) -> float | None:
    """Returns the interquartile mean of a number of `result.json`; None without values."""
    values = group.values(number)
    return float(centre(values)) if len(values) else None


def _chances(groups: Sequence[Group], objective: str) -> list[float | None]:
    """Returns the probability that a run of the first group is better than one of each other; None for the first, and
    where one of the two has fewer than `FEW` seeds."""
    first, *others = (-np.sign(rank(1.0, objective)) * group.values(objective) for group in groups)
    are_enough = [min(len(first), len(each)) >= FEW for each in others]
    pairs = zip(others, are_enough, strict=True)
    return [None, *(improvement(first, each) if is_enough else None for each, is_enough in pairs)]


def _pairs(firsts: Sequence[Any], word: str, others: Sequence[Any], form: str) -> list[str]:
    """Returns the texts of two numbers each, which line up; of one if the other is unknown, or ends a range of it."""
    begins, ends = number_cells(firsts, form), number_cells(others, form)
    width = max(map(len, ends))
    return [
        begin if end == "-" or (word == "to" and begin == end) else f"{begin} {word} {end:>{width}}"
        for begin, end in zip(begins, ends, strict=True)
    ]


def _latex(text: str) -> str:
    """Returns a text for LaTeX, where numbers have a minus instead of a hyphen."""
    text = re.sub(r"[&%$#_{}]", r"\\\g<0>", text.replace("\\", "/"))
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text).replace("±", r"$\pm$")
    return "--" if text == "-" else text.replace("^", r"\^{}").replace("~", r"\~{}")
