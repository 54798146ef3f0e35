"""Calls the policy for one step: slot -> (pinned memory -> GPU ->) policy -> slot; or writes random actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from collectx.batch import Leaf, as_array, same_size_integer
from collectx.env.base import EnvSpec
from collectx.policy.base import Actor
from collectx.policy.random import random_actor

# Called once per step with the observation, a CPU tensor `[E, *shape]` per leaf; writes the actor's outputs into
# arrays.
Inference = Callable[[Sequence[torch.Tensor], Sequence[np.ndarray]], None]


def make_inference(actor: Actor, spec: EnvSpec) -> Inference:
    """Returns the inference for the actor's device. On the CPU, the policy reads the memory of the slot directly."""
    if actor.device.type == "cuda":
        return CudaInference(actor, spec)
    act = actor.act
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


def refreshing(infer: Inference, refresh: Callable[[], int], versions: np.ndarray) -> Inference:
    """Returns an inference for one batch that loads the newest weights before each step. Writes the policy version of
    each frame into `versions`, `[T, E]` int64."""
    version_of_step = iter(versions)

    def infer_with_newest(observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        next(version_of_step)[:] = refresh()
        infer(observation, out)

    return infer_with_newest


class RandomInference:
    """Writes random actions, and zeros for the policy's other outputs. Observations that the policy would overwrite
    stay unchanged. `leaves` are the actor's, one for each array of `out`."""

    def __init__(self, spec: EnvSpec, leaves: Sequence[Leaf]):
        self.actor = actor = random_actor(spec)
        self._act, self.reset = actor.act, actor.reset
        self._zeroed = [i for i, leaf in enumerate(leaves) if leaf not in (*spec.action, *spec.observation)]

    def __call__(self, observation: Sequence[torch.Tensor], out: Sequence[np.ndarray]) -> None:
        for array, value in zip(out, self._act(observation), strict=False):
            array[...] = value.numpy()
        for i in self._zeroed:
            out[i][...] = 0


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
