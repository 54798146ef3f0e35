"""What a worker does, from its start to its end: builds its envs and its policy, then fills every slot it is granted.

Runs in the worker's process (`run_worker`), or in the trainer's for inline workers (`rollout_worker`, advanced by the
transport).
Must not know the schedule, nor what becomes of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from tensordict import TensorDict

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import Leaf, Slot, to_tensordict
from collectx.env.base import EnvSpec
from collectx.errors import ShapeError
from collectx.policy.base import Actor
from collectx.policy.weights import FlatWeights, is_on_device
from collectx.rollout.episodes import Episodes
from collectx.rollout.finite import FiniteCheck
from collectx.rollout.first_reset import FirstResetEnv
from collectx.rollout.loop import EndsEarly, Rollout
from collectx.rollout.recurrent_state import with_recurrent_state
from collectx.rollout.segments import rollout_class
from collectx.rollout.time_limit import with_time_limit
from collectx.transport.base import NO_RESET, Link, RequestLink, decode_reset
from collectx.user_objects import is_object
from collectx.worker.loop import BatchStats, run_until_stopped, run_worker_loop
from collectx.worker.requests import RequestHandler
from collectx.worker.spec import WorkerSpec, env_seeds, seed_policy


def run_worker(task: WorkerSpec, link: Link) -> None:
    """The entry of a worker process. Returns when the trainer says stop; an error is reported to it, then raised."""
    run_until_stopped(rollout_worker(task, link), link)


def rollout_worker(task: WorkerSpec, link: Link, own_random_state: bool = False) -> Generator[None]:
    """Fills granted slots; yields after each batch it has sent.

    Args:
        own_random_state: keeps what this worker draws from torch's CPU generator apart from the process in which it
            is a guest, so that inline workers give the same batches as processes do. Python's and numpy's generators
            stay the host's.
    """
    yield from run_worker_loop(link, RolloutSource(task, link, own_random_state))


class RolloutSource:
    """Batches of envs and a policy of the worker's own (`collectx.worker.loop.BatchSource`)."""

    def __init__(self, task: WorkerSpec, link: Link, own_random_state: bool):
        self._task = task
        self._link = link
        self._guest = _RandomState() if own_random_state else None
        self._exploration = policies.ExplorationType(task.exploration_type)
        with _installed(self._guest):
            self._build()

    def _build(self) -> None:
        task, link = self._task, self._link
        seed_policy(task, self._guest is not None)
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
        if task.keeps_weights:
            # Every life begins with the weights of the first one, as their version says.
            seed_policy(replace(task, life=0), self._guest is not None)
        policy, acts_in_place = _policy(task, group.spec, self._guest is not None)
        if task.keeps_weights:
            seed_policy(task, self._guest is not None)
        env = with_time_limit(group, task.rollout)
        seeds, ends = env_seeds(task, task.seed), _asked(task, link)
        is_plain = env is group
        if policies.is_user_policy(task.policy):
            env = FirstResetEnv(env, seeds)
        device, is_trusted = torch.device(task.policy_device), policies.is_trusted(task.policy)
        actor = policies.make_actor(policy, env.spec, device, self._exploration, is_trusted)
        env = with_recurrent_state(env, actor.states)
        rewards = (leaf.under("next") for leaf in env.spec.rewards)
        _check_leaves(task, (*env.spec.observation, *actor.leaves, *rewards))
        read = _reading(actor, acts_in_place)
        policies.accelerate(actor, task.policy)
        episodes = Episodes(first_env, num_envs, num_envs * task.num_workers, task.life)
        self._newest = newest = _Newest(link, read, task.first_version)
        self._rollout = rollout = rollout_class(env.spec)(
            env, actor, episodes, seeds, link.stop, task.rollout, newest, ends
        )
        slots = link.slots if task.steps is None else [slot.until(task.steps) for slot in link.slots]
        self._prepared = [rollout.prepare(slot) for slot in slots]
        self._check_finite = None
        if task.rollout.check_finite:
            total_envs = num_envs * task.num_workers
            written = {leaf.key for leaf in actor.leaves}
            self._check_finite = FiniteCheck(env.spec, written, slots, task.index, first_env, total_envs)

        def weights() -> dict[str, torch.Tensor]:
            newest()
            module = actor.module
            named = {} if module is None else module.state_dict()
            return {name: value.to("cpu", copy=True) for name, value in named.items()}

        self._frames = _Frames(slots)
        is_plain = is_plain and not actor.states
        self._answers = RequestHandler(task.index, group, is_plain, rollout, task.hooks, self._frames, weights)

    def refresh(self) -> None:
        self._newest()

    def fill(self, slot: int, order: int) -> BatchStats:
        task = self._task
        with _installed(self._guest), policies.exploration(self._exploration):
            if order != NO_RESET:
                _begin_anew(task, self._rollout, order, self._guest is not None)
            self._answers.before()
            version = self._newest.version
            stats = self._rollout.collect(self._prepared[slot], version)
            if self._check_finite is not None:
                self._check_finite(slot, stats.steps)
            self._answers.after(slot, stats.steps)
        if task.replay is not None:
            task.replay.extend(self._frames(slot, stats.steps, whole=True))
        return BatchStats(version, stats.env_s, stats.policy_s, *stats.episodes, stats.steps)

    def reply(self) -> None:
        link = cast(RequestLink, self._link)
        with _installed(self._guest):
            try:
                link.reply(self._answers.answer(link.request))
            except Exception as error:
                link.reply(None, error)

    def close(self) -> None:
        self._rollout.close()


def _asked(task: WorkerSpec, link: Link) -> EndsEarly | None:
    """What says whether a batch is to end early; None: nothing does."""
    if not task.rollout.may_end_early:
        return None
    preempted = link.preempted
    return task.should_end or (lambda: preempted[0] != 0)


def _policy(task: WorkerSpec, spec: EnvSpec, is_guest: bool) -> tuple[Callable | None, bool]:
    """The policy, and whether it is the trainer's own object; where that lies on another device, it is a copy."""
    policy = policies.build(task.policy, spec, task.seed)
    if not is_guest or not is_object(task.policy):
        return policy, False
    if is_on_device(policy, torch.device(task.policy_device)):
        return policy, True
    return copy.deepcopy(policy), False


def _reading(actor: Actor, acts_in_place: bool) -> Callable[[torch.Tensor], None]:
    """What takes published weights into the actor.

    Args:
        acts_in_place: the policy is the trainer's own object. It is left alone: what was published may be older than
            what the trainer has made of it since, and its tensors may be shared with others.
    """
    if acts_in_place:
        return lambda buffer: None
    weights = FlatWeights(actor.module)
    weights.adopt()
    return weights.read


class _Newest:
    """Called, takes the newest weights there are, and returns their version."""

    def __init__(self, link: Link, read: Callable[[torch.Tensor], None], version: int):
        self._link = link
        self._read = read
        self.version = version

    def __call__(self) -> int:
        self.version = self._link.refresh(self._read, self.version)
        return self.version


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


def _begin_anew(task: WorkerSpec, rollout: Rollout, order: int, guest: bool) -> None:
    """Does what came with a grant."""
    given = decode_reset(order)
    if given is None:
        rollout.reset(None)
        return
    seed, static = given
    seed_policy(replace(task, seed=seed), guest)
    rollout.reset([seed] * task.num_envs if static else env_seeds(task, seed))


def _check_leaves(task: WorkerSpec, mine: tuple[Leaf, ...]) -> None:
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
