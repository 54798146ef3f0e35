"""An env that observes its numbers, as its constructor and its wrapper were told them."""

import os
import signal
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Numbered(gymnasium.Env):
    """Args:
    label: what a configuration made of the numbers.
    broken: whether env 2 cannot be made.
    killed: a file; the process of env 1 that finds none there writes it, and kills itself after ten steps.
    """

    observation_space = spaces.Box(-100, 100, (3,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index, worker_index, label="", broken=False, killed=None):
        if broken and env_index == 2:
            raise OSError("the port is taken")
        self.observed = np.array([env_index, worker_index, int(label or env_index)])
        self._dies = killed is not None and env_index == 1 and not Path(killed).exists()
        self._killed, self._steps = killed, 0

    def reset(self, *, seed=None, options=None):
        return self.observed, {}

    def step(self, action):
        self._steps += 1
        if self._dies and self._steps == 10:
            Path(self._killed).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.observed, 0.0, False, self._steps % 7 == 0, {}


class Checked(gymnasium.Wrapper):
    def __init__(self, env, env_index, also="0"):
        super().__init__(env)
        assert env.unwrapped.observed[0] == env_index == also


gymnasium.register("Numbered-v0", Numbered)
