"""The interface of env adapters.

An adapter drives a *group* of `num_envs` envs in one process. The rollout calls it from one thread.

    call                    writes                                      afterwards
    reset(seeds, out)       out[leaf][e] for every env                  every env is at its first observation
    step(action, out)       out.observation, reward, terminated,        envs that ended wait at their true final
                            truncated (and out.frame if ragged)         observation; they are not stepped before a reset
    reset_some(ended, out)  out[leaf][e] where ended[e], nothing else   those envs are at a new first observation

So for all kinds of envs, the caller decides when an env is reset, and `next.observation` of an episode's last frame is
the true final observation, whatever Gymnasium's `AutoresetMode` of the wrapped env is.

A *ragged* group (`EnvSpec.ragged`; Gymnasium's NEXT_STEP vector envs) cannot reset single envs: the step after the
end of an episode resets that env, and is not a frame. For this step, the adapter writes `out.frame[e] = False`, and the
first observation of the new episode into `out.observation[leaf][e]`. Its `reset_some` is never called.
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
    """The leaves and spaces of an env group.

    Attributes:
        num_envs: number of envs in the group (E).
        observation: the leaves of an env's observation and of the kept `info` entries, in the order of `out`. A Box,
            Discrete, ... space becomes one leaf `("observation",)`; the parts of a Dict keep their names, such as
            `("camera",)`; kept infos are `("info", name)`; with a time limit (`collectx/rollout/wrappers.py`),
            `("step_count",)` is the last leaf.
        action: the leaves of an env's action: `("action",)`; for a Dict or Tuple, leaves below that key.
        observation_space, action_space: the Gymnasium spaces of a single env.
        ragged: whether envs spend a step on a reset; see the module's docstring.
        can_reset_early: whether `reset_some` also accepts envs whose episode did not end.
        agents_ends: the leaves of `observation` that tell which agents have ended, such as `("agents", "done")`.
        rewards: the leaves of a step's rewards; usually one, `[1]` float32.
        deltas: leaves `("delta", *key)`, which batches contain below `next` in place of the observation `key`: its
            change in the step.
        batch_shape: the batch dimensions of a batched env that has several; otherwise ().
        nested_dims: batch dimensions of nested TensorDicts after those of the envs, by key, such as
            `{("agents",): (3,)}`.
        draw: returns an endless iterator of random actions, drawn with torch's generator: a tensor `[E, *shape]` per
            action leaf. None: `action_space` is sampled.
        is_single: whether the group is one env without a batch dimension, so that a user's policy gets observations
            `[*shape]`.
        path: how a TorchRL env is stepped. "gymnasium": by the Gymnasium env below it; "torchrl: " and a reason: by its
            own `_step`. Empty for other envs.
        data_device: `device` of the TensorDict with which a user's policy is called, if the policy acts on the CPU;
            None: no device was named for the policy.
        action_spec: the env's own description of actions: TorchRL's spec with all keys; None for Gymnasium's envs.
        inputs: the leaves of `observation_space`: `observation` without kept infos and step counts. A policy without
            keys is called with them.
        example_observation: observations after a reset, by key, `[1, *shape]` or `[E, *shape]`, for the first call of a
            user's policy, which tells its outputs. Empty: that call gets zeros.
        infos: dtype and shape of each kept entry of `info` (`collectx.env.infos.InfoKeys.declared`).
        normalizers: the classes of wrappers that keep statistics in each env (`collectx.env.wrappers`).
        outside: a sentence about first observations outside of the bounds of their space; "": there are none.
        device: the device, with its index, of a group that takes and writes tensors instead of arrays
            (`collectx.env.tensor_vector`); None: it takes and writes arrays.
    """

    num_envs: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    ragged: bool = False
    can_reset_early: bool = True
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
    outside: str = field(default="", compare=False)
    device: torch.device | None = None

    def __post_init__(self) -> None:
        if self.inputs is None:
            object.__setattr__(self, "inputs", self.observation)

    def native(self, tensor: torch.Tensor) -> Any:
        """Returns a tensor's memory in the form that the group takes: an array, or the tensor itself for a group on a
        device."""
        return as_array(tensor) if self.device is None else tensor

    @property
    def next_only_leaves(self) -> tuple[Leaf, ...]:
        """The leaves that a batch contains only below `next`."""
        return (*self.rewards, *self.deltas)

    @property
    def agents_cuts(self) -> list[int]:
        """Which leaves are set in a frame that truncates the trajectory: those of `agents_ends` that do not mean
        "terminated", as indices in `observation`."""
        cuts = [leaf for leaf in self.agents_ends if leaf.key[-1] != "terminated"]
        return [index for index, leaf in enumerate(self.observation) if leaf in cuts]

    @property
    def policy_shape(self) -> tuple[int, ...]:
        """The batch size of the observations with which a user's policy is called: the dimensions of the envs."""
        return () if self.is_single else self.batch_shape or (self.num_envs,)


