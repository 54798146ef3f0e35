"""Shares of the bare loop and ratios to TorchRL. Every round starts each side in a new process and measures the bare
loop and collectx in short alternating turns, so that other load affects them equally; then TorchRL, whose batches take
too long for turns. Reports medians over the rounds, with their spread.

    round:  (bare, on each core in turn - two bare at once - each kind of collectx's collectors) x turns - [TorchRL's]

`two bare at once` is not part of the share: it shows how far two cores of this machine are from twice one. The share by
processor time divides both sides by the cores that they got: it is more accurate on a machine with other load; without
load, it differs from the share by the collector's idle time.
"""

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, OVERLAPPED, Case

# Seconds of one turn: tens of batches.
_TURN_S = 0.5


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        ratios: one per pair.
        target: the minimum, or None.
        note: printed after the figures.
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


@dataclass
class Figure:
    """The measurements of one side in a round."""

    turns: list[dict[str, float]] = field(default_factory=list)

    def _sum(self, name: str) -> float:
        return sum(turn.get(name, 0.0) for turn in self.turns)

    @property
    def frames_per_s(self) -> float:
        return self._sum("frames") / self._sum("seconds")

    @property
    def process_cores(self) -> float:
        """Processor use in cores; 0 if it was not measured (TorchRL)."""
        return self._sum("process_cores") / len(self.turns)

    @property
    def other_cores(self) -> float:
        """Processor use of all other processes, in cores."""
        return self._sum("other_cores") / len(self.turns)

    def __str__(self) -> str:
        return f"{self.frames_per_s:,.0f}" + (f" (others {self.other_cores:.1f})" if self.other_cores >= 0.05 else "")

    @property
    def by_processor(self) -> float:
        """Frames per second of processor time."""
        return self.frames_per_s / self.process_cores


def compare(name: str, pairs: int, seconds: float, say: Callable[[str], None]) -> Iterator[Line]:
    """Measures one case; yields its lines."""
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
            of_two = median(r[kind].frames_per_s / r["bare_2"].frames_per_s for r in rounds)
            note += f"; two bare loops at once {two:.2f}, of which {of_two:.2f}"
        yield Line(f"{name} {kind}: share", shares, case.share.get(kind), note)
    for kind in _kinds_of_peer(case, peer):
        bare = "bare" if case.num_workers(kind) == 1 else "bare_2"
        both = [r for r in rounds if f"peer_{kind}" in r]
        if not both:
            continue
        ratios = [r[kind].frames_per_s / r[f"peer_{kind}"].frames_per_s for r in both]
        ceiling = median(r[bare].frames_per_s / r[f"peer_{kind}"].frames_per_s for r in both)
        theirs = median(r[f"peer_{kind}"].frames_per_s for r in both)
        note = f"TorchRL {theirs:,.0f} frames/s; the bare loop on as many cores {ceiling:.3g} times"
        yield Line(f"{name} {kind}: times TorchRL", ratios, (case.ratio or {}).get(kind), note)


def _kinds_of_peer(case: Case, peer: bool) -> list[str]:
    return [kind for kind in case.kinds if kind not in OVERLAPPED] if peer else []


def _round(name: str, case: Case, seconds: float, peer: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    cores = fresh.cores()
    figures = {side: Figure() for side in ("bare", "bare_2", *case.kinds)}
    with ExitStack() as stack:

        def session(side: str, used: list[int], **arguments: Any) -> fresh.Session:
            return stack.enter_context(fresh.Session(f"benchmarks.{side}", cores=used, case=name, **arguments))

        pool = stack.enter_context(ThreadPoolExecutor())
        bare = [session("bare", [core]) for core in cores]
        ours = {kind: session("ours", cores[: case.num_workers(kind)], kind=kind) for kind in case.kinds}
        for turn in range(max(len(bare), round(seconds / _TURN_S))):
            figures["bare"].turns.append(bare[turn % len(bare)].turn(_TURN_S))
            both = list(pool.map(lambda one: one.turn(_TURN_S), bare))
            figures["bare_2"].turns.append(
                {"frames": sum(one["frames"] / one["seconds"] for one in both), "seconds": 1.0}
            )
            for kind, collector in ours.items():
                figures[kind].turns.append(collector.turn(_TURN_S))
    for kind in _kinds_of_peer(case, peer):
        used = cores[: case.num_workers(kind)]
        try:
            result = fresh.run("benchmarks.peer", cores=used, case=name, kind=kind, seconds=seconds)
            figures[f"peer_{kind}"] = Figure([result])
        except fresh.Failed as error:
            say(f"  TorchRL gave no figure, so this pair is omitted: {error}")
    return figures
