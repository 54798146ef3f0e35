"""Kind `gym_vector`: a Gymnasium VectorEnv with any autoreset mode; the transitions are the same in every mode.

Called by the rollout, in the worker's process. Must not know slots, trajectories or policies.

    AutoresetMode   an episode's last step returns            this adapter
    DISABLED        the final observation                     restart: reset(options={"reset_mask": ...})
    SAME_STEP       the reset observation; the final one      writes the final one into the step, keeps the reset one
                    in info["final_obs"]                      for restart
    NEXT_STEP       the final observation; the next step      ragged: marks that next step as no frame
                    ignores the action and resets
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from collectx.batch import Leaf
from collectx.config.schema.env import GymVectorEnvConfig
from collectx.env.base import EnvSpec, StepRows, closed_on_error
from collectx.env.checked import CheckedEnv
from collectx.env.gym_factory import explain_missing_package, resolve_source, wrapper
from collectx.env.infos import PROBED_STEPS, InfoKeys, of_each_env
from collectx.env.spaces import SpaceLeaves, checked_rows, exclude_parts, write_row
from collectx.errors import CollectxError, ConfigError, ShapeError

# How long the processes of an async env may take to finish a step before they are killed, in seconds.
_CLOSE_S = 2.0
_GYMNASIUMS_MODES = ("sync", "async")


def build(cfg: GymVectorEnvConfig, first_index: int, life: int) -> GymVectorEnv:
    """See `collectx.env.build`."""
    with explain_missing_package(cfg):
        return GymVectorEnv(cfg)


class GymVectorEnv:
    """A VectorEnv of `cfg.num_envs` envs.

    `reset(seeds)` seeds each env of Gymnasium's VectorEnvs (sync, async); the `reset` of any other VectorEnv takes one
    integer, `seeds[0]`.

    Raises:
        ConfigError: neither or both of `id` and `entry_point`, an unknown mode, or a mode that the env does not have.
        SpaceError: a space that cannot be stored as tensors, or an info entry that is missing or not numeric.
    """

    def __init__(self, cfg: GymVectorEnvConfig, env: VectorEnv | None = None):
        """
        Args:
            env: the vector env; replaces `id` and `entry_point` of `cfg`.
        """
        self._env = _make(cfg) if env is None else env
        with closed_on_error(self):
            self._mode = _autoreset_mode(self._env, cfg)
            observation_space = exclude_parts(self._env.single_observation_space, cfg.exclude_keys)
            self._observation = SpaceLeaves(observation_space, ("observation",))
            self._action = SpaceLeaves(self._env.single_action_space, ("action",))
            self._infos = InfoKeys(cfg.info_keys, self._probe_infos()) if cfg.info_keys else None
        infos = self._infos.leaves if self._infos else ()
        self._leaves: tuple[Leaf, ...] = (*self._observation.leaves, *infos)
        is_gymnasiums = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.spec = EnvSpec(
            self._env.num_envs,
            self._leaves,
            self._action.leaves,
            observation_space,
            self._env.single_action_space,
            ragged=self._mode is AutoresetMode.NEXT_STEP,
            # In SAME_STEP mode, only Gymnasium's VectorEnvs are known to accept a reset mask.
            can_restart_early=self._mode is AutoresetMode.DISABLED
            or (self._mode is AutoresetMode.SAME_STEP and is_gymnasiums),
        )
        self._seeds_each = is_gymnasiums
        # NEXT_STEP: the envs whose next step is a reset. SAME_STEP: the envs with a reset observation in `_fresh`.
        self._ended = np.zeros(self._env.num_envs, bool)
        self._any_ended = False
        self._fresh: list[np.ndarray] = []

    @property
    def user_envs(self) -> list[Any]:
        """The user's env object."""
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
        # A copy, as the env may keep its actions and the caller overwrites its arrays.
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
                    "vector env must return one value for each env"
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
        """See `Env.restart`.

        Raises:
            CollectxError: an env cannot be restarted: any in NEXT_STEP mode; in SAME_STEP mode, an env whose episode
                did not end in the last step, unless `can_restart_early`.
        """
        due = ended & self._ended if self._mode is AutoresetMode.SAME_STEP else np.zeros_like(ended)
        early = ended & ~due
        if early.any():
            if not self.spec.can_restart_early:
                raise CollectxError(
                    f"this vector env resets by itself (autoreset mode {self._mode.value}), so an env cannot be "
                    "restarted before its episode ends: set env.autoreset_mode=disabled if the env supports it, or do "
                    "not truncate trajectories"
                )
            # A copy, as a vector env may change or keep the mask.
            observation, info = self._env.reset(options={"reset_mask": early.copy()})
            values = self._values(observation, info)
            for leaf, array, value in zip(self._leaves, out, values, strict=True):
                array[early] = checked_rows(leaf, value, array)[early]
        if due.any():
            rows = due[self._ended]
            for array, fresh in zip(out, self._fresh, strict=True):
                array[due] = fresh[rows]

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
        """Writes the final observations of a step in which envs were reset; keeps their first observations."""
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

    def _probe_infos(self) -> Iterator[Mapping]:
        """The infos of each env, with random actions, until an episode ends; then those of the reset."""
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
    vectorization = cfg.vectorization_mode
    known = [mode.value for mode in gymnasium.VectorizeMode]
    if vectorization not in known:
        raise ConfigError([f"env.vectorization_mode={vectorization} is not one of {', '.join(known)}"])
    vector_kwargs: dict[str, Any] = {}
    if vectorization in _GYMNASIUMS_MODES:
        mode = _parse_mode(cfg.autoreset_mode) or AutoresetMode.DISABLED
        # Observations are copied into the caller's arrays at once, so the env need not copy them.
        vector_kwargs = {"autoreset_mode": mode, "copy": False}
    wrappers: list[Callable] = [wrapper(item, f"env.wrappers[{i}]") for i, item in enumerate(cfg.wrappers)]
    if vectorization == "async":
        wrappers.append(partial(CheckedEnv, exclude_keys=cfg.exclude_keys))
    return gymnasium.make_vec(
        str(cfg.id),
        cfg.num_envs,
        vectorization_mode=vectorization,
        vector_kwargs=vector_kwargs,
        wrappers=wrappers,
        **cfg.kwargs,
    )


def _autoreset_mode(env: VectorEnv, cfg: GymVectorEnvConfig) -> AutoresetMode:
    configured = _parse_mode(cfg.autoreset_mode)
    stated = _parse_mode(env.metadata.get("autoreset_mode"))
    if stated is None and configured is None:
        raise ConfigError(
            [f"{env} does not say how it resets (metadata has no autoreset_mode): set env.autoreset_mode, {_modes()}"]
        )
    if stated is not None and configured is not None and stated is not configured:
        raise ConfigError(
            [
                f"env.autoreset_mode={cfg.autoreset_mode}, but {env} resets by {stated.value} and its vectorization "
                "mode gives no choice: leave it null, or use env.vectorization_mode=sync or async"
            ]
        )
    mode = stated or configured
    assert mode is not None
    return mode


def _parse_mode(value: Any) -> AutoresetMode | None:
    if value is None or isinstance(value, AutoresetMode):
        return value
    for mode in AutoresetMode:
        if str(value).replace("_", "").lower() == mode.value.lower():
            return mode
    raise ConfigError([f"env.autoreset_mode={value}: {_modes()}"])


def _modes() -> str:
    return f"one of {', '.join(mode.name.lower() for mode in AutoresetMode)}"
