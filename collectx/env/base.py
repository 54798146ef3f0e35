"""What every env adapter promises to the rollout.

An adapter drives a *group* of `num_envs` envs in one process. It is called by the rollout, in the worker's process,
from one thread. It must not know slots, transports, policies or trajectories.

    call                  writes                                        afterwards
    reset(seeds, out)     out[leaf][e] for every env                    every env is at its first observation
    step(action, out)     out.observation, reward, terminated,          envs that ended wait at their true final
                          truncated (and out.frame if ragged)           observation; they are not stepped again before
    restart(ended, out)   out[leaf][e] where ended[e], nothing else     those envs are at a new first observation

So the auto-reset rule is the caller's, and one for all kinds: `next.observation` of an episode's last frame is the true
final observation, whatever Gymnasium's `AutoresetMode` of the env below.

A *ragged* env (`EnvSpec.ragged`, Gymnasium's NEXT_STEP vector envs) cannot be restarted apart from the group: the step
after an episode's end resets that env and is not a frame. Such an adapter writes `out.frame[e] = False` for it, and the
reset observation into `out.observation[leaf][e]`; its `restart` is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import gymnasium
import numpy as np
import torch

from collectx.batch import REWARD, Key, Leaf


@dataclass(frozen=True)
class EnvSpec:
    """What a group of envs produces and takes.

    Attributes:
        num_envs: envs in the group (E).
        observation: leaves of one env's observation and of the kept `info` entries, in the order of `out`.
            A Box, Discrete, ... space gives one leaf `("observation",)`; Dict and Tuple spaces give nested keys such
            as `("observation", "camera")` and `("observation", "0")`; kept infos are `("info", name)`; where
            trajectories are cut (`collectx/rollout/time_limit.py`), `("step_count",)` is the last.
        action: leaves of one env's action, likewise, from `("action",)`.
        observation_space, action_space: the single env's Gymnasium spaces.
        ragged: see the module's docstring.
        cuttable: whether `restart` may name envs whose episode did not end.
        rewards: what a step gives, of which one float32 number, `[1]`, is usual.
        batch_shape: in which dimensions the envs stand in a batch, where these are several; (): in one, or, of one env,
            in none.
        draw: begins endless random actions of the group from torch's generator, one `[E, *shape]` tensor per action
            leaf; None: samples of `action_space`.
        is_single: the group is one env without a batch dimension, not a group of one; a user's policy is called with
            its observation, `[*shape]`.
        first: observations after a reset, by leaf, `[1, *shape]` or `[E, *shape]`, for the call that finds out what a
            user's policy writes. Empty where no env was reset for that call, which then takes zeros.
    """

    num_envs: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    ragged: bool = False
    cuttable: bool = True
    rewards: tuple[Leaf, ...] = (REWARD,)
    batch_shape: tuple[int, ...] = ()
    draw: Callable[[], Iterator[Sequence[torch.Tensor]]] | None = None
    is_single: bool = False
    first: Mapping[Key, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def policy_shape(self) -> tuple[int, ...]:
        """Batch size of what a user's policy is called with: the env's."""
        return () if self.is_single else self.batch_shape or (self.num_envs,)


@dataclass(slots=True)
class StepRows:
    """Where one step goes: numpy views owned by the rollout, written by `Env.step`.

    Attributes:
        observation: one array `[E, *shape]` for each leaf of `EnvSpec.observation`, in that order.
        reward: `[E]` float32; where `EnvSpec.rewards` are others, the sum of them all, for returns only.
        terminated, truncated: `[E]` bool, all False before the call.
        frame: `[E]` bool, all True before the call; only a ragged env writes it.
        rewards: one array `[E, *shape]` for each leaf of `EnvSpec.rewards`, where these are not the usual one.
    """

    observation: Sequence[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    frame: np.ndarray
    rewards: Sequence[np.ndarray] = ()


class Env(Protocol):
    """A group of envs; the module's docstring has the contract."""

    spec: EnvSpec

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        """Resets every env, env e with `seeds[e]`, or without a seed; writes the observations into `out`.

        A group whose envs cannot be seeded one by one (EnvPool) derives its one seed from `seeds[0]`.
        """

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        """Steps every env with `action`, one array `[E, *shape]` per action leaf; blocks until all have stepped.

        Returns:
            Whether any env's episode ended in this step (any terminated or truncated).
        """

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Starts a new episode in every env with `ended[e]` (`[E]` bool); writes only those rows of `out`.

        `ended` may name envs whose episode did not end (a caller that cuts trajectories short), where the group is
        `EnvSpec.cuttable`.
        """

    def close(self) -> None:
        """Releases the envs. Idempotent."""


def first_observations(env: Env, seeds: Sequence[int]) -> dict[Key, torch.Tensor]:
    """Resets `env`, each of its envs with its seed. Returns its observations, `[E, *shape]` by leaf, which are the
    caller's."""
    leaves = env.spec.observation
    first = {leaf.key: torch.zeros((env.spec.num_envs, *leaf.shape), dtype=leaf.dtype) for leaf in leaves}
    env.reset(seeds, [value.numpy() for value in first.values()])
    return first
