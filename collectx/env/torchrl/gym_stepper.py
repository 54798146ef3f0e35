"""Steps the Gymnasium env below a TorchRL env directly. The frames are bit-identical to those of the TorchRL env's
`_step` and transforms.

Steps the Gymnasium envs below a TorchRL `ParallelEnv`, each in a process of Gymnasium's AsyncVectorEnv.

Each process runs a `GymStepper`, which includes the transforms. Frames and actions pass between the processes as rows
of bytes, which can contain leaves of any dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from collectx.batch import Leaf
from collectx.env.base import EnvSpec, StepArrays
from collectx.env.gym import reward_number
from collectx.env.spaces import numpy_dtype
from collectx.env.torchrl.conversion import Conversion, split_transforms
from collectx.state import ProcessState


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


# Seconds that the processes may take to finish a step before they are killed.
_CLOSE_S = 2.0


class ProcessStepper:
    """All envs of a group; see `GymStepper` for the methods. The constructor starts the processes.

    Args:
        makers: constructors of the TorchRL envs, one for each process.
        conversion: the conversion of one TorchRL env, which applies to all.
        start_method: how the processes start; None: the default of `multiprocessing`.
    """

    def __init__(
        self, makers: Sequence[Callable[[], Any]], conversion: Conversion, spec: EnvSpec, start_method: str | None
    ):
        self.envs = slice(0, spec.num_envs)
        self._record = _record(spec.observation)
        self.reset_options: Mapping[str, Any] = {}
        # Without the parts that cannot be sent to a process, which does not need them.
        conversion, spec = replace(conversion, env=None), replace(spec, draw=None)
        self._vector = AsyncVectorEnv(
            [partial(_make, make, conversion, spec) for make in makers],
            copy=False,
            autoreset_mode=AutoresetMode.DISABLED,
            context=start_method,
        )

    @property
    def is_closed(self) -> bool:
        return self._vector.closed

    def reset(self, seeds: list[int] | None, out: Sequence[np.ndarray]) -> None:
        options = dict(self.reset_options)
        self._write(self._vector.reset(seed=seeds, options=options)[0], out, ...)  # type: ignore[arg-type]

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._write(self._vector.reset(options={**self.reset_options, "reset_mask": ended.copy()})[0], out, ended)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        rows = np.ascontiguousarray(action[0]).reshape(self.envs.stop, -1).view(np.uint8)
        observation, out.reward[:], out.terminated[:], out.truncated[:], _ = self._vector.step(rows)
        self._write(observation, out.observation, ...)
        return bool(out.terminated.any() or out.truncated.any())

    def close(self) -> None:
        # Without a timeout, Gymnasium would wait without end for the results of a step that an error has interrupted.
        self._vector.close(timeout=_CLOSE_S)

    def _write(self, rows: Any, out: Sequence[np.ndarray], envs: Any) -> None:
        frames = rows.view(self._record)[:, 0]
        for place, array in enumerate(out):
            array[envs] = frames[str(place)][envs]


class _ProcessEnv(gymnasium.Env):
    def __init__(self, env: Any, conversion: Conversion, spec: EnvSpec):
        base, _ = split_transforms(env)
        self._env = env
        self._stepper = GymStepper(replace(conversion, env=base._env), spec, 0)
        self._record, self._action = _record(spec.observation), _record(spec.action)
        self.observation_space, self.action_space = (
            gymnasium.spaces.Box(0, 255, (record.itemsize,), np.uint8) for record in (self._record, self._action)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        frame = np.empty(1, self._record)
        self._stepper.reset_options = options or {}
        self._stepper.reset(None if seed is None else [seed], self._leaves(frame))
        return frame.view(np.uint8), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        frame = np.empty(1, self._record)
        terminated, truncated, is_frame = np.zeros(1, bool), np.zeros(1, bool), np.ones(1, bool)
        out = StepArrays(self._leaves(frame), np.empty(1, np.float32), terminated, truncated, is_frame)
        self._stepper.step([action.view(self._action)["0"]], out)
        return frame.view(np.uint8), float(out.reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        if not self._env.is_closed:
            self._env.close()

    def _leaves(self, frame: np.ndarray) -> list[np.ndarray]:
        return [frame[name] for name in self._record.names or ()]


def _make(make: Callable[[], Any], conversion: Conversion, spec: EnvSpec) -> gymnasium.Env:
    return ProcessState(_ProcessEnv(make(), conversion, spec))


def _record(leaves: Sequence[Leaf]) -> np.dtype:
    return np.dtype([(str(place), numpy_dtype(leaf), leaf.shape) for place, leaf in enumerate(leaves)])
