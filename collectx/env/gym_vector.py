"""Kind `gym_vector`: a Gymnasium VectorEnv, with any of its three ways of resetting, as one and the same stream.

Called by the rollout, in the worker's process. Must not know slots, trajectories or policies.

    AutoresetMode   what an episode's end gives               what this adapter does
    DISABLED        the final observation                     restart: reset(options={"reset_mask": ...})
    SAME_STEP       the reset observation; the final one      puts the final one into the step, keeps the reset one
                    in info["final_obs"]                      for restart
    NEXT_STEP       the final observation; the next step      ragged: marks that next step as no frame
                    ignores the action and resets
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from collectx.batch import Leaf
from collectx.config import GymVectorEnvConfig
from collectx.env.base import EnvSpec, StepRows
from collectx.env.checked import CheckedEnv
from collectx.env.gym_factory import given, resolve_source, wrapper
from collectx.env.infos import PROBED_STEPS, InfoKeys, of_each_env
from collectx.env.spaces import Structure, checked_rows, without, write_row
from collectx.errors import CollectxError, ConfigError, ShapeError

# How long the processes of an async env may take to finish a step before they are killed, in seconds.
_CLOSE_S = 2.0
_BUILT_BY_US = ("sync", "async")


class GymVectorEnv:
    """A VectorEnv of `cfg.num_envs` envs.

    `reset(seeds)` seeds every env by itself where the VectorEnv is Gymnasium's own (sync, async); any other is given
    `seeds[0]`, as its `reset` takes one integer.

    Raises:
        ConfigError: neither or both of `id` and `entry_point`, an unknown mode, or a mode that the env does not have.
        SpaceError: a space that cannot be stored as tensors, or an info entry that is missing or not numeric.
    """

    def __init__(self, cfg: GymVectorEnvConfig, env: VectorEnv | None = None):
        """
        Args:
            env: the vector env, instead of what `cfg` names.
        """
        self._env = _make(cfg) if env is None else env
        try:
            self._mode = _autoreset_mode(self._env, cfg)
            observation_space = without(self._env.single_observation_space, cfg.exclude_keys)
            self._observation = Structure(observation_space, ("observation",))
            self._action = Structure(self._env.single_action_space, ("action",))
            self._infos = InfoKeys(cfg.info_keys, self._infos_of_each()) if cfg.info_keys else None
        except BaseException:
            with contextlib.suppress(Exception):  # which would hide the first error
                self.close()
            raise
        infos = self._infos.leaves if self._infos else ()
        self._leaves: tuple[Leaf, ...] = (*self._observation.leaves, *infos)
        gymnasiums_own = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.spec = EnvSpec(
            self._env.num_envs,
            self._leaves,
            self._action.leaves,
            observation_space,
            self._env.single_action_space,
            ragged=self._mode is AutoresetMode.NEXT_STEP,
            # Only Gymnasium's own are known to take a mask of envs to reset while they also reset by themselves.
            cuttable=self._mode is AutoresetMode.DISABLED or (self._mode is AutoresetMode.SAME_STEP and gymnasiums_own),
        )
        self._seeds_each = gymnasiums_own
        # NEXT_STEP: the envs whose next step is a reset. SAME_STEP: those whose reset observation waits in `_fresh`.
        self._ended = np.zeros(self._env.num_envs, bool)
        self._any_ended = False
        self._fresh: list[np.ndarray] = []

    @property
    def user_envs(self) -> list[Any]:
        """What the user has made."""
        return [self._env]

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        seed: int | list[int] | None = None
        if seeds is not None:
            seed = [int(s) for s in seeds] if self._seeds_each else int(seeds[0])
        observation, info = self._env.reset(seed=seed)  # type: ignore[arg-type]
        self._ended[:] = False
        self._any_ended = False
        self._write(out, self._values(observation, info))

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        # A copy, as the env may keep its actions while these arrays are the caller's and will be written again.
        actions = self._action.nest([array.copy() for array in action])
        observation, reward, terminated, truncated, info = self._env.step(actions)
        for name, array, value in (
            ("reward", out.reward, reward),
            ("terminated", out.terminated, terminated),
            ("truncated", out.truncated, truncated),
        ):
            if np.shape(value) != array.shape:
                raise ShapeError(
                    f"{name}: expected shape {array.shape}, one value for each env, got shape {np.shape(value)}: the "
                    "vector env must return one of each env"
                )
            array[:] = value
        ended = np.logical_or(terminated, truncated)
        any_ended = bool(ended.any())
        if self._mode is AutoresetMode.SAME_STEP and any_ended:
            self._write_both(out.observation, observation, info, ended)
        else:
            self._write(out.observation, self._values(observation, info))
            if self._mode is AutoresetMode.NEXT_STEP and self._any_ended:
                out.frame[self._ended] = False
        self._ended[:] = ended
        self._any_ended = any_ended
        return any_ended

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """As in the contract.

        Raises:
            CollectxError: an env that cannot be restarted now: any in NEXT_STEP mode; in SAME_STEP mode one whose
                episode did not end in the last step, unless the group is `cuttable`.
        """
        due = ended & self._ended if self._mode is AutoresetMode.SAME_STEP else np.zeros_like(ended)
        early = ended & ~due
        if early.any():
            if not self.spec.cuttable:
                raise CollectxError(
                    f"this vector env resets by itself (autoreset mode {self._mode.value}), so an env cannot be "
                    "restarted before its episode ends: set env.autoreset_mode=disabled if the env supports it, or do "
                    "not cut trajectories short"
                )
            # `reset` may change its options, and a vector env may keep the mask.
            observation, info = self._env.reset(options={"reset_mask": early.copy()})
            values = self._values(observation, info)
            for leaf, array, value in zip(self._leaves, out, values, strict=True):
                array[early] = checked_rows(leaf, value, array)[early]
        if due.any():
            taken = due[self._ended]
            for array, fresh in zip(out, self._fresh, strict=True):
                array[due] = fresh[taken]

    def close(self) -> None:
        # Without a timeout Gymnasium waits for ever for the results of a step that an error has interrupted.
        is_async = isinstance(self._env.unwrapped, AsyncVectorEnv)
        self._env.close(**({"timeout": _CLOSE_S} if is_async else {}))

    def _values(self, observation: Any, info: Mapping) -> list[np.ndarray]:
        """One `[E, *shape]` array per leaf."""
        values = self._observation.flatten(observation)
        return [*values, *self._infos.rows(info, self._env.num_envs)] if self._infos else values

    def _write(self, out: Sequence[np.ndarray], values: Sequence[Any]) -> None:
        for leaf, array, value in zip(self._leaves, out, values, strict=True):
            array[...] = checked_rows(leaf, value, array)

    def _write_both(self, out: Sequence[np.ndarray], observation: Any, info: Mapping, ended: np.ndarray) -> None:
        """Writes a step in which envs ended and were reset: keeps the first observations, writes the final ones."""
        if "final_obs" not in info:
            raise CollectxError(
                'a vector env with autoreset mode SameStep must put the final observations into info["final_obs"], '
                f"which has only {sorted(map(str, info))}"
            )
        first_infos, final_infos = self._infos.last_rows(info, ended) if self._infos else ([], [])
        self._write(out, [*self._observation.flatten(observation), *first_infos])
        self._fresh = [array[ended] for array in out]
        final = info["final_obs"]
        per_env = isinstance(final, np.ndarray) and final.dtype == object
        batched = None if per_env else self._observation.flatten(final)
        for e in np.flatnonzero(ended).tolist():
            values = self._observation.flatten(final[e]) if batched is None else [value[e] for value in batched]
            write_row(self._leaves, out, e, [*values, *(rows[e] for rows in final_infos)])

    def _infos_of_each(self) -> Iterator[Mapping]:
        """The infos of each env until one has ended, by random actions; those of the reset last."""
        size = self._env.num_envs
        _, at_reset = self._env.reset(seed=0)
        self._env.action_space.seed(0)
        for _ in range(PROBED_STEPS):
            _, _, terminated, truncated, info = self._env.step(self._env.action_space.sample())
            yield from of_each_env(info.get("final_info", {}), size)
            yield from of_each_env(info, size)
            if np.any(terminated) or np.any(truncated):
                break
        yield from of_each_env(at_reset, size)


def _make(cfg: GymVectorEnvConfig) -> VectorEnv:
    entry_point = resolve_source(cfg)
    if entry_point is not None:
        return entry_point(num_envs=cfg.num_envs, **cfg.kwargs)
    how = given(cfg.vectorization_mode)
    known = [mode.value for mode in gymnasium.VectorizeMode]
    if how not in known:
        raise ConfigError([f"env.vectorization_mode={how} is not one of {', '.join(known)}"])
    vector_kwargs: dict[str, Any] = {}
    if how in _BUILT_BY_US:
        mode = _parse_mode(cfg.autoreset_mode) or AutoresetMode.DISABLED
        # The observations are copied into the caller's memory at once, so the env need not copy them as well.
        vector_kwargs = {"autoreset_mode": mode, "copy": False}
    wrappers: list[Callable] = [wrapper(item, f"env.wrappers[{i}]") for i, item in enumerate(cfg.wrappers)]
    if how == "async":
        wrappers.append(partial(CheckedEnv, exclude_keys=cfg.exclude_keys))
    return gymnasium.make_vec(
        str(cfg.id),
        cfg.num_envs,
        vectorization_mode=how,
        vector_kwargs=vector_kwargs,
        wrappers=wrappers,
        **cfg.kwargs,
    )


def _autoreset_mode(env: VectorEnv, cfg: GymVectorEnvConfig) -> AutoresetMode:
    wanted = _parse_mode(cfg.autoreset_mode)
    stated = _parse_mode(env.metadata.get("autoreset_mode"))
    if stated is None and wanted is None:
        raise ConfigError(
            [f"{env} does not say how it resets (metadata has no autoreset_mode): set env.autoreset_mode, {_legal()}"]
        )
    if stated is not None and wanted is not None and stated is not wanted:
        raise ConfigError(
            [
                f"env.autoreset_mode={cfg.autoreset_mode}, but {env} resets by {stated.value} and its vectorization "
                "mode gives no choice: leave it null, or use env.vectorization_mode=sync or async"
            ]
        )
    mode = stated or wanted
    assert mode is not None
    return mode


def _parse_mode(value: Any) -> AutoresetMode | None:
    value = given(value)
    if value is None or isinstance(value, AutoresetMode):
        return value
    for mode in AutoresetMode:
        if str(value).replace("_", "").lower() == mode.value.lower():
            return mode
    raise ConfigError([f"env.autoreset_mode={value}: {_legal()}"])


def _legal() -> str:
    return f"one of {', '.join(mode.name.lower() for mode in AutoresetMode)}"
