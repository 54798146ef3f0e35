"""Writes a report: `index.html`, which needs no other file, its tables as CSV and LaTeX, its figures as PNG and PDF."""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
import yaml
from markupsafe import Markup, escape

from collectx import __version__
from collectx.config.problem import counted
from collectx.errors import ConfigError
from collectx.report.draw import EVALUATED, RETURN, file_name, in_words, sections_of, styles_of, timeline
from collectx.report.read import (
    Group,
    Run,
    centre,
    differences,
    groups_of,
    improvement,
    interval,
    read_rungs,
    shortener,
)
from collectx.run import Status
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.statistics import FEW
from collectx.run.terminal.printing import COLUMNS, cells, number_cells, number_form, rank, spread

# How many groups of an env have curves in a page, and how many runs a timeline.
_MAX_CURVES = 10
_MAX_TIMELINES = 6
# The columns of runs: entries of `result.json` and their formats; and the parts of a run's time.
_MEASURES = {"frames": ",.0f", "frames_per_s": ",.0f", "wall_s": ".1f"}
_PARTS = ("start_s", "waiting_s", "learning_s", "checkpoints_s", "evaluations_s")
_WAITS = ("learners wait for workers (s)", "for each other (s)")
# How many runs that ended early are named in the results.
_MAX_NOTES = 5


@dataclass(frozen=True)
class Column:
    """A column of a table: what people read, and by names what a CSV has in its place, by default the same."""

    head: str
    texts: Sequence[str]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Table:
    """A table, in files called `name`. The first two columns are left-aligned, the last `num_hidden` too many for a
    terminal."""

    name: str
    title: str
    columns: Sequence[Column]
    num_hidden: int = 0

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


