r"""SAC on images: a dot moves to a goal, and policy and critics see nothing but 16 x 16 pixels.

    collectx run env=gym env.entry_point=sac_pixels:Reach policy=squashed_multi 'policy.channels=[16,32]' \
        'policy.kernel_sizes=[4,3]' 'policy.strides=[2,2]' policy.hidden_size=64 trainer=sac trainer.warmup_frames=800 \
        trainer.learning_rate=1e-3 trainer.batch_size=64 trainer.updates_per_frame=0.25 trainer.gamma=0.9 \
        trainer.entropy_coeff=0.02 collector.num_workers=1 collector.frames_per_batch=160 \
        collector.init_random_frames=800 collector.total_frames=9600

Type this in the folder of this file. Random actions have a mean return of about -8.5, and the straight way to the goal
about -0.6. Without `policy.channels` and the other sizes, the network is larger and learns three times as slowly.

To learn from images of an env that can render, select it and wrap it (needs the `atari` extra); a gradient step takes
longer, as the images are larger:

    env.id=Pendulum-v1 'env.kwargs={render_mode: rgb_array}' 'env.wrappers=[gymnasium.wrappers.AddRenderObservation,
        {gymnasium.wrappers.ResizeObservation: {shape: [36,36]}}, gymnasium.wrappers.GrayscaleObservation,
        {gymnasium.wrappers.FrameStackObservation: {stack_size: 3}}]'
"""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE, STEPS, SPEED = 16, 20, 2.0


class Reach(gymnasium.Env):
    """A dot on SIZE x SIZE pixels, which an action moves by up to SPEED pixels. The reward is minus its distance from
    the cross, in widths of the image."""

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
        """Returns uint8 [2, SIZE, SIZE]: the dot in one channel, the goal in the other."""
        image = np.zeros((2, SIZE, SIZE))
        for channel, (y, x) in zip(image, (self.dot, self.goal), strict=True):
            rows, columns = np.ogrid[:SIZE, :SIZE]
            channel[:] = 255 * np.clip(2 - np.hypot(rows - y, columns - x), 0, 1)
        return image.astype(np.uint8)
