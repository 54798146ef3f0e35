"""Fills slots with rollouts: makes a worker's envs and policy, and steps the envs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from collectx import env as envs
from collectx import policy as policies
from collectx import progress
from collectx.batch import Leaf, PerSlot, Slot, nested_dims, to_tensordict
from collectx.config.problem import counted
from collectx.config.schema.env import EnvConfig, GymVectorEnvConfig
from collectx.env.base import Env, EnvSpec, first_observations
from collectx.errors import DataError
from collectx.fork_server.descendants import EnvProcesses
from collectx.fork_server.start import reuse_imports, warm_up
from collectx.policy.base import Actor
from collectx.policy.flat_weights import FlatWeights, is_on_device
from collectx.random_state import HeldGenerators
from collectx.rollout.episodes import Episodes
from collectx.rollout.finite import FiniteCheck
from collectx.rollout.loop import EndsEarly, OneEnvRollout, Rollout, RolloutStopped
from collectx.rollout.segments import RaggedRollout
from collectx.rollout.wrappers import RecurrentStateEnv, wrapped
from collectx.transport.base import Fill, Link, Request, Reset, SlotReport, SlotSpec
from collectx.transport.shared_memory import SharedMemoryLink
from collectx.user_objects import is_object
from collectx.worker.batch_hooks import BatchHooks
from collectx.worker.inference.rollout import ServedActor, ServedRollout
from collectx.worker.requests import ProcessGenerators, RequestHandler
from collectx.worker.spec import ProcessSpec, env_seeds, seed_policy

if TYPE_CHECKING:
    from tensordict import TensorDict


def rollout_class(spec: EnvSpec, actor: Actor) -> type[Rollout]:
    if spec.ragged:
        return RaggedRollout
    observed = {leaf for each in spec.observation for leaf in (each, each.under("next"))}
    writes_observation = not observed.isdisjoint(actor.leaves)
    return Rollout if spec.num_envs > 1 or spec.device is not None or writes_observation else OneEnvRollout


class RolloutSource:
    """Fills slots with rollouts of one env group; see `collectx.worker.slot_loop.BatchSource`. `is_inline` says whether
    the worker runs in the trainer's process. It then uses its own states of the global generators, so that it collects
    the same batches as in a process, and leaves the trainer's states unchanged."""

    def __init__(self, spec: ProcessSpec, link: Link, is_inline: bool):
        self._spec = spec
        self._link = link
        self._is_inline = is_inline
        self._actor: Actor
        self._rollout: Rollout | ServedRollout
        self._prepared: PerSlot[Any]
        self._exploration = policies.ExplorationType(spec.cfg.collector.exploration_type)
        if is_inline and torch.device(spec.policy_device or "cpu").type == "cuda":
            torch.cuda.init()  # so that the states of its generators are held too
        self._own_generators: Callable[[], AbstractContextManager[None]] = (
            HeldGenerators().in_use if is_inline else nullcontext
        )
        self._env_processes = EnvProcesses()
        try:
            with self._env_processes.running(), self._own_generators():
                self._build()
        except BaseException:
            self._env_processes.end()
            raise

    def _build(self) -> None:
        spec, link = self._spec, self._link
        cfg, placement, options = spec.cfg, spec.placement, spec.rollout
        self._generators = ProcessGenerators(cfg.seed, placement)
        first_env, total_envs = placement.run_index * spec.num_envs, spec.num_envs * placement.num_workers
        if spec.hooks.init_fn is not None:
            spec.hooks.init_fn()
            self._generators.trust()
        self._version = spec.first_version
        self._read: Callable[[torch.Tensor], None] = lambda buffer: None
        # Inline only: reads the weights again that the trainer changed in place.
        self._follow: Callable[[], None] = lambda: None
        if spec.served is None:
            self._build_rollout(first_env, total_envs)
        else:
            self._build_served_rollout(spec.served, first_env, total_envs)
        self._generators.after_reset(self._rollout)
        actor, env_spec = self._actor, self._env_spec
        slots = PerSlot(self._slot)
        self._prepared = PerSlot(lambda index: self._rollout.prepare(slots[index], index))
        _ = self._prepared[0]  # so that envs and policies that do not fit the slots fail now
        batches = _Batches(slots, self._group_spec, link.slot_spec.leaves)
        self._hooks = BatchHooks(placement.run_index, spec.hooks, batches)
        self._requests = RequestHandler(self._generators, self._rollout, self._hooks, self._state_dict, self._is_inline)
        self._check: FiniteCheck | None = None
        if options.check_finite:
            policy_keys = {leaf.key for leaf in actor.leaves}
            self._check = FiniteCheck(env_spec, policy_keys, slots, placement.run_index, first_env, total_envs)

    def _slot(self, index: int) -> Slot:
        slot, steps = self._link.slots[index], self._spec.steps
        return slot if steps is None else slot.until(steps)

    def _build_rollout(self, first_env: int, total_envs: int) -> None:
        spec, link, is_inline = self._spec, self._link, self._is_inline
        cfg, placement, options = spec.cfg, spec.placement, spec.rollout
        group = self._build_envs(cfg.env, first_env, spec.num_envs)
        policy, shares_policy = _build_policy(spec, group.spec, is_inline)
        env = wrapped(group, options)
        seeds: Sequence[int] | None = env_seeds(spec, cfg.seed)
        if policies.is_user_policy(cfg.policy):
            # A user policy is called once to learn its outputs, with the observations that begin the first episodes.
            first = first_observations(env, env_seeds(spec, cfg.seed))
            env.spec, seeds = replace(env.spec, example_observation=first), None
        actor, env.spec = policies.configured_actor(cfg, policy, env.spec, torch.device(spec.policy_device or "cpu"))
        self._actor = actor
        if actor.states:
            env = RecurrentStateEnv(env, actor.states)
        self._take_specs(group.spec, env.spec)
        # Published weights are not copied into the trainer's own object: they may be older, and the object may share
        # tensors with other modules.
        if not shares_policy:
            weights = FlatWeights(actor.module)
            weights.adopt()
            self._read = weights.read
        policies.accelerate(actor, cfg.policy)
        if shares_policy:
            from collectx.policy.user_actor import UserActor

            if isinstance(actor, UserActor):
                self._follow = actor.follow
        episodes = Episodes(first_env, spec.num_envs, total_envs, placement.incarnation, env.spec.device)
        ends_early: EndsEarly | None = None
        if options.may_end_early:
            preempted = link.preempted
            ends_early = spec.should_end or (lambda: preempted[0])
        self._rollout = rollout_class(env.spec, actor)(
            env, actor, episodes, seeds, link.stop, options, self.refresh, ends_early
        )

    def _build_served_rollout(self, actor: ServedActor, first_env: int, total_envs: int) -> None:
        """Makes the envs, in groups that take turns at the inference server."""
        spec, link = self._spec, self._link
        cfg, incarnation, options = spec.cfg, spec.placement.incarnation, spec.rollout
        assert isinstance(link, SharedMemoryLink)
        self._actor, seeds, groups = actor, env_seeds(spec, cfg.seed), []
        for rows in spec.groups:
            num_envs = rows.stop - rows.start
            share = cfg.env if num_envs == spec.num_envs else replace(cfg.env, num_envs=num_envs)
            group = self._build_envs(share, first_env + rows.start, num_envs)
            env = wrapped(group, options)
            if actor.states:
                env = RecurrentStateEnv(env, actor.states)
            self._take_specs(*(replace(each.spec, num_envs=spec.num_envs) for each in (group, env)))
            episodes = Episodes(first_env + rows.start, num_envs, total_envs, incarnation)
            groups.append((Rollout(env, actor, episodes, seeds[rows], link.stop, options), rows))
        self._rollout = ServedRollout(groups, link.stop, link.connect_inference(), lambda: link.pointer)

    def _build_envs(self, cfg: EnvConfig, first_env: int, num_envs: int) -> Env:
        if not self._is_inline and isinstance(cfg, GymVectorEnvConfig) and cfg.vectorization_mode == "async":
            # Forks the env's processes with the imports of this worker, unless a library has started a thread.
            reuse_imports()
            warm_up()
        placement = self._spec.placement
        first_row = first_env - placement.run_index * self._spec.num_envs
        group = envs.build(cfg, first_env, placement.incarnation, placement.numbers.of(first_row))
        progress.one_more()
        if group.spec.num_envs != num_envs:
            raise DataError(
                f"worker {self._spec.worker} made {counted(group.spec.num_envs, 'env')}, but worker 0 made {num_envs}. "
                "Make the same number of envs in each worker."
            )
        return group

    def _take_specs(self, group: EnvSpec, env: EnvSpec) -> None:
        """Stores the specs of the envs without and with wrappers. Raises `DataError` if they do not fit the slots."""
        self._group_spec, self._env_spec = group, env
        next_only = (leaf.under("next") for leaf in env.next_only_leaves)
        _check_leaves(self._spec.worker, self._link.slot_spec, (*env.observation, *self._actor.leaves, *next_only))

    def _state_dict(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the newest weights by name, on the CPU."""
        self.refresh()
        module = self._actor.module
        tensors = {} if module is None else module.state_dict()
        return {name: value.to("cpu", copy=True) for name, value in tensors.items()}

    def refresh(self) -> int:
        self._version = self._link.refresh(self._read, self._version)
        return self._version

    def fill(self, grant: Fill) -> SlotReport:
        slot = grant.slot
        with self._env_processes.running(), self._own_generators(), policies.exploration(self._exploration):
            if grant.reset is not None:
                self._reset(grant.reset)
            self._hooks.before_batch()
            self._follow()
            try:
                report = self._rollout.collect(self._prepared[slot], self._version)
            except Exception as error:
                if self._check is not None and not isinstance(error, RolloutStopped):
                    self._check.explain(slot, error)
                raise
            report.metrics = self._rollout.take_metrics()
            steps = report.frames // self._spec.num_envs
            if self._check is not None:
                self._check(slot, steps)
            report.added = self._hooks.after_batch(slot, steps)
            self._generators.after_batch(self._rollout)
        return report

    def _reset(self, reset: Reset) -> None:
        seed = reset.seed
        if seed is None:
            self._rollout.reset(None)
            return
        self._generators.reseed(seed)
        self._rollout.reset([seed] * self._spec.num_envs if reset.static else env_seeds(self._spec, seed))
        self._generators.after_reset(self._rollout)

    def reply(self, request: Request) -> None:
        with self._env_processes.running(), self._own_generators():
            self._requests.reply(self._link, request)

    def close(self) -> None:
        try:
            self._rollout.close()
        finally:
            self._env_processes.end()


def _build_policy(spec: ProcessSpec, env_spec: EnvSpec, is_inline: bool) -> tuple[Callable | None, bool]:
    """Returns the policy, and whether it is the trainer's own object. An inline worker uses that object, unless its
    policy acts on another device."""
    cfg = spec.cfg
    if spec.keeps_weights:
        # Every incarnation begins with the initial weights of the first one.
        seed_policy(cfg.seed, replace(spec.placement, incarnation=0))
    policy = policies.build(cfg.policy, env_spec, cfg.seed)
    shares_policy = is_inline and is_object(cfg.policy)
    if shares_policy and not is_on_device(policy, torch.device(spec.policy_device or "cpu")):
        policy, shares_policy = copy.deepcopy(policy), False
    if spec.keeps_weights:
        seed_policy(cfg.seed, spec.placement)
    return policy, shares_policy


class _Batches:
    """Returns slots as TensorDicts that share their memory, `[*envs, steps]`; `[steps]` for a single env."""

    def __init__(self, slots: Mapping[int, Slot], spec: EnvSpec, leaves: Collection[Leaf]):
        self._slots = slots
        self._envs = spec.policy_shape
        self._nested_dims = nested_dims(spec.nested_dims, leaves)
        self._batches = PerSlot(self._make)

    def __call__(self, index: int, steps: int) -> TensorDict:
        """Returns the first `steps` steps of a slot."""
        batch = self._batches[index]
        return batch[..., :steps] if steps < batch.shape[-1] else batch

    def _make(self, index: int) -> TensorDict:
        tensors = self._slots[index].tensors
        views = {key: tensor.view(*self._envs, *tensor.shape[1:]) for key, tensor in tensors.items()}
        size = next(iter(views.values())).shape[: len(self._envs) + 1]
        return to_tensordict(views, size, dims=self._nested_dims)


def _check_leaves(worker: int, slot_spec: SlotSpec, leaves: tuple[Leaf, ...]) -> None:
    """Raises `DataError` unless the slots contain these leaves, which the worker writes."""
    expected = {leaf.key: leaf for leaf in slot_spec.leaves}
    for leaf in leaves:
        if (other := expected.get(leaf.key)) != leaf:
            theirs = "do not write it" if other is None else f"write it with {_form(other)}"
            raise DataError(
                f"worker {worker} writes {'.'.join(leaf.key)!r} with {_form(leaf)}, but the trainer's env and policy "
                f"{theirs}. Use envs and policies with the same keys, shapes and dtypes in all workers."
            )


def _form(leaf: Leaf) -> str:
    return f"shape {list(leaf.shape)}, {leaf.dtype}"
