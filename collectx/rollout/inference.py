"""Calls the policy for one step: slot -> (pinned memory -> GPU ->) policy -> slot; or writes random actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from collectx.batch import Leaf, as_array, same_size_integer
from collectx.env.base import EnvSpec
from collectx.policy.base import Actor
from collectx.policy.random import random_actor

# Called once per step with the observation, a tensor `[E, *shape]` per leaf; writes the actor's outputs into arrays, or
# into tensors for envs on a device.
Inference = Callable[[Sequence[torch.Tensor], Sequence[Any]], None]


def make_inference(actor: Actor, spec: EnvSpec) -> Inference:
    """Returns the inference for the devices of actor and envs. On the CPU, the policy reads the memory of the slot
    directly."""
    act = actor.act
    if spec.device is not None:

        def infer_there(observation: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
            for target, value in zip(out, act(observation), strict=True):
                target.copy_(value, non_blocking=True)

        return infer_there

    if actor.device.type == "cuda":
        return CudaInference(actor, spec)
    has_other_dtypes = any(same_size_integer(leaf.dtype) is not None for leaf in actor.leaves)
    if spec.num_envs == 1 and not has_other_dtypes:
        numbers = [leaf.shape == () for leaf in actor.leaves]

        def infer_one(observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
            # A `zip` costs more here than these indices, and `numpy` four times as much as `item`.
            for i, value in enumerate(act(observation)):
                if numbers[i]:
                    out[i][0] = value.item()
                else:
                    out[i][...] = value.numpy()

        return infer_one

    convert = as_array if has_other_dtypes else torch.Tensor.numpy

    def infer(observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for array, value in zip(out, act(observation), strict=True):
            array[...] = convert(value)

    return infer


def refreshing(infer: Inference, refresh: Callable[[], int], versions: Iterable[Any]) -> Inference:
    """Returns an inference for one batch that loads the newest weights before each step. Writes the policy versions of
    each step into one of `versions`, `[E]` int64."""
    version_of_step = iter(versions)

    def infer_with_newest(observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        next(version_of_step)[:] = refresh()
        infer(observation, out)

    return infer_with_newest


class RandomOutputs(Actor):
    """Returns random actions in place of an actor's, whose outputs are `leaves`. Its other outputs are zero, and the
    observations that it would overwrite stay unchanged."""

    def __init__(self, spec: EnvSpec, leaves: tuple[Leaf, ...]):
        self.actor = random_actor(spec)
        self.device, self.leaves = self.actor.device, leaves
        self._others = [
            spec.observation.index(leaf)
            if leaf in spec.observation
            else torch.zeros((spec.num_envs, *leaf.shape), dtype=leaf.dtype, device=spec.device)
            for leaf in leaves[len(spec.action) :]
        ]

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        others = (observation[other] if isinstance(other, int) else other for other in self._others)
        return (*self.actor.act(observation), *others)

    def reset(self) -> None:
        self.actor.reset()


class CudaInference:
    """Calls the policy on a GPU, by way of pinned memory. Both copies and the forward pass are queued on the current
    stream, as are copies of new weights; the process waits once per step, for the actions.

        slot --copy--> pinned --queued--> GPU --forward--> GPU --queued--> pinned --wait once--> slot
    """

    def __init__(self, actor: Actor, spec: EnvSpec):
        self._actor = actor
        size = (spec.num_envs,)
        self._host_in = [torch.empty(size + leaf.shape, dtype=leaf.dtype, pin_memory=True) for leaf in spec.observation]
        self._device_in = [torch.empty_like(host, device=actor.device) for host in self._host_in]
        self._host_out = [torch.empty(size + leaf.shape, dtype=leaf.dtype, pin_memory=True) for leaf in actor.leaves]
        self._arrays = [as_array(host) for host in self._host_out]

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for device, host, seen in zip(self._device_in, self._host_in, observation, strict=True):
            host.copy_(seen)
            device.copy_(host, non_blocking=True)
        for host, value in zip(self._host_out, self._actor.act(self._device_in), strict=True):
            host.copy_(value, non_blocking=True)
        torch.cuda.current_stream(self._actor.device).synchronize()
        for array, arrived in zip(out, self._arrays, strict=True):
            array[...] = arrived
