"""Kind `envpool`: EnvPool's C++ envs, all stepped at once by EnvPool's threads.

EnvPool resets an ended env in the env's next step, which is then not a transition; a separate reset call takes half as
long as a step. So the pool has more members (EnvPool's envs) than the group has envs; the others are spares, which wait
at their first observations. If env 5 ends at step t:

    1. `reset_some` makes a spare env 5.
    2. Step t + 1 also steps the ended member, after the members of the group. EnvPool resets it in this step.
    3. The member is then at its first observation, and becomes a spare.

Which member represents an env depends on when the other envs ended. So the same seeds and actions give the same frames
of the group, but the frames of one env depend on the others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from collectx.config.problem import YAML
from collectx.config.schema.env import EnvPoolEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays
from collectx.env.env_indices import EnvNumbers
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves, checked_values, numpy_dtype
from collectx.errors import CollectxError, ConfigError, SpaceError

# Arguments that the adapter itself sets. (A batch_size below num_envs would make steps asynchronous.)
_RESERVED_ARGUMENTS = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "env_type")
_MAX_SEED = 2**31


class EnvPoolEnv(Env):
    """`cfg.num_envs` envs of one EnvPool, in its synchronous mode.

    EnvPool takes seeds only in its constructor, so `reset(seeds)` makes a new pool. Its first members get `seeds`,
    modulo 2**31; the spares get seeds derived from them.
    """

    unsaved = "EnvPool does not expose the state of its envs"

    def __init__(self, cfg: EnvPoolEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers):
        try:
            import envpool
        except ImportError as error:
            raise ConfigError(
                "env=envpool needs the package EnvPool. Install it: pip install 'collectx[envpool]'"
            ) from error
        self._envpool = envpool
        reserved = sorted(set(cfg.kwargs) & set(_RESERVED_ARGUMENTS))
        if reserved:
            names = " and ".join(map(repr, reserved))
            raise ConfigError(
                f"env.kwargs cannot contain {names}, because collectx sets "
                f"{'it' if len(reserved) == 1 else 'them'} itself. Leave {'it' if len(reserved) == 1 else 'them'} "
                "out."
            )
        if cfg.id not in self._envpool.list_all_envs():
            raise ConfigError(
                f"env.id={cfg.id} is not an EnvPool task. To list all tasks: python -c 'import envpool; "
                "print(*envpool.list_all_envs())'"
            )
        self._id = cfg.id
        # One spare for eight envs suffices even for the short episodes of a random policy on CartPole. If there is
        # none, `reset_some` calls reset.
        self._num_members = num_members = cfg.num_envs + max(1, cfg.num_envs // 8)
        self._arguments = {**numbers.filled(cfg.kwargs), "num_envs": num_members, "num_threads": cfg.num_threads}
        with _without_precision_warnings():
            try:
                spec = self._envpool.make_spec(cfg.id, **self._arguments)
            except TypeError as error:
                reason = f"EnvPool's {cfg.id} does not accept these arguments ({str(error).splitlines()[0]})"
                raise ConfigError(f"env.kwargs={YAML.show(cfg.kwargs)} cannot be used: {reason}") from error
            self._observation = ObservationLeaves(spec.gymnasium_observation_space, cfg.exclude_keys)
            action = SpaceLeaves(spec.gymnasium_action_space, ("action",))
        if not action.single:
            raise SpaceError(
                f"env=envpool needs an action space that is a single array, but that of {cfg.id} is {action.space}. "
                "Choose another task, or an equivalent one with env=gym."
            )
        leaves = self._observation.leaves
        self.spec = EnvSpec(cfg.num_envs, leaves, action.leaves, self._observation.space, action.space)
        self._num_envs = cfg.num_envs
        self._pool: Any = None
        # The first observations of the spares, by member; the spares in the order in which they became ready.
        self._first = [np.empty((num_members, *leaf.shape), numpy_dtype(leaf)) for leaf in leaves]
        self._ready: deque[int] = deque()
        # Members that ended and were replaced by spares; the next step resets them.
        self._retired: list[int] = []
        # For each env, its member, and whether its episode has ended.
        self._member = np.arange(cfg.num_envs, dtype=np.int32)
        self._ended = np.zeros(cfg.num_envs, bool)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        if seeds is not None or self._pool is None:
            self._pool = None  # the old pool's threads end before the new ones start
            entropy = np.random.SeedSequence([int(s) for s in seeds] if seeds is not None else None)
            derived = entropy.generate_state(self._num_members).tolist()
            firsts = derived[: self._num_envs] if seeds is None else [int(s) for s in seeds]
            self._make([s % _MAX_SEED for s in (*firsts, *derived[self._num_envs :])])
        members = np.arange(self._num_members, dtype=np.int32)
        for leaf, first, value in zip(self._observation.leaves, self._first, self._reset_members(members), strict=True):
            first[:] = checked_values(leaf, value, first)
        self._member = members[: self._num_envs].copy()
        self._ready = deque(members[self._num_envs :].tolist())
        self._retired = []
        self._ended[:] = False
        for array, first in zip(out, self._first, strict=True):
            array[:] = first[: self._num_envs]

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        actions = action[0].astype(self._action_dtype)
        members = self._member
        if self._retired:
            # A member that this step resets ignores its action: any valid action will do.
            filler = actions[np.arange(len(self._retired)) % self._num_envs]
            actions = np.concatenate([actions, filler])
            members = np.concatenate([members, np.array(self._retired, np.int32)])
        self._pool._send([members, members, actions])
        state, values = self._receive(members)
        if self._retired:
            for first, value in zip(self._first, values, strict=True):
                first[self._retired] = value[self._num_envs :]
            self._ready += self._retired
            self._retired = []
        for leaf, array, value in zip(self._observation.leaves, out.observation, values, strict=True):
            array[:] = checked_values(leaf, value[: self._num_envs], array)
        out.reward[:] = state[self._reward_at][: self._num_envs]
        truncated = state[self._truncated_at][: self._num_envs]
        ended = state[self._done_at][: self._num_envs]
        out.truncated[:] = truncated
        # EnvPool's `done` includes truncation, and cannot mark an episode as both terminated and truncated.
        np.greater(ended, truncated, out=out.terminated)
        self._ended = ended
        return bool(ended.any())

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        late = []
        for e in np.flatnonzero(ended).tolist():
            # A step resets only members that have ended. A truncated one, and one without a spare, needs a reset call.
            if self._ready and self._ended[e]:
                self._retired.append(int(self._member[e]))
                member = self._ready.popleft()
                self._member[e] = member
                for array, first in zip(out, self._first, strict=True):
                    array[e] = first[member]
            else:
                late.append(e)
        if late:
            for array, value in zip(out, self._reset_members(self._member[late]), strict=True):
                array[late] = value
        self._ended = self._ended & ~ended

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        raise NotImplementedError(
            "reset options cannot be used, because the resets of EnvPool's envs take none. Use env.kwargs, or "
            "another env."
        )

    def close(self) -> None:
        self._pool = None

    def _make(self, seeds: list[int]) -> None:
        with _without_precision_warnings():
            pool = self._envpool.make(self._id, env_type="gymnasium", seed=seeds, **self._arguments)
            # EnvPool makes this space at its first use: here, where its warning is filtered.
            _ = pool.observation_space
        # EnvPool's `send` and `recv` spend a tenth of a CartPole step on looking up names, which is done here, once.
        keys = list(pool._state_keys)
        self._member_at, self._reward_at = keys.index("info:env_id"), keys.index("reward")
        self._done_at, self._truncated_at = keys.index("done"), keys.index("trunc")
        self._observation_at = keys.index("obs") if self._observation.single and "obs" in keys else None
        self._action_dtype = pool.spec.action_array_spec[pool._action_keys[-1]].dtype
        if tuple(pool._action_keys[:2]) != ("env_id", "players.env_id") or len(pool._action_keys) != 3:
            raise SpaceError(
                f"collectx does not support EnvPool's {self._id}, whose actions are {pool._action_keys}. Choose "
                "another task."
            )
        self._pool = pool

    def _reset_members(self, members: np.ndarray) -> list[np.ndarray]:
        self._pool._reset(members)
        return self._receive(members)[1]

    def _receive(self, members: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Waits for these members. Returns EnvPool's arrays, and one array per observation leaf."""
        state = self._pool._recv()
        if not np.array_equal(state[self._member_at], members):
            raise CollectxError(
                f"EnvPool returned steps of its envs {state[self._member_at].tolist()} when those of "
                f"{members.tolist()} were due: this version does not keep the order of its envs in synchronous mode. "
                "Install another version of EnvPool."
            )
        if self._observation_at is not None:
            return state, [state[self._observation_at]]
        return state, self._observation.flatten(self._pool._to(state, True, True)[0])


@contextlib.contextmanager
def _without_precision_warnings() -> Iterator[None]:
    """Hides Gymnasium's warning that EnvPool's float64 bounds become float32, which users cannot change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield
