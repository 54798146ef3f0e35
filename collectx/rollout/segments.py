"""The rollout for envs that spend a step on a reset (`EnvSpec.ragged`). Such a step yields no frame.

    step        0    1    2    3    4
    env 0       f    f    f    f    f        f: a frame      r: a reset, no frame
    env 1       f    f    r    f    f

So envs collect frames at different speeds, and a row of a batch does not stand for an env. It is a *segment*: T
successive frames of one env. With its next frame, that env begins another segment. A batch consists of the first E
complete segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

from collectx.batch import POLICY_VERSION, TRAJ_IDS, Key, Slot, as_array, as_tensor
from collectx.env.base import StepArrays
from collectx.rollout.loop import PolicyArrays, Rollout
from collectx.transport.base import SlotReport


class RaggedRollout(Rollout):
    """Fills segments, and copies the first E complete ones into each slot. See `Rollout` for the arguments."""

    _saved = ("_env", "_carry", "_out", "_written", "_segments", "_free", "_complete", "_segment", "_cursor")

    def __init__(self, *args: Any):
        super().__init__(*args)
        spec = self._env.spec
        size = spec.num_envs
        observation = [np.zeros_like(carry) for carry in self._carry]
        self._out = StepArrays(observation, np.zeros(size, np.float32), *np.zeros((3, size), np.bool_))
        # Policy outputs below `next`, and observations that the policy overwrites, share the env's arrays.
        observed = dict(zip(spec.observation, self._carry, strict=True))
        observed |= zip([leaf.under("next") for leaf in spec.observation], self._out.observation, strict=True)
        self._written = [
            observed[leaf] if leaf in observed else as_array(torch.zeros((size, *leaf.shape), dtype=leaf.dtype))
            for leaf in self._actor.leaves
        ]
        self._segments: dict[Key, np.ndarray] = {}
        # 3E segments suffice: when a batch is delivered, at most 2E - 1 are complete, and E are being filled.
        self._free = deque(range(size, 3 * size))
        self._complete: deque[int] = deque()
        self._segment = np.arange(size)
        self._cursor = np.zeros(size, np.int64)

    def prepare(self, slot: Slot, index: int) -> Any:
        arrays = slot.arrays()
        if not self._segments:
            size = 3 * self._env.spec.num_envs
            self._segments = {key: np.zeros((size, *array.shape[1:]), array.dtype) for key, array in arrays.items()}
        return arrays

    def reset(self, seeds: Sequence[int] | None) -> None:
        super().reset(seeds)
        self._free.extend((*self._complete, *self._segment))
        self._complete.clear()
        self._segment[:] = [self._free.popleft() for _ in self._segment]
        self._cursor[:] = 0

    def collect(self, views: Any, policy_version: int) -> SlotReport:
        self._version = np.array([policy_version])
        _, env_s, policy_s = self._act(self.steps(views), repeat(self._version))
        delivered = [self._complete.popleft() for _ in self._segment]
        for key, array in views.items():
            array[...] = self._segments[key][delivered]
        self._free += delivered
        self._num_random -= self._num_random > 0
        return SlotReport(policy_version, views[TRAJ_IDS].size, env_s, policy_s, *self._episodes.take())

    def steps(self, views: Any) -> Iterator[PolicyArrays]:
        env, out, spec = self._own_env(), self._out, self._env.spec
        seen = [as_tensor(carry, leaf.dtype) for carry, leaf in zip(self._carry, spec.observation, strict=True)]
        while len(self._complete) < spec.num_envs:
            yield seen, self._written
            out.frame[:] = True
            out.terminated[:] = out.truncated[:] = False
            env.step(self._written[: len(spec.action)], out)
            self._store()

    def _store(self) -> None:
        """Appends the frames of a step to the segments of their envs, and copies its observations into `_carry`."""
        out, spec, segments = self._out, self._env.spec, self._segments
        envs = np.flatnonzero(out.frame)
        place = self._segment[envs], self._cursor[envs]
        # Before the observations, because the policy may have overwritten these in `self._carry`.
        for actor_leaf, written in zip(self._actor.leaves, self._written, strict=True):
            segments[actor_leaf.key][place] = written[envs]
        for leaf, before, after in zip(spec.observation, self._carry, out.observation, strict=True):
            segments[leaf.key][place] = before[envs]
            if ("next", *leaf.key) in segments:
                segments["next", *leaf.key][place] = after[envs]
            before[...] = after
        for name, value in (
            ("reward", out.reward),
            ("terminated", out.terminated),
            ("truncated", out.truncated),
            ("done", out.terminated | out.truncated),
        ):
            segments["next", name][place] = value[envs, None]
        segments[POLICY_VERSION][place] = self._version
        self._cursor[envs] += 1
        steps = segments[TRAJ_IDS].shape[1]
        for index in np.flatnonzero(self._cursor == steps):
            segment = self._segment[index]
            truncated, done, reward = (segments["next", name][segment] for name in ("truncated", "done", "reward"))
            ends = done.copy()
            self._end_batch(ends, [truncated, done])
            self._episodes.record(np.array([index]), reward, ends, segments[TRAJ_IDS][segment][:, None])
            self._complete.append(int(segment))
            self._segment[index] = self._free.popleft()
            self._cursor[index] = 0