@dataclass(slots=True)
class StepArrays:
    """The arrays into which `Env.step` writes one step. The rollout owns them.

    Attributes:
        observation: an array `[E, *shape]` for each leaf of `EnvSpec.observation`, in that order.
        reward: `[E]` float32; the sum of all rewards if `next_only` is not empty.
        terminated, truncated: `[E]` bool, all False before the call.
        frame: `[E]` bool, all True before the call; only a ragged env writes it.
        next_only: an array `[E, *shape]` for each leaf of `EnvSpec.next_only_leaves`; empty if that is only the usual
            reward.
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
        user_envs: the user's env objects, if there are any. When a worker resumes, others replace them.
        metrics: the sums of `env.metrics`; None without metrics.
        reset_options: the options of every reset; empty: none.
        reset_info: the `info` of the last `reset` of Gymnasium's vector env; without one, that of the first env.
        unsaved: why checkpoints cannot contain the state of the envs, if the kind of env excludes it; None if it does
            not.
    """

    spec: EnvSpec
    user_envs: Sequence[Any] = ()
    metrics: InfoMetrics | None = None
    reset_options: Mapping[str, Any] = MappingProxyType({})
    reset_info: Mapping[str, Any] = MappingProxyType({})
    unsaved: str | None = None

    @property
    def group(self) -> Env:
        """The group without the wrappers of `collectx.rollout.wrappers`."""
        return self

    @abstractmethod
    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        """Resets every env: env e with `seeds[e]`, or with None without seeds. Writes the observations into `out`.

        A group that takes a single seed uses `seeds[0]`.
        """

    @abstractmethod
    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        """Steps every env with `action`, an array `[E, *shape]` per action leaf, and writes into `out`. Blocks until
        all have stepped.

        Returns:
            Whether the episode of any env ended in this step (terminated or truncated).
        """

    @abstractmethod
    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Begins a new episode in every env with `ended[e]`, `[E]` bool; writes only their part of `out`.

        With `EnvSpec.can_reset_early`, `ended` may include envs whose episode did not end.
        """

    def keep_infos(self, infos: Any) -> None:
        """Keeps entries of `info`, a `collectx.env.infos.InfoKeys`, in place of others. Only for Gymnasium's envs."""
        raise NotImplementedError

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Sets `reset_options`; None: no options.

        Raises:
            NotImplementedError: these envs take no options.
        """
        raise NotImplementedError(
            "reset options cannot be used, because the resets of these envs take none. To change an attribute, use "
            "set_attr()."
        )

    def reset_kwargs(self, **options: Any) -> dict[str, Any]:
        """Returns the keyword arguments of a reset: `reset_options` and these options. The dicts are new, because an
        env may change them."""
        options = {**self.reset_options, **options}
        return {"options": options} if options else {}

    def check_final(self) -> None:  # noqa: B027
        """Raises `CollectxError` if an episode has ended since the last call without a final observation. Called after
        each batch."""

    def close(self) -> None:  # noqa: B027
        """Releases the envs. Idempotent."""


def first_observations(env: Env, seeds: Sequence[int]) -> dict[Key, torch.Tensor]:
    """Resets `env` with `seeds`; returns its observations, `[E, *shape]`, by key. The caller owns them."""
    spec = env.spec
    first = {
        leaf.key: torch.zeros((spec.num_envs, *leaf.shape), dtype=leaf.dtype, device=spec.device)
        for leaf in spec.observation
    }
    env.reset(seeds, [spec.native(value) for value in first.values()])
    progress.one_more()
    return first


def steps_per_draw(num_elements: int) -> int:
    """Returns the number of steps whose random actions are drawn together, because a draw takes longer than the step of
    a small env.

    Args:
        num_elements: number of elements of the actions of one step.
    """
    return max(1, min(256, 65536 // max(1, num_elements)))


@contextlib.contextmanager
def closed_on_error(env: Env) -> Iterator[None]:
    """Closes `env` if the block raises. Ignores an error of `close`."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise
