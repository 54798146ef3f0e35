"""Shares of the bare loop with short batches, as PPO has them, through the command with all its defaults.

    python -m benchmarks.short [--turns 7] [--seconds 1]

The trainer only takes batches. Each row: frames per second of `collectx run`, in multiples of as many bare loops at
once as there are workers, in turn.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks import fresh, ours, printing
from benchmarks.cases import CASES

_ASYNC, _SYNC = "collector=multi_async", "collector=multi_sync"
# Case, steps of a batch, collector and its options, target.
_ROWS = (
    ("cartpole_32", 32, (_SYNC, "collector.overlap=1"), 0.85),
    ("cartpole_32", 32, (_ASYNC,), 0.85),
    ("cartpole_32", 128, (_SYNC, "collector.overlap=1"), 0.85),
    ("cartpole_32", 128, (_ASYNC,), 0.85),
    ("cartpole_1", 64, (_SYNC, "collector.overlap=1"), 0.8),
    ("cartpole_1", 64, (_ASYNC,), 0.8),
    ("cartpole_1", 64, ("collector=single",), 0.8),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.short", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="per turn and side (1)")
    options = parser.parse_args()
    printing.say_about("benchmarks.short", "gymnasium")
    print("| envs of a worker | steps of a batch | options | share of bare loops | target |\n|---|---|---|---|---|")
    for case, steps, words, target in _ROWS:
        shares = _shares(case, steps, words, options.turns, options.seconds)
        share = f"{median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
        print(f"| {CASES[case].num_envs} | {steps} | `{' '.join(words)}` | {share} | {target} |", flush=True)


def _shares(case: str, steps: int, words: tuple[str, ...], turns: int, seconds: float) -> list[float]:
    workers = 1 if words == ("collector=single",) else 2
    cores = fresh.cores()[:workers]
    frames = steps * CASES[case].num_envs * (workers if _SYNC in words else 1)
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        bare = [stack.enter_context(fresh.Session("benchmarks.bare", cores=[core], case=case)) for core in cores]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        overrides = [
            *("env=cartpole", f"env.num_envs={CASES[case].num_envs}", "trainer=custom"),
            *("trainer.target=benchmarks.short:Turns", f"hydra.run.dir={folder}/run", *words),
            "collector.exploration_type=deterministic",  # as in the bare loop
            *(f"collector.frames_per_batch={frames}", "collector.total_frames=-1"),
            *(() if workers == 1 else (f"collector.num_workers={workers}",)),
        ]
        command = stack.enter_context(fresh.Session("benchmarks.short", stopped=True, cores=cores, overrides=overrides))

        def rate(sessions: list[fresh.Session]) -> float:
            results = pool.map(lambda session: session.turn(seconds), sessions)
            return sum(result["frames"] / result["seconds"] for result in results)

        for session in (*bare, command):
            session.wait_until_ready()
        return [rate([command]) / rate(bare) for _ in range(turns)]


class Turns:
    """The trainer of the measured run: measures on request."""

    def __init__(self, policy: Any = None):
        pass

    def train(self, collection: Iterator[Any]) -> None:
        fresh.answer(ours.turns(iter(collection)))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        from collectx.cli.main import main as collectx

        os.sched_setaffinity(0, json.loads(sys.argv[1])["cores"])
        collectx(["run", *json.loads(sys.argv[1])["overrides"]])
    else:
        main()
