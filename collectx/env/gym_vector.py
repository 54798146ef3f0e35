"""Kind `gym_vector`: a Gymnasium VectorEnv with any autoreset mode; the transitions are the same in every mode.

AutoresetMode   an episode's last step returns            this adapter
DISABLED        the final observation                     reset_some: reset(options={"reset_mask": ...})
SAME_STEP       the reset observation; the final one      writes the final one into the step, keeps the reset one
                in info["final_obs"]                      for reset_some
NEXT_STEP       the final observation; the next step      ragged: marks that next step as no frame
                ignores the action and resets
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from collectx.config.problem import ABSENT, did_you_mean, either, opt
from collectx.config.schema.env import GymVectorEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays, closed_on_error
from collectx.env.env_indices import EnvNumbers
from collectx.env.gym import end_flag, reward_number
from collectx.env.gym_factory import constructor, env_factory, explain_errors, registered, resolve_source
from collectx.env.infos import InfoKeys
from collectx.env.metrics import InfoMetrics
from collectx.env.mujoco_warnings import show_once
from collectx.env.observation import ObservationLeaves
from collectx.env.sb3 import VecEnvAdapter, as_vector_env
from collectx.env.spaces import SpaceLeaves, check_value, checked_values, numpy_dtype, write_env
from collectx.env.tensor_vector import TensorsAsArrays, TensorVectorEnv, device_of
from collectx.env.wrappers import CHECKED, refuse, refuse_action, statistics_of
from collectx.errors import CollectxError, ConfigError, DataError, SpaceError
from collectx.state import ProcessState
from collectx.user_objects import call_with_tuples

# Seconds that the processes of an async env may take to finish a step before they are killed.
_CLOSE_S = 2.0
_MODES = [mode.name.lower() for mode in AutoresetMode]


def build(cfg: GymVectorEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers) -> Env:
    with explain_errors(cfg):
        return adapter(_make(cfg, numbers), cfg.info_keys, cfg.exclude_keys, cfg.autoreset_mode, cfg.metrics)


def adapter(
    env: VectorEnv,
    info_keys: Sequence[Any],
    exclude_keys: Sequence[str],
    autoreset_mode: str | None = ABSENT,
    metrics: Sequence[str] = (),
) -> Env:
    """Returns the adapter for a vector env, which returns arrays or tensors. `autoreset_mode` is ABSENT for the envs of
    Python's users, who have no such option."""
    device = device_of(env)
    if device is None:
        return GymVectorEnv(env, info_keys, exclude_keys, autoreset_mode, metrics)
    mode = _parse_mode(env.metadata.get("autoreset_mode")) or _parse_mode(autoreset_mode) or AutoresetMode.SAME_STEP
    if mode is not AutoresetMode.SAME_STEP and device.type == "cpu":
        return GymVectorEnv(TensorsAsArrays(env), info_keys, exclude_keys, mode.value, metrics)
    return TensorVectorEnv(env, device, mode, [*info_keys, *metrics], exclude_keys)


class GymVectorEnv(Env):
    """The envs of a Gymnasium VectorEnv.

    `reset(seeds)` seeds each env of Gymnasium's SyncVectorEnv and AsyncVectorEnv. The `reset` of other VectorEnvs gets
    one integer, `seeds[0]`. `env` is closed if the constructor raises. `autoreset_mode` is the mode; needed if the
    env's metadata names none."""

    def __init__(
        self,
        env: VectorEnv,
        info_keys: Sequence[Any] = (),
        exclude_keys: Sequence[str] = (),
        autoreset_mode: str | None = ABSENT,
        metrics: Sequence[str] = (),
    ):
        self._env, self.user_envs = env, [env]
        self.metrics = InfoMetrics(metrics) if metrics else None
        with closed_on_error(self):
            self._mode = _autoreset_mode(env, autoreset_mode)
            if isinstance(env.unwrapped, SyncVectorEnv | VecEnvAdapter):
                _check_envs(env.unwrapped, exclude_keys)
            elif self._mode is AutoresetMode.SAME_STEP and _loses_final_observations(env.unwrapped):
                raise ConfigError(
                    "an AsyncVectorEnv with AutoresetMode.SAME_STEP loses the final observations of envs that return "
                    "the same array in each step, because it sends them after the reset. Make it with "
                    "autoreset_mode=AutoresetMode.DISABLED: batches are the same."
                )
            self._observation = ObservationLeaves(env.single_observation_space, exclude_keys, info_keys)
            if self._observation.has_text and getattr(env.unwrapped, "shared_memory", False):
                raise SpaceError(
                    f"{self._observation.space} contains a Text, which Gymnasium's AsyncVectorEnv reads from shared "
                    "memory only once. Use env.vectorization_mode=sync, or AsyncVectorEnv(..., shared_memory=False)."
                )
            self._action = SpaceLeaves(env.single_action_space, ("action",))
            infos = InfoKeys(info_keys, env)
        self._action_dtypes = self._action.dtypes
        is_gymnasiums = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.spec = EnvSpec(
            env.num_envs,
            self._observation.leaves,
            self._action.leaves,
            self._observation.space,
            env.single_action_space,
            ragged=self._mode is AutoresetMode.NEXT_STEP,
            # In SAME_STEP mode, only SyncVectorEnv and AsyncVectorEnv are known to accept a reset mask.
            can_reset_early=self._mode is AutoresetMode.DISABLED
            or (self._mode is AutoresetMode.SAME_STEP and is_gymnasiums),
        )
        self.keep_infos(infos)
        self._seeds_each = is_gymnasiums
        # In NEXT_STEP mode, the envs whose next step is a reset; in SAME_STEP mode, those whose first observation is in
        # `_first`.
        self._ended = np.zeros(env.num_envs, bool)
        self._first: list[np.ndarray] = []

    def keep_infos(self, infos: InfoKeys) -> None:
        self._infos = infos
        self._leaves = (*self._observation.leaves, *infos.leaves)
        self.spec = dataclasses.replace(self.spec, observation=self._leaves, infos=infos.declared)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        seed: int | list[int] | None = None
        if seeds is not None:
            seed = [int(s) for s in seeds] if self._seeds_each else int(seeds[0])
        try:
            observation, info = self._env.reset(seed=seed, **self.reset_kwargs())  # type: ignore[arg-type]
        except Exception as error:
            refuse(error, "reset", "an env in the vector env")
            raise
        self._ended[:] = False
        self.reset_info = info
        self._write(out, self._values(observation, info))

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        # Copied, because the env may keep its actions, and the caller overwrites its arrays.
        actions = self._action.nest([a.astype(dtype) for a, dtype in zip(action, self._action_dtypes, strict=True)])
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except Exception as error:
            refuse(error, "step", "an env in the vector env")
            _explain(error)
            for e, one in enumerate(actions) if isinstance(actions, np.ndarray) else ():
                refuse_action(error, self._env.single_action_space, one, e)
            raise
        if np.iterable(reward) and not (isinstance(reward, np.ndarray) and issubclass(reward.dtype.type, np.floating)):
            reward = [reward_number(each, e) for e, each in enumerate(reward)]
        for name, array, value in (
            ("reward", out.reward, reward),
            ("terminated", out.terminated, terminated),
            ("truncated", out.truncated, truncated),
        ):
            array[:] = value if np.shape(value) == array.shape else _one_each(name, value, array.shape)
        ended = np.logical_or(terminated, truncated)
        if any_ended := bool(ended.any()):
            for name, flags in (("terminated", terminated), ("truncated", truncated)):
                if np.asarray(flags).dtype != bool:
                    for e, flag in enumerate(flags):
                        end_flag(flag, name, e)
        if self.metrics is not None:
            self._count(info, ended)
        if self._mode is AutoresetMode.SAME_STEP and any_ended:
            self._write_both(out.observation, observation, info, ended)
        else:
            self._write(out.observation, self._values(observation, info))
            if self.spec.ragged:
                out.frame[self._ended] = False
        self._ended[:] = ended
        return any_ended

    def _count(self, info: Mapping, ended: np.ndarray) -> None:
        assert self.metrics is not None
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            self.metrics.add_same_step(info, ended, np.ones_like(ended))
        else:
            self.metrics.add_vector(info, ended, ~self._ended if self.spec.ragged else np.ones_like(ended))

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """See `Env.reset_some`. Raises `CollectxError` if an env cannot be reset: in NEXT_STEP mode, any env; in
        SAME_STEP mode without `can_reset_early`, an env whose episode did not end in the last step."""
        due = ended & self._ended if self._mode is AutoresetMode.SAME_STEP else np.zeros_like(ended)
        early = ended & ~due
        if self.metrics is not None:
            self.metrics.cut_envs(ended & ~self._ended)
        if early.any():
            if not self.spec.can_reset_early:
                raise CollectxError(
                    f"this vector env resets its envs itself (autoreset mode {self._mode.value}), so no env can be "
                    f"reset before its episode ends. If the env supports it, use {opt('env.autoreset_mode=disabled')}. "
                    "Otherwise, do not truncate trajectories."
                )
            # A copy, as a vector env may change or keep the mask.
            observation, info = self._env.reset(**self.reset_kwargs(reset_mask=early.copy()))
            values = self._values(observation, info)
            for leaf, array, value in zip(self._leaves, out, values, strict=True):
                array[early] = checked_values(leaf, value, array)[early]
        if due.any():
            for array, first in zip(out, self._first, strict=True):
                array[due] = first[due[self._ended]]

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        if self._mode is not AutoresetMode.DISABLED:
            vector: Any = self._env.unwrapped
            if CHECKED not in vector.metadata:
                raise NotImplementedError(
                    "reset options cannot be used, because this vector env resets its envs itself, without options "
                    f"(autoreset mode {self._mode.value}). Make it with autoreset_mode=AutoresetMode.DISABLED, or use "
                    "a SyncVectorEnv."
                )
            vector.set_attr("options_of_resets", [dict(options or {})] * vector.num_envs)
        self.reset_options = options or {}

    def close(self) -> None:
        # Without a timeout, Gymnasium would wait without end for the results of a step that an error has interrupted.
        is_async = isinstance(self._env.unwrapped, AsyncVectorEnv)
        self._env.close(**({"timeout": _CLOSE_S} if is_async else {}))

    def _values(self, observation: Any, info: Mapping) -> list[np.ndarray]:
        """Returns one `[E, *shape]` array per leaf."""
        return [*self._observation.flatten(observation), *self._infos.batched_values(info, self._env.num_envs)]

    def _write(self, out: Sequence[np.ndarray], values: Sequence[Any]) -> None:
        for leaf, array, value in zip(self._leaves, out, values, strict=True):
            array[...] = checked_values(leaf, value, array)

    def _write_both(self, out: Sequence[np.ndarray], observation: Any, info: Mapping, ended: np.ndarray) -> None:
        """Writes the final observations of a step in which envs were reset; keeps their first observations."""
        if "final_obs" not in info:
            raise CollectxError(
                f"the infos of this vector env lack the final observations (they contain {sorted(map(str, info))}). "
                'With autoreset mode SameStep, put these into info["final_obs"].'
            )
        first_infos, final_infos = self._infos.first_and_final_values(info, ended)
        self._write(out, [*self._observation.flatten(observation), *first_infos])
        self._first = [array[ended] for array in out]
        final = info["final_obs"]
        per_env = isinstance(final, np.ndarray) and final.dtype == object
        batched = None if per_env else self._observation.flatten(final)
        for e in np.flatnonzero(ended).tolist():
            values = self._observation.flatten(final[e]) if batched is None else [value[e] for value in batched]
            write_env(self._leaves, out, e, [*values, *(infos[e] for infos in final_infos)])


