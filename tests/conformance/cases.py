"""What TorchRL's collectors and ours both collect: worlds, an env with a policy each, and cases, a world with keywords.

`record.py` writes TorchRL's batches of the cases to golden/. The tests compare ours with those files, and the nightly
ones compare TorchRL itself with them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import library_collectors
import numpy as np
import torch
import torchrl.collectors
from tensordict.nn import TensorDictModule as Module
from tensordict.nn import TensorDictSequential as Sequence
from torch.nn.functional import one_hot
from torchrl.envs import PendulumEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import LSTMModule
from user_code import torchrlenvs
from user_code.walk import walk
from ways import SINGLE

from collectx.worker.spec import env_seed

# With its first env TorchRL keeps the traceback of an import that failed, and so all that was being constructed: a
# collector, for ever.
torchrlenvs.walking().close()

# --- worlds ---


@dataclass(frozen=True)
class World:
    """An env and a policy for it.

    Attributes:
        make: the env, of TorchRL.
        act: the actions from what the policy reads.
        reads, writes: the policy's keys.
        size: envs of one worker.
        ours: the env of our collectors, where it is not the same.
        surplus: last names of keys that only our batches have.
        ids: trajectories are numbered as by TorchRL; where one of several agents ends before the others, they are not.
        numbered: `make` takes a number; each worker's is its own.
        rtol: relative tolerance of floats. 0: the arithmetic is exact.
    """

    make: Callable[..., Any]
    act: Callable[..., Any]
    reads: Any = "observation"
    writes: tuple[Any, ...] = ("action",)
    size: int = 1
    ours: Callable[..., Any] | None = None
    surplus: tuple[str, ...] = ()
    ids: bool = True
    numbered: bool = False
    rtol: float = 0.0

    def policy(self):
        return self.act() if self.act is lstm else Module(self.act, [self.reads], list(self.writes))


def outwards(seen):
    return (seen[..., 0] + seen[..., 1] > 0).long()


def outwards_one_hot(seen):
    return one_hot(outwards(seen), 2)


def push(seen):
    return (seen[..., :1] + 0.5).clamp(-1, 1)


def move_and_push(pixels):
    turn = (pixels.reshape(*pixels.shape[:-3], -1)[..., 0] % 3).long()
    return one_hot(turn, 3).bool(), torch.stack([turn / 3.0, -turn / 2.0], -1)


def halved():
    """Acts on half of what it observes, which it writes in its place."""
    return Sequence(Module(half, ["observation"], ["observation"]), Module(outwards, ["observation"], ["action"]))


def half_of_first(seen):
    return seen[..., :1] / 2


def half_of_angle(angle):
    return angle[..., None] / 2


def half(seen):
    return seen / 2


def lstm():
    """Acts by its memory, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        memory = LSTMModule(3, 5, in_keys=["observation", "h", "c"], out_keys=["embed", ("next", "h"), ("next", "c")])
        head = Module(torch.nn.Linear(5, 2), ["embed"], ["logits"])
    return Sequence(memory, head, Module(partial(torch.argmax, dim=-1), ["logits"], ["action"]))


class ResetAgain(gymnasium.Wrapper):
    """A reset with a seed is followed by one without."""

    def reset(self, *, seed=None, options=None):
        first = self.env.reset(seed=seed)
        return first if seed is None else self.env.reset()


WALK = World(torchrlenvs.walking, outwards)
PUSH = World(torchrlenvs.pushing, push)
ONLY_OURS = ("truncated", "only_root")
KEYS = World(torchrlenvs.ManyKeys, move_and_push, "pixels", (("agent", "move"), ("agent", "push")), surplus=ONLY_OURS)
AGENTS = World(
    torchrlenvs.Agents, half_of_first, ("agents", "observation"), (("agents", "action"),), surplus=ONLY_OURS, ids=False
)
APART = replace(AGENTS, make=torchrlenvs.Apart, surplus=("done", "terminated", *ONLY_OURS), ids=True)
WORLDS = {
    "walk": WALK,
    "gymnasium": replace(WALK, ours=walk),
    "dict": World(torchrlenvs.goals, outwards, "desired_goal", ours=torchrlenvs.Goals),
    "one_hot": World(torchrlenvs.one_hot, outwards_one_hot),
    "push": PUSH,
    "counted": replace(WALK, make=torchrlenvs.counted),
    "differences": replace(WALK, make=torchrlenvs.differences),
    "primed": replace(WALK, make=torchrlenvs.primed, numbered=True),
    "recurrent": World(torchrlenvs.recurrent, lstm, rtol=1e-5),
    "stateless": World(PendulumEnv, half_of_angle, "th", surplus=("truncated",), rtol=1e-5),
    "many_keys": KEYS,
    "agents": AGENTS,
    "agents_apart": APART,
    "agents_apart_with_sums": replace(APART, make=torchrlenvs.apart_with_sums),
    "agents_apart_in_a_row": replace(APART, make=partial(torchrlenvs.Apart, (3,)), size=3),
    "agents_in_a_grid": replace(AGENTS, make=partial(torchrlenvs.Agents, (2, 3)), size=6),
    "serial": replace(WALK, make=torchrlenvs.serial, size=3),
    "counted_serial": replace(WALK, make=torchrlenvs.counted_serial, size=3),
    "parallel": replace(WALK, make=torchrlenvs.parallel, size=2),
}


