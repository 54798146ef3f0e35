"""The step loop: steps a group of E envs for T steps with a policy, and writes all values directly into the slot. It
writes an observation twice: as next.observation of its step, and as observation of the following step.

    step t:      observation --policy--> action --env--> next.observation, reward, terminated, truncated
    step t + 1:  observation = next.observation, or the first observation of a new episode if one ended

There is a step loop for each kind of env group (`collectx.worker.rollout_source.rollout_class`):

    class          module       used for
    Rollout        loop.py      several envs, or a policy that writes an observation
    OneEnvRollout  loop.py      one env
    RaggedRollout  segments.py  envs that spend a step on a reset (`EnvSpec.ragged`)
    TensorRollout  tensors.py   envs that return tensors (`EnvSpec.device`)

With central inference, `ServedGroup` (`collectx/worker/inference/rollout.py`) steps the envs, and the server calls the
policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from collectx import progress
from collectx.batch import DONE_KEYS, POLICY_VERSION, REWARD, TRAJ_IDS, Leaf, Slot, as_array
from collectx.env.base import Env, EnvSpec, StepArrays, first_observations
from collectx.errors import NotRestorableError, ShapeError
from collectx.policy.base import Actor
from collectx.policy.random import RandomActor
from collectx.progress import STEPS
from collectx.random_state import HeldGenerators
from collectx.rollout.episodes import Episodes
from collectx.rollout.inference import Inference, RandomInference, make_inference, refreshing
from collectx.rollout.wrappers import OwnGeneratorsEnv, RolloutOptions, keep_options
from collectx.state import dumps, loads
from collectx.transport.base import SlotReport, Stop

# Returns whether to end the current batch early.
EndsEarly = Callable[[], bool | int]
# The policy's inputs and outputs in a step: `[E, *shape]` for each leaf.
PolicyInput = tuple[torch.Tensor, ...]
PolicyOutput = tuple[np.ndarray, ...]


class RolloutStopped(Exception):
    """The trainer stopped the worker; the current slot is incomplete and must not be sent."""


def raise_at_step(error: ShapeError, step: int) -> NoReturn:
    """Raises `error`, whose message then begins with the step of the batch."""
    error.args = (f"in step {step} of the batch, {error}",)
    raise error


def _leaves(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.num_envs, spec.observation, spec.action, spec.next_only_leaves


class SlotViews:
    """Views of a slot with time first, `[T, E, *shape]` for each leaf. They are made once per slot. `slot` is a slot in
    the transport's memory, `[E, T, *shape]` for each leaf. `actor_leaves` are the actor's outputs, action leaves
    first."""

    def __init__(self, slot: Slot, spec: EnvSpec, actor_leaves: Sequence[Leaf]):
        arrays = {key: array.swapaxes(0, 1) for key, array in slot.arrays().items()}
        self.traj_ids = arrays[TRAJ_IDS]
        self.policy_version = arrays[POLICY_VERSION]
        self.steps = len(self.traj_ids)
        self.terminated, self.truncated, self.done = (
            arrays["next", name][:, :, 0] for name in ("terminated", "truncated", "done")
        )
        self.observation = [arrays[leaf.key] for leaf in spec.observation]
        # The flags at the root are false for every step, but the consumer of an earlier batch may have set them.
        self.cleared = [self.terminated, self.truncated, *(arrays[key] for key in DONE_KEYS)]
        # If batches do not contain the next observation, private memory of one step.
        self.next_observation = [
            arrays[key] if (key := ("next", *leaf.key)) in arrays else _one_step(arrays[leaf.key])
            for leaf in spec.observation
        ]
        # The flags that `set_truncated` sets in the last frames.
        self.cuts = [self.truncated, self.done, *(self.next_observation[index] for index in spec.agents_cuts)]
        self._actor = [arrays[leaf.key] for leaf in actor_leaves]
        self.next_only: list[np.ndarray] = []
        if spec.next_only_leaves == (REWARD,):
            self.reward = arrays["next", "reward"][:, :, 0]
        else:
            self.reward = np.zeros((self.steps, spec.num_envs), np.float32)
            self.next_only = [arrays["next", *leaf.key] for leaf in spec.next_only_leaves]
        self._policy_input = [slot.tensors[leaf.key].transpose(0, 1) for leaf in spec.observation]
        self._all_frames = np.ones(spec.num_envs, dtype=np.bool_)

    def clear(self) -> None:
        """Sets all flags to false, before the first step."""
        for flag in self.cleared:
            flag[:] = False

    def step_arrays(self) -> Iterator[tuple[PolicyInput, PolicyOutput, StepArrays]]:
        """Returns an iterator over the steps: the policy's input, a tensor `[E, *shape]` per observation leaf; the
        arrays that the policy writes; and the arrays that the env writes."""
        rewards = self.by_step(self.next_only)
        outputs = map(
            StepArrays,
            self.by_step(self.next_observation),
            self.reward,
            self.terminated,
            self.truncated,
            repeat(self._all_frames),
            rewards,
        )
        return zip(*self.policy_arrays(), outputs, strict=True)

    def policy_arrays(self) -> tuple[Iterator[PolicyInput], Iterator[PolicyOutput]]:
        """Returns two iterators over the steps, with the policy's input tensors and its output arrays; see
        `step_arrays`."""
        return self.by_step([tensor.unbind(0) for tensor in self._policy_input]), zip(*self._actor, strict=True)

    def by_step(self, leaves: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Returns an iterator over the steps, with the part of every leaf; empty tuples without leaves."""
        return zip(*leaves, strict=True) if leaves else repeat((), self.steps)


