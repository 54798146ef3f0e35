"""The table of ways to collect batches: schedule, transport and place. Every test that runs over several of them takes
its parameters, its tier and its xdist group from here.

    @over(WAYS)                         every way, each in its own tier
    @over(SYNC, smoke=True)             one tier earlier where the table says so: a smoke test of each transport
    def test_...(way): ...

`make test` runs the tier "test", `make test-ci` the tier "ci", `make test-nightly` the tier "nightly", and
`pytest --tier=all` runs all of them. A test's tier is the latest of its way's, its folder's (`FOLDERS`) and the one
it is marked with. Where a test has many cases that share their code, `@pytest.mark.sample(3)` leaves three of them,
drawn by its name, in its tier; the others are nightly.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

TIERS = ("test", "ci", "nightly")


@dataclass(frozen=True)
class Way:
    """One combination of the three axes.

    Attributes:
        name: in a test's id.
        kind: `collector.kind`; what can be sync or async is sync as `<kind>_sync`.
        transport: how bytes travel: inline, shared_memory, gloo, rpc, mpi.
        place: `launcher.kind`.
        tier: of the tests over this way.
        smoke: tier of those that are marked as its smoke test.
        group: xdist runs all tests of one group in the same process, so that they share what is slow to start.
    """

    name: str
    kind: str
    transport: str
    place: str
    tier: str
    smoke: str
    group: str | None = None

    @property
    def is_sync(self) -> bool:
        return self.kind.endswith("_sync")

    @property
    def num_workers(self) -> int:
        return 1 if self.kind == "single" else 2

    def __str__(self) -> str:
        return self.name


# Of each transport between processes, ci has one schedule: each schedule and each transport is in it, and nightly has
# all pairs of them.
SINGLE = Way("single", "single", "inline", "inline", "test", "test")
INLINE_SYNC = Way("inline_sync", "multi_sync", "inline", "inline", "test", "test")
INLINE_ASYNC = Way("inline_async", "multi_async", "inline", "inline", "test", "test")
SHARED_SYNC = Way("shared_sync", "multi_sync", "shared_memory", "local", "ci", "test")
SHARED_ASYNC = Way("shared_async", "multi_async", "shared_memory", "local", "nightly", "test")
GLOO_SYNC = Way("gloo_sync", "distributed_sync", "gloo", "local", "nightly", "test")
GLOO_ASYNC = Way("gloo_async", "distributed", "gloo", "local", "ci", "test")
RPC_SYNC = Way("rpc_sync", "rpc_sync", "rpc", "local", "nightly", "ci")
RPC_ASYNC = Way("rpc_async", "rpc", "rpc", "local", "nightly", "nightly")
RAY_SYNC = Way("ray_sync", "ray_sync", "gloo", "ray", "nightly", "nightly", "ray")
RAY_ASYNC = Way("ray_async", "ray", "gloo", "ray", "nightly", "nightly", "ray")

INLINE = (SINGLE, INLINE_SYNC, INLINE_ASYNC)
SHARED = (SHARED_SYNC, SHARED_ASYNC)
GLOO = (GLOO_SYNC, GLOO_ASYNC)
RPC = (RPC_SYNC, RPC_ASYNC)
RAY = (RAY_SYNC, RAY_ASYNC)
WAYS = (*INLINE, *SHARED, *GLOO, *RPC, *RAY)
BETWEEN_PROCESSES = (*SHARED, *GLOO, *RPC, *RAY)
SYNC = tuple(way for way in WAYS if way.is_sync)
ASYNC = tuple(way for way in WAYS if not way.is_sync and way.kind != "single")

# For the tests of transports alone, by workers without env (`user_code/toyworker.py`). They are the main suite of RPC.
TRANSPORTS = (
    replace(INLINE_ASYNC, name="inline"),
    replace(SHARED_ASYNC, name="shared_memory", tier="ci"),
    replace(GLOO_ASYNC, name="gloo"),
    replace(RPC_ASYNC, name="rpc", tier="ci", smoke="ci"),
)

# The tier of what is in a folder of tests/.
FOLDERS = {"system": "ci", "learning": "ci", "slurm": "ci"}


def over(ways: Iterable[Way], *, smoke: bool = False, name: str = "way") -> pytest.MarkDecorator:
    """Parametrises a test by ways: argument `way`."""
    return pytest.mark.parametrize(name, [case(way, tier=way.smoke if smoke else way.tier) for way in ways])


def case(way: Way, *values: Any, tier: str | None = None):
    """Parameters of one test over a way; `values` are further parameters. `tier` replaces the way's own tier."""
    tier = tier or way.tier
    marks = [getattr(pytest.mark, tier)] if tier != "test" else []
    if way.group is not None:
        marks.append(pytest.mark.xdist_group(way.group))
    return pytest.param(way, *values, id="-".join(map(str, (way, *values))), marks=marks)


def tier_of(item: pytest.Item) -> str:
    """The latest tier that a test's marks, its way's among them, and its folder say."""
    marked = {mark.name for mark in item.iter_markers()} & set(TIERS)
    part = item.path.relative_to(Path(__file__).parent).parts[0]
    return max([*marked, FOLDERS.get(part, "test")], key=TIERS.index)


def leave_samples(items: Iterable[pytest.Item]) -> None:
    """Marks as nightly the cases of a test that its mark `sample` does not leave in their tier."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault((item.nodeid.partition("[")[0], tier_of(item)), []).append(item)
    for (test, tier), alike in cases.items():
        size = alike[0].get_closest_marker("sample").args[0]
        kept = random.Random(test + tier).sample(range(len(alike)), min(size, len(alike)))
        for number, item in enumerate(alike):
            if number not in kept:
                item.add_marker(pytest.mark.nightly)
