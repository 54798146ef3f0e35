"""Shares of the bare loop and ratios to TorchRL: every round measures each side once, one after another, each in a new
process, so that what else the machine does meets all sides alike. Medians over the rounds, with their spread.

    round:  bare - two bare at once - then for each kind of collector: collectx - [TorchRL]

`two bare at once` is no part of the yardstick: it says how far two cores of this machine are from twice one.
The share by processor time divides both sides by the cores that they really got: on a machine that others use as well
it is the better guide, on a quiet one it differs from the share by what the collector leaves idle.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, Case


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        ratios: one per pair.
        target: the least that is wanted, or None.
        note: what helps to read it.
    """

    name: str
    ratios: list[float]
    target: float | None
    note: str = ""

    @property
    def median(self) -> float:
        return median(self.ratios)

    def __str__(self) -> str:
        verdict = ""
        if self.target is not None:
            gap = self.median / self.target - 1.0
            verdict = f"target {self.target:g}: {'met' if gap >= 0 else 'missed'} by {abs(gap):.1%}"
        spread = f"{min(self.ratios):.3g} to {max(self.ratios):.3g} of {len(self.ratios)}"
        return f"{self.name:<38} {self.median:6.3g}  ({spread:<22}) {verdict:<28} {self.note}"


def has_peer() -> bool:
    """Whether TorchRL is installed."""
    return importlib.util.find_spec("torchrl") is not None


@dataclass(frozen=True)
class Figure:
    """One measurement. `own_cores` is the processor it got, `other_cores` what everything else on the machine used
    meanwhile; zero where it was not measured (TorchRL, and two loops at once)."""

    frames_per_s: float
    own_cores: float = 0.0
    other_cores: float = 0.0

    def __str__(self) -> str:
        return f"{self.frames_per_s:,.0f}" + (f" (others {self.other_cores:.1f})" if self.other_cores >= 0.05 else "")

    @property
    def by_processor(self) -> float:
        """Frames per second of processor time."""
        return self.frames_per_s / self.own_cores


def compare(name: str, pairs: int, seconds: float, say: Callable[[str], None]) -> Iterator[Line]:
    """The lines of one case."""
    case = CASES[name]
    peer = case.ratio is not None and has_peer()
    rounds = []
    for index in range(pairs):
        figures = _round(name, case, seconds, peer, say)
        rounds.append(figures)
        say(f"  round {index + 1}: " + "  ".join(f"{side} {figure}" for side, figure in figures.items()))
    two = median(r["bare_2"].frames_per_s / (2 * r["bare"].frames_per_s) for r in rounds)
    for kind in case.kinds:
        num_cores = case.num_workers(kind)
        shares = [r[kind].frames_per_s / (num_cores * r["bare"].frames_per_s) for r in rounds]
        by_processor = median(r[kind].by_processor / r["bare"].by_processor for r in rounds)
        note = f"{median(r[kind].frames_per_s for r in rounds):,.0f} frames/s; by processor time {by_processor:.2f}"
        if num_cores == 2:
            note += f"; two bare loops at once {two:.2f}"
        yield Line(f"{name} {kind}: share", shares, case.share.get(kind), note)
    for kind in case.kinds if peer else ():
        bare = "bare" if case.num_workers(kind) == 1 else "bare_2"
        both = [r for r in rounds if f"peer_{kind}" in r]
        if not both:
            continue
        ratios = [r[kind].frames_per_s / r[f"peer_{kind}"].frames_per_s for r in both]
        ceiling = median(r[bare].frames_per_s / r[f"peer_{kind}"].frames_per_s for r in both)
        theirs = median(r[f"peer_{kind}"].frames_per_s for r in both)
        note = f"TorchRL {theirs:,.0f} frames/s; the bare loop on as many cores {ceiling:.3g} times"
        yield Line(f"{name} {kind}: times TorchRL", ratios, (case.ratio or {}).get(kind), note)


def _round(name: str, case: Case, seconds: float, peer: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    cores = fresh.cores()
    figures = {"bare": _measure("bare", cores[:1], case=name, seconds=seconds)}
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(_measure, "bare", [core], case=name, seconds=seconds) for core in cores]
        figures["bare_2"] = Figure(sum(one.result().frames_per_s for one in both))
    for kind in case.kinds:
        used = cores[: case.num_workers(kind)]
        figures[kind] = _measure("ours", used, case=name, kind=kind, seconds=seconds)
        if peer:
            try:
                figures[f"peer_{kind}"] = _measure("peer", used, case=name, kind=kind, seconds=seconds)
            except fresh.Failed as error:
                say(f"  TorchRL gave no figure, so this pair is left out: {error}")
    return figures


def _measure(side: str, cores: list[int], **arguments: Any) -> Figure:
    found = fresh.run(f"benchmarks.{side}", cores=cores, **arguments)
    return Figure(found["frames_per_s"], found.get("own_cores", 0.0), found.get("other_cores", 0.0))
