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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from collectx.batch import Leaf
from collectx.config import GymVectorEnvConfig
from collectx.env.base import EnvSpec, StepRows
from collectx.env.infos import InfoKeys
from collectx.env.make import given, resolve_source, wrapper
from collectx.env.spaces import Structure, check, checked_rows
from collectx.errors import CollectxError, ConfigError, ShapeError

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
            self._observation = Structure(self._env.single_observation_space, ("observation",))
            self._action = Structure(self._env.single_action_space, ("action",))
            self._infos = InfoKeys(cfg.info_keys, self._probe) if cfg.info_keys else None
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
            self._env.single_observation_space,
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
    def users_envs(self) -> list[Any]:
        """What the user has made."""
        return [self._env]

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        seed: int | list[int] | None = None
        if seeds is not None:
            seed = [int(s) for s in seeds] if self._seeds_each else int(seeds[0])
        observation, info = self._env.reset(seed=seed)  # type: ignore[arg-type]
        self._ended[:] = False
        self._any_ended = False
        self._write(out, self._values(observation, info, after_step=False))

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
        if self._mode is AutoresetMode.NEXT_STEP:
            self._write(out.observation, self._values(observation, info, after_step=True, absent=self._ended))
            if self._any_ended:
                out.frame[self._ended] = False
        elif self._mode is AutoresetMode.SAME_STEP and any_ended:
            self._write(out.observation, self._values(observation, info, after_step=True, absent=ended))
            self._fresh = [array[ended] for array in out.observation]
            self._write_final(out.observation, ended, info)
        else:
            self._write(out.observation, self._values(observation, info, after_step=True))
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
            values = self._values(observation, info, after_step=False)
            for leaf, array, value in zip(self._leaves, out, values, strict=True):
                array[early] = checked_rows(leaf, value, array)[early]
        if due.any():
            taken = due[self._ended]
            for array, fresh in zip(out, self._fresh, strict=True):
                array[due] = fresh[taken]

    def close(self) -> None:
        self._env.close()

    def _values(
        self, observation: Any, info: Mapping, after_step: bool, absent: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """One `[E, *shape]` array per leaf; where `absent`, `info` is that of a reset."""
        values = self._observation.flatten(observation)
        if self._infos:
            for leaf in self._infos.leaves:
                values.append(_info_rows(leaf, info, self._env.num_envs, absent if after_step else True))
        return values

    def _write(self, out: Sequence[np.ndarray], values: Sequence[Any]) -> None:
        for leaf, array, value in zip(self._leaves, out, values, strict=True):
            array[...] = checked_rows(leaf, value, array)

    def _write_final(self, out: Sequence[np.ndarray], ended: np.ndarray, info: Mapping) -> None:
        if "final_obs" not in info:
            raise CollectxError(
                'a vector env with autoreset mode SameStep must put the final observations into info["final_obs"], '
                f"which has only {sorted(map(str, info))}"
            )
        final = info["final_obs"]
        per_env = isinstance(final, np.ndarray) and final.dtype == object
        batched = None if per_env else self._observation.flatten(final)
        for e in np.flatnonzero(ended).tolist():
            values = self._observation.flatten(final[e]) if batched is None else [value[e] for value in batched]
            for leaf, array, value in zip(self._observation.leaves, out, values, strict=False):
                check(leaf, value, array.dtype, e)
                array[e] = value
        if self._infos:
            arrays = out[len(self._observation.leaves) :]
            for leaf, array in zip(self._infos.leaves, arrays, strict=True):
                rows = _info_rows(leaf, info.get("final_info", {}), self._env.num_envs, ~ended)
                array[ended] = rows[ended]

    def _probe(self) -> tuple[dict, dict]:
        _, at_reset = self._env.reset(seed=0)
        self._env.action_space.seed(0)
        return at_reset, _first_env(self._env.step(self._env.action_space.sample())[4])


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


def _info_rows(leaf: Leaf, info: Mapping, num_envs: int, optional: np.ndarray | bool | None) -> np.ndarray:
    """The entry as `[E, *shape]`. Envs that are `optional` may lack it (True: all, None: none) and then have 0."""
    name = leaf.key[-1]
    present = info.get(f"_{name}", np.full(num_envs, name in info))
    may_lack = np.zeros(num_envs, bool) if optional is None else np.broadcast_to(np.asarray(optional), (num_envs,))
    lacking = np.flatnonzero(~(present | may_lack)).tolist()
    if lacking:
        raise ShapeError(
            f"info.{name}: missing from the info of this step in envs {lacking}, so it cannot be in env.info_keys"
        )
    if name not in info:
        return np.zeros((num_envs, *leaf.shape), bool)
    return np.asarray(info[name])


def _first_env(info: Mapping) -> dict:
    return {key: value[0] for key, value in info.items() if isinstance(value, np.ndarray) and not key.startswith("_")}