class Report:
    """The report about some runs, at least one, ranked by the entry `objective` of `result.json`.

    Args:
        not_started: the names of the points of sweeps that have no run.
        title: the heading of the page; by default the run, or the folder that contains all runs.

    Attributes:
        tables: the results, for the terminal and the page: the rungs of a sweep by halving, and a table of groups for
            each env. Without either, a table of the runs.
        notes: what readers of the tables must know, one sentence each.
    """

    def __init__(self, runs: Sequence[Run], objective: str, not_started: Sequence[str] = (), title: str = ""):
        def run_rank(run: Run) -> float:
            return rank(run.number(objective), objective)

        def key(group: Group) -> tuple[float, ...]:
            return -group.limit, rank(_centre_of(group, objective), objective), min(map(run_rank, group.runs))

        self._objective, self._groups = objective, groups_of(runs)
        self._not_started = not_started
        self._title = title
        self._envs = [*dict.fromkeys(group.env for group in self._groups)]
        self._best = {env: sorted((each for each in self._groups if each.env == env), key=key) for env in self._envs}
        ranked = (group for groups in self._best.values() for group in groups)
        self._ranked = [run for group in ranked for run in sorted((*group.runs, *group.repeats), key=run_rank)]
        self.tables = [_of_texts(f"Rungs of {name}, in frames", *each) for name, each in read_rungs(runs).items()]
        if len(self._groups) < len(runs):
            for env, groups in self._best.items():
                names = (file_name(f"results-{env}"), env) if len(self._envs) > 1 else ("results", "")
                self.tables.append(Table(*names, *_of_groups(groups, objective)))
        # The page of one run names it in its title.
        lost = [run.end if len(runs) > 1 else run.end.partition(": ")[2] for run in runs if run.ended_early]
        self.notes = lost[:_MAX_NOTES] + [f"{len(lost) - _MAX_NOTES} more runs ended early."] * (len(lost) > _MAX_NOTES)
        if not_started:
            points = counted(len(not_started), "point")
            self.notes.append(f"{points} of the sweep did not start. Repeat its command if it has ended.")
        if any(len({row[4] for row in table.rows} - {"-"}) > 1 for table in self.tables if "frames" in table.head):
            self.notes.append("The rows differ in frames: compare their curves.")
        if any(0 < len(group.counted) < FEW for group in self._groups) and len(self._groups) < len(runs):
            self.notes.append(f"Fewer than {FEW} seeds allow no confidence interval: their rank may be chance.")
        self._has_summary = bool(self.tables)
        if not self._has_summary:
            form = number_form(run.number(RETURN) for run in runs)
            rows = [cells(run.name, run.status.status, run.numbers, form) for run in self._ranked]
            rows += [cells(name, "not started", None) for name in not_started]
            self.tables.append(_of_texts("", ("point" if len(runs) > 1 else "run", *COLUMNS[1:]), rows))

    def write(self, folder: Path) -> Path:
        """Writes the page and its figures to a folder, and returns the path of the page. Raises `ConfigError` if the
        folder cannot be written to."""
        runs = self._ranked
        drawn = [each for groups in self._best.values() for each in groups[:_MAX_CURVES]]
        # Runs that failed, and the best run of each group.
        best = {group: next(run for run in self._ranked if run in group.runs) for group in self._groups}
        chosen = (run for run in self._ranked if run.status.status is Status.FAILED or run in best.values())
        timed = sorted(chosen, key=lambda run: run.status.status is not Status.FAILED)[:_MAX_TIMELINES]
        sections = sections_of(drawn, self._objective)
        sections["Timelines"] = [plot for index, run in enumerate(timed) for plot in timeline(run, f"timeline-{index}")]
        differing = differences(runs)
        same = {key: value for key, value in runs[0].options.items() if key not in differing}
        of_runs = self._of_runs(differing)
        results = self.tables if self._has_summary else [of_runs]
        written = {f"{table.name}.csv": table.csv() for table in dict.fromkeys([*results, of_runs])}
        written |= {f"{table.name}.tex": table.latex() for table in results}
        root = runs[0].run_folder.path.parents[runs[0].name.count("/")]
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        environment.filters["short"] = shortener([*(run.name for run in runs), *self._not_started], differing)
        # A name is broken at its options and, if it is long, before a long value.
        ends = r"(?<=[,/])|(?<=[a-z]\.)"
        environment.filters["breakable"] = lambda name: Markup("<wbr>").join(
            re.split(rf"{ends}|(?<=[a-z_]{{6}}=)" if len(name) > 20 else ends, name)
        )
        environment.filters["number"] = _typeset
        environment.globals["counted"] = counted
        environment.filters["coded"] = lambda text: Markup(re.sub(r"`(.*?)`", r"<code>\1</code>", str(escape(text))))
        files = resources.files("collectx.report")
        page = environment.from_string(files.joinpath("page.html.j2").read_text()).render(
            script=files.joinpath("page.js").read_text(),
            title=self._title or (runs[0].name if len(runs) == 1 else root.name),
            about=f"{counted(len(runs), 'run')} of {', '.join(filter(None, self._envs)) or 'an unknown env'}",
            version=__version__,
            time=time.strftime("%Y-%m-%d %H:%M:%S"),
            objective=in_words(self._objective),
            tables=self.tables if self._has_summary else [],
            notes=self.notes,
            written=written,
            runs=of_runs,
            not_started=self._not_started,
            sections={title: [(plot, plot.svg()) for plot in plots] for title, plots in sections.items() if plots},
            styles=styles_of(drawn) if any(plot.has_groups for plots in sections.values() for plot in plots) else {},
            legend=dict.fromkeys(text for plots in sections.values() for plot in plots for text in plot.legend),
            without={
                "curves": (len(self._groups) - len(drawn), "more configuration"),
                "timelines": (len(runs) - len(timed), "more run"),
            },
            happened=list(_happened(runs)),
            names=[run.name for run in runs],
            # A null beside an option that does not exist says nothing.
            differences={
                key: [
                    "–" if key not in run.options else "null" if value is None else value
                    for run, value in zip(runs, each, strict=True)
                ]
                # Last, the options that some runs do not have.
                for key, each in sorted(differing.items(), key=lambda row: any(row[0] not in r.options for r in runs))
                if any(value is not None for value in each)
            },
            config=yaml.safe_dump(same, sort_keys=False),
            origins=[_origin(run.run_folder, folder) for run in runs],
        )
        path = folder / "index.html"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for plot in (plot for plots in sections.values() for plot in plots):
                plot.write(folder)
            for name, text in written.items():
                (folder / name).write_text(text)
            write_atomically(path, lambda file: file.write(page.encode()))
        except OSError as error:
            raise ConfigError(
                f"cannot write the report to {folder}: {error.strerror}. Choose another folder with out=DIR."
            ) from error
        return path

    def _of_runs(self, options: Mapping[str, Sequence[Any]]) -> Table:
        """Returns the table of the runs, whose CSV has some options of each. A column has a number at least."""
        runs = self._ranked
        metrics = dict.fromkeys(name for run in runs for name in run.options.get("env.metrics") or ())
        numbers = {RETURN: "return", EVALUATED: "evaluated", **{name: name for name in metrics if "success" in name}}
        values: dict[tuple[str, str], Sequence[float | None]] = {
            (name, head): [run.number(name) for run in runs]
            for name, head in ({self._objective: in_words(self._objective)} | numbers).items()
        }
        values["best_return", "best return"] = [run.best_return() for run in runs]
        values |= {(name, in_words(name)): [run.number(name) for run in runs] for name in _MEASURES}
        for name, seconds in zip(_PARTS, zip(*(run.parts_s() for run in runs), strict=True), strict=True):
            values[name, f"{name.removesuffix('_s')} (s)"] = seconds
        columns = [
            Column(head, number_cells(each, _MEASURES.get(name, ".1f" if name in _PARTS else None)), {name: each})
            for (name, head), each in values.items()
        ]
        for index, head in enumerate(_WAITS):
            waits = [number_cells((each[index] for each in run.learners.values()), ".1f") for run in runs]
            columns.append(Column(head, [" / ".join(each) or "-" for each in waits]))
        names, statuses = [run.name for run in runs], [str(run.status.status) for run in runs]
        known = [column for column in columns if {*column.texts} != {"-"}]
        name = "runs" if self._has_summary else "results"
        return Table(name, "", [Column("run", names, {"run": names, **options}), Column("status", statuses), *known])