class CheckedEnv(gymnasium.Wrapper):
    """Raises `DataError` for an observation whose shape differs from its space, or whose values the dtype of the space
    cannot represent, and for a reward that is not one number. Wraps each env of Gymnasium's vector envs.

    Returns copies of observations and of final infos, because the vector env reads observations only after all envs
    have stepped, and both after it has reset an ended env. By then, envs that reuse an array may have changed it.

    Args:
        index: the env's index in a sync vector env; None: the index of the AsyncVectorEnv's process.

    Attributes:
        options_of_resets: the options for resets that the vector env makes without any, such as those within a step.
    """

    options_of_resets: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, env: gymnasium.Env, exclude_keys: Sequence[str] = (), index: int | None = None):
        super().__init__(env)
        self.metadata = {**env.metadata, CHECKED: True}
        number = multiprocessing.current_process().name.rpartition("-")[2]  # of an AsyncVectorEnv's process
        self._index = int(number) if index is None and number.isdigit() else index
        self._observation: ObservationLeaves | None = None
        # The worker reports a space that cannot be stored, because it knows the name of the option.
        with contextlib.suppress(CollectxError):
            self._observation = ObservationLeaves(env.observation_space, exclude_keys)
            self._leaves = [(leaf, numpy_dtype(leaf)) for leaf in self._observation.leaves]
        # The shape and the dtype of an observation that is the value of the only leaf.
        is_array = self._observation is not None and self._observation.single and not self._observation.has_text
        self._array = (self._leaves[0][0].shape, self._leaves[0][1]) if is_array else None

    def __getattr__(self, name: str) -> Any:
        # A user's sync vector env may read attributes of its own envs.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        if self.options_of_resets and not kwargs.get("options"):
            kwargs["options"] = dict(self.options_of_resets)
        result = self.env.reset(**kwargs)
        try:
            observation, info = result
            return self._checked(observation), info
        except Exception as error:
            refuse(error, "reset", f"env {self._index}", result)
            raise

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not isinstance(reward, float):
            reward = reward_number(reward, self._index)
        if terminated or truncated:
            end_flag(terminated, "terminated", self._index)
            end_flag(truncated, "truncated", self._index)
            info = _copied(info)
        return self._checked(observation), reward, terminated, truncated, info

    def normalizer_statistics(self) -> list[dict[str, Any]]:
        """Returns the statistics of the wrappers around the env; called in its process."""
        return statistics_of([self.env])

    def _checked(self, observation: Any) -> Any:
        if type(observation) is np.ndarray and (observation.shape, observation.dtype) == self._array:
            return observation.copy()
        if self._observation is not None:
            for (leaf, dtype), value in zip(self._leaves, self._observation.flatten(observation), strict=True):
                check_value(leaf, value, dtype, self._index)
        return _copied(observation)


