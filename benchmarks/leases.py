"""Frames per second with large observations, by who owns a batch: leased (the default), valid until the next one
(`zero_copy`), and without next observations (`compact_obs`).

    python -m benchmarks.leases [--turns 5] [--seconds 1]

Two workers of one env each (`benchmarks/sizes.py`), random actions. All sides of a row are measured in turn.
"""

import argparse
from collections.abc import Generator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from benchmarks import fresh, ours, printing

# Bytes of an observation, and frames of a batch of one worker: 84x84x4, 224x224x3, 1 MB.
_SIZES = {28_224: 256, 150_528: 64, 1_000_000: 16}
_SIDES: dict[str, dict[str, bool]] = {
    "leased": {},
    "zero_copy": {"zero_copy": True},
    "compact_obs": {"compact_obs": True},
    "compact_obs, zero_copy": {"compact_obs": True, "zero_copy": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per turn and side (1)")
    options = parser.parse_args()
    printing.say_about("benchmarks.leases", "gymnasium")
    print("| bytes of an observation | collector |", " | ".join(_SIDES), "| leased / zero_copy |")
    print("|" + "---|" * (len(_SIDES) + 3))
    for size in _SIZES:
        for kind in ("MultiSyncCollector", "MultiAsyncCollector"):
            rates = _rates(size, kind, options.turns, options.seconds)
            ratios = [ours / other for ours, other in zip(rates["leased"], rates["zero_copy"], strict=True)]
            medians = " | ".join(f"{median(values):,.0f}" for values in rates.values())
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {size:,} | `{kind}` | {medians} | {ratio} |", flush=True)


def _rates(size: int, kind: str, turns: int, seconds: float) -> dict[str, list[float]]:
    with ExitStack() as stack:
        sessions = {
            side: stack.enter_context(
                fresh.Session(
                    "benchmarks.leases", cores=fresh.cores(), stopped=True, size=size, kind=kind, keywords=keywords
                )
            )
            for side, keywords in _SIDES.items()
        }
        rates: dict[str, list[float]] = {side: [] for side in sessions}
        for _ in range(turns):
            for side, session in sessions.items():
                result = session.turn(seconds)
                rates[side].append(result["frames"] / result["seconds"])
    return rates


def measuring(size: int, kind: str, keywords: dict[str, bool], **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one delivered batch to another, and seconds."""
    import collectx
    from benchmarks.sizes import Sized

    frames = _SIZES[size] * (2 if kind == "MultiSyncCollector" else 1)
    make = getattr(collectx, kind)
    with make([partial(Sized, size)] * 2, None, frames_per_batch=frames, total_frames=-1, **keywords) as collector:
        yield from ours.turns(iter(collector))


if __name__ == "__main__":
    import sys

    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        fresh.serve_turns(measuring)
    else:
        main()
