"""The env: any class with Gymnasium's interface. It knows nothing of collectx."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Docking(gymnasium.Env):
    """A point on a line that a force brings to rest at the origin.

    Observes position and velocity [2]; the action is a force in [-1, 1]. The reward is
    minus the squared distance, the squared velocity and the squared force, weighted.
    Episodes end by a TimeLimit alone.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, mass=1.0):
        self._mass = mass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-2, 2, 2).astype(np.float32)
        return self._state.copy(), {}

    def step(self, action):
        position, velocity = self._state
        force = float(np.clip(action[0], -1, 1))
        velocity += 0.1 * force / self._mass
        self._state = np.array([position + 0.1 * velocity, velocity], np.float32)
        reward = -0.1 * (position**2 + 0.1 * velocity**2 + 0.01 * force**2)
        return self._state.copy(), float(reward), False, False, {}
