"""Figures of runs, by matplotlib without pyplot: no window, no global state.

Writes a report: `index.html`, which needs no other file, and each figure as a PNG.
"""

from __future__ import annotations

import io
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
import matplotlib
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from collectx import __version__
from collectx.config.problem import counted
from collectx.config.schema.trainer import RETURN_WINDOW
from collectx.errors import ConfigError
from collectx.report.read import Group, Run, Span, centre, common, differences, groups_of, interval, name_of
from collectx.run import Status
from collectx.run.folder.batch_line import TIMES
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.terminal.printing import COLUMNS, SPREAD, cells, number_cell, rank, spread

# The colour of texts and axes in PNGs; in the page they take the colour of the page's text.
_INK = "#1c2024"
# Okabe and Ito's colours, which colour-blind readers can tell apart, on a white or a black ground.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F")
_LINES = ("-", "--", ":", "-.")
_SHARES = dict(zip(TIMES, ("#0072B2", "#56B4E9", "#A3ABB5", "#E69F00"), strict=True))
_LEARNS, _FAILS, _SAVES = "#009E73", "#D55E00", "#CC79A7"
_STYLE: Any = {
    "font.size": 9,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
}
_SIZE = (5.0, 3.1)  # of a figure, in inches
_PNG_DPI = 200
_MAX_WORKERS = 16
_MAX_SPANS = 120
_MAX_UPDATES = 300
_WORKERS = "collector.num_workers"
_AXES = {"frames": "frames", "elapsed_s": "time since the workers were started (s)"}


@dataclass(frozen=True)
class Plot:
    """A figure; `name` is its file name without suffix, and `caption` says what it shows."""

    name: str
    title: str
    caption: str
    figure: Figure

    @property
    def is_wide(self) -> bool:
        """Whether the figure is as wide as the page."""
        return bool(self.figure.get_figwidth() > 2 * _SIZE[0])

    def write_png(self, folder: Path) -> None:
        """Writes the figure to `<name>.png` in the folder, on a white ground."""
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(folder / f"{self.name}.png", dpi=_PNG_DPI)

    def svg(self) -> str:
        """Returns the figure as an element of HTML, as wide as its container, in the colour of the text around it."""
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
        element = text.getvalue().replace(_INK, "currentColor")
        element = element[element.index("<svg") :]
        return re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 role="img">', element)


def curves(groups: Sequence[Group]) -> Iterator[Plot]:
    """Yields the figures of returns, throughput and lag of the groups, one each."""
    words = _words(groups)
    window = f"Mean return of the last {RETURN_WINDOW} episodes"
    for value, over, name, title, label, what in (
        ("mean_return", "frames", "return_frames", "Return against frames", "mean return", window),
        ("mean_return", "elapsed_s", "return_time", "Return against time", "mean return", window),
        ("frames_per_s", "elapsed_s", "throughput", "Throughput", "frames/s", "Frames that the trainer has received"),
        ("lag", "frames", "lag", "Policy lag", "lag (versions)", "Versions that the acting policy was behind"),
    ):
        for file, of, env in _by_env(groups, name) if value == "mean_return" else ((name, "", None),):
            with matplotlib.rc_context(_STYLE):
                figure = Figure(_SIZE, layout="constrained")
                axes = figure.add_subplot()
                if _draw(axes, groups, value, over, env) and (value != "lag" or axes.dataLim.y1 > 0):
                    _label(axes, over, label)
                    if value != "mean_return":
                        axes.set_ylim(bottom=0)
                    _legend(figure, axes, min_labels=2 if env is None else 1)
                    yield Plot(file, f"{title}{of}", f"{what}. {words}", figure)


