"""The interface of env adapters.

An adapter drives a *group* of `num_envs` envs in one process. The rollout calls it from one thread.

    call                  writes                                        afterwards
    reset(seeds, out)     out[leaf][e] for every env                    every env is at its first observation
    step(action, out)     out.observation, reward, terminated,          envs that ended wait at their true final
                          truncated (and out.frame if ragged)           observation; they are not stepped before restart
    restart(ended, out)   out[leaf][e] where ended[e], nothing else     those envs are at a new first observation

So the caller decides when envs are reset, for all kinds alike: `next.observation` of an episode's last frame is the
true final observation, whatever Gymnasium's `AutoresetMode` of the wrapped env.

A *ragged* env (`EnvSpec.ragged`, Gymnasium's NEXT_STEP vector envs) cannot restart single envs: the step after an
episode's end resets that env and is not a frame. Such an adapter writes `out.frame[e] = False` for it, and the reset
observation into `out.observation[leaf][e]`; its `restart` is never called.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from collectx import progress
from collectx.batch import REWARD, Key, Leaf, as_array
from collectx.env.metrics import InfoMetrics


@dataclass(frozen=True)
class EnvSpec:
    """The leaves and spaces of a group of envs.

    Attributes:
        num_envs: envs in the group (E).
        observation: leaves of one env's observation and of the kept `info` entries, in the order of `out`.
            A Box, Discrete, ... space becomes one leaf `("observation",)`; the parts of a Dict keep their names, such
            as `("camera",)`; kept infos are `("info", name)`; with a time limit (`collectx/rollout/wrappers.py`),
            `("step_count",)` is the last.
        action: leaves of one env's action: `("action",)`; those of a Dict or Tuple are below that key.
        observation_space, action_space: the single env's Gymnasium spaces.
        ragged: see the module's docstring.
        can_restart_early: whether `restart` accepts envs whose episode did not end.
        agents_ends: the leaves of `observation` that say which agents have ended, such as `("agents", "done")`.
        rewards: leaves of a step's rewards; usually one float32 number, `[1]`.
        deltas: leaves `("delta", *key)`, below `next` in place of the observation `key`: its change in the step.
        batch_shape: the envs' dimensions in a batch, where there are several; (): `[E]`, or none for a single env.
        nested_dims: batch dimensions of nested TensorDicts after the envs' dimensions, by key: `{("agents",): (3,)}`.
        draw: returns endless random actions of the group from torch's generator, one `[E, *shape]` tensor per action
            leaf; None: `action_space` is sampled.
        is_single: the group is one env without a batch dimension, not a group of one; a user's policy is called with
            its observation, `[*shape]`.
        path: what steps a TorchRL env: "gymnasium", or "torchrl: " and the reason why its own `_step` does; otherwise
            empty.
        data_device: `device` of the TensorDict that a user's policy is called with, if the policy acts on the CPU;
            None: no device was named for the policy.
        action_spec: the actions as the env describes them: TorchRL's spec with all keys; None for Gymnasium's envs.
        inputs: the leaves of `observation_space`, which policies without keys are called with; kept infos and step
            counts are not among them. By default `observation`.
        example_observation: observations after a reset, by leaf, `[1, *shape]` or `[E, *shape]`, with which a user's
            policy is called once to learn its outputs. Empty: that call takes zeros.
        infos: the form of each kept entry of `info` (`collectx.env.infos.InfoKeys.declared`).
        normalizers: the classes of wrappers that keep statistics in each env (`collectx.env.wrappers`).
        device: where the group takes and writes tensors in place of arrays (`collectx.env.tensor_vector`), with its
            index; None: it takes and writes arrays.
    """

    num_envs: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    ragged: bool = False
    can_restart_early: bool = True
    agents_ends: tuple[Leaf, ...] = ()
    rewards: tuple[Leaf, ...] = (REWARD,)
    deltas: tuple[Leaf, ...] = ()
    batch_shape: tuple[int, ...] = ()
    nested_dims: Mapping[Key, tuple[int, ...]] = field(default_factory=dict, compare=False)
    draw: Callable[[], Iterator[Sequence[torch.Tensor]]] | None = None
    is_single: bool = False
    path: str = field(default="", compare=False)
    data_device: torch.device | None = field(default=None, compare=False)
    action_spec: Any = field(default=None, compare=False, repr=False)
    inputs: tuple[Leaf, ...] = None  # type: ignore[assignment]
    example_observation: Mapping[Key, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    infos: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    normalizers: tuple[str, ...] = field(default=(), compare=False)
    device: torch.device | None = None

    def __post_init__(self) -> None:
        if self.inputs is None:
            object.__setattr__(self, "inputs", self.observation)

    @property
    def next_only_leaves(self) -> tuple[Leaf, ...]:
        """The leaves that a batch contains below `next` only."""
        return (*self.rewards, *self.deltas)

    @property
    def agents_cuts(self) -> list[int]:
        """The indices in `observation` of the agents' ends that are set where their trajectory is truncated."""
        cuts = [leaf for leaf in self.agents_ends if leaf.key[-1] != "terminated"]
        return [index for index, leaf in enumerate(self.observation) if leaf in cuts]

    @property
    def policy_shape(self) -> tuple[int, ...]:
        """The dimensions of the envs: the batch size of the observations that a user's policy is called with."""
        return () if self.is_single else self.batch_shape or (self.num_envs,)


@dataclass(slots=True)
class StepArrays:
    """The output arrays of one step: numpy views owned by the rollout, written by `Env.step`.

    Attributes:
        observation: one array `[E, *shape]` for each leaf of `EnvSpec.observation`, in that order.
        reward: `[E]` float32; the sum of all rewards where `next_only` is not empty.
        terminated, truncated: `[E]` bool, all False before the call.
        frame: `[E]` bool, all True before the call; only a ragged env writes it.
        next_only: one array `[E, *shape]` for each leaf of `EnvSpec.next_only_leaves`; empty if the usual reward is the
            only one.
    """

    observation: Sequence[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    frame: np.ndarray
    next_only: Sequence[np.ndarray] = ()


class Env(ABC):
    """A group of envs; see the module's docstring.

    Attributes:
        user_envs: the user's env objects, where there are any. A worker that resumes replaces its env objects.
        metrics: the sums of `env.metrics`; None without these.
        reset_options: the options of every reset; empty: resets get none.
        unsaved: why checkpoints cannot contain the state of the envs, if a group that was not reset does not show it.
    """

    spec: EnvSpec
    user_envs: Sequence[Any] = ()
    metrics: InfoMetrics | None = None
    reset_options: Mapping[str, Any] = MappingProxyType({})
    unsaved: str | None = None

    @property
    def group(self) -> Env:
        """The group without the wrappers of `collectx.rollout.wrappers`."""
        return self

    @abstractmethod
    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        """Resets every env, env e with `seeds[e]`, or without a seed; writes the observations into `out`.

        A group that takes a single seed uses `seeds[0]`.
        """

    @abstractmethod
    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        """Steps every env with `action`, one array `[E, *shape]` per action leaf; blocks until all have stepped.

        Returns:
            Whether any env's episode ended in this step (any terminated or truncated).
        """

    @abstractmethod
    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Starts a new episode in every env with `ended[e]` (`[E]` bool); writes only their part of `out`.

        With `EnvSpec.can_restart_early`, `ended` may include envs whose episode did not end.
        """

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Sets `reset_options`; None: there are none.

        Raises:
            NotImplementedError: these envs take no options.
        """
        raise NotImplementedError(f"{type(self).__name__}: only the resets of Gymnasium's envs take options")

    def reset_kwargs(self, **options: Any) -> dict[str, Any]:
        """Returns the keyword arguments of a reset, with these options too. New dicts, as an env may change them."""
        options = {**self.reset_options, **options}
        return {"options": options} if options else {}

    def close(self) -> None:  # noqa: B027
        """Releases the envs. Idempotent."""


def first_observations(env: Env, seeds: Sequence[int]) -> dict[Key, torch.Tensor]:
    """Resets `env` with `seeds`. Returns its observations, `[E, *shape]` by leaf; owned by the caller."""
    spec = env.spec
    first = {
        leaf.key: torch.zeros((spec.num_envs, *leaf.shape), dtype=leaf.dtype, device=spec.device)
        for leaf in spec.observation
    }
    out: Sequence[Any] = [*first.values()]
    env.reset(seeds, out if spec.device is not None else [as_array(value) for value in out])
    progress.one_more()
    return first


def steps_per_draw(num_elements: int) -> int:
    """Returns for how many steps random actions are drawn at once, as one draw costs more than the step of a small env.

    Args:
        num_elements: elements of one step's actions.
    """
    return max(1, min(256, 65536 // max(1, num_elements)))


@contextlib.contextmanager
def closed_on_error(env: Env) -> Iterator[None]:
    """Closes `env` if the block raises; an error in `close` does not hide that of the block."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise
