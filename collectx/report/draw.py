"""Figures of runs, by matplotlib without pyplot: no window, no global state."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator

from collectx.config.problem import counted
from collectx.config.schema.run import OBJECTIVES, OF_EVALUATION
from collectx.config.schema.trainer import RETURN_WINDOW
from collectx.report.read import (
    Curve,
    Group,
    Run,
    Span,
    centre,
    common,
    differences,
    interval,
    names_of,
)
from collectx.run.folder.batch_line import TIMES
from collectx.run.statistics import FEW
from collectx.run.terminal.printing import num_decimals, rank

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
    "pdf.fonttype": 42,  # publishers refuse fonts of type 3
    "path.simplify": False,  # the page tells the value of each point
}
_SIZE = (3.9, 2.8)  # of a figure, in inches
_PNG_DPI = 200
_POINTS = 72  # an inch, in an SVG
_SPECIAL = re.compile(r"[^\w.-]")  # in the names of files
_OPTION = re.compile(r", ?(?=[\w.]+=)")  # where the name of a group may be broken
# The characters that fit in one line of a legend.
_MAX_LABEL = 45
_MAX_WORKERS = 16
# Fewer points are marked on their line.
_FEW_POINTS = 5
# An axis is logarithmic if 90% of the values differ by this factor.
_LOGARITHMIC = 100
_MAX_SPANS = 120
_MAX_UPDATES = 300
_WORKERS = "collector.num_workers"
# How many seeds a performance profile needs.
_MIN_PROFILE = 5
# The units of the numbers of an axis, and from where on it has them.
_HUGE = 1e12
_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0.0, 1.0, ""))
_AXES = {"frames": "frames", "elapsed_s": "time since the start (s)"}


# The colour and the line of each group, by its name.
_Styles: TypeAlias = Mapping[str, Mapping[str, Any]]


def styles_of(groups: Sequence[Group]) -> _Styles:
    """Returns the colour and the line of each group. A configuration has the same ones with each env."""
    names = dict.fromkeys(group.name for group in groups)
    return {name: {"color": _COLOURS[i % 8], "ls": _LINES[i // 8 % 4]} for i, name in enumerate(names)}


@dataclass(frozen=True)
class Plot:
    """A figure; `name` becomes its file name, `title` has names of metrics between backticks, `caption` says what it
    shows, and `legend` what its lines are, in sentences that other figures share; `is_explained` says whether its page
    needs no other legend, and `has_groups` whether it has a line for each group, in the styles of `styles_of`."""

    name: str
    title: str
    caption: str
    figure: Figure
    legend: Sequence[str] = ()
    is_explained: bool = False
    has_groups: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether the figure is as wide as the page."""
        return bool(self.figure.get_figwidth() > 2 * _SIZE[0])

    def write(self, folder: Path, kinds: Iterable[str] = ("png", "pdf")) -> None:
        """Writes the figure to a file of each kind in the folder, such as `<name>.png`, on a white ground."""
        with matplotlib.rc_context(_STYLE):
            for kind in kinds:
                self.figure.savefig(folder / f"{file_name(self.name)}.{kind}", dpi=_PNG_DPI)

    def svg(self) -> str:
        """Returns the figure as an element of HTML, as wide as its container, in colour and font of the text around it.
        Lacks what the page around it tells: the label of y, and a legend that it explains.

        `data-axes` has, for x and y, the label, the limits, where these are in the figure, and the decimals of a value;
        null on a logarithmic axis. A group of the class `curve` is a line, and `part` what belongs to it; `data-of`
        names the line.
        """
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        axes = self.figure.axes[0]
        height, legends = self.figure.get_figheight(), [*self.figure.legends]
        axes.yaxis.label.set_visible(False)
        if self.is_explained:
            self.figure.legends.clear()
            self.figure.set_figheight(_SIZE[1])
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
        size = self.figure.get_size_inches() * _POINTS
        (begin, low), (end, high) = axes.get_position().get_points() * size
        axes.yaxis.label.set_visible(True)
        self.figure.legends[:] = legends
        self.figure.set_figheight(height)
        element = text.getvalue().replace(_INK, "currentColor")
        element = element[element.index("<svg") :]
        # The page makes dark colours lighter on its dark ground.
        element = re.sub(r": #([0-9a-f]{6})(?=[;\"])", r": var(--c\1, #\1)", element)
        element = re.sub(r" font-family: [^;]*;", "", element)
        element = re.sub(r'<g id="(curve|part) ([^"]*)">', r'<g class="\1" data-of="\2">', element)
        element = re.sub(r'<g id="[^"]*">', "<g>", element)
        decimals = [
            None if axis.get_scale() == "log" else num_decimals(max(map(abs, axis.get_view_interval())))
            for axis in (axes.xaxis, axes.yaxis)
        ]
        data = (
            (axes.get_xlabel(), axes.get_xlim(), (begin, end), decimals[0]),
            (axes.get_ylabel(), axes.get_ylim(), (size[1] - low, size[1] - high), decimals[1]),
        )
        attributes = f'viewBox="0 0 {size[0]:.1f} {size[1]:.1f}" role="img" data-axes="{escape(json.dumps(data))}"'
        return f"<svg {attributes}>{element.partition('>')[2]}"


def file_name(name: str) -> str:
    """Returns the name of a file: `_` replaces other characters than letters, digits, `-` and `.`."""
    return _SPECIAL.sub("_", name)


@contextmanager
def _figure(size: tuple[float, float] = _SIZE) -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(size, layout="constrained")
        axes = figure.add_subplot()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_Ticks())
            axis.set_major_locator(MaxNLocator(min(12, int(1.6 * size[0])), steps=(1, 2, 5, 10), min_n_ticks=3))
        yield figure, axes


class _Ticks(Formatter):
    """Writes the numbers of an axis with one unit and as many decimals as they need: `0, 10k, 20k`; `0, 0.25, 0.50`."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        axis: Any = self.axis
        low, high = sorted(axis.get_view_interval())
        if axis.get_scale() == "log":
            return [text for value in values for text in _tick_texts([value], value)]
        return _tick_texts(values, max(map(abs, (value for value in values if low <= value <= high)), default=0.0))


def _tick_texts(values: Sequence[float], largest: float) -> list[str]:
    size, unit = next(each[1:] for each in _UNITS if each[0] <= largest)
    for decimals in range(7 if largest < _HUGE else 0):
        rounded = [round(value / size, decimals) for value in values]
        if np.allclose(np.multiply(rounded, size), values, rtol=0, atol=1e-9 * largest):
            return [f"{each:,.{decimals}f}{unit}".replace("-", "−") if each else "0" for each in rounded]
    return [f"{value:g}".replace("-", "−") for value in values]


# The curves of a report: value, over what, file, title, label of the axis, and what it shows.
RETURN, EVALUATED = "mean_return", f"{OF_EVALUATION}mean_return"
_DURING = "Evaluations during the run."
_WINDOW = f"Training: mean of the last {RETURN_WINDOW} episodes."
_LEARNING = (
    (RETURN, "frames", "return_frames", "Return against frames", "mean return", _WINDOW),
    (EVALUATED, "frames", "return_evaluated", "Return of evaluations", "mean return", _DURING),
    (RETURN, "elapsed_s", "return_time", "Return against time", "mean return", _WINDOW),
)
_SPEED = (
    ("frames_per_s", "elapsed_s", "throughput", "Frames per second", "frames/s", "As the trainer received them."),
    ("lag", "frames", "lag", "Policy lag", "lag (versions)", "Versions that the acting policy was behind."),
)


_WORDS = {"frames_per_s": "frames/s", "wall_s": "wall (s)", "start_s": "start (s)"}


def in_words(number: str) -> str:
    """Returns what readers call a number of `result.json`: `mean return`. A metric of the env keeps its name."""
    name = number.removeprefix(OF_EVALUATION)
    words = _WORDS.get(name) or (name.replace("_", " ") if name in OBJECTIVES else name)
    return f"{words} of evaluations" if number.startswith(OF_EVALUATION) else words


def _in_title(number: str) -> str:
    """Returns what a title calls a number of `result.json`."""
    name = number.removeprefix(OF_EVALUATION)
    return in_words(number) if name in OBJECTIVES else in_words(number).replace(name, f"`{name}`", 1)


def sections_of(groups: Sequence[Group], objective: str) -> dict[str, list[Plot]]:
    """Returns the figures about groups of runs by the headings of a page, each of one env."""
    styles = styles_of(groups)
    sections: dict[str, list[Plot]] = {}
    envs = dict.fromkeys(group.env for group in groups)
    for env in envs:
        of_env = [group for group in groups if group.env == env]
        runs = [run for group in of_env for run in group.runs]
        metrics = dict.fromkeys(name for run in runs for name in run.options.get("env.metrics") or ())
        rates = [name for name in metrics if "success" in name]
        others = [name for name in metrics if name not in rates]
        scalars = sorted({name for run in runs for name in run.scalars}.difference(metrics))
        for heading, curves, numbers in (
            ("Learning", _LEARNING, ()),
            ("Seeds", (), (objective,)),
            ("Success rate", _of_metrics(rates), [name for name in rates if name != objective]),
            ("Metrics", _of_metrics(others), ()),
            ("Throughput", _SPEED, ()),
            ("Training", [(f"scalars/{name}", "frames", name, f"`{name}`", name, "") for name in scalars], ()),
        ):
            plots = [plot for each in curves for plot in _curves(of_env, styles, *each)]
            for number in numbers:
                plots += [*by_seed(of_env, styles, number), *profile(of_env, styles, number)]
            plots += scaling(of_env) if heading == "Throughput" else ()
            if len(envs) > 1:
                plots = [replace(plot, name=f"{plot.name}-{env}", title=f"{plot.title}, {env}") for plot in plots]
            sections.setdefault(heading, []).extend(plots)
    return sections


def _of_metrics(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name in names:
        early = "Training. The first values are of the few episodes that had ended by then, the shortest ones."
        yield f"scalars/{name}", "frames", name, f"`{name}`", name, early
        yield f"{OF_EVALUATION}{name}", "frames", f"{name}_evaluated", f"`{name}` of evaluations", name, _DURING


def _curves(
    groups: Sequence[Group], styles: _Styles, value: str, over: str, name: str, title: str, label: str, what: str
) -> Iterator[Plot]:
    """Yields a figure with a line for each group, if there is any."""
    with _figure() as (figure, axes):
        words = _draw(axes, groups, styles, value, over)
        if axes.lines and (value != "lag" or axes.dataLim.y1 > 0):
            axes.set_xlabel(_AXES[over])
            axes.set_ylabel(label)
            _dash_equal(axes)
            if value in ("frames_per_s", "lag"):
                axes.set_ylim(bottom=0)
            if "success" in value:
                axes.set_ylim(-0.03, 1.03)
            elif value.startswith("scalars/") and _spans_decades(axes):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(_Ticks())
                what = f"{what} Logarithmic axis.".lstrip()
            _legend(figure, axes)
            yield Plot(name, title, what, figure, words, True, len(groups) > 1)


def _dash_equal(axes: Axes) -> None:
    """Dashes each line that would hide one with the same points, so that all of them are visible."""
    counts: Counter[bytes] = Counter()
    for line in axes.lines:
        points = np.asarray(line.get_xydata()).tobytes()
        if count := counts[points]:
            line.set_linestyle((0, (4, 4 * 2**count - 4)))
        counts[points] += 1


def _spans_decades(axes: Axes) -> bool:
    """Whether a linear axis would hide differences between small values. A few values that are far smaller than all
    others are no reason: they would fill a logarithmic one."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    low, high = np.quantile(values, [0.05, 0.95])
    return bool(values.min() > low / _LOGARITHMIC and high >= _LOGARITHMIC * low > 0)


def _draw(axes: Axes, groups: Sequence[Group], styles: _Styles, value: str, over: str) -> list[str]:
    """Draws the mean of each group with its interval, where all of its runs are that did not end early; over time,
    finished ones keep their return; over frames, also each run beyond it; and each run that ended early. Returns the
    words that explain the lines."""
    curves = [group.curves(value, over) for group in groups]
    counts = {len(going) for going, _ in curves if going}
    is_alone = value == RETURN and len(groups) == len(groups[0].runs) == 1
    keeps = value == RETURN and over == "elapsed_s"
    has_mean = has_rest = False
    for group, (going, early) in zip(groups, curves, strict=True):
        name = f"last {RETURN_WINDOW} episodes" if is_alone else group.name
        style: dict[str, Any] = {**styles[group.name], "ms": 3, "gid": f"curve {name}"}
        part = {"color": style["color"], "gid": f"part {name}"}
        is_sparse = all(len(places) < _FEW_POINTS for places, _ in going + early)
        style["marker"] = "o" if is_sparse or value.startswith(OF_EVALUATION) else ""
        num_seeds = f" ({counted(len(going), 'seed')})" if len(counts) > 1 else ""
        labels = chain([f"{name}{num_seeds}"], repeat(None))
        rests = going
        if len(going) > 1 and (together := common(group.kept(value, over) if keeps else going)) is not None:
            places, values = together
            axes.plot(places, centre(values), lw=1.6, label=next(labels), **style)
            if len(places) == 1:
                axes.vlines(places, *interval(values), alpha=0.4, lw=1.6, **part)
            else:
                axes.fill_between(places, *interval(values), alpha=0.2, lw=0, **part)
            # Over time, runs end at different places.
            rests = [] if over == "elapsed_s" else [_beyond(each, places[-1]) for each in going]
            rests, has_mean = [rest for rest in rests if len(rest[0]) > 1], True
        for curve in rests:
            axes.plot(*curve, lw=1.6 if len(going) == 1 else 0.8, label=next(labels), **style)
        for curve in early:
            axes.plot(*curve, lw=0.8 if len(going) + len(early) > 1 else 1.6, label=next(labels), **style)
            axes.plot(curve[0][-1], curve[1][-1], "x", ms=6, **part)
        for curve in chain(*group.curves("batch_return", over)) if is_alone else ():
            of_batch = "episodes of one batch"
            axes.plot(*curve, ".", color=style["color"], alpha=0.35, ms=3, label=of_batch, gid=f"curve {of_batch}")
        has_rest = has_rest or len(going) > 1 <= len(rests)
    words = _statistics(counts) if has_mean else []
    if is_alone:
        words.append("A dot is the mean return of the episodes that ended in one batch.")
    if has_mean and keeps:
        words.append("Against time, a seed that has finished keeps its last return until the slowest seed ends.")
    elif has_mean and over == "elapsed_s":
        words.append("The line of frames per second ends when the fastest seed ends.")
    if has_rest:
        words.append("A thin line is one seed, where not all seeds have values.")
    if any(early for _, early in curves):
        words.append("A cross is the end of a run that failed or was interrupted. No mean contains that run.")
    return words


def _statistics(counts: Iterable[int]) -> list[str]:
    """Returns the words that explain the lines and bands of groups with so many seeds."""
    several = [count for count in counts if count > 1]
    words = []
    if min(several) < FEW:
        words.append("Of two or three seeds, a line is the mean. A band goes from the lowest seed to the highest.")
    if max(several) >= FEW:
        words.append("Of four or more seeds, a line is the interquartile mean. A band is its 95% bootstrap interval.")
    return words


def _beyond(curve: Curve, place: float) -> Curve:
    """Returns the part of a curve from the last point at or before a place on."""
    begin = max(0, int(np.searchsorted(curve[0], place, "right")) - 1)
    return curve[0][begin:], curve[1][begin:]


def by_seed(groups: Sequence[Group], styles: _Styles, number: str) -> Iterator[Plot]:
    """Yields a figure of a number of `result.json`: a dot for each seed, and the interval of each group. Yields none if
    no group has several seeds."""
    known = [(group, values) for group in groups if len(values := group.values(number))]
    if not any(len(values) > 1 for _, values in known):
        return
    names = [_OPTION.sub(",\n", group.name) for group, _ in known]
    row_height = 0.08 + 0.14 * max(name.count("\n") + 1 for name in names)
    with _figure((_SIZE[0], max(_SIZE[1], row_height * len(known) + 0.6))) as (figure, axes):
        for row, (group, values) in enumerate(known):
            colour, curve, part = styles[group.name]["color"], f"curve {group.name}", f"part {group.name}"
            axes.plot(values, [row + 0.25] * len(values), "o", color=colour, alpha=0.8, ms=4, mew=0, gid=curve)
            if len(values) > 1:
                axes.plot(interval(values), [row, row], color=colour, lw=2.2, gid=part)
                axes.plot(centre(values), row, "|", color=colour, ms=13, mew=2.2, gid=curve)
        axes.set_yticks(range(len(known)), names)
        for label, (group, _) in zip(axes.get_yticklabels(), known, strict=True):
            label.set_gid(f"part {group.name}")
        axes.set_ylim(len(known) - 0.4, -0.6)
        if "success" in number:
            axes.set_xlim(-0.03, 1.03)
        axes.set_xlabel(in_words(number))
        words = "A dot is a seed at the end of its run. Mark and bar stand for line and band."
        title = f"{_in_title(number)} of each seed"
        legend = _statistics(len(values) for _, values in known)
        yield Plot(f"seeds_{number}", f"{title[0].upper()}{title[1:]}", words, figure, legend)


def profile(groups: Sequence[Group], styles: _Styles, number: str) -> Iterator[Plot]:
    """Yields the performance profile of a number of `result.json`: the share of seeds that are better than each value,
    for groups of at least `_MIN_PROFILE` seeds. Yields none without such a group."""
    known = [(group, values) for group in groups if len(values := group.values(number)) >= _MIN_PROFILE]
    every = np.concatenate([values for _, values in known]) if known else np.zeros(0)
    if not len(every) or every.min() == every.max():
        return
    is_less = rank(0.0, number) < rank(1.0, number)
    with _figure() as (figure, axes):
        margin = 0.02 * (every.max() - every.min())
        places = np.linspace(every.min() - margin, every.max() + margin, 201)
        for group, values in known:
            is_better = (np.less if is_less else np.greater).outer(values, places)
            ends = interval(is_better, partial(np.mean, axis=0))
            curve, part = f"curve {group.name}", f"part {group.name}"
            axes.plot(places, is_better.mean(axis=0), lw=1.6, label=group.name, gid=curve, **styles[group.name])
            axes.fill_between(places, *ends, color=styles[group.name]["color"], alpha=0.2, lw=0, gid=part)
        axes.set_xlabel(in_words(number))
        axes.set_ylabel(f"share of seeds {'below' if is_less else 'above'}")
        axes.set_ylim(-0.03, 1.03)
        _legend(figure, axes)
        words = "Share of the seeds with a better value, with its 95% bootstrap interval. The higher line is better."
        title = f"Performance profile of {_in_title(number)}"
        yield Plot(f"profile_{number}", title, words, figure, is_explained=True, has_groups=len(groups) > 1)


def scaling(groups: Sequence[Group]) -> Iterator[Plot]:
    """Yields a figure of throughput against the number of workers, if that was varied: a line for the groups that share
    all other options, with the share of ideal scaling, extrapolated from the fewest workers."""
    keys = [key for key in differences([group.runs[0] for group in groups]) if key not in (_WORKERS, "seed")]
    families: dict[str, dict[int, Group]] = {}
    for group in groups:
        options = group.runs[0].options
        if len(group.values("frames_per_s")) and isinstance(number := options.get(_WORKERS), int):
            families.setdefault(repr([options.get(key) for key in keys]), {})[number] = group
    several = [family for family in families.values() if len(family) > 1]
    if not several:
        return
    names = names_of([[run for group in family.values() for run in group.runs] for family in several], keys)
    with _figure() as (figure, axes):
        for index, (family, name) in enumerate(zip(several, names, strict=True)):
            numbers = np.array(sorted(family))
            values = [family[number].values("frames_per_s") for number in numbers]
            middle = np.array([centre(each) for each in values])
            bars = np.abs(np.array([interval(each) for each in values]).T - middle)
            ideal = middle[0] / numbers[0] * numbers
            colour, label = _COLOURS[index % len(_COLOURS)], name if len(several) > 1 else None
            style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "lw": 1.6, "capsize": 3, "label": label}
            axes.errorbar(numbers, middle, bars, **style)[0].set_gid(f"curve {label or ''}")
            axes.plot(numbers, ideal, color=colour, lw=1, ls=":", label="ideal" if index == 0 else None)
            for place in zip(numbers, middle, middle / ideal, strict=True):
                axes.annotate(f"{place[2]:.0%}", place[:2], (6, -11), textcoords="offset points", fontsize=8)
        axes.set_xticks(sorted({number for family in several for number in family}))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("workers")
        axes.set_ylabel("frames/s")
        _legend(figure, axes, min_labels=1)
        words = (
            "Percentages: share of ideal scaling (dotted), extrapolated from the fewest workers. "
            "Points and bars stand for line and band."
        )
        yield Plot("scaling", "Frames per second against workers", words, figure, is_explained=len(several) == 1)


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
    with _figure((10.2, 0.34 * (len(shown) + 2) + 1.2)) as (figure, axes):
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
            f"stepping envs, calling the policy, waiting and sending.{more}"
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


def _legend(figure: Figure, axes: Axes, min_labels: int = 2) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) >= min_labels:
        if max(map(len, labels)) > _MAX_LABEL:
            labels = [_OPTION.sub(",\n", label) for label in labels]
        rows = max(label.count("\n") for label in labels) + 1
        inches = 0.062 * max(len(line) for label in labels for line in label.split("\n")) + 0.5  # of one entry
        columns = min(8, max(1, int(figure.get_figwidth() / inches)))
        # A phone shows the left part of a wide figure first.
        is_wide = figure.get_figwidth() > 2 * _SIZE[0]
        where: Any = "outside lower left" if is_wide else "outside lower center"
        figure.legend(handles, labels, loc=where, ncols=columns)
        # The first rows fit below the axes.
        figure.set_figheight(figure.get_figheight() + 0.19 * max(0, -(-len(labels) // columns) * rows - 2))