def _copied(value: Any) -> Any:
    """Returns an observation or an info with copies of its arrays, dicts, lists and tuples."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, tuple | list):  # a namedtuple becomes a tuple
        return (list if isinstance(value, list) else tuple)(map(_copied, value))
    return value


def _check_envs(env: SyncVectorEnv | VecEnvAdapter, exclude_keys: Sequence[str]) -> None:
    env.envs = [
        each if isinstance(each, CheckedEnv) else CheckedEnv(each, exclude_keys, index)
        for index, each in enumerate(env.envs)
    ]
    if isinstance(env, SyncVectorEnv):
        env.metadata[CHECKED] = True


def _loses_final_observations(env: VectorEnv) -> bool:
    """Whether the processes of `env` reset an ended env before they send its last observation (Gymnasium's issue 1132),
    and its envs do not return copies."""
    return isinstance(env, AsyncVectorEnv) and CHECKED not in env.metadata


def _one_each(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns rewards `[E, 1]` as `[E]`, because an AsyncVectorEnv keeps a dimension of 1. Raises `DataError` for
    other shapes."""
    if name != "reward" or np.shape(value) != (*shape, 1):
        raise DataError(
            f"the vector env returned {name} with shape {np.shape(value)}, but must return one value per env, with "
            f"shape {shape}"
        )
    return np.reshape(value, shape)


def _explain(error: Exception) -> None:
    """Raises `DataError` if Gymnasium's VectorEnv could not store a reward, because its own message does not say
    so."""
    *_, place = traceback.extract_tb(error.__traceback__)
    if "gymnasium" in place.filename and "rewards" in (place.line or ""):
        raise DataError(
            f"Gymnasium's vector env could not store the rewards of its envs ({error}). Return a float from step() of "
            "each env."
        ) from error


def _make(cfg: GymVectorEnvConfig, numbers: EnvNumbers) -> VectorEnv:
    if cfg.is_batched:
        return _make_batched(cfg, numbers)
    make: Callable[[EnvNumbers], gymnasium.Env] = env_factory(cfg)
    mode = _parse_mode(cfg.autoreset_mode) or AutoresetMode.DISABLED
    is_async = cfg.vectorization_mode == "async"
    if is_async:
        make = partial(_make_checked, make, cfg.exclude_keys)
    envs = [partial(make, numbers.of(e)) for e in range(cfg.num_envs)]
    # The adapter copies observations into the caller's arrays at once, so the env need not copy them.
    if is_async:
        return AsyncVectorEnv(envs, autoreset_mode=mode, copy=False, context=_context(cfg.context))
    return SyncVectorEnv(envs, autoreset_mode=mode, copy=False)


def _make_batched(cfg: GymVectorEnvConfig, numbers: EnvNumbers) -> VectorEnv:
    """Returns the vector env that one call makes. The call may take the env numbers of the first env."""
    entry_point = resolve_source(cfg)
    show_once()
    with numbers.explained(entry_point or constructor(cfg), cfg.kwargs):
        if entry_point is not None:
            arguments = numbers.arguments(entry_point, cfg.kwargs)
            made = call_with_tuples(entry_point, num_envs=cfg.num_envs, **arguments)
            made = as_vector_env(made, [*cfg.info_keys, *cfg.metrics])
        else:
            made = gymnasium.make_vec(
                gymnasium.spec(registered(cfg)),
                cfg.num_envs,
                vectorization_mode=cfg.vectorization_mode,
                **numbers.arguments(constructor(cfg), cfg.kwargs),
            )
    # Only an evaluation adds wrappers here.
    for wrap in cfg.wrappers:
        made = wrap(made)
    return made


def _make_checked(
    make: Callable[[EnvNumbers], gymnasium.Env], exclude_keys: Sequence[str], numbers: EnvNumbers
) -> gymnasium.Env:
    return ProcessState(CheckedEnv(make(numbers), exclude_keys=exclude_keys))


def _context(name: str | None) -> str:
    """Returns the start method of an AsyncVectorEnv's processes. A new fork server imports this module once for all of
    them."""
    name = name or next(each for each in ("forkserver", "spawn") if each in multiprocessing.get_all_start_methods())
    if name == "forkserver":
        multiprocessing.get_context(name).set_forkserver_preload([__name__])
    return name


def _autoreset_mode(env: VectorEnv, value: str | None) -> AutoresetMode:
    configured, stated = _parse_mode(value), _parse_mode(env.metadata.get("autoreset_mode"))
    mode = stated or configured
    if mode is None:
        more = "" if value is ABSENT else f", or set env.autoreset_mode to {either(_MODES)}"
        raise ConfigError(
            f"the metadata of {env} contains no autoreset_mode, so it is unknown how it resets its envs. Add it to the "
            f"metadata{more}."
        )
    if configured not in (None, mode):
        raise ConfigError(
            f"env.autoreset_mode={value} cannot be used: {env} always uses {mode.value} in this vectorization mode. "
            "Use env.autoreset_mode=null, or env.vectorization_mode=sync or async."
        )
    return mode


def _parse_mode(value: Any) -> AutoresetMode | None:
    if value in (None, ABSENT) or isinstance(value, AutoresetMode):
        return None if value is ABSENT else value
    for mode in AutoresetMode:
        if str(value).replace("_", "").lower() == mode.value.lower():
            return mode
    raise ConfigError(f"env.autoreset_mode={value} is unknown{did_you_mean(str(value), _MODES)}")
