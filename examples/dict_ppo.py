r"""PPO with a network of your own, for an env whose observation is a Dict.

    collectx run env=gym env.entry_point=dict_ppo:Rover policy=custom \
        policy.target=dict_ppo:Actor trainer=ppo trainer.gamma=0.95 \
        trainer.entropy_coeff=0.01 collector.frames_per_batch=1024 \
        collector.total_frames=102_400 hydra.run.dir=rover

Type this in the folder of this file. Random actions have a mean return of about -1.7,
the trained policy one of about 0.8. `policy=multi` has such a network ready-made: write
your own where you need another.

To adapt it, replace `Rover` by your env, and list the parts that your policy reads in
`observation_keys`. Parts have the names of the Dict, with one exception: a part `state`
is called `observation`, unless another part has this name.
"""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import interaction_type
from torch import nn
from torch.distributions import Categorical

SIZE, VIEW, STEPS = 8, 2, 40
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Rover(gymnasium.Env):
    """A rover drives to a goal on SIZE x SIZE fields, a fifth of which are rocks, which
    cost more. It sees the rocks up to VIEW fields away, and the way to the goal."""

    observation_space = spaces.Dict(
        rocks=spaces.Box(0, 1, (1, 2 * VIEW + 1, 2 * VIEW + 1), np.uint8),
        state=spaces.Box(-1, 1, (2,)),
    )
    action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        rocks = self.np_random.random((SIZE, SIZE)) < 0.2
        self.rocks = np.pad(rocks, VIEW, constant_values=True)
        free = np.argwhere(~self.rocks)
        self.place, self.goal = self.np_random.choice(free, 2, replace=False)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.place = (self.place + MOVES[action]).clip(VIEW, VIEW + SIZE - 1)
        self.steps += 1
        is_there = bool((self.place == self.goal).all())
        reward = is_there - 0.02 - 0.2 * self.rocks[tuple(self.place)]
        return self.observe(), reward, is_there, self.steps == STEPS, {}

    def observe(self):
        y, x = self.place
        near = self.rocks[y - VIEW : y + VIEW + 1, x - VIEW : x + VIEW + 1]
        way = (self.goal - self.place) / SIZE
        return {"rocks": near[None].astype(np.uint8), "state": way.astype(np.float32)}


class Actor(nn.Module):
    """Reads the rocks [..., 1, 5, 5] and the way to the goal [..., 2]; writes `action`
    and `action_log_prob`, [...]."""

    def __init__(self, spec, width=64):
        super().__init__()
        self.observation_keys = ["rocks", "observation"]  # the env calls it `state`
        pixels = spec.observation_space["rocks"].shape
        self.near = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten())
        seen = self.near(torch.zeros(1, *pixels)).shape[-1]
        self.head = nn.Sequential(
            nn.Linear(seen + 2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, int(spec.action_space.n)),
        )

    def distribution(self, rocks, way):
        images = rocks.float().reshape(-1, *rocks.shape[-3:])
        seen = self.near(images).reshape(*way.shape[:-1], -1)
        return Categorical(logits=self.head(torch.cat((seen, way), -1)))

    def forward(self, tensordict):
        dist = self.distribution(tensordict["rocks"], tensordict["observation"])
        samples = interaction_type() is InteractionType.RANDOM
        action = dist.sample() if samples else dist.mode
        log_prob = dist.log_prob(action)
        return tensordict.update({"action": action, "action_log_prob": log_prob})

    def evaluate(self, observation, action):
        """What PPO calls, with a tensor for each of `observation_keys`."""
        dist = self.distribution(*observation)
        return dist.log_prob(action), dist.entropy()
