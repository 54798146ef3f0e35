"""Fills slots with rollouts: builds the envs and the policy of a worker and steps them.

Runs in the worker's process, or in the trainer's for inline workers. Does not import
schedules; of the transports, depends on the interface `collectx.transport.base` only.
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
from collectx.env.base import EnvSpec, first_observations
from collectx.errors import ShapeError
from collectx.policy.base import Actor
from collectx.policy.weights import FlatWeights, is_on_device
from collectx.rollout.episodes import Episodes
from collectx.rollout.finite import FiniteCheck
from collectx.rollout.loop import EndsEarly, Rollout
from collectx.rollout.segments import rollout_class
from collectx.rollout.wrappers import with_recurrent_state, with_time_limit
from collectx.transport.base import NO_RESET, Link, RequestLink, decode_reset
from collectx.user_objects import is_object
from collectx.worker.loop import BatchStats, run_worker_loop
from collectx.worker.requests import RequestHandler
from collectx.worker.spec import WorkerSpec, env_seeds, seed_policy


def rollout_worker(spec: WorkerSpec, link: Link, is_guest: bool = False) -> Generator[None]:
    """Fills granted slots; yields after each batch it has sent.

    Args:
        is_guest: the worker runs in the trainer's process. Torch's CPU generator then has a state for this worker, so
            that inline workers give the same batches as processes do; Python's and numpy's generators are shared.
    """
    yield from run_worker_loop(link, RolloutSource(spec, link, is_guest))


class RolloutSource:
    """Rollouts of one group of envs (`collectx.worker.loop.BatchSource`)."""

    def __init__(self, spec: WorkerSpec, link: Link, is_guest: bool):
        self._spec = spec
        self._link = link
        self._guest = _RandomState() if is_guest else None
        self._exploration = policies.ExplorationType(spec.exploration_type)
        with _installed(self._guest):
            self._build()

    def _build(self) -> None:
        spec, link, is_guest = self._spec, self._link, self._guest is not None
        seed_policy(spec, is_guest)
        first_env, total_envs = spec.index * spec.num_envs, spec.num_envs * spec.num_workers
        if spec.hooks.init_fn is not None:
            spec.hooks.init_fn()
        group = envs.build(spec.env, first_env, spec.life)
        if group.spec.num_envs != spec.num_envs:
            raise ShapeError(
                f"worker {spec.worker} makes {group.spec.num_envs} envs, worker 0 makes {spec.num_envs}: all must make "
                "equally many"
            )
        policy, is_trainers = _build_policy(spec, group.spec, is_guest)
        env = with_time_limit(group, spec.rollout)
        is_plain = env is group
        seeds: Sequence[int] | None = env_seeds(spec, spec.seed)
        if policies.is_user_policy(spec.policy):
            # Such a policy is called once, to learn its outputs: with the observations that begin the first episodes.
            first = first_observations(env, env_seeds(spec, spec.seed))
            env.spec, seeds = replace(env.spec, first=first), None
        device, is_trusted = torch.device(spec.policy_device), policies.is_trusted(spec.policy)
        self._actor = actor = policies.make_actor(policy, env.spec, device, self._exploration, is_trusted)
        env = with_recurrent_state(env, actor.states)
        rewards = (leaf.under("next") for leaf in env.spec.rewards)
        _check_leaves(spec, (*env.spec.observation, *actor.leaves, *rewards))
        self._weights = _Weights(link, _reader(actor, is_trainers), spec.first_version)
        policies.accelerate(actor, spec.policy)
        episodes = Episodes(first_env, spec.num_envs, total_envs, spec.life)
        self._rollout = rollout = rollout_class(env.spec)(
            env, actor, episodes, seeds, link.stop, spec.rollout, self._weights, _ends_early(spec, link)
        )
        slots = link.slots if spec.steps is None else [slot.until(spec.steps) for slot in link.slots]
        self._prepared = [rollout.prepare(slot) for slot in slots]
        frames = _Frames(slots)
        self._requests = RequestHandler(
            spec.index, group, is_plain and not actor.states, rollout, spec.hooks, frames, self._state_dict
        )
        # Called with the slot and the number of its steps, after each batch.
        self._after: list[Callable[[int, int], None]] = [self._requests.after]
        if spec.rollout.check_finite:
            policy_keys = {leaf.key for leaf in actor.leaves}
            check = FiniteCheck(env.spec, policy_keys, slots, spec.index, first_env, total_envs)
            self._after.insert(0, check)
        if (replay := spec.replay) is not None:
            self._after.append(lambda slot, steps: replay.extend(frames(slot, steps, keep_rows=True)))

    def _state_dict(self) -> dict[str, torch.Tensor]:
        """The newest weights by name, copied to the CPU."""
        self._weights()
        module = self._actor.module
        tensors = {} if module is None else module.state_dict()
        return {name: value.to("cpu", copy=True) for name, value in tensors.items()}

    def refresh(self) -> None:
        self._weights()

    def fill(self, slot: int, reset: int) -> BatchStats:
        with _installed(self._guest), policies.exploration(self._exploration):
            if reset != NO_RESET:
                _reset(self._spec, self._rollout, reset, self._guest is not None)
            self._requests.before()
            version = self._weights.version
            stats = self._rollout.collect(self._prepared[slot], version)
            for call in self._after:
                call(slot, stats.steps)
        return BatchStats(version, stats.env_s, stats.policy_s, *stats.episodes, stats.steps)

    def reply(self) -> None:
        with _installed(self._guest):
            self._requests.reply(cast(RequestLink, self._link))

    def close(self) -> None:
        self._rollout.close()


def _ends_early(spec: WorkerSpec, link: Link) -> EndsEarly | None:
    """Whether the batch ends early, called after every step; None: no batch does."""
    if not spec.rollout.may_end_early:
        return None
    preempted = link.preempted
    return spec.should_end or (lambda: preempted[0])


def _build_policy(spec: WorkerSpec, env_spec: EnvSpec, is_guest: bool) -> tuple[Callable | None, bool]:
    """The policy, and whether it is the trainer's object: a guest's is, unless it acts on another device."""
    if spec.keeps_weights:
        # Every life begins with the initial weights of the first one.
        seed_policy(replace(spec, life=0), is_guest)
    policy = policies.build(spec.policy, env_spec, spec.seed)
    is_trainers = is_guest and is_object(spec.policy)
    if is_trainers and not is_on_device(policy, torch.device(spec.policy_device)):
        policy, is_trainers = copy.deepcopy(policy), False
    if spec.keeps_weights:
        seed_policy(spec, is_guest)
    return policy, is_trainers


def _reader(actor: Actor, is_trainers: bool) -> Callable[[torch.Tensor], None]:
    """Returns a function that copies published weights into the actor.

    Args:
        is_trainers: the policy is the trainer's object. Its weights are left alone: those that were published may be
            older, and its tensors may be shared with other modules.
    """
    if is_trainers:
        return lambda buffer: None
    weights = FlatWeights(actor.module)
    weights.adopt()
    return weights.read


class _Weights:
    """A call takes the newest weights and returns their version."""

    def __init__(self, link: Link, read: Callable[[torch.Tensor], None], version: int):
        self._link = link
        self._read = read
        self.version = version

    def __call__(self) -> int:
        self.version = self._link.refresh(self._read, self.version)
        return self.version


class _Frames:
    """Slots as TensorDicts over their memory."""

    def __init__(self, slots: Sequence[Slot]):
        self._slots = slots
        self._batches: dict[int, TensorDict] = {}

    def __call__(self, index: int, steps: int, keep_rows: bool = False) -> TensorDict:
        """The first steps of a slot: `[rows, steps]`; `[steps]` for one row, unless `keep_rows`."""
        if index not in self._batches:
            tensors = self._slots[index].tensors
            self._batches[index] = to_tensordict(tensors, next(iter(tensors.values())).shape[:2])
        frames = self._batches[index]
        if steps < frames.shape[1]:
            frames = frames[:, :steps]
        return frames if keep_rows or frames.shape[0] > 1 else frames[0]


def _reset(spec: WorkerSpec, rollout: Rollout, reset: int, is_guest: bool) -> None:
    """Does the reset that came with a grant."""
    seeding = decode_reset(reset)
    if seeding is None:
        rollout.reset(None)
        return
    seed, static = seeding
    seed_policy(replace(spec, seed=seed), is_guest)
    rollout.reset([seed] * spec.num_envs if static else env_seeds(spec, seed))


def _check_leaves(spec: WorkerSpec, leaves: tuple[Leaf, ...]) -> None:
    expected = {leaf.key: leaf for leaf in spec.leaves}
    for leaf in leaves:
        if expected.get(leaf.key) != leaf:
            raise ShapeError(
                f"worker {spec.worker} writes {'.'.join(leaf.key)} as {_form(leaf)}, worker 0's env and the trainer's "
                f"policy write it as {_form(expected.get(leaf.key))}: every worker's env and policy must give the same "
                "keys, shapes and dtypes"
            )


def _form(leaf: Leaf | None) -> str:
    return "nothing" if leaf is None else f"{list(leaf.shape)} {leaf.dtype}"


class _RandomState:
    """The state of torch's generator for a worker in the trainer's process, while it is not running. Python's and
    numpy's are not saved: this package does not draw from them, and saving takes as long as several steps."""

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def swap(self) -> None:
        state, self._state = self._state, torch.get_rng_state()
        torch.set_rng_state(state)


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
