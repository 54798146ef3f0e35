"""The step loop: steps a group of E envs for T steps with a policy, and writes all values directly into the slot. It
writes an observation twice: as next.observation of its step, and as observation of the following step.

    step t:      observation --policy--> action --env--> next.observation, reward, terminated, truncated
    step t + 1:  observation = next.observation, or the first observation of a new episode if one ended

The envs are stepped by a generator, which yields where the policy has to act: `Rollout.collect` then calls the policy;
with central inference, the server does (`collectx/worker/inference/rollout.py`). There is a generator `steps` for each
kind of env group (`collectx.worker.rollout_source.rollout_class`):

    class          module       used for
    Rollout        loop.py      several envs, envs on a device, or a policy that writes an observation
    OneEnvRollout  loop.py      one env
    RaggedRollout  segments.py  envs that spend a step on a reset (`EnvSpec.ragged`)

Envs on a device (`EnvSpec.device`) take and return tensors, and the slot is on the same device. Within a batch, the
process queues work and never waits, so the report's times are those of the queueing. Once per batch, the process reads
a few numbers: whether all values are finite, and the returns of the episodes that ended. On a GPU, 64 or 4,096
pendulums reach 0.76 or 0.84 of the speed of a loop that stores nothing, and 0.05 or 0.08 bytes per frame are copied to
the CPU (docs/explanation/gpu.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch

from collectx import progress
from collectx.batch import DONE_KEYS, POLICY_VERSION, REWARD, TRAJ_IDS, Key, Leaf, Slot
from collectx.env.base import Env, EnvSpec, StepArrays, first_observations
from collectx.errors import DataError, NotRestorableError
from collectx.policy.base import Actor
from collectx.policy.random import RandomActor
from collectx.progress import STEPS
from collectx.random_state import HeldGenerators
from collectx.rollout.episodes import Episodes
from collectx.rollout.inference import RandomOutputs, make_inference, refreshing
from collectx.rollout.wrappers import OwnGeneratorsEnv, RolloutOptions, keep_options
from collectx.state import dumps, loads
from collectx.transport.base import SlotReport, Stop

# Returns whether to end the current batch early.
EndsEarly = Callable[[], bool | int]
# The arrays of a step, or tensors for a group on a device: `[E, *shape]` for each leaf.
Arrays = Sequence[Any]
# The policy's inputs, which are tensors, and its outputs.
PolicyArrays = tuple[Arrays, Arrays]


class RolloutStopped(Exception):
    """The trainer stopped the worker; the current slot is incomplete and must not be sent."""


def raise_at_step(error: DataError, step: int) -> NoReturn:
    """Raises `error`, whose message then begins with the step of the batch."""
    error.args = (f"in step {step} of the batch, {error}",)
    raise error


def _leaves(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.num_envs, spec.observation, spec.action, spec.next_only_leaves


class SlotViews:
    """Views of a slot with time first, `[T, E, *shape]` for each leaf: arrays, or tensors for a group on a device. They
    are made once per slot. `slot` is a slot in the transport's memory, `[E, T, *shape]` for each leaf. `actor_leaves`
    are the actor's outputs, action leaves first."""

    def __init__(self, slot: Slot, spec: EnvSpec, actor_leaves: Sequence[Leaf]):
        tensors = {key: tensor.transpose(0, 1) for key, tensor in slot.tensors.items()}
        self._seen = [tensors[leaf.key] for leaf in spec.observation]
        for leaf, tensor in zip(spec.observation, self._seen, strict=True):
            # If batches do not contain the next observation, one private step of memory is reused for all steps.
            tensors.setdefault(("next", *leaf.key), torch.zeros_like(tensor[0]).expand(tensor.shape))
        views: dict[Key, Any] = {key: spec.native(tensor) for key, tensor in tensors.items()}
        # The views of each step are kept for tensors, of which they cost more than of arrays.
        self._is_kept = spec.device is not None
        by_step: Callable[[Any], Any] = torch.Tensor.unbind if self._is_kept else lambda view: view
        self.traj_ids = views[TRAJ_IDS]
        self.policy_version = views[POLICY_VERSION]
        self.steps = len(self.traj_ids)
        self.terminated, self.truncated, self.done = (
            views["next", name][:, :, 0] for name in ("terminated", "truncated", "done")
        )
        # The flags at the root are false for every step, but the consumer of an earlier batch may have set them.
        self._cleared = [self.terminated, self.truncated, *(views[key] for key in DONE_KEYS)]
        self.observation = [by_step(views[leaf.key]) for leaf in spec.observation]
        self.next_observation = [by_step(views["next", *leaf.key]) for leaf in spec.observation]
        # The flags that `set_truncated` sets in the last frames.
        self.cuts = [self.truncated, self.done, *(self.next_observation[index] for index in spec.agents_cuts)]
        self._written = [by_step(views[leaf.key]) for leaf in actor_leaves]
        self.next_only: list[np.ndarray] = []
        if spec.next_only_leaves == (REWARD,):
            self.reward = views["next", "reward"][:, :, 0]
        else:
            self.reward = np.zeros((self.steps, spec.num_envs), np.float32)
            self.next_only = [views["next", *leaf.key] for leaf in spec.next_only_leaves]
        self._results = [by_step(view) for view in (self.reward, self.terminated, self.truncated)]
        self._all_frames = np.ones(spec.num_envs, dtype=np.bool_)

    def clear(self) -> None:
        """Sets all flags to false, before the first step."""
        for flag in self._cleared:
            flag[:] = False

    def step_arrays(self, carry: Arrays) -> Iterator[tuple[PolicyArrays, StepArrays, Arrays]]:
        """Returns an iterator over the steps: the policy's inputs and outputs; the arrays that the env writes; and the
        arrays for the observations before the next step, which are `carry` in the last step."""
        after, rewards = self._by_step(self.next_observation), self._by_step(self.next_only)
        outputs = map(StepArrays, after, *self._results, repeat(self._all_frames), rewards)
        following = chain(islice(self._by_step(self.observation), 1, None), (carry,))
        return zip(self.policy_arrays(), outputs, following, strict=True)

    def policy_arrays(self) -> Iterator[PolicyArrays]:
        """Returns an iterator over the steps: the policy's inputs, a tensor `[E, *shape]` per observation leaf; and the
        arrays that the policy writes."""
        seen = self.observation if self._is_kept else [tensor.unbind(0) for tensor in self._seen]
        return zip(self._by_step(seen), self._by_step(self._written), strict=True)

    def _by_step(self, leaves: Sequence[Any]) -> Iterator[Arrays]:
        """Returns an iterator over the steps, with the part of every leaf; empty tuples without leaves."""
        return zip(*leaves, strict=True) if leaves else repeat((), self.steps)


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
        self._inference = make_inference(actor, env.spec)
        self._random = RandomOutputs(env.spec, actor.leaves) if self._num_random else None
        self._episodes = episodes
        self._stop = stop
        self._options = options
        self._refresh = refresh if options.refresh_each_step else None
        self._ends_early = ends_early
        self._held: HeldGenerators | None = None
        first = env.spec.example_observation if seeds is None else first_observations(env, seeds)
        # The first observations of the next batch, in memory of their own, because the slot is sent before that batch.
        self._carry = tuple(
            env.spec.native(first[leaf.key].expand(env.spec.num_envs, *leaf.shape).clone())
            for leaf in env.spec.observation
        )

    def prepare(self, slot: Slot, index: int) -> Any:
        """Returns the views of the slot with this index for `collect`."""
        return SlotViews(slot, self._env.spec, self._actor.leaves)

    def collect(self, views: Any, policy_version: int) -> SlotReport:
        """Fills a slot with the next `T x E` frames, or with fewer if the batch ends early. Blocks until then.
        `policy_version` is the version of the current weights. Raises `RolloutStopped` if `stop` became nonzero, or
        `DataError` if an env or the policy returned a value that does not fit its spec; the message names the step."""
        views.policy_version[:] = policy_version
        num_steps, env_s, policy_s = self._act(self.steps(views), views.policy_version)
        if self._refresh is not None:
            policy_version = int(views.policy_version[0, 0])
        if num_steps < views.steps:
            for carry, arrays in zip(self._carry, views.observation, strict=True):
                carry[...] = arrays[num_steps]
        report = self.report(views, policy_version, num_steps, env_s, policy_s)
        # Only of complete batches, since an interrupted one is collected again.
        self._num_random -= self._num_random > 0
        return report

    def _act(self, steps: Iterable[PolicyArrays], versions: Iterable[Any]) -> tuple[int, float, float]:
        """Calls the policy in each step of `steps`, until the batch ends. Returns the number of steps, and the seconds
        that envs and policy took. With `refresh_each_step`, writes the policy version of each step into one of
        `versions`."""
        stop, ends_early, counts, infer = self._stop, self._ends_early, progress.counts, self._inference
        if self._random is not None and self._num_random:
            infer = make_inference(self._random, self._env.spec)
        if self._refresh is not None:
            infer = refreshing(infer, self._refresh, versions)
        env_s = policy_s = 0.0
        step = -1
        acted = perf_counter()
        try:
            with torch.inference_mode():
                for step, (seen, written) in enumerate(steps):
                    if ends_early is not None and step and ends_early():
                        step -= 1
                        break
                    counts[STEPS] = step
                    if stop[0]:
                        raise RolloutStopped
                    started = perf_counter()
                    infer(seen, written)
                    env_s += started - acted
                    acted = perf_counter()
                    policy_s += acted - started
        except DataError as error:
            raise_at_step(error, step)
        return step + 1, env_s + perf_counter() - acted, policy_s

    def steps(self, views: Any) -> Iterator[PolicyArrays]:
        """Steps the envs for a batch, and writes observations, rewards and ends. Yields, before each step, the
        observations of the policy and the arrays that it must have written when the generator continues. Leaves the
        observations after the last step in `_carry`. Iterate under `torch.inference_mode`."""
        env = self._own_env()
        num_actions, is_on_device = len(env.spec.action), env.spec.device is not None
        views.clear()
        for arrays, carry in zip(views.observation, self._carry, strict=True):
            arrays[0][...] = carry
        for step, (policy_arrays, out, following) in enumerate(views.step_arrays(self._carry)):
            yield policy_arrays
            any_ended = env.step(policy_arrays[1][:num_actions], out)
            if is_on_device:
                # Only the device knows which episodes have ended, so this writes the observations of all envs.
                env.reset_some(out.terminated, following)
                continue
            for array, final in zip(following, out.observation, strict=True):
                array[...] = final
            if any_ended:
                progress.stepped(step + 1)
                env.reset_some(out.terminated | out.truncated, following)

    def report(
        self, views: SlotViews, policy_version: int, num_steps: int, env_s: float, policy_s: float
    ) -> SlotReport:
        """Writes `done` and the trajectory ids of the first `num_steps` steps; returns the report about the batch."""
        started = perf_counter()
        ends = views.terminated[:num_steps] | views.truncated[:num_steps]
        views.done[:num_steps] = ends
        self.group.check_final()
        self._end_batch(ends, [flag[:num_steps] for flag in views.cuts])
        env_s += perf_counter() - started
        self._episodes.record(slice(None), views.reward[:num_steps], ends, views.traj_ids[:num_steps])
        return SlotReport(policy_version, num_steps * ends.shape[1], env_s, policy_s, *self._episodes.take())

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
        if self.group.unsaved is not None:
            return state | {"reason": self.group.unsaved}
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
        if self.group.unsaved is not None:
            return self.group.unsaved
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
        vars(self).update(loaded["own"])
        for actor, saved in zip(self._random_actors(), loaded["actors"], strict=True):
            vars(actor).update(vars(saved))
        return None

    def _graph(self) -> dict[str, Any]:
        """Returns the objects to save: those that change while the envs step."""
        return {"own": {name: vars(self)[name] for name in self._saved}, "actors": self._random_actors()}

    def _outside(self) -> list[Any]:
        """Returns objects to which envs may refer, but which are not part of their state."""
        return [] if self._actor.module is None else [*self._actor.module.modules()]

    def _random_actors(self) -> list[RandomActor]:
        actors = (self._actor, None if self._random is None else self._random.actor)
        return [actor for actor in actors if isinstance(actor, RandomActor)]

    def _end_batch(self, ends: Any, cuts: Sequence[Any]) -> None:
        """Applies `reset_at_each_iter`, which adds the last frames to `ends`, `[T, E]` bool, and `set_truncated`, which
        sets the last of the flags `cuts`, `[T, E, ...]`, but not of `ends`: these trajectories continue."""
        if self._options.reset_at_each_iter:
            unfinished = ~ends[-1]
            if unfinished.any():
                self._own_env().reset_some(unfinished, self._carry)
            ends[-1] = True
        if self._options.set_truncated:
            for flag in cuts:
                flag[-1] = True

    def close(self) -> None:
        self._env.close()


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

    def steps(self, views: SlotViews) -> Iterator[PolicyArrays]:
        env, carry, num_actions = self._own_env(), self._carry, len(self._env.spec.action)
        views.clear()
        next_only = [np.zeros_like(array[0]) for array in views.next_only]
        terminated, truncated = np.zeros((2, 1), np.bool_)
        out = StepArrays(carry, np.zeros(1, np.float32), terminated, truncated, np.ones(1, np.bool_), next_only)
        observed = [*zip(views.observation, carry, strict=True)]
        # Without the next observations that batches do not contain.
        stored = [pair for pair in zip(views.next_observation, carry, strict=True) if pair[0].strides[0]]
        results = [*stored, (views.reward, out.reward), *zip(views.next_only, next_only, strict=True)]
        for step, policy_arrays in enumerate(views.policy_arrays()):
            for array, value in observed:
                array[step] = value
            yield policy_arrays
            any_ended = env.step(policy_arrays[1][:num_actions], out)
            for array, value in results:
                array[step] = value
            if any_ended:
                views.terminated[step], views.truncated[step] = terminated, truncated
                progress.stepped(step + 1)
                env.reset_some(terminated | truncated, carry)
                terminated[0] = truncated[0] = False
