"""A walk on a line, in arithmetic that gives the same numbers on every machine: draws of a seed, sums and halves."""

import gymnasium
import numpy as np

ID, CONTINUOUS = "Walk-v0", "WalkContinuous-v0"
LIMIT = 2.0
STEP = 0.25


class Walk(gymnasium.Env):
    """Starts somewhere in [-1, 1), and ends beyond LIMIT. The reward is higher the nearer the walk is to 0.

    Observes where it is, where it started, and the number of the step in 16ths.

    Args:
        continuous: an action is a number of steps; otherwise it is 1 for a step up, 0 for a step down.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, continuous=False):
        self.continuous = continuous
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,)) if continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        start = 2 * self.np_random.random() - 1
        self.state = np.array([start, start, 0], np.float32)
        return self.state.copy(), {}

    def step(self, action):
        steps = action[0] if self.continuous else 2 * int(action) - 1
        self.state += np.array([STEP * steps, 0, 1 / 16], np.float32)
        return self.state.copy(), float(1 - abs(self.state[0])), bool(abs(self.state[0]) > LIMIT), False, {}


gymnasium.register(ID, Walk)
gymnasium.register(CONTINUOUS, Walk, kwargs={"continuous": True})


def walk(**kwargs):
    """An episode is truncated after 6 steps."""
    return gymnasium.make(ID, max_episode_steps=6, **kwargs)
