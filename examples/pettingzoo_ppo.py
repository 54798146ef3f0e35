r"""PettingZoo with the built-in PPO: agents are envs of a vector env, with one policy.

    collectx run env=gym_vector env.entry_point=pettingzoo_ppo:Agents env.num_envs=24 \
        policy=mlp trainer=ppo trainer.gamma=0.95 trainer.entropy_coeff=0.01 \
        collector.frames_per_batch=2400 collector.total_frames=240_000 \
        hydra.run.dir=agents

Type `pip install mpe2`, and then this in the folder of this file. In simple_spread,
three agents spread over three landmarks without bumping into each other, and each
learns from its own reward (independent PPO). A frame is a step of one agent, and the
return is that of one agent: about -26 for random actions. Checkpoints, evaluation and
reports work as with any other env.

To adapt it, return your own parallel env from `make_game`. Its agents must observe
arrays, have the same spaces and end together. For agents that differ, use TorchRL's
PettingZooWrapper and a trainer of your own, as in `multi_agent.py`.
"""

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

try:
    from mpe2 import simple_spread_v3
except ModuleNotFoundError as error:
    raise ImportError(f"{error}. Install it: pip install mpe2") from None


def make_game():
    return simple_spread_v3.parallel_env(N=3, max_cycles=25)


class Agents(gymnasium.vector.VectorEnv):
    """The agents of `num_envs / agents` games; rows [game 0 agent 0, game 0 agent 1,
    ..., game 1 agent 0, ...]."""

    def __init__(self, num_envs):
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        self.agents = make_game().possible_agents
        if num_envs % (agents := len(self.agents)):
            raise ValueError(
                f"env.num_envs={num_envs} is no multiple of {agents} agents"
            )
        self.games = [make_game() for _ in range(num_envs // len(self.agents))]
        self.num_envs = num_envs
        self.single_observation_space = self.games[0].observation_space(self.agents[0])
        self.single_action_space = self.games[0].action_space(self.agents[0])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        space = self.observation_space
        self.observations = np.zeros(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        """Resets all games, or those of the agents in `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for number, game in enumerate(self.games):
            rows = self.rows(number)
            if mask[rows].any():
                own_seed = None if seed is None else seed + number
                observation, _ = game.reset(seed=own_seed)
                self.observations[rows] = [observation[agent] for agent in self.agents]
        return self.observations.copy(), {}

    def step(self, action):
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        results = self.observations, reward, terminated, truncated
        for number, game in enumerate(self.games):
            rows = self.rows(number)
            moved = game.step(dict(zip(self.agents, action[rows], strict=True)))
            for array, of_agent in zip(results, moved, strict=False):
                array[rows] = [of_agent[agent] for agent in self.agents]
        return self.observations.copy(), reward, terminated, truncated, {}

    def rows(self, number):
        return slice(number * len(self.agents), (number + 1) * len(self.agents))

    def close_extras(self, **kwargs):
        for game in self.games:
            game.close()
