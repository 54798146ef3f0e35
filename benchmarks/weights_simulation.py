"""`python -m benchmarks.weights_simulation`: simulates the distribution of weights to many workers.

Strategies:

    queue     the trainer sends every version to every worker (for comparison)
    direct    the trainer sends to each worker, one transfer at a time; the next one starts when the worker has loaded
              the last, with the version that is then the newest; a worker whose batch would begin during a transfer
              waits
    direct-4  at most four transfers at a time, the others are queued; the next transfer to a worker may start when the
              last has arrived, and the worker continues with its current weights
    tree-2    every host forwards to two other hosts; shared memory within a host
    node      as direct, to one relay per host, whose workers share memory
    node-4    as direct-4, to the relays

The model: the trainer and every host have one network card each. Simultaneous transfers share the rate of the sending
card evenly; the receiving card is never the bottleneck, because each host has one sender. Every worker loads new
weights between two batches only; batches are equally long and not synchronised. A host's relay does the same before its
workers see the weights. The tree's relays forward messages as they arrive, in a thread without cost. Not included:
processor time, copies in memory, latency (0.1 ms; transfers take 0.08 ms or more) and lost packets.
"""

import argparse
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean

STRATEGIES = ("queue", "direct", "direct-4", "tree-2", "node", "node-4")
WORKERS = (10, 100, 1000)
SIZES = (1e6, 100e6)
RATES = (1.25e9, 12.5e9)
_MOMENT_S = 1e-6


@dataclass(frozen=True)
class Result:
    """The figures of one strategy.

    Attributes:
        once_s: time from one publish, without other transfers, until the last worker acts with it.
        age_s: age of the weights that act, since their publish, averaged over workers and time, with continuous
            publishes. Without transfer time, it is up to one interval and one batch.
        oldest_s: maximum age of the weights of any worker.
        card: load of the trainer's network card, 0 to 1.
        idle: fraction of the time in which workers wait for weights; a waiting relay counts for all workers of its
            host.
        versions: maximum number of versions that the trainer holds at once, each as large as the policy.
        grows: whether more is published than can be sent, so that ages grow without bound.
    """

    once_s: float
    age_s: float
    oldest_s: float
    card: float
    idle: float
    versions: int
    grows: bool = False


class Clock:
    """An event queue: calls functions in order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = itertools.count()

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._ticket), call))

    def run(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._due)
            call()


class Card:
    """The sending side of a network card, shared evenly by its transfers; with `limit`, further transfers are
    queued."""

    def __init__(self, clock: Clock, bytes_per_s: float, limit: int | None = None):
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._limit = limit
        # Bytes sent for a transfer that is active from the beginning: a transfer ends when this has grown by its size.
        self._served = 0.0
        self._last_s = 0.0
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._line: deque[Callable[[], tuple[float, Callable[[], None]]]] = deque()
        self._ticket = itertools.count()
        self._plan = 0
        self.sent_bytes = 0.0

    def send(self, start: Callable[[], tuple[float, Callable[[], None]]]) -> None:
        """Queues a transfer. `start` is called when it begins; returns its size and a function to call at its end."""
        if self._limit is not None and len(self._ends) >= self._limit:
            self._line.append(start)
            return
        self._advance()
        self._begin(start)
        self._expect()

    def _begin(self, start: Callable[[], tuple[float, Callable[[], None]]]) -> None:
        size, done = start()
        self.sent_bytes += size
        heapq.heappush(self._ends, (self._served + size, next(self._ticket), done))

    def _advance(self) -> None:
        if self._ends:
            self._served += (self._clock.now_s - self._last_s) * self._bytes_per_s / len(self._ends)
        self._last_s = self._clock.now_s

    def _expect(self) -> None:
        self._plan += 1
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._served) * len(self._ends) / self._bytes_per_s
            plan = self._plan
            self._clock.at(self._clock.now_s + left, lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        finished = []
        # Transfers that began together end together, despite rounding errors.
        while self._ends and self._ends[0][0] <= self._served * (1 + 1e-12) + 1.0:
            finished.append(heapq.heappop(self._ends)[2])
        while self._line and (self._limit is None or len(self._ends) < self._limit):
            self._begin(self._line.popleft())
        self._expect()
        for done in finished:
            done()


@dataclass
class Station:
    """The trainer, a relay of a host, or a worker that receives directly."""

    card: Card | None = None
    children: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    phase_s: float = 0.0
    newest: int = -1
    sent: int = -1
    is_busy: bool = False
    began_s: float = 0.0
    idle_s: float = 0.0


class Simulation:
    """One strategy, policy size and rate. Station 0 is the trainer."""

    def __init__(self, strategy: str, num_workers: int, size: float, rate: float, per_host: int, batch_s: float):
        self.clock = Clock()
        self._strategy, self._size, self._batch_s = strategy, size, batch_s
        shared = strategy.startswith(("node", "tree"))
        hosts = -(-num_workers // per_host) if shared else num_workers
        limit = 4 if strategy.endswith("-4") else None
        self.stations = [Station() for _ in range(hosts + 1)]
        for index, station in enumerate(self.stations):
            if index == 0 or strategy == "tree-2":
                station.card = Card(self.clock, rate, limit)
            station.phase_s = _spread(index) * batch_s
        for host in range(1, hosts + 1):
            parent = 0 if strategy != "tree-2" else (host - 1) // 2
            self.stations[parent].children.append(host)
        self.phases_s = [_spread(worker + 7919) * batch_s for worker in range(num_workers)]
        for worker in range(num_workers):
            self.stations[1 + (worker // per_host if shared else worker)].workers.append(worker)
        self._shared = shared
        self._waits = strategy in ("direct", "node")
        # For each worker, the times at which a version began to act.
        self.acts: list[list[tuple[float, int]]] = [[] for _ in range(num_workers)]
        self.published_s: list[float] = []
        self._held: Counter[int] = Counter()
        self.max_held = 0

    def publish(self) -> None:
        self.published_s.append(self.clock.now_s)
        trainer = self.stations[0]
        trainer.newest += 1
        self._count()
        for child in trainer.children:
            self._offer(trainer, child)

    def _count(self) -> None:
        held = set(self._held) | {self.stations[0].newest}
        self.max_held = max(self.max_held, len(held))

    def _offer(self, sender: Station, child: int) -> None:
        receiver = self.stations[child]
        if self._strategy == "queue":
            assert sender.card is not None
            version = sender.newest
            self._hold(sender, version, 1)
            sender.card.send(lambda: (self._size, lambda: self._arrived(sender, child, version)))
            return
        if receiver.is_busy or receiver.sent == sender.newest:
            return
        receiver.is_busy = True

        def start() -> tuple[float, Callable[[], None]]:
            receiver.sent = version = sender.newest
            receiver.began_s = self.clock.now_s
            self._hold(sender, version, 1)
            return self._size, lambda: self._arrived(sender, child, version)

        assert sender.card is not None
        sender.card.send(start)

    def _hold(self, sender: Station, version: int, change: int) -> None:
        if sender is self.stations[0]:
            self._held[version] += change
            if not self._held[version]:
                del self._held[version]
            self._count()

    def _arrived(self, sender: Station, child: int, version: int) -> None:
        receiver = self.stations[child]
        receiver.newest = max(receiver.newest, version)
        now_s = self.clock.now_s
        loaded_s = _next(now_s, receiver.phase_s, self._batch_s)
        if self._waits:
            # A worker that has just loaded weights has begun a batch: it loads the next ones at its next batch.
            needed_s = _next(receiver.began_s + _MOMENT_S, receiver.phase_s, self._batch_s)
            if needed_s < now_s:
                receiver.idle_s += now_s - needed_s
                receiver.phase_s = loaded_s = now_s
        if self._shared:
            for worker in receiver.workers:
                self._act(worker, _next(loaded_s, self.phases_s[worker], self._batch_s), version)
        else:
            self._act(receiver.workers[0], loaded_s, version)
        free_s = loaded_s if self._waits else now_s

        def free() -> None:
            self._hold(sender, version, -1)
            receiver.is_busy = False
            if self._strategy != "queue":
                self._offer(sender, child)

        self.clock.at(free_s, free)
        for grandchild in receiver.children:
            self._offer(receiver, grandchild)

    def _act(self, worker: int, time_s: float, version: int) -> None:
        acts = self.acts[worker]
        if not acts or version > acts[-1][1]:
            acts.append((time_s, version))


def simulate(
    strategy: str, num_workers: int, size: float, rate: float, per_host: int, batch_s: float, hz: float
) -> Result:
    """Simulates one publish, then `hz` publishes per second for six rounds of transfers."""
    alone = Simulation(strategy, num_workers, size, rate, per_host, batch_s)
    alone.clock.at(0.0, alone.publish)
    alone.clock.run(float("inf"))
    once_s = max(acts[0][0] for acts in alone.acts)

    steady = Simulation(strategy, num_workers, size, rate, per_host, batch_s)
    transfers = len(steady.stations[0].children)
    round_s = transfers * size / rate
    # A growing queue is simulated for a limited time: it would never end.
    grows = strategy == "queue" and round_s * hz > 1.0
    until_s = 10.0 if grows else max(5.0, 6.0 * round_s)
    for index in range(int(until_s * hz)):
        steady.clock.at(index / hz, steady.publish)
    sent_before = [0.0]
    card = steady.stations[0].card
    assert card is not None
    steady.clock.at(until_s / 2, lambda: sent_before.__setitem__(0, card.sent_bytes))
    steady.clock.run(until_s)
    card_share = (card.sent_bytes - sent_before[0]) / (rate * until_s / 2)
    ages, oldest = [], []
    for acts in steady.acts:
        mean_s, oldest_s = _ages(acts, steady.published_s, until_s / 2, until_s)
        ages.append(mean_s)
        oldest.append(oldest_s)
    idle = mean(station.idle_s for station in steady.stations[1:]) / until_s
    return Result(once_s, mean(ages), max(oldest), min(1.0, card_share), idle, steady.max_held, grows)


def _ages(acts: list[tuple[float, int]], published_s: list[float], from_s: float, to_s: float) -> tuple[float, float]:
    """Mean and maximum age of acting weights between two times. Before the first weights, age counts from time 0."""
    points = [(0.0, 0), *acts, (to_s, -1)]
    area = oldest = 0.0
    for (begin_s, version), (end_s, _) in itertools.pairwise(points):
        begin, end = max(begin_s, from_s), min(end_s, to_s)
        if end > begin:
            old, new = begin - published_s[version], end - published_s[version]
            area += (old + new) / 2 * (end - begin)
            oldest = max(oldest, new)
    return area / (to_s - from_s), oldest


def _spread(index: int) -> float:
    """A well spread sequence in [0, 1): multiples of the golden ratio."""
    return (index * 0.6180339887498949) % 1.0


def _next(time_s: float, phase_s: float, period_s: float) -> float:
    """The first time not before `time_s` at which a batch begins."""
    count = -(-(time_s - phase_s) // period_s)
    return phase_s + count * period_s


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights_simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--per-host", type=int, default=32, help="workers on one host (32)")
    parser.add_argument("--batch-s", type=float, default=0.2, help="seconds that a worker's batch takes (0.2)")
    parser.add_argument("--hz", type=float, default=10.0, help="publishes per second (10)")
    parser.add_argument("--full", action="store_true", help="all figures of all strategies, not only the ages")
    options = parser.parse_args()
    print(
        f"{options.per_host} workers per host, batches of {options.batch_s:g} s, {options.hz:g} publishes per second\n"
    )
    strategies = STRATEGIES if options.full else STRATEGIES[1:]
    if options.full:
        print("| policy, card, workers | strategy | one publish s | age s | oldest s | card | waiting | trainer's MB |")
        print("|---|---|---|---|---|---|---|---|")
    else:
        print(f"| policy, card, workers | {' | '.join(f'`{strategy}`' for strategy in strategies)} |")
        print(f"|---{'|---' * len(strategies)}|")
    for size, rate, num_workers in itertools.product(SIZES, RATES, WORKERS):
        name = f"{size / 1e6:g} MB, {rate / 1e9:g} GB/s, {num_workers}"
        cells = []
        for strategy in strategies:
            result = simulate(strategy, num_workers, size, rate, options.per_host, options.batch_s, options.hz)
            if options.full:
                print(f"| {name} | {strategy} | {_row(result, size)} |", flush=True)
            cells.append(f"{result.age_s:.2f}" + (f", {result.idle:.0%} waiting" if result.idle >= 0.005 else ""))
        if not options.full:
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _row(result: Result, size: float) -> str:
    ages = ("grows", "grows") if result.grows else (f"{result.age_s:.2f}", f"{result.oldest_s:.2f}")
    memory = "grows" if result.grows else f"{result.versions * size / 1e6:,.0f}"
    return f"{result.once_s:.2f} | {ages[0]} | {ages[1]} | {result.card:.0%} | {result.idle:.0%} | {memory}"


if __name__ == "__main__":
    main()
