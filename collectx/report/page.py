"""Writes a report: `index.html`, which needs no other file, its tables as CSV and LaTeX, its figures as PNG and PDF."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import yaml
from markupsafe import Markup, escape

from collectx import __version__
from collectx.config.problem import counted
from collectx.errors import ConfigError
from collectx.report.draw import RETURN, file_name, in_words, sections_of, styles_of, timeline
from collectx.report.read import Group, Run, differences, groups_of, read_rungs, shortener
from collectx.report.tables import centre_of, group_table, run_table, text_table
from collectx.run import Status
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.statistics import FEW
from collectx.run.terminal.printing import COLUMNS, cells, number_form, rank

# How many groups of an env have curves in a page, and how many runs a timeline.
_MAX_CURVES = 10
_MAX_TIMELINES = 6
# How many runs that ended early are named in the results.
_MAX_NOTES = 5


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
            row = min(places.get(run.run_folder.path.name, len(places)) for run in group.runs)
            return row, -group.limit, rank(centre_of(group, objective), objective), min(map(run_rank, group.runs))

        self._objective, self._groups = objective, groups_of(runs)
        rungs, has_groups = read_rungs(runs), len(self._groups) < len(runs)
        # Without a table of groups, the points of a sweep by halving are in the order of its rungs.
        of_rungs = dict.fromkeys(row[0] for _, rows in rungs.values() for row in rows if not has_groups)
        places = {name: place for place, name in enumerate(of_rungs)}
        self._not_started = not_started
        self._title = title
        self._envs = [*dict.fromkeys(group.env for group in self._groups)]
        self._best = {env: sorted((each for each in self._groups if each.env == env), key=key) for env in self._envs}
        ranked = (group for groups in self._best.values() for group in groups)
        self._ranked = [run for group in ranked for run in sorted((*group.runs, *group.repeats), key=run_rank)]
        self.tables = [
            text_table(file_name(f"rungs-{name}"), f"Rungs of {name}, in frames", *each) for name, each in rungs.items()
        ]
        if has_groups:
            for env, groups in self._best.items():
                names = (file_name(f"results-{env}"), env) if len(self._envs) > 1 else ("results", "")
                self.tables.append(group_table(groups, objective, *names))
        # The page of one run names it in its title.
        lost = [run.end if len(runs) > 1 else run.end.partition(": ")[2] for run in runs if run.ended_early]
        self.notes = lost[:_MAX_NOTES] + [f"{len(lost) - _MAX_NOTES} more runs ended early."] * (len(lost) > _MAX_NOTES)
        if not_started:
            points = counted(len(not_started), "point")
            self.notes.append(f"{points} of the sweep did not start. Repeat its command if it has ended.")
        columns = [column for table in self.tables for column in table.columns]
        if any(column.head == "frames" and len({*column.texts} - {"-"}) > 1 for column in columns):
            self.notes.append("The rows differ in frames: compare their curves.")
        if any(0 < len(group.counted) < FEW for group in self._groups) and has_groups:
            self.notes.append(f"Fewer than {FEW} seeds allow no confidence interval: their rank may be chance.")
        self._has_summary = bool(self.tables)
        if not self._has_summary:
            form = number_form(run.number(RETURN) for run in runs)
            rows = [cells(run.name, run.status.status, run.numbers, form) for run in self._ranked]
            rows += [cells(name, "not started", None) for name in not_started]
            self.tables.append(text_table("", "", ("point" if len(runs) > 1 else "run", *COLUMNS[1:]), rows))

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
        of_runs = run_table(runs, self._objective, "runs" if self._has_summary else "results", differing)
        results = self.tables if self._has_summary else [of_runs]
        written: dict[str, str] = {}
        for table in results:
            written |= {f"{table.name}.csv": table.csv(), f"{table.name}.tex": table.latex()}
        written[f"{of_runs.name}.csv"] = of_runs.csv()
        root = runs[0].run_folder.path.parents[runs[0].name.count("/")]
        origins = [_origin(run.run_folder, folder) for run in runs]
        # What all runs have in common stands once. Links differ.
        shared = {key: value for key, value in origins[0].items() if len({origin[key] for origin in origins}) == 1}
        shared = shared if len(runs) > 1 else {}
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
        environment.filters["short"] = shortener([*(run.name for run in runs), *self._not_started], differing)
        # A name is broken at its options and, if it is long, before a long value.
        ends = r"(?<=[,/])|(?<=[a-z]\.)"
        environment.filters["breakable"] = lambda name: Markup("<wbr>").join(
            re.split(rf"{ends}|(?<=[a-z_]{{6}}=)(?=[^,/]{{4}})" if len(name) > 20 else ends, name)
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
            shared_origin=shared,
            origins=[{key: value for key, value in origin.items() if key not in shared} for origin in origins],
        )
        path = folder / "index.html"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for plot in (plot for plots in sections.values() for plot in plots):
                plot.write(folder)
            for name, text in written.items():
                (folder / name).write_text(text, encoding="utf-8")
            write_atomically(path, lambda file: file.write(page.encode()))
        except OSError as error:
            raise ConfigError(
                f"cannot write the report to {folder}: {error.strerror}. Choose another folder with out=DIR."
            ) from error
        return path


def _typeset(text: str) -> str:
    """Returns the numbers of a cell with a minus instead of a hyphen, and no break before the second of two."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return re.sub(r"(±|to) ( *)", lambda match: f"{match[1]}\u00a0{match[2].replace(' ', chr(0x2007))}", text)


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