def scalars(groups: Sequence[Group], are_metrics: bool = False) -> Iterator[Plot]:
    """Yields a figure for each env, with a plot for each scalar that the trainers have logged, or for each of the runs'
    `env.metrics`."""
    name, title, what = (
        ("metrics", "Metrics of the envs", "Values of env.metrics")
        if are_metrics
        else ("scalars", "Losses and other scalars", "Values that the trainer logged")
    )
    for file, of, env in _by_env(groups, name):
        runs = [run for group in groups for run in group.runs if env in (None, run.env)]
        metrics = {name for run in runs for name in run.options.get("env.metrics") or ()}
        names = sorted({name for run in runs for name in run.scalars if (name in metrics) is are_metrics})
        if not names:
            continue
        with matplotlib.rc_context(_STYLE):
            columns = min(3, len(names))
            rows = -(-len(names) // columns)
            size = (3.4 * columns, 2.3 * rows + 0.3) if columns > 1 else _SIZE
            figure = Figure(size, layout="constrained")
            for index, scalar in enumerate(names):
                axes = figure.add_subplot(rows, columns, index + 1)
                _draw(axes, groups, f"scalars/{scalar}", "frames", env)
                _label(axes, "frames", scalar)
            _legend(figure, figure.axes[0])
            yield Plot(file, f"{title}{of}", f"{what}. {_words(groups)}", figure)


def _by_env(groups: Sequence[Group], name: str) -> Iterator[tuple[str, str, str | None]]:
    """Yields the file name, the end of the title, and the env of each figure, as values of different envs cannot be
    compared. If there is only one env, the env is None."""
    envs = [*dict.fromkeys(group.runs[0].env for group in groups)]
    if len(envs) == 1:
        yield name, "", None
    else:
        yield from ((f"{name}-{index}", f", {env}", env) for index, env in enumerate(envs))


def scaling(groups: Sequence[Group]) -> Iterator[Plot]:
    """Yields a figure of throughput against the number of workers, if that was varied: a line for the groups that share
    all other options, with the share of ideal scaling, extrapolated from the fewest workers."""
    keys = [key for key in differences([group.runs[0] for group in groups]) if key not in (_WORKERS, "seed")]
    families: dict[str, dict[int, np.ndarray]] = {}
    names: dict[str, str] = {}
    for group in groups:
        options, values = group.runs[0].options, group.values("frames_per_s")
        if len(values) and isinstance(number := options.get(_WORKERS), int):
            names[key := repr([options.get(key) for key in keys])] = name_of(group.runs[0], keys, True, [_WORKERS])
            families.setdefault(key, {})[number] = values
    families = {key: family for key, family in families.items() if len(family) > 1}
    if not families:
        return
    if len(families) == 1:
        names.clear()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(_SIZE, layout="constrained")
        axes = figure.add_subplot()
        for index, (key, family) in enumerate(families.items()):
            numbers = np.array(sorted(family))
            middle = np.array([centre(family[number]) for number in numbers])
            ends = np.array([interval(family[number]) for number in numbers]).T
            ideal = middle[0] / numbers[0] * numbers
            colour = _COLOURS[index % len(_COLOURS)]
            bars = np.abs(ends - middle)
            axes.errorbar(
                numbers, middle, bars, color=colour, marker="o", ms=4, lw=1.6, capsize=3, label=names.get(key)
            )
            axes.plot(numbers, ideal, color=colour, lw=1, ls=":", label="ideal" if index == 0 else None)
            for place in zip(numbers, middle, middle / ideal, strict=True):
                axes.annotate(f"{place[2]:.0%}", place[:2], (6, -11), textcoords="offset points", fontsize=8)
        axes.set_xticks(sorted({number for family in families.values() for number in family}))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("workers")
        axes.set_ylabel("frames/s")
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        _legend(figure, axes, min_labels=1)
        words = (
            "Percentages: share of ideal scaling (dotted), extrapolated from the fewest workers. "
            "Points: interquartile mean over the seeds (mean of fewer than four). Bars: 95 % bootstrap interval."
        )
        yield Plot("scaling", "Scaling with workers", words, figure)


def timeline(run: Run, name: str) -> Iterator[Plot]:
    """Yields a figure of one run over time: the trainer, the weight updates and each worker, with events. Yields none
    for a run without batches or worker times."""
    elapsed_s = run.columns.get("elapsed_s", np.zeros(0))
    if not len(elapsed_s) or not run.spans:
        return
    workers = sorted(
        {span.worker for span in run.spans} | {event["worker"] for event in run.events if "worker" in event}
    )
    shown = workers[:_MAX_WORKERS]
    rows = {worker: -(index + 2) for index, worker in enumerate(shown)}
    with matplotlib.rc_context(_STYLE):
        figure = Figure((10.2, 0.34 * (len(shown) + 2) + 1.2), layout="constrained")
        axes = figure.add_subplot()
        _draw_trainer(axes, run)
        for worker in shown:
            _draw_worker(axes, [span for span in run.spans if span.worker == worker], rows[worker])
        for kinds, marker, colour, above, label in (
            (("checkpoint",), "D", _SAVES, 0.0, "checkpoint"),
            (("worker_restarted", "worker_added", "resumed"), "^", _INK, -0.4, "restart"),
            (("worker_failed", "worker_dropped", "checkpoint_failed"), "X", _FAILS, 0.0, "failure"),
        ):
            events = [
                event for event in run.events if event["event"] in kinds and event.get("worker", shown[0]) in rows
            ]
            places = [(run.seconds(event["time"]), rows.get(event.get("worker"), 0) + above) for event in events]
            if places:
                style: dict[str, Any] = {"color": colour, "ms": 6, "mec": "white", "mew": 0.6, "clip_on": False}
                axes.plot(*zip(*places, strict=True), marker, label=label, **style)
        axes.set_yticks([0, -1, *rows.values()], ["trainer", "weights", *(f"worker {worker}" for worker in shown)])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, elapsed_s[-1] or 1.0)
        axes.set_ylim(-len(shown) - 1.6, 0.6)
        axes.set_xlabel(_AXES["elapsed_s"])
        _legend(figure, axes, min_labels=1)
        more = f" {len(workers) - len(shown)} more workers are not shown." if len(workers) > len(shown) else ""
        words = (
            "Trainer: learning, and waiting for batches. Weights: each mark is a published version. Workers: shares of "
            f"stepping envs, calling the policy, waiting and sending, each second.{more}"
        )
        yield Plot(name, f"Timeline of {run.name}", words, figure)