def asks():
    """Acts by the exploration type of TorchRL's context."""
    kinds = [None, *(ExplorationType[kind] for kind in ("RANDOM", "MODE", "MEAN", "MEDIAN", "DETERMINISTIC"))]

    def act(observation):
        return torch.full((*observation.shape[:-1], 1), kinds.index(exploration_type()) / 5)

    return Module(act, ["observation"], ["action"])


# --- cases ---


@dataclass(frozen=True)
class Case:
    """What a collector is called with.

    Attributes:
        world: its name in WORLDS.
        keywords: of the collector.
        kind: "single", or that of two workers: "sync" or "async".
        policy: makes the policy, where it is not the world's.
        random: of so many batches the values are not compared, as they are of other draws than TorchRL's.
    """

    world: str = "walk"
    keywords: dict[str, Any] = field(default_factory=dict)
    kind: str = "single"
    policy: Callable[[], Any] | None = None
    random: int = 0

    @property
    def of(self) -> World:
        return WORLDS[self.world]

    @property
    def splits(self) -> bool:
        return "split_trajs" in self.keywords


def squared(batch):
    return batch.set("squared", batch["observation"] ** 2)


def first_half(batch):
    return batch[..., : batch.shape[-1] // 2].clone()


MAX, RESET, SPLIT = {"max_frames_per_traj": 5}, {"reset_at_each_iter": True}, {"split_trajs": True}
KEYWORDS = {
    "max_frames_per_traj": MAX,
    "unlimited": {"max_frames_per_traj": -1, "init_random_frames": -1},
    "set_truncated": {"set_truncated": True},
    "set_truncated-max_frames_per_traj": {"set_truncated": True, **MAX},
    "track_traj_ids": {"track_traj_ids": False},
    "track_policy_version": {"track_policy_version": True},
    "use_buffers-not": {"use_buffers": False},
    "postproc": {"postproc": squared},
    "postproc-shortens": {"postproc": first_half},
    "storing_device": {"storing_device": "cpu"},
    "trust_policy": {"trust_policy": True, "no_cuda_sync": True},
    "split": SPLIT,
    "split-max_frames_per_traj": {**SPLIT, **MAX},
    # TorchRL resets an env twice that ends with a batch; here none does.
    "reset_at_each_iter": {**RESET, "frames_per_batch": 20, "total_frames": 60},
}


def sync(world, **keywords):
    return Case(world, keywords, "sync")


CASES = {
    **{name: Case(name) for name in WORLDS},
    **{f"walk-{name}": Case("walk", keywords) for name, keywords in KEYWORDS.items()},
    "walk-overwrites": Case("walk", policy=halved),
    "walk-compile_policy": Case("walk", {"compile_policy": {"backend": "eager"}}),
    "serial-rounded": Case("serial", {"frames_per_batch": 25, "total_frames": 75}),
    "serial-set_truncated-max_frames_per_traj": Case("serial", {"set_truncated": True, **MAX}),
    "serial-split-postproc": Case("serial", {**SPLIT, "postproc": squared}),
    "serial-split-max_frames_per_traj": Case("serial", {**SPLIT, **MAX}),
    "counted-split": Case("counted", SPLIT),
    "counted_serial-reset_at_each_iter": Case("counted_serial", {**RESET, "set_truncated": True}),
    "one_hot-init_random_frames": Case("one_hot", {"init_random_frames": 16}),
    "push-init_random_frames": Case("push", {"init_random_frames": 20}),
    **{
        f"asks-{kind}": Case("push", {"exploration_type": ExplorationType[kind]}, policy=asks)
        for kind in ("RANDOM", "MODE", "MEAN", "DETERMINISTIC")
    },
    "no_policy": Case("push", policy=lambda: None),
    **{f"sync-{name}": sync(name) for name in ("primed", "counted", "serial", "recurrent", "agents_in_a_grid")},
    "sync-cat": sync("serial", cat_results=0, postproc=squared, storing_device="cpu"),
    "sync-cat-last": sync("serial", cat_results=-1, frames_per_batch=130, total_frames=260, no_cuda_sync=True),
    "sync-keywords": sync("walk", **MAX, set_truncated=True, update_at_each_batch=True, use_buffers=False),
    "sync-mode": sync("push", exploration_type=ExplorationType.MODE, device="cpu", num_threads=1),
    "sync-split-cat": sync("serial", **SPLIT, **MAX, cat_results=0),
    "sync-reset_at_each_iter": sync("walk", **RESET, cat_results=0, frames_per_batch=28, total_frames=84),
    "sync-init_random_frames": replace(sync("one_hot", init_random_frames=40), random=3),
    "sync-lengths": sync("walk", frames_per_batch=[12, 20], cat_results=0),
    "sync-lengths-last": sync("serial", frames_per_batch=[36, 60], total_frames=288, cat_results=-1),
    "async-primed": Case("primed", kind="async"),
    # In buffers that TorchRL uses again, `set_truncated` does not set `done`.
    "async-set_truncated": Case("primed", {**MAX, "set_truncated": True, "use_buffers": False}, "async"),
    "async-split": Case("primed", {**SPLIT, "postproc": squared}, "async"),
}
# What `make test` leaves to CI, beside the sync cases that are not of these.
SMOKE_SYNC = ("sync-primed", "sync-serial", "sync-cat", "sync-keywords", "sync-reset_at_each_iter", "sync-lengths")
IN_CI = {"parallel", "walk-compile_policy", "serial-split-max_frames_per_traj", "serial-rounded"}
IN_CI |= {name for name, case in CASES.items() if case.kind == "sync" and name not in SMOKE_SYNC}

# --- both sides ---

CLASSES = {"single": "Collector", "sync": "MultiSyncCollector", "async": "MultiAsyncCollector"}


def theirs(case):
    """The batches of TorchRL's collector."""
    make = getattr(torchrl.collectors, CLASSES[case.kind])
    # What our worker of that index seeds its envs with.
    size = case.of.size
    seeds = [[env_seed(0, worker * size + e) for e in range(size)] for worker in range(2)]
    creates = [_seeded(_numbered(case, worker), seeds[worker]) for worker in range(2)]
    keywords = {"cat_results": "stack"} if case.kind == "sync" else {}

    def construct(policy, **others):
        collector = make(creates[0] if case.kind == "single" else creates, policy, **{**keywords, **others})
        # As our first worker seeds what the policy draws.
        torch.manual_seed(int(np.random.SeedSequence((0, 0, 1)).generate_state(1)[0]))
        return collector

    return _collect(case, construct)


def ours(case, way=SINGLE):
    """The batches of our collector of that way."""
    creates = [_ours(case, worker) for worker in range(2)]
    return _collect(
        case, partial(library_collectors.make, way, creates[0] if case.kind == "single" else creates, seed=0)
    )


def _numbered(case, worker):
    return partial(case.of.make, worker + 1.0) if case.of.numbered else case.of.make


def _ours(case, worker):
    make = case.of.ours or _numbered(case, worker)
    return partial(_reset_twice, make) if "reset_at_each_iter" in case.keywords else make


def _reset_twice(make):
    """TorchRL resets envs when a collector is made, and with `reset_at_each_iter` again before the first batch."""

    def walking():
        env = torchrlenvs.walking()
        env._env = ResetAgain(env._env)
        return env

    return walking() if make is torchrlenvs.walking else make(walking)


def _seeded(make, seeds):
    """An env whose first reset is with the seeds of our worker."""

    def create():
        env = make()
        if make is PendulumEnv:
            env.set_seed(seeds[0])
            return env
        # A collector may replace an env with transforms by one that shares the env below them.
        base = env.base_env if isinstance(env, TransformedEnv) else env
        reset, each = base._reset, [{"seed": seed} for seed in seeds]

        def first_reset(tensordict=None, **kwargs):
            del base._reset
            return reset(tensordict, **({"list_of_kwargs": each} if base.batch_size else each[0]))

        base._reset = first_reset
        return env

    return create


def _collect(case, construct):
    steps = case.of.size * (16 if case.kind == "single" else 32)
    frames = {"frames_per_batch": steps, "total_frames": -1 if case.kind == "async" else 3 * steps}
    collector = construct((case.policy or case.of.policy)(), **{**frames, **case.keywords})
    try:
        if case.kind == "async":
            return _of_each_worker(collector)
        return [batch if batch is None else batch.clone() for batch in collector]
    finally:
        collector.shutdown()


def _of_each_worker(collector, count=2):
    """So many batches of each worker of an async collector, in the order of the numbers that are in `hidden`."""
    batches = {1: [], 2: []}
    while min(map(len, batches.values())) < count:
        batch = collector.next().clone()
        batches[int(batch["hidden"].reshape(-1)[0])].append(batch)
    return [*batches[1][:count], *batches[2][:count]]
