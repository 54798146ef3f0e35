"""`python -m benchmarks`: runs the comparisons and prints one line per figure, with its target."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic

from benchmarks import fresh, handover, instrumented, memory, overhead, printing, slurm, speed, startup, tables
from benchmarks.cases import CASES
from benchmarks.speed import Line

# By the names of `--only`.
MEASUREMENTS: dict[str, Callable[[argparse.Namespace, "Report"], None]] = {
    "instrumented": lambda options, report: _instrumented(options.pairs, options.seconds, report),
    "startup": lambda options, report: _startup(options.pairs, report),
    "memory": lambda options, report: _memory(options.batches, report),
    "overhead": lambda options, report: _overhead(options.seconds, report),
    "weights": lambda options, report: _weights(options.seconds, report),
    "handover": lambda options, report: _handover(options.seconds, report),
    "slurm": lambda options, report: _slurm(options.pairs, report),
}
PARTS = (*CASES, *MEASUREMENTS)
# About ten minutes.
DEFAULT = (
    "cartpole_1",
    "cartpole_32",
    "halfcheetah_8",
    "pong_8",
    "envpool_64",
    "torchrl_8",
    "cartpole_32_gloo",
    "halfcheetah_8_gloo",
    "cartpole_32_rpc",
    "instrumented",
    "startup",
)


def main() -> int:
    """Returns the exit status: 1 if a measurement failed, otherwise 0, even if targets are missed."""
    options = _options()
    parts = options.only or (PARTS if options.all else DEFAULT)
    report = Report(options.json or (None if options.only or options.quick else tables.RESULTS))
    report.say("\n".join(report.about.values()))
    began, failed = monotonic(), False
    for part in parts:
        report.say(f"\n{part}")
        try:
            _run(part, options, report)
        except fresh.Failed as error:
            failed = True
            report.say(f"  failed: {error}")
        report.write()  # what is measured stays where a later part is interrupted
    report.about["load"] += f", {os.getloadavg()[0]:.1f} at the end"
    report.say(f"\n{monotonic() - began:.0f} s; {report.about['load']}")
    report.write()
    return int(failed)


class Report:
    """Prints lines and collects them for the file of results."""

    def __init__(self, path: Path | None):
        self._path = path
        self._lines: dict[str, dict] = {}
        self.about = printing.about("benchmarks", "tensordict", "gymnasium", "envpool", "torchrl")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def add(self, line: Line) -> None:
        figures = {
            "median": line.median,
            "least": min(line.ratios),
            "most": max(line.ratios),
            "turns": len(line.ratios),
        }
        rounded = {name: float(f"{value:.3g}") for name, value in figures.items()}
        self._lines[line.name] = rounded | {"target": line.target, "note": line.note}
        self.say(f"  {line}")

    def write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"about": self.about, "lines": self._lines}, indent=1) + "\n")


def _run(part: str, options: argparse.Namespace, report: Report) -> None:
    if part in MEASUREMENTS:
        MEASUREMENTS[part](options, report)
    else:
        if CASES[part].ratio and not speed.has_peer():
            report.say("  torchrl is not installed: its ratio is omitted (pip install torchrl==0.14.1)")
            if CASES[part].torchrl:
                return
        for line in speed.compare(part, options.pairs, options.seconds / options.pairs, report.say):
            report.add(line)


def _instrumented(pairs: int, seconds: float, report: Report) -> None:
    for kind in instrumented.KINDS:
        # Shorter and more turns than elsewhere: the difference is small.
        ratios = instrumented.ratios(kind, 4 * pairs, seconds / pairs / 2)
        report.add(Line(f"display, metrics, two loggers: share of {kind} alone", ratios, instrumented.TARGET))


def _startup(pairs: int, report: Report) -> None:
    library, command = [], []
    for _ in range(pairs):
        imports_s = startup.imports_s()
        library.append(startup.library_s() / imports_s)
        command_s = startup.command_s()
        if command_s is not None:
            command.append(command_s / imports_s)
    report.say(f"  {startup.NUM_WORKERS} workers' first batch, in times of `import torch, gymnasium, tensordict`")
    for name, ratios in (("library", library), ("collectx run", command)):
        if ratios:
            # The only ratio where less is better, so `Line` cannot print the verdict.
            gap = f"target at most {startup.TARGET:g}: {'met' if median(ratios) <= startup.TARGET else 'missed'}"
            report.add(Line(f"startup {name}", ratios, None, gap))
        else:
            report.say(f"  startup {name}: the command failed")


def _memory(batches: int, report: Report) -> None:
    result = fresh.run("benchmarks.memory", timeout_s=900.0, num_batches=batches)
    sizes = ", ".join(f"{int(at):,}: {size / 2**20:.1f} MiB" for at, size in result["bytes"].items())
    verdict = "met" if result["growth"] < memory.TARGET_GROWTH else "missed"
    report.say(f"  trainer and workers after batch {sizes}: {result['growth']:+.2%} (target < 2%: {verdict})")
    report.say(f"  remaining: processes {result['left_processes']}, files in /dev/shm {result['left_files']}")


def _overhead(seconds: float, report: Report) -> None:
    for kind, counts in overhead.WORKERS.items():
        costs = []
        for workers in counts:
            result = fresh.run("benchmarks.overhead", part="batch", seconds=seconds, kind=kind, num_workers=workers)
            costs.append(f"{workers} workers {result['us_per_batch']:.0f}")
        report.say(f"  {kind}: trainer's microseconds of processor per batch: " + ", ".join(costs))


def _weights(seconds: float, report: Report) -> None:
    for megabytes in overhead.MEGABYTES:
        result = fresh.run("benchmarks.overhead", part="publish", seconds=seconds, megabytes=megabytes)
        times = result["publish_ms"], result["memcpy_ms"], result["use_ms"]
        note = "publish {:.3f} ms, memcpy {:.3f} ms, then used in {:.2f} ms".format(*times)
        report.add(Line(f"publishing {megabytes:g} MB: times a memcpy", result["ratios"], None, note))


def _handover(seconds: float, report: Report) -> None:
    for megabytes in handover.MEGABYTES:
        result = fresh.run("benchmarks.handover", seconds=seconds, megabytes=megabytes)
        note = (
            f"publish {result['publish_ms']:.2f} ms, until use {result['use_ms']:.2f}, raw send {result['raw_ms']:.2f}"
        )
        report.add(Line(f"weights of {megabytes:g} MB: times a raw gloo send", result["ratios"], None, note))


def _slurm(pairs: int, report: Report) -> None:
    reason = slurm.why_not()
    if reason is not None:
        report.say(f"  skipped: {reason}")
        return
    seconds, ratios = [], []
    for _ in range(pairs):
        srun_s = slurm.srun_s()
        seconds.append(slurm.command_s(Path.cwd() / "outputs"))
        ratios.append(seconds[-1] / srun_s)
    report.add(Line("first batch: times `srun import torch`", ratios, None, f"{median(seconds):.1f} s"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--all", action="store_true", help="all parts (without: about ten minutes)")
    parser.add_argument("--pairs", type=int, default=5, help="turns or pairs of every comparison (5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per side, over all turns of a case (4)")
    parser.add_argument("--batches", type=int, default=100_000, help="batches of the memory test (100,000)")
    parser.add_argument("--json", type=Path, help="the file of results (benchmarks/results.json without --only)")
    parser.add_argument("--quick", action="store_true", help="one pair each, to check that everything runs")
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.seconds, options.batches = 1, 1.0, 2_000
    return options


if __name__ == "__main__":
    sys.exit(main())
