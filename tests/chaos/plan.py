"""What is done to which run: drawn from a seed, nothing else."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

COLLECTORS = ("multi_sync", "multi_async", "distributed_sync", "distributed", "rpc")
# Where the first failure ends the run, most faults need a new command, which costs the most.
RULES = ("restart", "drop", "raise", "restart", "drop", "restart")
_IN_CHECKPOINT = "while a checkpoint is written"
MOMENTS = ("start-up", "within a batch", "between batches", _IN_CHECKPOINT, "at the end")
# By name, the number of workers that it ends, None: all of them. Workers leave SIGTERM to the trainer.
WORKER_FAULTS = {
    "worker killed": 1,
    "worker stopped for 0.5 s": 0,
    "worker stopped": 1,
    "worker terminated": 0,
    "two workers killed": 2,
    "fork server killed": None,
}
CHECKPOINT_CUT = "trainer killed in a checkpoint"
TRAINER_FAULTS = ("trainer killed", CHECKPOINT_CUT, "trainer terminated")
FULL_DISK = "disk full"
FAULTS = (*WORKER_FAULTS, *TRAINER_FAULTS, FULL_DISK)


@dataclass(frozen=True)
class Fault:
    kind: str
    moment: str
    # Between 0 and 1: when exactly, and whom.
    chance: float


@dataclass(frozen=True)
class Plan:
    """One run and its faults, in order."""

    number: int
    collector: str
    rule: str
    num_workers: int
    faults: tuple[Fault, ...]


def plans(seed: int, num_faults: int, can_mount: bool) -> Iterator[Plan]:
    """Runs with that many faults in all."""
    generator, number, kinds = random.Random(seed), 0, []
    while num_faults > 0:
        faults: list[Fault] = []
        for index in range(size := min(num_faults, generator.randint(8, 14))):
            # Each kind equally often, those of workers twice as often as the others.
            kinds = kinds or generator.sample([*FAULTS, *WORKER_FAULTS], len(FAULTS) + len(WORKER_FAULTS))
            kind = kinds.pop()
            if kind == FULL_DISK and not can_mount:
                kind = "worker killed"
            is_new = not faults or faults[-1].kind in TRAINER_FAULTS
            moments = MOMENTS[1 - is_new : None if index == size - 1 else -1]
            moment = generator.choice(moments)
            faults.append(Fault(kind, _IN_CHECKPOINT if kind == CHECKPOINT_CUT else moment, generator.random()))
        # Every rule with every collector.
        collector, rule = COLLECTORS[number % len(COLLECTORS)], RULES[number % len(RULES)]
        yield Plan(number, collector, rule, generator.randint(2, 3), tuple(faults))
        num_faults, number = num_faults - size, number + 1
