"""Steps a TorchRL env that resets itself within a step, by its `step_and_maybe_reset`: an env with native auto-reset,
such as `IsaacLabWrapper(env, native_autoreset=True)`, or one whose class overrides that method.

    data --step_and_maybe_reset--> "next" of this frame, and the data of the next frame

With native auto-reset, TorchRL gives no final observation: in the last frame of an episode, it is NaN, or zero for
integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectx.env.base import EnvSpec, StepArrays
from collectx.env.torchrl.stepper import EnvStepper


def resets_itself(env: Any) -> bool:
    """Whether `env` resets its envs within a step."""
    if vars(env).get("_torchrl_native_autoreset", False):
        return True
    return type(env).step_and_maybe_reset.__module__ not in ("torchrl.envs.common", "torchrl.envs.batched_envs")


class SelfResetStepper(EnvStepper):
    """Steps an env that resets itself; see the module's docstring, and `EnvStepper` for the arguments."""

    def __init__(self, env: Any, spec: EnvSpec, envs: slice, wrapper: Any = None):
        super().__init__(env, spec, envs, wrapper)
        self._step = self._step_and_reset
        # The data of the next frame.
        self._following: Any = None

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        any_ended = super().step(action, out)
        self._data = self._following
        return any_ended

    def _step_and_reset(self, data: Any) -> Any:
        data, self._following = self._env.step_and_maybe_reset(data)
        return data.get("next")

    def _reset_ended(self, ended: np.ndarray) -> Any:
        return self._data