def _one_step(array: np.ndarray) -> np.ndarray:
    """Returns memory for one step that stands for every step of `array`, `[T, E, *shape]`."""
    step = np.zeros_like(array[0])
    return as_strided(step, array.shape, (0, *step.strides))


class Rollout:
    """Fills slots: steps an env group with a policy, and keeps the state of its episodes between batches.

    Args:
        seeds: one seed per env, with which the constructor resets the group. None: the group was already reset, and
            `env.spec.example_observation` contains its first observations.
        stop: ends the loop between two steps; see `Stop`.
        refresh: loads newer weights, if any, and returns the current version; called before every step with
            `options.refresh_each_step`.
        ends_early: called after every step but the last; if it returns true, the batch ends. None for a ragged group.
    """

    # The attributes that `state` saves.
    _saved: tuple[str, ...] = ("_env", "_carry")

    def __init__(
        self,
        env: Env,
        actor: Actor,
        episodes: Episodes,
        seeds: Sequence[int] | None,
        stop: Stop,
        options: RolloutOptions,
        refresh: Callable[[], int] | None = None,
        ends_early: EndsEarly | None = None,
    ):
        self._env = env
        self._actor = actor
        self._num_random = options.num_random_batches
        self._inference, self._random = self._make_inference()
        self._episodes = episodes
        self._stop = stop
        self._options = options
        self._refresh = refresh if options.refresh_each_step else None
        self._ends_early = ends_early
        self._held: HeldGenerators | None = None
        first = env.spec.example_observation if seeds is None else first_observations(env, seeds)
        # The first observations of the next batch, in memory of their own, because the slot is sent before that batch.
        self._carry = tuple(
            self._own(first[leaf.key].expand(env.spec.num_envs, *leaf.shape)) for leaf in env.spec.observation
        )

    def _make_inference(self) -> tuple[Inference, RandomInference | None]:
        """Returns the inference with the policy, and the one with random actions for the first batches, if any."""
        spec = self._env.spec
        random = RandomInference(spec, self._actor.leaves) if self._num_random else None
        return make_inference(self._actor, spec), random

    def _own(self, observation: torch.Tensor) -> Any:
        """Returns a copy of a first observation, as the array into which envs write later ones."""
        return as_array(observation.clone())

    def prepare(self, slot: Slot, index: int) -> SlotViews:
        """Returns the views of the slot with this index for `collect`."""
        return SlotViews(slot, self._env.spec, self._actor.leaves)

    def collect(self, views: SlotViews, policy_version: int) -> SlotReport:
        """Fills a slot with the next `T x E` frames, or with fewer if the batch ends early. Blocks until then.
        `policy_version` is the version of the current weights. Raises `RolloutStopped` if `stop` became nonzero, or
        `ShapeError` if an env or the policy returned a value that does not fit its spec; the message names the step."""
        infer = self._next_inference()
        views.policy_version[:] = policy_version
        if self._refresh is not None:
            infer = refreshing(infer, self._refresh, views.policy_version)
        views.clear()
        results = self._step_envs(views, infer)
        if self._refresh is not None:
            policy_version = int(views.policy_version.reshape(-1)[0])
        report = self._report(views, policy_version, *results)
        self._count_random()
        return report

    def _report(
        self, views: SlotViews, policy_version: int, num_steps: int, env_s: float, policy_s: float
    ) -> SlotReport:
        """Writes `done` and the trajectory ids of the first `num_steps` steps; returns the report about the batch."""
        terminated, truncated, done = (flag[:num_steps] for flag in (views.terminated, views.truncated, views.done))
        np.logical_or(terminated, truncated, out=done)
        started = perf_counter()
        ends = self._end_batch(done, [flag[:num_steps] for flag in views.cuts])
        env_s += perf_counter() - started
        self._episodes.record(slice(None), views.reward[:num_steps], ends, views.traj_ids[:num_steps])
        return SlotReport(policy_version, done.size, env_s, policy_s, *self._episodes.take())

    def _observations_by_step(self, views: SlotViews) -> list[Sequence[np.ndarray]]:
        """Writes the observations before the first step. Returns the arrays for the observations before each step; the
        last entry is for the observations after the last step."""
        for array, carry in zip(views.observation, self._carry, strict=True):
            array[0] = carry
        return [*views.by_step(views.observation), self._carry]

    def _step_envs(self, views: SlotViews, infer: Inference) -> tuple[int, float, float]:
        """Steps the envs for a batch, and writes observations, policy outputs, rewards and ends. Returns the number of
        steps, and the seconds that envs and policy took. Leaves the observations after the last step in `_carry`."""
        env, stop, ends_early = self._own_env(), self._stop, self._ends_early
        counts, num_actions = progress.counts, len(env.spec.action)
        observations = self._observations_by_step(views)
        env_s = policy_s = 0.0
        last = views.steps - 1
        try:
            with torch.inference_mode():
                for step, (seen, written, out) in enumerate(views.step_arrays()):
                    following = observations[step + 1]
                    counts[STEPS] = step
                    if stop[0]:
                        raise RolloutStopped
                    started = perf_counter()
                    infer(seen, written)
                    acted = perf_counter()
                    any_ended = env.step(written[:num_actions], out)
                    for array, final in zip(following, out.observation, strict=True):
                        array[...] = final
                    if any_ended:
                        progress.stepped(step + 1)
                        env.reset_some(out.terminated | out.truncated, following)
                    env_s += perf_counter() - acted
                    policy_s += acted - started
                    if ends_early is not None and step < last and ends_early():
                        break
        except ShapeError as error:
            raise_at_step(error, step)
        if step < last:
            for carry, array in zip(self._carry, observations[step + 1], strict=True):
                carry[...] = array
        return step + 1, env_s, policy_s

    def reset(self, seeds: Sequence[int] | None) -> None:
        """Begins new trajectories in all envs, with a seed per env. None: with the envs' current random states."""
        self._actor.reset()
        if self._random is not None:
            self._random.reset()
        self._own_env().reset(seeds, self._carry)
        progress.one_more()
        self._episodes.abandon()

    def reset_some(self, chosen: np.ndarray) -> None:
        """Begins new trajectories in the chosen envs, `[E]` bool. The group must have `can_reset_early`."""
        self._own_env().reset_some(chosen, self._carry)
        self._episodes.abandon(chosen)

    def hold(self, held: HeldGenerators) -> None:
        """Uses the generators of `held` in all later calls of the envs."""
        self._held = held

    def _own_env(self) -> Env:
        """Returns the envs to call, which use their own generators if they have any."""
        return self._env if self._held is None else OwnGeneratorsEnv(self._env, self._held)

    @property
    def acts_randomly(self) -> bool:
        """Whether the actions of the next batch are random."""
        return self._num_random > 0

    def take_metrics(self) -> np.ndarray:
        """Returns the sums of `env.metrics` since the last call; see `InfoMetrics.take`."""
        metrics = self.group.metrics
        return np.zeros((2, 0)) if metrics is None else metrics.take()

    @property
    def group(self) -> Env:
        """The envs without wrappers: those that were built, or those of a state that `load` restored."""
        return self._env.group

    @property
    def groups(self) -> list[Env]:
        """All env groups of the worker; more than one only with central inference."""
        return [self.group]

    def state(self) -> dict[str, Any]:
        """Returns a copy of the state for `load`: tensors, plain data, and a pickle of the envs (`collectx.state`). If
        the envs cannot be saved, the entry "reason" says why."""
        state: dict[str, Any] = {"episodes": self._episodes.state(), "num_random_batches": self._num_random}
        try:
            state["envs"] = dumps(self._graph(), "the group of envs", self._outside())
        except NotRestorableError as error:
            state["reason"] = str(error)
        return state

    def load(self, state: dict[str, Any]) -> str | None:
        """Restores a result of `state`; unpickling executes code. Returns None; or the reason if only trajectory ids
        continue, because the envs were not saved or are different. Then call `reset`."""
        self._episodes.load(state["episodes"])
        self._num_random = min(self._num_random, state["num_random_batches"])
        if "envs" not in state:
            return state["reason"]
        try:
            loaded = loads(state["envs"], self._graph(), "the group of envs", self._outside())
            if _leaves(loaded["own"]["_env"].spec) != _leaves(self._env.spec):
                raise NotRestorableError(
                    "the group of envs cannot be restored, because the saved envs return other keys, shapes or dtypes"
                )
            keep_options(loaded["own"]["_env"], self._env)
        except NotRestorableError as error:
            return str(error)
        # Does not close the replaced envs: picklable envs own no process, file or thread, and old and new envs may
        # share objects.
        self._take(loaded["own"])
        for actor, saved in zip(self._random_actors(), loaded["actors"], strict=True):
            vars(actor).update(vars(saved))
        return None

    def _graph(self) -> dict[str, Any]:
        """Returns the objects to save: those that change while the envs step."""
        return {"own": {name: vars(self)[name] for name in self._saved}, "actors": self._random_actors()}

    def _take(self, attributes: dict[str, Any]) -> None:
        """Sets the attributes of `_saved`."""
        vars(self).update(attributes)

    def _outside(self) -> list[Any]:
        """Returns objects to which envs may refer, but which are not part of their state."""
        return [] if self._actor.module is None else [*self._actor.module.modules()]

    def _random_actors(self) -> list[RandomActor]:
        actors = (self._actor, None if self._random is None else self._random.actor)
        return [actor for actor in actors if isinstance(actor, RandomActor)]

    def _next_inference(self) -> Inference:
        return self._random if self._num_random and self._random is not None else self._inference

    def _count_random(self) -> None:
        """Counts a complete batch with random actions. An interrupted batch is not counted, as it is collected
        again."""
        self._num_random -= self._num_random > 0

    def _end_batch(self, done: np.ndarray, cuts: Sequence[np.ndarray]) -> np.ndarray:
        """Applies `reset_at_each_iter` and `set_truncated`, which sets the flags `cuts`, `[T, E, ...]`, including
        `done`. Returns the frames in which trajectories end, `[T, E]` bool. The last frames are not among them if only
        `set_truncated` marks them as done: the trajectory continues."""
        options = self._options
        if not (options.reset_at_each_iter or options.set_truncated):
            return done
        ends = done.copy()
        if options.reset_at_each_iter:
            unfinished = ~done[-1]
            if unfinished.any():
                self._own_env().reset_some(unfinished, self._carry)
            ends[-1] = True
        if options.set_truncated:
            for flag in cuts:
                flag[-1] = True
        return ends

    def close(self) -> None:
        self._env.close()


