"""Steps the Gymnasium env below a TorchRL env directly. The frames are bit-identical to those of the TorchRL env's
`_step` and transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectx.env.base import EnvSpec, StepArrays
from collectx.env.gym import reward_number
from collectx.env.torchrl.conversion import Conversion


class GymStepper:
    """One env of a group, with the methods of `EnvStepper`, and the options of every reset."""

    def __init__(self, conversion: Conversion, spec: EnvSpec, index: int):
        self.envs = slice(index, index + 1)
        self._index = index
        self._gym = conversion.env
        self._max_steps = conversion.max_steps
        self._to_action = conversion.to_action
        self._frame_skip = conversion.frame_skip
        places = {leaf.key: place for place, leaf in enumerate(spec.observation)}
        self._observed = [(places[key], read) for key, read in conversion.reads.items() if key in places]
        # The place of the only leaf, if it equals the observation.
        is_only = len(self._observed) == 1 and self._observed[0][1].is_observation
        self._only = self._observed[0][0] if is_only else None
        self._count_place, self._sum_place, self._init_place = (
            None if name is None else places.get((name,))
            for name in (conversion.step_count, conversion.episode_reward, conversion.is_init)
        )
        self.reset_options: Mapping[str, Any] = {}

    def reset(self, seeds: list[int] | None, out: Sequence[np.ndarray]) -> None:
        options = {"options": dict(self.reset_options)} if self.reset_options else {}
        observation, _ = self._gym.reset(seed=None if seeds is None else seeds[0], **options)
        self._steps, self._sum = 0, np.float32(0)
        self._write(observation, out, True)

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self.reset(None, out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        index = self._index
        gym_action = self._to_action(action[0][index])
        # Like TorchRL's sum, which turns -0.0 into 0.0.
        reward: Any = 0
        for _ in range(self._frame_skip):
            observation, step_reward, terminated, truncated, _info = self._gym.step(gym_action)
            reward = reward + step_reward
            if terminated or truncated:
                break
        if not isinstance(reward, float | int):
            reward = reward_number(reward, index)
        self._steps += 1
        out.reward[index] = reward
        self._sum += out.reward[index]
        self._write(observation, out.observation, False)
        if self._max_steps is not None and self._steps >= self._max_steps:
            truncated = True
        if terminated or truncated:
            out.terminated[index] = terminated
            out.truncated[index] = truncated
            return True
        return False

    def _write(self, observation: Any, out: Sequence[np.ndarray], is_first: bool) -> None:
        index = self._index
        if self._only is not None:
            out[self._only][index] = observation
        else:
            for place, read in self._observed:
                value = observation
                for key in read.path:
                    value = value[key]
                out[place][index] = value if read.codes is None else read.codes[value]
        if self._count_place is not None:
            out[self._count_place][index] = self._steps
        if self._sum_place is not None:
            out[self._sum_place][index] = self._sum
        if self._init_place is not None:
            out[self._init_place][index] = is_first
