"""Shares of the bare loop and ratios to TorchRL: every round measures each side once, one after another, each in a new
process, so that what else the machine does meets all sides alike. Medians over the rounds, with their spread.

    round:  bare - two bare at once - single - [TorchRL] - multi_sync - [TorchRL] - multi_async - [TorchRL]

`two bare at once` is no part of the yardstick: it says how far two cores of this machine are from twice one.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, KINDS, Case


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


def compare(name: str, pairs: int, seconds: float, say: Callable[[str], None]) -> Iterator[Line]:
    """The lines of one case."""
    case = CASES[name]
    peer = case.ratio is not None and has_peer()
    rounds = []
    for index in range(pairs):
        figures = _round(name, case, seconds, peer)
        rounds.append(figures)
        say(
            f"  round {index + 1} (load {os.getloadavg()[0]:.1f}): "
            + "  ".join(f"{side} {value:,.0f}" for side, value in figures.items())
        )
    two = median(r["bare_2"] / (2 * r["bare"]) for r in rounds)
    for kind in KINDS:
        num_cores = case.num_workers(kind)
        shares = [r[kind] / (num_cores * r["bare"]) for r in rounds]
        note = f"{median(r[kind] for r in rounds):,.0f} frames/s"
        if num_cores == 2:
            note += f"; two bare loops at once reach {two:.2f}"
        yield Line(f"{name} {kind}: share", shares, case.share.get(kind), note)
    for kind in KINDS if peer else ():
        ratios = [r[kind] / r[f"peer_{kind}"] for r in rounds]
        note = f"TorchRL {median(r[f'peer_{kind}'] for r in rounds):,.0f} frames/s"
        yield Line(f"{name} {kind}: times TorchRL", ratios, (case.ratio or {}).get(kind), note)


def _round(name: str, case: Case, seconds: float, peer: bool) -> dict[str, float]:
    cores = fresh.cores()
    figures = {"bare": _measure("bare", cores[:1], case=name, seconds=seconds)}
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(_measure, "bare", [core], case=name, seconds=seconds) for core in cores]
        figures["bare_2"] = sum(one.result() for one in both)
    for kind in KINDS:
        used = cores[: case.num_workers(kind)]
        figures[kind] = _measure("ours", used, case=name, kind=kind, seconds=seconds)
        if peer:
            figures[f"peer_{kind}"] = _measure("peer", used, case=name, kind=kind, seconds=seconds)
    return figures


def _measure(side: str, cores: list[int], **arguments: Any) -> float:
    return fresh.run(f"benchmarks.{side}", cores=cores, **arguments)["frames_per_s"]
