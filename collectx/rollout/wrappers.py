"""Wrappers of env groups: a time limit and the state of a recurrent policy, which add observation leaves, and separate
generators for envs that seed the global ones. To a step loop, a wrapped group is an env group
(`collectx.env.base.Env`).

`RolloutOptions` are the collector options about frames and trajectories, as plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from collectx.batch import STEP_COUNT, Leaf, as_array
from collectx.config.derived import frames_per_part, num_workers_of
from collectx.config.schema.collector import CollectorConfig
from collectx.env.base import Env, EnvSpec, StepArrays
from collectx.env.spaces import numpy_dtype
from collectx.errors import DataError, NotRestorableError
from collectx.policy.recurrent import StateSpec, spec_with_states
from collectx.random_state import HeldGenerators

# The leaf of TorchRL's StepCounter.
_STEP_COUNT = Leaf(STEP_COUNT, (1,), torch.int64)


@dataclasses.dataclass(frozen=True)
class RolloutOptions:
    """How batches and trajectories begin and end.

    Attributes:
        check_finite: whether NaN and infinities raise an error (`collectx/rollout/finite.py`).
        max_frames_per_traj: number of frames after which a trajectory is truncated; None: never.
        num_random_batches: number of batches at the beginning whose actions are random.
        reset_at_each_iter: whether every batch begins with new trajectories in all envs.
        set_truncated: whether the last frame of every row of a batch is marked truncated and done, in all agent groups.
        refresh_each_step: whether newer weights are loaded before every step, not only between batches.
        may_end_early: whether a batch may contain fewer frames than its slot.
    """

    check_finite: bool
    max_frames_per_traj: int | None = None
    num_random_batches: int = 0
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    refresh_each_step: bool = False
    may_end_early: bool = False

    @classmethod
    def of(cls, options: CollectorConfig, incarnation: int = 0, has_interruptor: bool = False) -> RolloutOptions:
        """Returns the options of a worker process. Only incarnation 0 takes `init_random_frames`, so replacements take
        no random actions."""
        frames = num_workers_of(options) * frames_per_part(options)
        num_random_batches = -(-(options.init_random_frames or 0) // frames)
        return cls(
            check_finite=options.check_finite,
            max_frames_per_traj=options.max_frames_per_traj,
            num_random_batches=0 if incarnation else num_random_batches,
            reset_at_each_iter=options.reset_at_each_iter,
            set_truncated=options.set_truncated,
            refresh_each_step=options.refresh == "step",
            may_end_early=has_interruptor or options.preemptive_threshold is not None,
        )

    def env_spec(self, spec: EnvSpec) -> EnvSpec:
        """Returns the spec of the rollout's env, from the `spec` of the group without wrappers. With
        `max_frames_per_traj`, the last observation leaf is `("step_count",)`, `[1]` int64."""
        if self.max_frames_per_traj is None:
            return spec
        return dataclasses.replace(spec, observation=(*spec.observation, _STEP_COUNT))


def wrapped(env: Env, options: RolloutOptions) -> Env:
    """Returns `env` with the wrappers that `options` require. Raises `DataError` if only the envs of other workers
    support the options, see `collectx.rules.fits`."""
    spec = options.env_spec(env.spec)
    needs_resets = options.max_frames_per_traj is not None or options.reset_at_each_iter
    if (needs_resets and not spec.can_reset_early) or (options.may_end_early and spec.ragged):
        raise DataError(
            "the envs of this worker reset themselves, but the envs of other workers do not. Make all envs with the "
            "same autoreset_mode."
        )
    return env if options.max_frames_per_traj is None else TimeLimitEnv(env, spec, options.max_frames_per_traj)


def keep_options(loaded: Env, current: Env) -> None:
    """Copies the options of the current wrappers into wrappers that a state contained. Raises `NotRestorableError` if
    the loaded envs have different wrappers."""
    while isinstance(loaded, _Wrapper) and isinstance(current, _Wrapper) and type(loaded) is type(current):
        vars(loaded).update((name, vars(current)[name]) for name in current.options)
        loaded, current = loaded._env, current._env
    if isinstance(loaded, _Wrapper) or isinstance(current, _Wrapper):
        raise NotRestorableError(
            "the group of envs cannot be restored, because the saved envs had other wrappers of collectx"
        )


class _Wrapper(Env):
    """An env group whose observation consists of the leaves of `env` and of the leaves that it adds, if any. `options`
    names the attributes that are options of the collector; all others are state. `env` is the wrapped group; `close`
    closes it."""

    options: tuple[str, ...] = ()

    def __init__(self, env: Env, spec: EnvSpec):
        self.spec = spec
        self._env = env
        self._num_inner = len(env.spec.observation)

    @property
    def group(self) -> Env:
        return self._env.group

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._env.reset(seeds, out[: self._num_inner])
        self._write_first(slice(None), out[self._num_inner :])

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._env.reset_some(ended, out[: self._num_inner])
        self._write_first(ended, out[self._num_inner :])

    def close(self) -> None:
        self._env.close()

    def _step_inner(self, action: Sequence[np.ndarray], out: StepArrays, observation: Sequence[np.ndarray]) -> bool:
        inner = StepArrays(observation, out.reward, out.terminated, out.truncated, out.frame, out.next_only)
        return self._env.step(action, inner)

    def _write_first(self, envs: np.ndarray | slice, added: Sequence[np.ndarray]) -> None:
        """Writes the leaves that this wrapper adds to the first observations of these envs."""


class TimeLimitEnv(_Wrapper):
    """Marks the `max_frames`-th frame of a trajectory as truncated; the caller then restarts the env, as after any
    episode. Adds a leaf that counts the frames of the trajectory. `env` is a group with `can_reset_early`;
    `max_frames` is at least 1."""

    options = ("_max_frames",)

    def __init__(self, env: Env, spec: EnvSpec, max_frames: int):
        super().__init__(env, spec)
        self._max_frames = max_frames
        self._frames = np.zeros(spec.num_envs, np.int64)
        self._agents_cuts = spec.agents_cuts

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        *observation, step_count = out.observation
        any_ended = self._step_inner(action, out, observation)
        self._frames += 1
        step_count[:, 0] = self._frames
        at_limit = self._frames >= self._max_frames
        np.logical_or(out.truncated, at_limit, out=out.truncated)
        for index in self._agents_cuts:
            observation[index][at_limit] = True
        return any_ended or bool(at_limit.any())

    def _write_first(self, envs: np.ndarray | slice, added: Sequence[np.ndarray]) -> None:
        self._frames[envs] = 0
        added[0][envs] = 0


class OwnGeneratorsEnv(_Wrapper):
    """Gives envs that seed the global generators their own states of these: those of `held`, in use within every call
    of the envs."""

    def __init__(self, env: Env, held: HeldGenerators):
        super().__init__(env, env.spec)
        self._held = held

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        with self._held.in_use():
            self._env.reset(seeds, out)

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        with self._held.in_use():
            self._env.reset_some(ended, out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        with self._held.in_use():
            return self._env.step(action, out)


class RecurrentStateEnv(_Wrapper):
    """Adds the state of a recurrent policy to the observation: its initial values when an episode begins, then the
    values that the policy has written. The policy writes the state after a frame directly into `next`. For `states`,
    see `collectx.policy.recurrent`."""

    def __init__(self, env: Env, states: Sequence[StateSpec]):
        super().__init__(env, spec_with_states(env.spec, states))
        added = [(state, as_array(state.initial)) for state in states if state.initial is not None]
        self._initial = [initial for _, initial in added]
        self._unwritten = [i for i, (state, _) in enumerate(added, self._num_inner) if not state.is_written]
        # Receives the states that an env itself observes: in the batch, the policy writes them.
        size, observed = env.spec.num_envs, env.spec.observation
        self._unused = {
            observed.index(state.leaf): np.zeros((size, *state.leaf.shape), numpy_dtype(state.leaf))
            for state in states
            if state.initial is None
        }

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        observation = [self._unused.get(i, array) for i, array in enumerate(out.observation[: self._num_inner])]
        any_ended = self._step_inner(action, out, observation)
        for i in self._unwritten:
            out.observation[i][...] = 0
        if self.spec.ragged:
            # Steps that were resets end with first observations.
            was_reset = ~out.frame
            self._write_first(was_reset, out.observation[self._num_inner :])
            for i, array in self._unused.items():
                out.observation[i][was_reset] = array[was_reset]
        return any_ended

    def _write_first(self, envs: np.ndarray | slice, added: Sequence[np.ndarray]) -> None:
        for array, initial in zip(added, self._initial, strict=True):
            array[envs] = initial
