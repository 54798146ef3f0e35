"""A slot as the rollout writes it: numpy views with time first, made once per slot.

Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

import numpy as np
import torch

from collectx.batch import POLICY_VERSION, REWARD, TRAJ_IDS, Key, Leaf, Slot
from collectx.env.base import EnvSpec, StepRows


class SlotRows:
    """Time-first views of one slot: `[T, E, *shape]` for each leaf.

    Args:
        slot: `[E, T, *shape]` leaves over the transport's memory.
        spec: its observation and action leaves are in the slot.
        actor_leaves: the actor's outputs, action leaves first.
    """

    def __init__(self, slot: Slot, spec: EnvSpec, actor_leaves: Sequence[Leaf]):
        arrays = {key: array.swapaxes(0, 1) for key, array in slot.arrays().items()}
        self.steps = next(iter(arrays.values())).shape[0]
        self.observation = [arrays[leaf.key] for leaf in spec.observation]
        self.next_observation = [_next_of(leaf, arrays) for leaf in spec.observation]
        self.actor = [arrays[leaf.key] for leaf in actor_leaves]
        self._rewards: list[np.ndarray] = []
        if spec.rewards == (REWARD,):
            self.reward = arrays["next", "reward"][:, :, 0]
        else:
            self.reward = np.zeros((self.steps, spec.num_envs), np.float32)
            self._rewards = [arrays["next", *leaf.key] for leaf in spec.rewards]
        self.terminated = arrays["next", "terminated"][:, :, 0]
        self.truncated = arrays["next", "truncated"][:, :, 0]
        self.done = arrays["next", "done"][:, :, 0]
        self.traj_ids = arrays[TRAJ_IDS]
        self.policy_version = arrays[POLICY_VERSION]
        self._seen = [slot.tensors[leaf.key].transpose(0, 1) for leaf in spec.observation]
        self._all_frames = np.ones(spec.num_envs, dtype=np.bool_)

    def seen(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """The policy's input in each step: one `[E, *shape]` tensor per observation leaf."""
        return zip(*(tensor.unbind(0) for tensor in self._seen), strict=True)

    def step_rows(self) -> Iterator[StepRows]:
        """The arrays that the env writes in each step."""
        every = zip(*self._rewards, strict=True) if self._rewards else repeat((), self.steps)
        columns = zip(
            zip(*self.next_observation, strict=True), self.reward, self.terminated, self.truncated, every, strict=True
        )
        for observation, reward, terminated, truncated, rewards in columns:
            yield StepRows(observation, reward, terminated, truncated, self._all_frames, rewards)


def _next_of(leaf: Leaf, arrays: Mapping[Key, np.ndarray]) -> np.ndarray:
    """Where the next observation is written: private memory where batches do not hold it."""
    array = arrays.get(("next", *leaf.key))
    return np.zeros_like(arrays[leaf.key]) if array is None else array
