"""Kind `envpool`: EnvPool's C++ envs, all stepped at once by its own threads.

Called by the rollout, in the worker's process; the only module that imports `envpool`. Must not know slots,
trajectories or policies.

Left alone, EnvPool resets an ended env in the following step, which is then no transition. This adapter resets the
ended envs, and only these, before that step: `reset(env_ids)` costs one round trip through the pool's queue, and every
row of a batch stays a frame.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectx.config import EnvPoolEnvConfig
from collectx.env.base import EnvSpec, StepRows
from collectx.env.make import given
from collectx.env.spaces import Structure
from collectx.errors import ConfigError, SpaceError

# What the adapter itself decides: a batch_size below num_envs would make steps asynchronous.
_OWN_ARGUMENTS = ("num_envs", "batch_size", "num_threads", "seed", "env_type")
_LARGEST_SEED = 2**31


class EnvPoolEnv:
    """`cfg.num_envs` envs of one EnvPool, in its synchronous mode.

    EnvPool takes seeds only when it is made, so `reset(seeds)` makes a new pool; env e gets `seeds[e]` modulo 2**31.

    Raises:
        ConfigError: `envpool` is not installed, has no such task, or an argument is not the user's to give.
        SpaceError: a space that cannot be stored as tensors, or an action of several parts.
    """

    def __init__(self, cfg: EnvPoolEnvConfig):
        envpool = _import_envpool(cfg.id)
        taken = sorted(set(cfg.kwargs) & set(_OWN_ARGUMENTS))
        if taken:
            raise ConfigError([f"env.kwargs has {', '.join(taken)}: collectx sets these of EnvPool's arguments itself"])
        self._arguments: dict[str, Any] = {**cfg.kwargs, "num_envs": cfg.num_envs, "num_threads": given(cfg.num_threads) or 0}
        self._id = cfg.id
        self._envpool = envpool
        self._pool: Any = None
        if cfg.id not in envpool.list_all_envs():
            raise ConfigError([f"env.id={cfg.id} is not a task of EnvPool: envpool.list_all_envs() lists them"])
        with warnings.catch_warnings():
            # Gymnasium warns that EnvPool's float64 bounds become float32: nothing a user could change.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            spec = envpool.make_spec(cfg.id, **self._arguments)
            observation_space, action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        self._observation = Structure(observation_space, ("observation",))
        action = Structure(action_space, ("action",))
        if not action.single:
            raise SpaceError(f"action: {action_space} has several parts, which the envpool kind does not support")
        self.spec = EnvSpec(
            cfg.num_envs, self._observation.leaves, action.leaves, observation_space, action_space, ragged=False
        )
        self._all = np.arange(cfg.num_envs, dtype=np.int32)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        if seeds is not None or self._pool is None:
            self._pool = None  # the old pool's threads end before the new ones start
            if seeds is None:
                seeds = np.random.SeedSequence().generate_state(len(self._all)).tolist()
            self._pool = self._make([int(seed) % _LARGEST_SEED for seed in seeds])
        self._write_reset(self._all, out)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        # `send` copies the actions and casts them to EnvPool's own dtype.
        self._pool.send(action[0], self._all)
        observation, reward, terminated, truncated, _ = self._pool.recv()
        for array, value in zip(out.observation, self._observation.flatten(observation), strict=True):
            array[:] = value
        out.reward[:] = reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        return bool(terminated.any() or truncated.any())

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._write_reset(np.flatnonzero(ended).astype(np.int32), out)

    def close(self) -> None:
        self._pool = None

    def _make(self, seeds: list[int]) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            pool = self._envpool.make(self._id, env_type="gymnasium", seed=seeds, **self._arguments)
            # EnvPool builds this space at the first use and keeps it: use it here, where its warning is filtered.
            _ = pool.observation_space
        return pool

    def _write_reset(self, env_ids: np.ndarray, out: Sequence[np.ndarray]) -> None:
        observation, info = self._pool.reset(env_ids)
        # In the pool's own order, which for a part of the envs is not promised to be that of `env_ids`.
        rows = info["env_id"]
        for array, value in zip(out, self._observation.flatten(observation), strict=True):
            array[rows] = value


def _import_envpool(task: str) -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ConfigError([f"env.kind=envpool (id={task}): needs EnvPool: pip install 'collectx[envpool]'"]) from error
    return envpool
