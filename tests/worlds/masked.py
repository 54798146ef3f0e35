"""An env with illegal actions, as board games and schedulers have them."""

import gymnasium
import numpy as np
from gymnasium import spaces


class IllegalAction(Exception):
    """The env was stepped with an action that its mask forbids."""


class MaskedEnv(gymnasium.Env):
    """Draws some legal actions anew in each step. No action is legal when an episode has ended.

    Args:
        nvec: the number of values of each choice; None: one Discrete of 5, whose first value is 2.
        where: what contains the mask, "observation" or "info".
        image: whether it observes an image.
        joint: whether the mask is a table of all combinations of the choices, which collectx refuses.
        closed_at: the step after which no action is legal, although the episode goes on.
    """

    def __init__(self, nvec=None, where="observation", image=False, closed_at=None, joint=False):
        self._is_joint = joint
        self._counts, self._where, self._closed_at = nvec or [5], where, closed_at
        self.action_space = spaces.MultiDiscrete(nvec) if nvec else spaces.Discrete(5, start=2)
        self._seen = spaces.Box(0, 255, (36, 36, 1), np.uint8) if image else spaces.Box(-1, 1, (3,))
        mask = spaces.Box(0, 1, (sum(self._counts),), np.int8)
        in_observation = spaces.Dict({"action_mask": mask, "observation": self._seen})
        self.observation_space = in_observation if where == "observation" else self._seen

    def _result(self, is_over=False):
        masks = [self.np_random.random(count) < 0.3 for count in self._counts]
        for mask in masks:
            mask[self.np_random.integers(len(mask))] = True
        self._mask = np.concatenate(masks).astype(np.int8) * (not is_over)
        shown = np.ones(self._counts, np.int8) if self._is_joint else self._mask
        self._seen.seed(int(self.np_random.integers(2**31)))
        seen = self._seen.sample()
        if self._where == "observation":
            return {"action_mask": shown, "observation": seen}, {}
        return seen, {"action_mask": shown}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._result()

    def step(self, action):
        chosen = np.atleast_1d(action) - self.action_space.start
        places = chosen + np.cumsum([0, *self._counts[:-1]])
        if not self._mask[places].all():
            raise IllegalAction(f"{action} of {self._mask}")
        self._steps += 1
        is_over = self._steps == 9
        observation, info = self._result(is_over or self._steps == self._closed_at)
        return observation, float(chosen.sum()), is_over, False, info


gymnasium.register("Masked-v0", entry_point=MaskedEnv)
