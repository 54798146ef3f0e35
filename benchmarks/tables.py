"""The tables and the plots of the documentation: `python -m benchmarks.tables` writes the tables of
benchmarks/results.json between `<!-- bench NAME -->` and `<!-- bench end -->`, and the plots as drawings; with
`--check` it only says which of them differ, with status 1. The plot of other libraries shows the table of their page.

Imports neither torch nor collectx.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import learning
from benchmarks.cases import CASES, KINDS

_ROOT = Path(__file__).parents[1]
# Keeps an interval in one line.
_NBSP = "&nbsp;"
RESULTS = _ROOT / "benchmarks" / "results.json"
_PLOT = _ROOT / "docs" / "images" / "shares.svg"
_PEERS = _ROOT / "docs" / "explanation" / "comparison.md"
_PEERS_PLOT = _ROOT / "docs" / "images" / "peers.svg"
_FILES = (
    _ROOT / "README.md",
    _ROOT / "docs" / "explanation" / "performance.md",
    _ROOT / "docs" / "explanation" / "learning.md",
)
_REGION = re.compile(r"(<!-- bench (\w+) -->\n).*?(\n<!-- bench end -->)", re.DOTALL)

Lines = dict[str, dict[str, Any]]


def main() -> int:
    """Returns the exit status."""
    results = json.loads(RESULTS.read_text())
    texts = {
        path: _REGION.sub(lambda found: found[1] + _TABLES[found[2]](results) + found[3], path.read_text())
        for path in _FILES
    }
    texts |= {_PLOT: _plot(_believed(results["lines"])), _PEERS_PLOT: _peers_plot(_PEERS.read_text())}
    status = 0
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(_ROOT)} does not show the measurements", end="")
            if "--check" in sys.argv:
                status = 1
                print(": python -m benchmarks.tables")
            else:
                path.write_text(text)
                print(": rewritten")
    return status


def _about(results: dict[str, Any]) -> str:
    about = results["about"]
    return f"`{about['command']}`, {about['date']}, {about['machine']}, {about['load']}. {about['versions']}."


def _short(results: dict[str, Any]) -> str:
    """Shares of the local collectors, a row for each case."""
    lines = _believed(results["lines"])
    rows = [["env, envs per worker", *(f"`{kind}`" for kind in KINDS), "speed-up over TorchRL"]]
    for name in CASES:
        if all(f"{name} {kind}: share" in lines for kind in KINDS):
            ratios = [lines.get(f"{name} {kind}: times TorchRL") for kind in KINDS]
            times = " / ".join(f"{ratio['median']:.1f}" for ratio in ratios if ratio)
            rows.append([_title(name), *(f"{lines[f'{name} {kind}: share']['median']:.2f}" for kind in KINDS), times])
    return _markdown(rows)


def _full(results: dict[str, Any]) -> str:
    """All shares with their ratios to TorchRL, a row for each case and kind of collector."""
    lines = _believed(results["lines"])
    rows = [["env, envs per worker", "collector", "frames/s", "share (min to max)", "times TorchRL (min to max)"]]
    for name, share in lines.items():
        if name.endswith(": share"):
            case, kind = name.removesuffix(": share").split(" ")
            times = lines.get(name.replace(": share", ": times TorchRL"))
            frames = share["note"].removesuffix(" frames/s")
            rows.append([_title(case), f"`{kind}`", frames, _spread(share, 2), _spread(times, 1) if times else ""])
    return _markdown(rows)


def _omitted(results: dict[str, Any]) -> str:
    """The cases that the other tables do not have, and why."""
    lines = results["lines"]
    names = {name.split(" ")[0] for name in lines.keys() - _believed(lines).keys()}
    if not names:
        return "All measured cases are shown."
    titles = "; ".join(_title(name) for name in CASES if name in names)
    return f"Left out: {titles}. A median share above 1 shows that the bare loop was measured too slowly."


def _believed(lines: Lines) -> Lines:
    """Without cases with a median share above 1: nothing is faster than the bare loop, so it was measured too slow."""
    wrong = {name.split(" ")[0] for name, line in lines.items() if name.endswith(": share") and line["median"] > 1}
    return {name: line for name, line in lines.items() if name.split(" ")[0] not in wrong}


def _start(results: dict[str, Any]) -> str:
    line = results["lines"]["startup collectx run"]
    return (
        f"With eight workers, `collectx run` takes {_spread(line, 2)} times as long to deliver its first batch as "
        '`python -c "import torch, gymnasium, tensordict"` takes.'
    )


def _spread(line: dict[str, Any], digits: int) -> str:
    least, median, most = (f"{line[key]:.{digits}f}" for key in ("least", "median", "most"))
    return f"{median} ({least} to {most})"


def _learning(_: dict[str, Any]) -> str:
    """The final return of each learning curve; below the table, folded, the curves and the commands."""
    results = json.loads(learning.RESULTS.read_text())
    rows = [["case", "frames", "minutes", "return", "95% interval", "published"]]
    sources = []
    for name, case in learning.CASES.items():
        if name in results:
            result = results[name]
            low, high = result["interval"]
            frames, minutes = f"{result['frames']:,}", f"{result['minutes']:g}"
            interval, published = (each.replace(" ", _NBSP) for each in (f"{low:g} to {high:g}", case.published))
            rows.append([f"`{name}`", frames, minutes, f"{result['return']:g}", interval, published])
            sources += [f"- `{name}`: {case.source}"] if case.source else []
    parts = [_markdown(rows), "\n".join(["Sources of the published returns:", "", *sources])]
    figures = "\n".join(f"![{name}: mean return against frames](../images/learning_{name}.png)" for name in results)
    commands = "\n".join(f"{result['command']} # {result['date']}" for result in results.values())
    parts += [_folded("All learning curves", figures), _folded("The commands", f"```text\n{commands}\n```")]
    return "\n\n".join(parts)


def _folded(title: str, text: str) -> str:
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def _title(name: str) -> str:
    case = CASES[name]
    what = "EnvPool " if case.envpool else "TorchRL's env, " if case.torchrl else ""
    return f"{what}{case.env_id}{' raw' if 'raw' in name else ''}, {case.num_envs}"


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in _ruled(rows))


def _ruled(rows: list[list[str]]) -> Iterator[list[str]]:
    yield rows[0]
    # Numbers are aligned to the right.
    yield ["--:" if all(re.match(r"-?\d", cell) for cell in cells) else "---" for cells in zip(*rows[1:], strict=True)]
    yield from rows[1:]


# The colour of collectx, as in docs/extra.css.
_TEAL = "#0d9488"
# Sizes of the plot of shares in pixels; the axis ends at a share of `_MOST`.
_LEFT, _SCALE, _ROW, _MOST = 345, 320, 18, 1.25


def _plot(lines: Lines) -> str:
    """The shares of all cases: a bar from the least to the most, a dot at the median."""
    shares = {name.removesuffix(": share"): line for name, line in lines.items() if name.endswith(": share")}
    marks, y, last = [], 24, ""
    for name, line in shares.items():
        case, _, kind = name.partition(" ")
        if case != last:
            y += 6
            marks.append(_text(8, y, _title(case)))
        least, most, median = (_x(line[key]) for key in ("least", "most", "median"))
        marks += [
            _text(190, y, kind),
            f'<path d="M{least} {y - 4} H{most}" stroke="{_TEAL}" stroke-width="6" stroke-opacity=".45"/>',
            f'<circle cx="{median}" cy="{y - 4}" r="4.5" fill="{_TEAL}"/>',
        ]
        y, last = y + _ROW, case
    axis = [
        f'<path d="M{_x(share)} 14 V{y}" stroke="currentColor" stroke-opacity="{0.6 if share == 1 else 0.2}"/>'
        f'<text x="{_x(share)}" y="{y + 14}" text-anchor="middle">{share:g}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1, 1.25)
    ]
    width = _LEFT + int(_MOST * _SCALE) + 20
    return _drawn(width, y + 20, "Share of the bare loop by case: min to max, median", [*axis, *marks])


# Sizes of the plot of other libraries in pixels: the names, a column, a bar of share 1, its value, a row.
_NAMES, _COLUMN, _BAR, _VALUE, _LINE = 126, 108, 64, 36, 28


def _peers_plot(page: str) -> str:
    """The shares of collectx and of the fastest sampler of each other library, an env in each column.

    `page` is the comparison, whose first table has collectx's shares, and whose second how many times as fast as each
    sampler it is. The last column is left out: with observations this large, copies decide and not samplers.
    """
    ours = re.search(r"^\| share of two bare loops \| (.*) \|$", page, re.MULTILINE)[1]
    shares = [float(cell) for cell in ours.split(" | ")]
    table = page.partition("| collected by | ")[2].partition("\n\n")[0]
    titles, _, *others = (line.strip("| ").split(" | ") for line in table.splitlines())
    rows = {"collectx": shares}
    for name, *ratios in others:
        library = name.partition(",")[0]
        found = [share / float(ratio) for share, ratio in zip(shares, ratios, strict=True)]
        rows[library] = [max(each) for each in zip(found, rows.get(library, found), strict=True)]
    columns = [_NAMES + _COLUMN * index for index in range(len(titles) - 1)]
    name = "Share of the speed of two bare Python loops"
    marks = [f'<text y="14" font-weight="bold">{name}</text>']
    for x, title in zip(columns, titles, strict=False):
        marks.append(_text(x, 40, re.sub(r"^ALE/|-v\d+$", "", title.partition(",")[0])))
    for row, (library, values) in enumerate(rows.items()):
        y = 46 + row * _LINE
        weight, fill = ("bold", f'fill="{_TEAL}"') if library == "collectx" else ("normal", 'fill-opacity=".4"')
        marks += [f'<g font-weight="{weight}">', f'<text y="{y + 18}">{library}</text>']
        for x, share in zip(columns, values, strict=False):
            marks += [
                f'<rect x="{x}" y="{y + 5}" width="{_BAR}" height="16" fill-opacity=".07"/>',
                f'<rect x="{x}" y="{y + 5}" width="{round(share * _BAR, 1)}" height="16" {fill}/>',
                f'<text x="{x + _BAR + _VALUE}" y="{y + 18}" text-anchor="end">{share:.2f}</text>',
            ]
        marks.append("</g>")
    return _drawn(columns[-1] + _BAR + _VALUE, 48 + _LINE * len(rows), f"{name}, by library", marks, 13)


def _drawn(width: int, height: int, title: str, marks: list[str], font_size: int = 12) -> str:
    """A drawing in the colour of the text around it."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="{font_size}" fill="currentColor">',
        "<style>@media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>",
        f"<title>{title}</title>",
    ]
    return "\n".join([*head, *marks, "</svg>", ""])


def _x(share: float) -> float:
    return round(_LEFT + _SCALE * min(share, _MOST), 1)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{text}</text>'


_TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "about": _about,
    "short": _short,
    "full": _full,
    "omitted": _omitted,
    "start": _start,
    "learning": _learning,
}

if __name__ == "__main__":
    sys.exit(main())
