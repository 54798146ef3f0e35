"""SAC on images: a dot moves to a goal, and policy and critics see 16 x 16 pixels.

    collectx run --config-dir conf experiment=sac_pixels hydra.run.dir=pixels

Type this in the folder of this file; `conf/experiment/sac_pixels.yaml` has the options.
Random actions have a mean return of about -8.8, and the shortest way to the goal has
-0.6.

To adapt it, replace `Reach` by your env, whose observation is an image of any common
layout, or a Dict with images. If your env does not observe images but can render them,
begin with `env.entry_point=sac_pixels:rendered env.kwargs.id=Pendulum-v1` (this needs
the `atari` extra). Its images are larger, so gradient steps take longer.
"""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE, STEPS, SPEED = 16, 20, 2.0


class Reach(gymnasium.Env):
    """A dot on SIZE x SIZE pixels, which an action moves by up to SPEED pixels in each
    direction. The reward is minus its distance from the goal, in image widths."""

    observation_space = spaces.Box(0, 255, (2, SIZE, SIZE), np.uint8)
    action_space = spaces.Box(-SPEED, SPEED, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.dot, self.goal = self.np_random.uniform(1, SIZE - 2, (2, 2))
        self.steps = 0
        return self.draw(), {}

    def step(self, action):
        self.dot = (self.dot + action).clip(1, SIZE - 2)
        self.steps += 1
        distance = float(np.linalg.norm(self.dot - self.goal)) / SIZE
        return self.draw(), -distance, False, self.steps == STEPS, {}

    def draw(self):
        """Returns uint8 [2, SIZE, SIZE]: a channel for the dot and one for the goal."""
        rows, columns = np.ogrid[:SIZE, :SIZE]
        distances = [np.hypot(rows - y, columns - x) for y, x in (self.dot, self.goal)]
        return np.uint8(255 * np.clip(2 - np.array(distances), 0, 1))


def rendered(id, size=36, stack=3):
    """The env `id`, which observes nothing but the last `stack` images that it renders:
    grey, size x size."""
    env = gymnasium.make(id, render_mode="rgb_array")
    env = gymnasium.wrappers.AddRenderObservation(env)
    env = gymnasium.wrappers.ResizeObservation(env, (size, size))
    env = gymnasium.wrappers.GrayscaleObservation(env)
    return gymnasium.wrappers.FrameStackObservation(env, stack)