def _centre_of(group: Group, number: str) -> float | None:
    values = group.values(number)
    return float(centre(values)) if len(values) else None


def _chances(groups: Sequence[Group], objective: str) -> list[float | None]:
    """Returns the probability that a run of the first group is better than one of each other; None for the first, and
    where one of the two has fewer than `FEW` seeds."""
    first, *others = (-np.sign(rank(1.0, objective)) * group.values(objective) for group in groups)
    are_enough = [min(len(first), len(each)) >= FEW for each in others]
    pairs = zip(others, are_enough, strict=True)
    return [None, *(improvement(first, each) if is_enough else None for each, is_enough in pairs)]


def _of_groups(groups: Sequence[Group], objective: str) -> tuple[list[Column], int]:
    """Returns the columns of a table of groups, and how many of them a terminal hides: name, how many seeds count, the
    interquartile mean of the objective, its interval, the frames of the seeds, mean and standard deviation, the lowest
    and the highest value, and the chance of the first group against each other. Of groups that are all too small for an
    interval: mean and standard deviation, the lowest and the highest value, and the frames."""
    values, frames = ([group.values(number) for group in groups] for number in (objective, "frames"))
    are_few = all(len(each) < FEW for each in values)
    form = number_form(float(each) for each in np.concatenate(values))
    means, stds, lows, highs = zip(*(spread(each.tolist()) for each in values), strict=True)
    least = 2 if are_few else FEW
    intervals = [tuple(map(float, interval(each))) if len(each) >= least else (None, None) for each in values]
    begins, ends = zip(*intervals, strict=True)
    fewest, most = zip(*((min(each), max(each)) if len(each) else (None, None) for each in frames), strict=True)
    seeds = [
        f"{len(each)} of {len(group.runs)}"
        + ", stopped" * any(run.status.status is Status.STOPPED for run in group.counted)
        + (f" ({counted(len(group.repeats), 'repeat')})" if group.repeats else "")
        for group, each in zip(groups, values, strict=True)
    ]
    spreads = _pairs(means, "±", stds, form), {"mean": means, "std": stds}
    words, between = in_words(objective), _pairs(begins, "to", ends, form)
    columns = [
        Column("point", [group.name for group in groups]),
        Column("seeds", seeds, {"seeds": [*map(len, values)], "runs": [len(group.runs) for group in groups]}),
        Column("frames", _pairs(fewest, "to", most, ",.0f"), {"frames_min": fewest, "frames_max": most}),
    ]
    of_objective: dict[str, Sequence[Any]] = {"objective": [objective] * len(groups)}
    if are_few:
        columns[2:2] = [
            Column(f"{words} (mean ± std)", spreads[0], of_objective | spreads[1]),
            Column("lowest to highest", between, {"min": begins, "max": ends}),
        ]
        return columns, 0
    centres = [_centre_of(group, objective) for group in groups]
    columns[2:2] = [
        Column(f"{words} (IQM)", number_cells(centres, form), of_objective | {"iqm": centres}),
        Column("95% CI", between, {"ci_low": begins, "ci_high": ends}),
    ]
    more = [Column("mean ± std", *spreads)]
    more += [Column(name, number_cells(each, form), {name: each}) for name, each in (("min", lows), ("max", highs))]
    if any(chances := _chances(groups, objective)):
        more.append(Column("P(first is better)", number_cells(chances, ".0%"), {"p_first_is_better": chances}))
    return [*columns, *more], len(more)


