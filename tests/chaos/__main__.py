"""Faults in real runs, drawn from a seed: `python -m tests.chaos --seed S --faults N`, from the repository's root.

Prints a table by kind of fault, and each fault that a run did not survive; the exit status says whether there was one.
Faults of a full disk need root, for a disk of their own.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .plan import FAULTS, Plan, plans
from .running import Outcome, Run, as_plain


def table(outcomes: list[Outcome]) -> str:
    """A table in Markdown, a row by kind of fault."""
    lines = [
        "| fault | tried | survived | wrong frames | noticed after (median, worst) | recovered after (median, worst) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    groups = {kind: [each for each in outcomes if each.fault == kind] for kind in FAULTS} | {"all": outcomes}
    for kind, group in groups.items():
        if group:
            survived, wrong = sum(each.survived for each in group), sum(each.wrong_frames for each in group)
            times = [_times(group, name) if kind != "all" else "" for name in ("notice_s", "recover_s")]
            lines.append(f"| {kind} | {len(group)} | {survived} | {wrong} | {times[0]} | {times[1]} |")
    return "\n".join(lines)


def _times(group: list[Outcome], name: str) -> str:
    values = [value for each in group if each.survived and (value := getattr(each, name)) is not None]
    return f"{statistics.median(values):.2g} s, {max(values):.2g} s" if values else "-"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the runs; all of them if omitted")
    parser.add_argument("--json", type=Path, help="the file for the outcome of every fault")
    arguments = parser.parse_args()
    begin_s = time.monotonic()
    end_s = begin_s + 60 * arguments.minutes
    folder = Path(tempfile.mkdtemp(prefix="collectx-chaos-"))

    def play(plan: Plan) -> list[Outcome]:
        if time.monotonic() > end_s:
            return []
        outcomes = Run(plan, folder / str(plan.number)).play()
        for each in outcomes:
            mark = "survived" if each.survived else f"NOT SURVIVED: {each.note}"
            print(f"{plan.number} {each.collector} {each.rule}: {each.fault}, {each.moment}: {mark}", flush=True)
        if all(each.survived for each in outcomes):
            shutil.rmtree(folder / str(plan.number))
        return outcomes

    with ThreadPoolExecutor(arguments.jobs) as pool:
        drawn = plans(arguments.seed, arguments.faults, os.geteuid() == 0)
        runs = list(pool.map(play, [each for each in drawn if not arguments.only or each.number in arguments.only]))
    outcomes = [each for run in runs for each in run]
    with contextlib.suppress(OSError):  # it has what is left of runs that did not survive
        folder.rmdir()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([as_plain(each) for each in outcomes], indent=2) + "\n")
    seconds, cut = time.monotonic() - begin_s, sum(each.is_cut for each in outcomes)
    print(f"\nseed {arguments.seed}, {sum(map(bool, runs))} runs, {seconds:.0f} s, {cut} checkpoints cut while written")
    print(f"\n{table(outcomes)}")
    return int(not all(each.survived and not each.wrong_frames for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
