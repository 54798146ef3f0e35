"""Writes the tables of collectors, backends and launchers in `docs/reference/combinations.md`: `make config`.

The cells are the answers of the rules, `Place.problems` and two of `collectx/rules/collection.py`. With `--check`, as
in `make check`, it writes nothing and fails if a table is stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from collectx import rules
from collectx.config.registry import KINDS, from_dict
from collectx.rules import collection

PAGE = Path(__file__).parents[1] / "docs/reference/combinations.md"
RULES = (collection.inference_server, collection.preemption)
BASE = {
    "env": {"kind": "gym", "id": "CartPole-v1"},
    "policy": {"kind": "mlp"},
    "trainer": {"kind": "meter"},
    "collector": {"kind": "multi_sync"},
    "backend": {"kind": "auto"},
    "launcher": {"kind": "local"},
}
# `auto` stands for one of the others.
BACKENDS = [f"backend={name}" for name in KINDS["backend"] if name != "auto"]
COLLECTORS = [f"collector={name}" for name in KINDS["collector"]]
LAUNCHERS = [f"launcher={name}" for name in KINDS["launcher"]]
PARTS = ["inference=server", "collector.preemptive_threshold=0.5"]
# How the page names a part.
NAMES = {"collector.preemptive_threshold=0.5": "`collector.preemptive_threshold` ¹"}


def fits(*choices: str) -> bool:
    """Whether the rules accept these choices, if each process sees the GPU that it uses."""
    devices = {"policy_device": "cuda:0", "storing_device": "cuda:1"} if "backend=nccl" in choices else {}
    groups: dict[str, dict[str, object]] = BASE | {"devices": devices}
    for word in " ".join(choices).split():
        path, _, value = word.partition("=")
        group, _, option = path.partition(".")
        groups[group] = groups[group] | {option: float(value)} if option else {"kind": value}
    return not rules.problems(from_dict({"seed": 0} | groups), RULES, list)


def by_backend(collector: str, backend: str) -> str:
    """A cell: whether the two fit with `launcher=local`, otherwise the launcher with which they do."""
    fitting = [launcher for launcher in LAUNCHERS if fits(collector, backend, launcher)]
    return "yes" if "launcher=local" in fitting else f"`{fitting[0]}`" if fitting else "no"


def by_launcher(choice: str, launcher: str) -> str:
    return "yes" if fits(choice, launcher) else "no"


def table(rows: list[str], columns: list[str], cell: Callable[[str, str], str]) -> str:
    """A table in which rows with the same cells are one row, and columns one column."""
    cells = {row: tuple(cell(row, column) for column in columns) for row in rows}
    joined_rows = {content: [row for row in rows if cells[row] == content] for content in dict.fromkeys(cells.values())}
    by_column = dict(zip(columns, zip(*joined_rows, strict=True), strict=True))
    joined_columns = {
        content: [column for column in columns if by_column[column] == content]
        for content in dict.fromkeys(by_column.values())
    }
    lines = [["works with", *map(quoted, joined_columns.values())], ["---"] * (1 + len(joined_columns))]
    lines += [
        [quoted(names), *(content[index] for content in joined_columns)]
        for index, names in enumerate(joined_rows.values())
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


def quoted(names: list[str]) -> str:
    return ", ".join(NAMES.get(name, f"`{name}`") for name in names)


def main() -> int:
    """Writes the tables, or with `--check` says that they are stale."""
    choices = COLLECTORS + [backend for backend in BACKENDS if backend != "backend=inline"] + PARTS
    tables = iter([table(COLLECTORS, BACKENDS, by_backend), table(choices, LAUNCHERS, by_launcher)])
    before = PAGE.read_text()
    head, title, section = before.partition("## Backends and launchers\n")
    section = re.sub(r"^\| works with \|.*\n(?:\|.*\n)+", lambda match: next(tables), section, flags=re.MULTILINE)
    after = head + title + section
    if before != after and "--check" in sys.argv:
        print(f"the tables of {PAGE.name} are stale: run `make config`")
        return 1
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
