"""What a worker does, from its start to its end: builds its envs and its policy, then fills every slot it is granted.

Runs in the worker's process (`serve`), or in the trainer's for inline workers (`work`, advanced by the transport).
Must not know the schedule, nor what becomes of a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import Leaf, Slot, to_tensordict
from collectx.collector.answers import Answers
from collectx.config import (
    CollectorConfig,
    EnvConfig,
    LauncherConfig,
    PolicyConfig,
    as_dict,
    group_from_dict,
)
from collectx.errors import ShapeError
from collectx.given import Given, Hooks
from collectx.policy.weights import FlatWeights
from collectx.replay.buffer import ReplayBuffer
from collectx.rollout.carry import with_state
from collectx.rollout.cut import with_ends
from collectx.rollout.episodes import Episodes
from collectx.rollout.rollout import Asked, Rollout, Stopped
from collectx.rollout.spec import PLAIN, RolloutSpec
from collectx.rollout.start import make_rollout
from collectx.transport.base import ASKED, GO_ON, AskedLink, Link, Tally, seed_of


@dataclass(frozen=True)
class Inner:
    """The collector that a worker is itself (`collectx/collector/relay.py`): schedule and size, and where its own
    workers come up."""

    collector: CollectorConfig
    launcher: LauncherConfig

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"collector": as_dict(self.collector), "launcher": as_dict(self.launcher)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Inner:
        """What `to_json` made."""
        return cls(**{group: group_from_dict(group, values) for group, values in fields.items()})


@dataclass(frozen=True)
class WorkerTask:
    """All that a worker is told. Picklable.

    Attributes:
        worker: its index among the workers of its collector.
        num_workers: how many there are in the whole run.
        env, policy: what to build.
        num_envs: envs of every worker.
        policy_device: where the policy acts, as `torch.device` takes it.
        exploration_type: how it acts.
        seed: the run's seed.
        life: 0, or how often a worker of this index was started again. Each life has envs' seeds and trajectory ids of
            its own, so that nothing is repeated.
        leaves: what the trainer's slots hold; the worker's own env and policy must give the same.
        first_worker: how many workers of the run come before those of its collector.
        inner: where the worker is itself a collector; `num_workers` then counts the processes of all, and `num_envs` is
            one process's.
        steps: of its batches, where they are fewer than its slots have.
        rollout: how its batches and trajectories begin and end.
        asked: of a worker in the trainer's process: called after every step, whether a batch is to end.
        replay: of a process of the trainer's machine: where it writes its batches itself.
        hooks: what is called around its batches.
    """

    worker: int
    num_workers: int
    num_envs: int
    env: EnvConfig
    policy: PolicyConfig
    policy_device: str
    exploration_type: str
    seed: int
    leaves: tuple[Leaf, ...]
    life: int = 0
    first_worker: int = 0
    inner: Inner | None = None
    rollout: RolloutSpec = PLAIN
    steps: int | None = None
    asked: Callable[[], bool] | None = None
    replay: ReplayBuffer | None = None
    hooks: Hooks = field(default_factory=Hooks)

    @property
    def index(self) -> int:
        """Its index in the whole run."""
        return self.first_worker + self.worker

    def to_json(self) -> dict[str, Any]:
        """As plain data, for workers on other hosts; what is `Given` they must have already."""
        leaves = [[list(leaf.key), list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in self.leaves]
        given = Given.of(self.env, self.policy)
        env = as_dict(self.env) if given.env is None else None
        policy = as_dict(self.policy) if given.policy is None else None
        inner = None if self.inner is None else self.inner.to_json()
        rollout = asdict(self.rollout)
        return {
            **vars(self),
            "env": env,
            "policy": policy,
            "leaves": leaves,
            "inner": inner,
            "rollout": rollout,
            "hooks": None,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any], given: Given) -> WorkerTask:
        """What `to_json` made, with what it could not tell."""
        leaves = tuple(Leaf(tuple(key), tuple(shape), getattr(torch, dtype)) for key, shape, dtype in fields["leaves"])
        env = given.env or group_from_dict("env", fields["env"])
        policy = given.policy or group_from_dict("policy", fields["policy"])
        inner = None if fields["inner"] is None else Inner.from_json(fields["inner"])
        rollout = RolloutSpec(**fields["rollout"])
        told = {
            "env": env,
            "policy": policy,
            "leaves": leaves,
            "inner": inner,
            "rollout": rollout,
            "hooks": given.hooks,
        }
        return cls(**(fields | told))


def env_seed(seed: int, index: int, life: int = 0) -> int:
    """The seed of the env with global index `index`, whichever worker it is in: `[0, 2**31)`."""
    words = (seed, index, life, 2) if life else (seed, index)
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def serve(task: WorkerTask, link: Link) -> None:
    """The entry of a worker process. Returns when the trainer says stop; an error is reported to it, then raised."""
    until_stopped(work(task, link), link)


def until_stopped(filling: Iterator[None], link: Link) -> None:
    """Goes on with `filling` until the trainer says stop; an error is reported to it, then raised."""
    try:
        for _ in filling:
            pass
    except Stopped:
        pass
    except BaseException as error:
        link.fail(error)
        raise


def work(task: WorkerTask, link: Link, own_random_state: bool = False) -> Generator[None]:
    """Fills granted slots; yields after each batch it has sent.

    Args:
        own_random_state: keeps what this worker draws from torch's CPU generator apart from the process in which it
            is a guest, so that inline workers give the same batches as processes do. Python's and numpy's generators
            stay the host's.
    """
    guest = _RandomState() if own_random_state else None
    with _installed(guest):
        _seed_policy(task, own_random_state)
        num_envs = task.num_envs
        first_env = task.index * num_envs
        if task.hooks.init_fn is not None:
            task.hooks.init_fn()
        group = envs.build(task.env, first_env, task.life)
        if group.spec.num_envs != num_envs:
            raise ShapeError(
                f"worker {task.worker} makes {group.spec.num_envs} envs, worker 0 makes {num_envs}: all must make "
                "equally many"
            )
        policy = policies.build(task.policy, group.spec, task.seed)
        env = with_ends(group, task.rollout)
        exploration_type = policies.ExplorationType(task.exploration_type)
        actor = policies.make_actor(policy, env.spec, torch.device(task.policy_device), exploration_type)
        env = with_state(env, actor.carried)
        _check_leaves(task, (*env.spec.observation, *actor.leaves))
        weights = FlatWeights(actor.module)
        weights.adopt()
        policies.accelerate(actor, task.policy)
        episodes = Episodes(first_env, num_envs, num_envs * task.num_workers, task.life)
        seeds, ends = _env_seeds(task, task.seed), _asked(task, link)
        newest = _Newest(link, weights)
        rollout = make_rollout(env, actor, episodes, seeds, link.stop, task.rollout, newest, ends)
        slots = link.slots if task.steps is None else [slot.until(task.steps) for slot in link.slots]
        prepared = [rollout.prepare(slot) for slot in slots]
        frames = _Frames(slots)
        answers = Answers(task.index, group, env, rollout, task.hooks, frames)
    send_s = 0.0
    try:
        while True:
            asked = perf_counter()
            index = link.acquire()
            if index is None:
                return
            if index == ASKED:
                with _installed(guest):
                    _reply(cast(AskedLink, link), answers)
                yield
                continue
            granted = perf_counter()
            version = newest()
            refreshed = perf_counter()
            with _installed(guest), policies.exploration(exploration_type):
                if link.order != GO_ON:
                    _begin_anew(task, rollout, link.order, own_random_state)
                answers.before()
                stats = rollout.collect(prepared[index], version)
                answers.after(index, stats.steps)
            collected = perf_counter()
            handover_s = send_s + refreshed - granted
            times = (stats.env_s, stats.policy_s, granted - asked, handover_s)
            if task.replay is not None:
                task.replay.extend(frames(index, stats.steps, whole=True))
            link.send(index, Tally(version, *times, *stats.episodes, stats.steps))
            send_s = perf_counter() - collected
            yield
    finally:
        rollout.close()


def _asked(task: WorkerTask, link: Link) -> Asked | None:
    """What says whether a batch is to end early; None: nothing does."""
    if not task.rollout.may_end_early:
        return None
    hurried = link.hurried
    return task.asked or (lambda: hurried[0])


class _Newest:
    """Called, takes the newest weights there are, and returns their version."""

    def __init__(self, link: Link, weights: FlatWeights):
        self._link = link
        self._weights = weights
        self._version = -1

    def __call__(self) -> int:
        self._version = self._link.refresh(self._weights.read, self._version)
        return self._version


class _Frames:
    """Slots as batches, over their memory."""

    def __init__(self, slots: Sequence[Slot]):
        self._slots = slots
        self._made: dict[int, TensorDict] = {}

    def __call__(self, index: int, steps: int, whole: bool = False) -> TensorDict:
        """`[rows, steps]`; of one row `[steps]`, unless `whole`."""
        if index not in self._made:
            tensors = self._slots[index].tensors
            self._made[index] = to_tensordict(tensors, next(iter(tensors.values())).shape[:2])
        frames = self._made[index]
        if steps < frames.shape[1]:
            frames = frames[:, :steps]
        return frames if whole or frames.shape[0] > 1 else frames[0]


def _reply(link: AskedLink, answers: Answers) -> None:
    try:
        link.reply(answers.answer(link.question))
    except Exception as error:
        link.reply(None, error)


def _env_seeds(task: WorkerTask, seed: int) -> list[int]:
    first = task.index * task.num_envs
    return [env_seed(seed, first + index, task.life) for index in range(task.num_envs)]


def _begin_anew(task: WorkerTask, rollout: Rollout, order: int, guest: bool) -> None:
    """Does what came with a grant."""
    given = seed_of(order)
    if given is None:
        rollout.reset(None)
        return
    seed, static = given
    _seed_policy(replace(task, seed=seed), guest)
    rollout.reset([seed] * task.num_envs if static else _env_seeds(task, seed))


def _seed_policy(task: WorkerTask, guest: bool) -> None:
    # Apart from the env's seeds: those are SeedSequence((seed, index)) with an index >= 0 and two words.
    words = (task.seed, task.index, 1, task.life) if task.life else (task.seed, task.index, 1)
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    torch.manual_seed(seed)
    if not guest:
        np.random.seed(seed)
        random.seed(seed)


def _check_leaves(task: WorkerTask, mine: tuple[Leaf, ...]) -> None:
    theirs = {leaf.key: leaf for leaf in task.leaves}
    for leaf in mine:
        if theirs.get(leaf.key) != leaf:
            raise ShapeError(
                f"worker {task.worker} writes {'.'.join(leaf.key)} as {_form(leaf)}, worker 0's env and the trainer's "
                f"policy write it as {_form(theirs.get(leaf.key))}: every worker's env and policy must give the same "
                "keys, shapes and dtypes"
            )


def _form(leaf: Leaf | None) -> str:
    return "nothing" if leaf is None else f"{list(leaf.shape)} {leaf.dtype}"


class _RandomState:
    """The state of torch's generator as a guest left it, while it is not running. Python's and numpy's are left alone:
    nothing here draws from them, and saving them costs as much as several steps."""

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def swap(self) -> None:
        mine, self._state = self._state, torch.get_rng_state()
        torch.set_rng_state(mine)


@contextmanager
def _installed(guest: _RandomState | None) -> Iterator[None]:
    if guest is None:
        yield
        return
    guest.swap()
    try:
        yield
    finally:
        guest.swap()