def _pairs(firsts: Sequence[Any], word: str, others: Sequence[Any], form: str) -> list[str]:
    """Returns the texts of two numbers each, which line up; of one if the other is unknown, or ends a range of it."""
    pairs = [*zip(number_cells(firsts, form), number_cells(others, form), strict=True)]
    width = max(len(other) for _, other in pairs)
    is_one = {pair: pair[1] == "-" or (word == "to" and pair[0] == pair[1]) for pair in pairs}
    return [first if is_one[first, other] else f"{first} {word} {other:>{width}}" for first, other in pairs]


def _of_texts(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(file_name(title), title, [Column(*each) for each in zip(head, zip(*rows, strict=True), strict=True)])


def _typeset(text: str) -> str:
    """Returns the numbers of a cell with a minus instead of a hyphen, and without a break between a word and a number."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return re.sub(r"(±|to) ( *)", lambda match: f"{match[1]}\u00a0{match[2].replace(' ', chr(0x2007))}", text)


def _latex(text: str) -> str:
    """Returns a text for LaTeX, where numbers have a minus instead of a hyphen."""
    text = re.sub(r"[&%$#_{}]", r"\\\g<0>", text.replace("\\", "/"))
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text).replace("±", r"$\pm$")
    return "--" if text == "-" else text.replace("^", r"\^{}").replace("~", r"\~{}")


def _happened(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (time, seconds since the start, run, message) of events, and of the ends of incomplete runs, unless an
    event tells the reason."""
    for run in runs:
        detail = run.status.detail
        for at, text in run.messages:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
            yield when, f"{run.seconds(at):.1f}", run.name, text
        if run.status.status is not Status.COMPLETED and not any(detail and detail in text for _, text in run.messages):
            yield "", "", run.name, f"{run.status.status}: {detail}".rstrip(": ")


def _origin(run_folder: RunFolder, page: Path) -> dict[str, Any]:
    """Returns where a run comes from. The links to its folder and log begin at the folder `page`, so that both may move
    together."""
    meta = run_folder.read_meta(run_folder.meta)
    git = (meta.get("git") or {}).get("cwd") or {}
    commit = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}" if git else ""
    return {
        "started": meta.get("time", "").replace("T", " "),
        "host": meta.get("host", ""),
        "python": meta.get("python", ""),
        "torch": (meta.get("packages") or {}).get("torch", ""),
        "commit": commit,
        "command": " ".join(map(str, meta.get("argv", ()))),
        "folder": _link(run_folder.path, page, str(run_folder.path)),
        "log": _link(run_folder.log("trainer"), page, "trainer.log"),
    }


def _link(path: Path, page: Path, text: str) -> str:
    address = quote(os.path.relpath(path, page.absolute()), safe="/=,")
    return Markup('<a href="{}">{}</a>').format(address, text) if path.exists() else ""
