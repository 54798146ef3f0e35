"""Shares of the bare loop and ratios to TorchRL. Every side of a case is a process that measures on request, in short
turns, so that other load affects all sides equally. Reports medians over the turns, with their spread.

    turn:  bare loop - two at once - each kind of collectx's collectors - TorchRL's

A share is relative to as many bare loops at once as there are workers: two cores of one machine are not twice one.
"""

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks import fresh
from benchmarks.cases import CASES, RAY_KINDS, SERVER


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


def compare(name: str, turns: int, seconds: float, say: Callable[[str], None]) -> Iterator[Line]:
    """Measures one case in `turns` turns of `seconds` per side; yields its lines."""
    case = CASES[name]
    peers = [kind for kind in case.kinds if kind in case.ratio and has_peer()]
    rates = rates_of(name, peers, turns, seconds, say)
    say(f"  frames/s of one bare loop {median(rates['bare_1']):,.0f}, of two at once {median(rates['bare_2']):,.0f}")
    for kind in case.kinds:
        shares = _ratios(rates[kind], rates[f"bare_{case.num_cores(kind)}"])
        note = f"{median(rates[kind]):,.0f} frames/s"
        yield Line(f"{name} {kind}: share", shares, case.share.get(kind), note)
    for kind in case.kinds:
        if kind.endswith(SERVER):
            ratios = _ratios(rates[kind], rates[kind.removesuffix(SERVER)])
            yield Line(f"{name} {kind}: times inference=local", ratios, case.server)
    for kind in peers:
        if theirs := rates.get(f"torchrl_{kind}"):
            note = f"TorchRL {median(theirs):,.0f} frames/s"
            yield Line(f"{name} {kind}: times TorchRL", _ratios(rates[kind], theirs), case.ratio[kind], note)


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def rates_of(
    name: str, peers: list[str], turns: int, seconds: float, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Frames per second of every side in every turn."""
    case, cores = CASES[name], fresh.cores()
    sessions: dict[str, list[fresh.Session]] = {}
    with ThreadPoolExecutor() as pool, ExitStack() as stack:

        def start(module: str, used: list[int], **arguments: object) -> fresh.Session:
            return stack.enter_context(fresh.Session(f"benchmarks.{module}", cores=used, case=name, **arguments))

        bare = [start("bare", [core]) for core in cores]
        sessions |= {"bare_1": bare[:1], "bare_2": bare}
        for kind in case.kinds:
            sessions[kind] = [start("ours", cores[: case.num_cores(kind)], kind=kind)]
        for kind in peers:
            sessions[f"torchrl_{kind}"] = [
                start("peer", cores[: case.num_cores(kind)], stopped=kind not in RAY_KINDS, kind=kind)
            ]
        for side in list(sessions):
            try:
                for session in sessions[side]:
                    session.wait_until_ready()
            except fresh.Failed as error:
                if not side.startswith("torchrl_"):
                    raise
                del sessions[side]
                say(f"  TorchRL gave no figure: {error}")
        rates: dict[str, list[float]] = {side: [] for side in sessions}
        for _ in range(turns):
            for side, processes in sessions.items():
                results = list(pool.map(lambda one: one.turn(seconds), processes))
                rates[side].append(sum(one["frames"] / one["seconds"] for one in results))
    return rates
