"""The tables of the documentation: `python -m benchmarks.tables` writes those of benchmarks/results.json between
`<!-- bench NAME -->` and `<!-- bench end -->`; with `--check` it only says which of them differ, with status 1.

Imports neither torch nor collectx.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, KINDS

_ROOT = Path(__file__).parents[1]
RESULTS = _ROOT / "benchmarks" / "results.json"
LEARNING = _ROOT / "benchmarks" / "learning.json"
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
    status = 0
    for path in _FILES:
        old = path.read_text()
        new = _REGION.sub(lambda found: found[1] + _TABLES[found[2]](results) + found[3], old)
        if old != new:
            print(f"{path.relative_to(_ROOT)}: its tables are not those of {RESULTS.relative_to(_ROOT)}", end="")
            if "--check" in sys.argv:
                status = 1
                print(": python -m benchmarks.tables")
            else:
                path.write_text(new)
                print(": rewritten")
    return status


def _about(results: dict[str, Any]) -> str:
    about = results["about"]
    return f"`{about['command']}`, {about['date']}, {about['machine']}, {about['load']}. {about['versions']}."


def _short(results: dict[str, Any]) -> str:
    """Shares of the local collectors, a row for each case."""
    lines = results["lines"]
    rows = [["env, envs per worker", *(f"`{kind}`" for kind in KINDS), "times TorchRL"]]
    for name in CASES:
        if all(f"{name} {kind}: share" in lines for kind in KINDS):
            ratios = [lines.get(f"{name} {kind}: times TorchRL") for kind in KINDS]
            times = " / ".join(f"{ratio['median']:g}" for ratio in ratios if ratio)
            rows.append([_title(name), *(f"{lines[f'{name} {kind}: share']['median']:g}" for kind in KINDS), times])
    return _markdown(rows)


def _full(results: dict[str, Any]) -> str:
    """Everything that was measured."""
    rows = [["env, envs per worker", "measured", "median", "least to most", "target", ""]]
    for name, line in results["lines"].items():
        case, _, rest = name.partition(" ")
        title, what = (_title(case), rest) if case in CASES else ("", name)
        target = "" if line["target"] is None else f"{line['target']:g}"
        rows.append(
            [title, what, f"{line['median']:g}", f"{line['least']:g} to {line['most']:g}", target, line["note"]]
        )
    return _markdown(rows)


def _learning(_: dict[str, Any]) -> str:
    """The final return of each learning curve, and below the table the curves."""
    results = json.loads(LEARNING.read_text())
    rows = [["case", "seeds", "frames", "minutes", "return (95 % interval)", "published", "source"]]
    for name, case in results.items():
        low, high = case["interval"]
        cells = [
            str(case["seeds"]),
            f"{case['frames']:,}",
            f"{case['minutes']:g}",
            f"{case['return']:g} ({low:g} to {high:g})",
        ]
        rows.append([f"`{name}`", *cells, case["published"], case["source"]])
    figures = "\n".join(f"![{name}: mean return against frames](../images/learning_{name}.png)" for name in results)
    commands = "\n".join(f"{case['command']}  # {case['date']}" for case in results.values())
    return f"{_markdown(rows)}\n\n{figures}\n\n```text\n{commands}\n```"


def _title(name: str) -> str:
    case = CASES[name]
    what = "EnvPool " if case.envpool else "TorchRL's env, " if case.torchrl else ""
    return f"{what}{case.env_id}{' raw' if 'raw' in name else ''}, {case.num_envs}"


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in _ruled(rows))


def _ruled(rows: list[list[str]]) -> Iterator[list[str]]:
    yield rows[0]
    yield ["---"] * len(rows[0])
    yield from rows[1:]


_TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "about": _about,
    "short": _short,
    "full": _full,
    "learning": _learning,
}

if __name__ == "__main__":
    sys.exit(main())