def _draw_trainer(axes: Axes, run: Run) -> None:
    elapsed_s = np.concatenate([[0.0], run.columns["elapsed_s"]])
    waited_s = np.concatenate([[0.0], np.nancumsum(run.columns["waited_s"])])
    edges = np.linspace(0, elapsed_s[-1], min(_MAX_SPANS, len(elapsed_s)) + 1)
    share = np.clip(np.diff(np.interp(edges, elapsed_s, waited_s)) / (np.diff(edges) + 1e-12), 0, 1)
    axes.stairs(0.4 - 0.8 * share, edges, baseline=-0.4, fill=True, color=_LEARNS, lw=0, label="learn")
    axes.stairs(np.full(len(share), 0.4), edges, baseline=0.4 - 0.8 * share, fill=True, color=_SHARES["wait_s"], lw=0)
    updates = run.columns["elapsed_s"][np.flatnonzero(np.diff(run.columns["version"], prepend=0) > 0)]
    thinned = updates[:: -(-len(updates) // _MAX_UPDATES) or 1]
    axes.eventplot(thinned, lineoffsets=-1, linelengths=0.5, colors=_LEARNS, linewidths=0.5)


def _draw_worker(axes: Axes, spans: Sequence[Span], row: int) -> None:
    if not spans:
        return
    size = -(-len(spans) // _MAX_SPANS)
    parts = [spans[begin : begin + size] for begin in range(0, len(spans), size)]
    places = np.concatenate([[part[0].begin_s] * 2 + [part[-1].end_s] * 2 for part in parts])
    shares = np.array([np.mean([span.shares for span in part], axis=0) for part in parts])
    # Four corners for each part, whose ends are flat, so that nothing is drawn between parts.
    corners = np.zeros((len(parts), 4, len(TIMES)))
    corners[:, 1:3] = np.cumsum(shares, axis=1)[:, None]
    heights = row - 0.4 + 0.8 * corners.reshape(-1, len(TIMES))
    below = np.full(len(places), row - 0.4)
    for index, (name, colour) in enumerate(_SHARES.items()):
        label = name.removesuffix("_s") if row == -2 else None
        axes.fill_between(places, below, heights[:, index], color=colour, lw=0, label=label)
        below = heights[:, index]


def _draw(axes: Axes, groups: Sequence[Group], value: str, over: str, env: str | None = None) -> bool:
    """Draws a line for each group, with its interval if several runs contribute; returns whether it drew any. An
    interval does not cover failed runs. `env`: only groups with this env, in the colours of all."""
    has_batches = value == "mean_return" and [len(group.runs) for group in groups] == [1]
    for index, group in enumerate(groups):
        if env not in (None, group.runs[0].env):
            continue
        colour, line = _COLOURS[index % len(_COLOURS)], _LINES[index // len(_COLOURS) % len(_LINES)]
        style: dict[str, Any] = {"color": colour, "ls": line}
        going = Group(group.name, tuple(run for run in group.runs if run.status.status is not Status.FAILED))
        all_curves, known = group.curves(value, over), going.curves(value, over)
        together = common(known) if len(known) > 1 else None
        if together is None:
            for number, curve in enumerate(all_curves):
                name = f"last {RETURN_WINDOW} episodes" if has_batches else group.name
                axes.plot(*curve, lw=1.6, label=None if number else name, **style)
        else:
            places, values = together
            axes.plot(places, centre(values), lw=1.6, label=group.name, **style)
            axes.fill_between(places, *interval(values), color=colour, alpha=0.2, lw=0)
        for curve in group.curves("batch_return", over) if has_batches else ():
            axes.plot(*curve, ".", color=colour, alpha=0.35, ms=3, label="episodes of one batch")
    return bool(axes.lines)


def _label(axes: Axes, over: str, label: str) -> None:
    axes.set_xlabel(_AXES[over])
    axes.set_ylabel(label)
    if over == "frames":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if label == "frames/s":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _legend(figure: Figure, axes: Axes, min_labels: int = 2) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) >= min_labels:
        inches = 0.07 * max(map(len, labels)) + 0.55  # of one entry
        columns = min(8, max(1, int(figure.get_figwidth() / inches)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _words(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return ""
    runs = "to ".join(f"{count} " for count in dict.fromkeys((counts[0], counts[-1])))
    return f"Line: interquartile mean of {runs}seeds (mean of fewer than four). Band: 95 % bootstrap interval."


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
    timelines = [plot for index, run in enumerate(timed) for plot in timeline(run, f"timeline-{index}")]
    differing = differences(runs)
    same = {key: value for key, value in runs[0].options.items() if key not in differing}
    sections = {
        "Learning and throughput": list(curves(drawn)),
        "Scaling": list(scaling(groups)),
        "Metrics": list(scalars(drawn, are_metrics=True)),
        "Losses": list(scalars(drawn)),
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
