"""How observations reach the policy and what it returns reaches the slot, for a policy on the CPU or on a GPU; and
random actions in its place.

Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.policy.base import Actor
from collectx.policy.random import RandomActor


class Feed(Protocol):
    """One call per step."""

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        """Acts on `observation` (one `[E, *shape]` CPU tensor per leaf) and writes what it returns into `out`."""


def make_feed(actor: Actor, spec: EnvSpec) -> Feed:
    """The feed for the actor's device."""
    if actor.device.type == "cuda":
        return CudaFeed(actor, spec)
    return CpuFeed(actor)


class CpuFeed:
    """The policy reads the slot's own memory."""

    def __init__(self, actor: Actor):
        self._act = actor.act

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for row, value in zip(out, self._act(observation), strict=True):
            row[...] = value.numpy()


class RandomFeed:
    """Random actions, and zeros for what else the policy would write. Observations that it would overwrite stay.

    Args:
        leaves: of the policy's actor, for each array of `out`.
    """

    def __init__(self, spec: EnvSpec, leaves: Sequence[Leaf]):
        actor = RandomActor(spec)
        self._act, self.forget = actor.act, actor.forget
        self._zeroed = [i for i, leaf in enumerate(leaves) if leaf not in (*spec.action, *spec.observation)]

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for row, value in zip(out, self._act(observation), strict=False):
            row[...] = value.numpy()
        for i in self._zeroed:
            out[i][...] = 0


class RefreshingFeed:
    """Another feed, and before each of its steps the newest weights: for one batch.

    Args:
        refresh: see `collectx.rollout.loop.Rollout`.
        versions: `[T, E]` int64, written: the version that acts in each step.
    """

    def __init__(self, feed: Feed, refresh: Callable[[], int], versions: np.ndarray):
        self._feed = feed
        self._refresh = refresh
        self._versions = iter(versions)

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        next(self._versions)[:] = self._refresh()
        self._feed(observation, out)


class CudaFeed:
    """Observations go through pinned memory, so that both copies and the forward are queued on one stream, the current
    one, on which new weights are copied too; the process waits once per step, for the actions to be back.

        slot --copy--> pinned --queued--> GPU --forward--> GPU --queued--> pinned --wait once--> slot
    """

    def __init__(self, actor: Actor, spec: EnvSpec):
        self._actor = actor
        size = (spec.num_envs,)
        self._host_in = [torch.empty(size + leaf.shape, dtype=leaf.dtype, pin_memory=True) for leaf in spec.observation]
        self._device_in = [torch.empty_like(host, device=actor.device) for host in self._host_in]
        self._host_out = [torch.empty(size + leaf.shape, dtype=leaf.dtype, pin_memory=True) for leaf in actor.leaves]
        self._host_out_arrays = [host.numpy() for host in self._host_out]

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for device, host, seen in zip(self._device_in, self._host_in, observation, strict=True):
            host.copy_(seen)
            device.copy_(host, non_blocking=True)
        for host, value in zip(self._host_out, self._actor.act(self._device_in), strict=True):
            host.copy_(value, non_blocking=True)
        torch.cuda.current_stream(self._actor.device).synchronize()
        for row, result in zip(out, self._host_out_arrays, strict=True):
            row[...] = result
