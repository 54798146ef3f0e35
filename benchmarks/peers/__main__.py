"""Frames per second of collecting, beside other libraries with the same envs.

    python -m benchmarks.peers [--only NAME ...] [--cases CASE ...] [--turns 5] [--seconds 2]

Two workers. Peers with one process per env have as many envs in all. Each peer follows its own advice for speed, and
runs in its own environment, `.bench/NAME`, which `make bench-peers` makes; without one, in this environment. All sides
of a case are measured in turn; sides that wait are stopped, Ray's aside. Figures are medians over the turns.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from subprocess import run
from typing import Any

from benchmarks import fresh, printing
from benchmarks.cases import CASES

# A process for every env takes long to start beside other work.
_START_S = 120.0


@dataclass(frozen=True)
class Peer:
    """One library.

    Attributes:
        distribution: its name on the package index.
        sides: what is measured, by its name in the library.
        module: of its side. None: `benchmarks.peers.NAME`.
        key: the argument of `module` that receives a side's value.
        stopped: whether its process group may be stopped between turns.
    """

    distribution: str
    sides: dict[str, str]
    module: str | None = None
    key: str = "side"
    stopped: bool = True


PEERS = {
    "gymnasium": Peer("gymnasium", {name: name for name in ("AsyncVectorEnv", "SyncVectorEnv")}),
    "sb3": Peer("stable-baselines3", {name: name for name in ("SubprocVecEnv", "DummyVecEnv")}),
    "torchrl": Peer(
        "torchrl",
        {"MultiSyncCollector": "multi_sync", "MultiAsyncCollector": "multi_async"},
        module="benchmarks.peer",
        key="kind",
    ),
    "sample_factory": Peer("sample-factory", {"ParallelSampler": "parallel", "SerialSampler": "serial"}),
    "rllib": Peer("ray", {"EnvRunnerGroup, sync": "sync", "EnvRunnerGroup, async": "async"}, stopped=False),
    "pufferlib": Peer("pufferlib-core", {name: name for name in ("Multiprocessing", "Serial")}),
}
OURS = ("multi_async", "multi_sync")
# By their names in `benchmarks.cases`; the last one observes an image of 224x224x3.
DEFAULT = ("cartpole_32", "halfcheetah_8", "pong_8", "size_150528")


@dataclass
class Side:
    """One row: what is measured, and its frames per second in every turn.

    Attributes:
        failure: why there are none.
    """

    library: str
    name: str
    sessions: list[fresh.Session]
    processes: int | str = 2
    rates: list[float] = field(default_factory=list)
    failure: str = ""

    def measure(self, seconds: float, pool: ThreadPoolExecutor) -> None:
        """Measures one turn."""
        results = list(pool.map(lambda session: session.turn(seconds), self.sessions))
        if not all(result["frames"] for result in results):
            raise fresh.Failed("delivered no frames in a turn")
        self.rates.append(sum(result["frames"] / result["seconds"] for result in results))
        self.processes = results[0].get("processes", self.processes)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME", help=", ".join(PEERS))
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=DEFAULT, metavar="CASE", help=f"({' '.join(DEFAULT)})"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per turn and side (2)")
    options = parser.parse_args()
    printing.say_about("benchmarks.peers")
    versions = {name: _version(name) for name in ("collectx", *options.only)}
    print("| env, envs of a worker | library | collected by | processes | frames/s | share | multi_async / it |")
    print("|---|---|---|---|---|---|---|")
    for case in options.cases:
        for row in _rows(case, options.only, options.turns, options.seconds):
            print(row, flush=True)
    print("\n" + ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(name: str) -> str:
    distribution = PEERS[name].distribution if name in PEERS else name
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    done = run([fresh.python_of(name), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "not installed"


def _rows(case: str, names: list[str], turns: int, seconds: float) -> Iterator[str]:
    with ThreadPoolExecutor() as pool, ExitStack() as stack:

        def start(module: str, **arguments: Any) -> fresh.Session:
            session = fresh.Session(module, timeout_s=_START_S, case=case, **{"cores": fresh.cores(), **arguments})
            return stack.enter_context(session)

        bare = [start("benchmarks.bare", stopped=True, cores=[core]) for core in fresh.cores()]
        sides = [Side("", "two bare loops", bare)]
        sides += [Side("collectx", kind, [start("benchmarks.ours", stopped=True, kind=kind)]) for kind in OURS]
        for name in names:
            peer = PEERS[name]
            module = peer.module or f"benchmarks.peers.{name}"
            for side, value in peer.sides.items():
                session = start(module, python=fresh.python_of(name), stopped=peer.stopped, **{peer.key: value})
                sides.append(Side(name, side, [session]))
        for side in sides:
            _try(side, lambda side=side: [session.wait_until_ready() for session in side.sessions])
        for _ in range(turns):
            for side in sides:
                if not side.failure:
                    _try(side, lambda side=side: side.measure(seconds, pool))
        yield from (_row(case, side, sides[0], sides[1]) for side in sides)


def _try(side: Side, action: Any) -> None:
    try:
        action()
    except fresh.Failed as error:
        if side.library in ("", "collectx"):
            raise
        side.failure = str(error).strip().splitlines()[-1]


def _ratio(ours: Side, theirs: Side) -> str:
    return printing.spread(printing.ratios(ours.rates, theirs.rates))


def _row(case: str, side: Side, bare: Side, ours: Side) -> str:
    env = f"{CASES[case].env_id}, {CASES[case].num_envs}"
    if side.failure:
        return f"| {env} | {side.library} | {side.name} | | | | {side.failure} |"
    figures = f"{side.processes} | {median(side.rates):,.0f} | {_ratio(side, bare)}"
    return f"| {env} | {side.library} | {side.name} | {figures} | {_ratio(ours, side)} |"


if __name__ == "__main__":
    main()