def is_possible(spec: EnvSpec, actor_leaves: Sequence[Leaf]) -> bool:
    """Whether `OneEnvRollout` can be used: for one env, and a policy that writes no observation."""
    observed = {leaf for each in spec.observation for leaf in (each, each.under("next"))}
    return spec.num_envs == 1 and observed.isdisjoint(actor_leaves)


class OneEnvRollout(Rollout):
    """A rollout of one env, which gives the same batches as `Rollout`.

    The env writes into the same small arrays in every step, which are then copied into the slot: making views of the
    slot for each step, as for several envs, would take longer than the copies.

        carry --> observation[t] --policy--> action[t] --env--> carry, reward, terminated, truncated
                                                                  |      |
                                                                  v      v
                                                    next.observation[t], next.reward[t], ...

    The policy reads and writes the slot directly, because policy and env may keep an observation or an action for the
    next step.

    With one CartPole-v1 and an MLP, this loop reaches 0.87 of the speed of the bare loop, and the loop for several envs
    0.75; with random actions, 0.75 and 0.57 (processor time, the loops in turn).
    """

    def _step_envs(self, views: SlotViews, infer: Inference) -> tuple[int, float, float]:
        env, stop, ends_early, carry = self._own_env(), self._stop, self._ends_early, self._carry
        counts, num_actions = progress.counts, len(env.spec.action)
        next_only = [np.zeros_like(array[0]) for array in views.next_only]
        terminated, truncated = np.zeros((2, 1), np.bool_)
        out = StepArrays(carry, np.zeros(1, np.float32), terminated, truncated, np.ones(1, np.bool_), next_only)
        observed = [*zip(views.observation, carry, strict=True)]
        # Without the next observations that batches do not contain.
        stored = [pair for pair in zip(views.next_observation, carry, strict=True) if pair[0].strides[0]]
        results = [*stored, (views.reward, out.reward)]
        results += zip(views.next_only, next_only, strict=True)
        env_s = policy_s = 0.0
        last = views.steps - 1
        try:
            with torch.inference_mode():
                for step, (seen, written) in enumerate(zip(*views.policy_arrays(), strict=True)):
                    counts[STEPS] = step
                    if stop[0]:
                        raise RolloutStopped
                    started = perf_counter()
                    for array, value in observed:
                        array[step] = value
                    infer(seen, written)
                    acted = perf_counter()
                    any_ended = env.step(written[:num_actions], out)
                    for array, value in results:
                        array[step] = value
                    if any_ended:
                        views.terminated[step], views.truncated[step] = terminated, truncated
                        progress.stepped(step + 1)
                        env.reset_some(terminated | truncated, carry)
                        terminated[0] = truncated[0] = False
                    env_s += perf_counter() - acted
                    policy_s += acted - started
                    if ends_early is not None and step < last and ends_early():
                        break
        except ShapeError as error:
            raise_at_step(error, step)
        return step + 1, env_s, policy_s
