"""Writes a report: `index.html`, which needs no other file, and each figure as a PNG."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import yaml

from collectx import __version__
from collectx.config.problem import counted
from collectx.errors import ConfigError
from collectx.report import draw
from collectx.report.read import Group, Run, centre, differences, groups_of, interval
from collectx.run import Status
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.terminal.printing import COLUMNS, SPREAD, cells, number_cell, rank, spread

# How many groups have curves in a page, and how many runs a timeline.
_MAX_CURVES = 10
_MAX_TIMELINES = 6


def write_report(runs: Sequence[Run], folder: Path, objective: str) -> Path:
    """Writes the report about some runs, at least one, ranked by the entry `objective` of `result.json`; returns the
    path of its page. Raises `ConfigError` if the folder cannot be written to."""
    groups = groups_of(runs)
    spreads = {group: spread(group.values(objective).tolist()) for group in groups}
    best = sorted(groups, key=lambda group: rank(spreads[group][0], objective))
    drawn = [group for group in groups if group in best[:_MAX_CURVES]]
    ranked = sorted(runs, key=lambda run: rank((run.numbers or {}).get(objective), objective))
    # Runs that failed first.
    timed = sorted(ranked, key=lambda run: run.status.status is not Status.FAILED)[:_MAX_TIMELINES]
    timelines = [plot for index, run in enumerate(timed) for plot in draw.timeline(run, f"timeline-{index}")]
    differing = differences(runs)
    same = {key: value for key, value in runs[0].options.items() if key not in differing}
    sections = {
        "Learning and throughput": list(draw.curves(drawn)),
        "Scaling": list(draw.scaling(groups)),
        "Metrics": list(draw.scalars(drawn, are_metrics=True)),
        "Losses": list(draw.scalars(drawn)),
        "Timelines": timelines,
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(resources.files("collectx.report").joinpath("page.html.j2").read_text())
    page = template.render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        version=__version__,
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        objective=objective,
        columns=_ordered(COLUMNS),
        rows=[(run.status.status, _ordered(cells(run.name, run.status.status, run.numbers))) for run in ranked],
        parts_head=("best return", "start", "waiting", "learning", "checkpoints"),
        parts=[_parts(run, folder) for run in ranked],
        group_head=(objective, *SPREAD[1:], "IQM", "95 % CI low", "high"),
        group_rows=[_group_row(each, objective, spreads[each]) for each in best] if len(groups) < len(runs) else [],
        sections={title: [(plot, plot.svg()) for plot in plots] for title, plots in sections.items() if plots},
        left_out={
            "Learning and throughput": (len(groups) - len(drawn), "configurations have no curve"),
            "Timelines": (len(runs) - len(timed), "runs have no timeline"),
        },
        happened=list(_happened(runs)),
        names=[run.name for run in runs],
        differences={key: ["null" if value is None else value for value in each] for key, each in differing.items()},
        config=yaml.safe_dump(same, sort_keys=False),
        origins=[_origin(run.run_folder) for run in runs],
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


def _ordered(columns: Sequence[str]) -> list[str]:
    """Returns cells in the order of a page: the return is beside the status, where a phone shows it."""
    return [columns[0], columns[1], columns[4], *columns[2:4], *columns[5:]]


def _group_row(group: Group, objective: str, spread: Sequence[float | None]) -> tuple[str, ...]:
    """Returns a row: name, number of seeds with the objective, their spread as `collectx run` prints it, IQM and its
    interval."""
    values = group.values(objective)
    ends = interval(values) if len(values) > 1 else (None, None)
    numbers = (*spread, centre(values) if len(values) else None, *ends)
    repeats = f" ({counted(len(group.repeats), 'repeat')})" if group.repeats else ""
    return (group.name, f"{len(values)} of {len(group.runs)}{repeats}", *map(number_cell, numbers))


def _parts(run: Run, folder: Path) -> tuple[str, tuple[str, ...], list[tuple[str, str]]]:
    """Returns the name of the run, its best return and its seconds by part, and names and addresses of its files."""
    numbers = number_cell(run.best_return()), *(number_cell(each, ".1f") for each in run.parts_s())
    files = {
        "run folder": run.run_folder.path,
        "checkpoints": run.run_folder.checkpoints,
        "policy.pt": run.run_folder.policy,
        "videos": run.run_folder.videos,
        "trainer's log": run.run_folder.log("trainer"),
    }
    # From the folder of the page, so that both may move together.
    addresses = {name: os.path.relpath(path, folder.absolute()) for name, path in files.items() if path.exists()}
    return run.name, numbers, [(name, quote(address, safe="/=,")) for name, address in addresses.items()]


def _happened(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (time, seconds since the start, run, message) of events, and of the ends of incomplete runs."""
    for run in runs:
        for at, text in run.messages:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
            yield when, f"{run.seconds(at):.1f}", run.name, text
        if run.status.status is not Status.COMPLETED:
            yield "", "", run.name, f"{run.status.status}: {run.status.detail}".rstrip(": ")


def _origin(run_folder: RunFolder) -> dict[str, Any]:
    meta = run_folder.read_meta(run_folder.meta)
    git = (meta.get("git") or {}).get("cwd") or {}
    commit = f"{git.get('commit')}{' with changes' if git.get('dirty') else ''}" if git else ""
    return {
        "started": meta.get("time", ""),
        "host": meta.get("host", ""),
        "python": meta.get("python", ""),
        "torch": (meta.get("packages") or {}).get("torch", ""),
        "commit": commit,
        "command": " ".join(map(str, meta.get("argv", ()))),
    }
