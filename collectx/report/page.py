"""Writes a report: `index.html`, which needs no other file, and each figure as a PNG."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from collectx.report.draw import EVALUATED, RETURN, in_words, sections_of, styles_of, timeline
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
from collectx.run.terminal.printing import COLUMNS, cells, number_cell, rank, spread

# How many groups of an env have curves in a page, and how many runs a timeline.
_MAX_CURVES = 10
_MAX_TIMELINES = 6
# The columns of runs: entries of `result.json` and their formats; and the parts of a run's time.
_MEASURES = {"frames": ",.0f", "frames_per_s": ",.0f", "wall_s": ".1f"}
_PARTS = ("start (s)", "waiting (s)", "learning (s)", "checkpoints (s)", "evaluations (s)")
# The column that compares the first row with the others.
_CHANCE = "P(first is better)"
_WAITS = ("learners wait for workers (s)", "for each other (s)")
# How many runs that ended early are named in the results.
_MAX_NOTES = 5


@dataclass(frozen=True)
class Table:
    """A table of texts. The first two columns are left-aligned, and the last `num_hidden` too many for a terminal."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_hidden: int = 0


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
        self.tables = [Table(f"Rungs of {name}, in frames", *each) for name, each in read_rungs(runs).items()]
        if len(self._groups) < len(runs):
            for env, groups in self._best.items():
                are_few = all(len(each.values(objective)) < FEW for each in groups)
                heads = ("mean ± std", "lowest to highest") if are_few else ("IQM", "95% CI")
                more = () if are_few else ("mean ± std", "min", "max")
                head = "point", "seeds", f"{in_words(objective)} ({heads[0]})", heads[1], "frames", *more
                rows = [_group_row(each, objective, are_few) for each in groups]
                if any(chances := _chances(groups, objective)):
                    head, more = (*head, _CHANCE), (*more, _CHANCE)
                    rows = [(*row, chance or "-") for row, chance in zip(rows, chances, strict=True)]
                self.tables.append(Table(env if len(self._envs) > 1 else "", head, rows, len(more)))
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
            rows = [cells(run.name, run.status.status, run.numbers) for run in self._ranked]
            rows += [cells(name, "not started", None) for name in not_started]
            self.tables.append(Table("", ("point" if len(runs) > 1 else "run", *COLUMNS[1:]), rows))

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
        root = runs[0].run_folder.path.parents[runs[0].name.count("/")]
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        environment.filters["short"] = shortener([*(run.name for run in runs), *self._not_started], differing)
        # A name is broken at its options and, if it is long, after an option, before the value.
        ends = r"(?<=[,/])|(?<=[a-z]\.)"
        environment.filters["breakable"] = lambda name: Markup("<wbr>").join(
            re.split(rf"{ends}|(?<=[a-z_]{{6}}=)" if len(name) > 20 else ends, name)
        )
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
            runs=self._run_rows(),
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
                plot.write_png(folder)
            write_atomically(path, lambda file: file.write(page.encode()))
        except OSError as error:
            raise ConfigError(
                f"cannot write the report to {folder}: {error.strerror}. Choose another folder with out=DIR."
            ) from error
        return path

    def _run_rows(self) -> tuple[list[str], list[tuple[Run, list[str]]]]:
        """Returns the heads of the numbers of runs, and the numbers of each run. A column has a number at least."""
        runs = self._ranked
        metrics = dict.fromkeys(name for run in runs for name in run.options.get("env.metrics") or ())
        numbers = {RETURN: "return", EVALUATED: "evaluated", **{name: name for name in metrics if "success" in name}}
        columns = [
            (head, [number_cell(run.number(name), _MEASURES.get(name)) for run in runs])
            for name, head in ({self._objective: in_words(self._objective)} | numbers).items()
        ]
        columns.append(("best return", [number_cell(run.best_return()) for run in runs]))
        for name, form in _MEASURES.items():
            if name != self._objective:
                columns.append((in_words(name), [number_cell(run.number(name), form) for run in runs]))
        for head, seconds in zip(_PARTS, zip(*(run.parts_s() for run in runs), strict=True), strict=True):
            columns.append((head, [number_cell(each, ".1f") for each in seconds]))
        for index, head in enumerate(_WAITS):
            waits = [[number_cell(each[index], ".1f") for each in run.learners.values()] for run in runs]
            columns.append((head, [" / ".join(each) or "-" for each in waits]))
        columns = [(head, texts) for head, texts in columns if {*texts} != {"-"}]
        rows = [(run, [texts[row] for _, texts in columns]) for row, run in enumerate(runs)]
        return [head for head, _ in columns], rows


def _centre_of(group: Group, number: str) -> float | None:
    values = group.values(number)
    return float(centre(values)) if len(values) else None


def _chances(groups: Sequence[Group], objective: str) -> list[str]:
    """Returns the probability that a run of the first group is better than one of each other, as text; empty for the
    first, and where one of the two has fewer than `FEW` seeds."""
    first, *others = (-np.sign(rank(1.0, objective)) * group.values(objective) for group in groups)
    are_enough = [min(len(first), len(each)) >= FEW for each in others]
    return [
        "",
        *(
            f"{improvement(first, each):.0%}" if is_enough else ""
            for each, is_enough in zip(others, are_enough, strict=True)
        ),
    ]


def _group_row(group: Group, objective: str, are_few: bool) -> tuple[str, ...]:
    """Returns a row: name, how many seeds count, the interquartile mean of the objective, its interval, the frames of
    the seeds, mean and standard deviation, and the lowest and the highest value. In a table of groups that are all too
    small for an interval, these are mean and standard deviation, the lowest and the highest value, and the frames."""
    values, frames = group.values(objective), group.values("frames")
    ends = " to ".join(map(number_cell, interval(values))) if len(values) >= (2 if are_few else FEW) else "-"
    mean, std, *limits = map(number_cell, spread(values.tolist()))
    mean += f" ± {std}" * (std != "-")
    repeats = f" ({counted(len(group.repeats), 'repeat')})" if group.repeats else ""
    stopped = ", stopped" * any(run.status.status is Status.STOPPED for run in group.counted)
    return (
        group.name,
        f"{len(values)} of {len(group.runs)}{stopped}{repeats}",
        mean if are_few else number_cell(_centre_of(group, objective)),
        ends,
        " to ".join(f"{each:,.0f}" for each in sorted({min(frames), max(frames)})) if len(frames) else "-",
        *(() if are_few else (mean, *limits)),
    )


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
