"""Agents of CleanRL and Stable-Baselines3 act in a collector as by themselves."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from collectx import Collector, policy_from_agent


class Agent(nn.Module):
    """An agent with the methods of CleanRL's agents for PPO."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        chosen = Categorical(logits=self.actor(x))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(x)


class Predicting(nn.Module):
    """A policy with the method of Stable-Baselines3's policies."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 2)

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert isinstance(observation, np.ndarray)
        assert deterministic
        with torch.no_grad():
            return self.actor(torch.as_tensor(observation)).argmax(-1).numpy(), state


class Model:
    def __init__(self):
        self.policy = Predicting()


def _batch(policy, num_envs):
    collector = Collector(
        lambda: gymnasium.make("CartPole-v1"), policy, num_envs=num_envs, frames_per_batch=24, total_frames=24
    )
    (batch,) = collector
    collector.shutdown()
    return batch


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_agent_of_cleanrl(num_envs):
    agent = Agent()
    batch = _batch(policy_from_agent(agent), num_envs)
    _, log_prob, entropy, value = agent.get_action_and_value(batch["observation"], batch["action"])
    for name, expected in (("log_prob", log_prob), ("entropy", entropy), ("value", value)):
        torch.testing.assert_close(batch[name], expected.detach())


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_model_of_stable_baselines3(num_envs):
    model = Model()
    batch = _batch(policy_from_agent(model, deterministic=True), num_envs)
    assert torch.equal(batch["action"], model.policy.actor(batch["observation"]).argmax(-1))


class Parts(gymnasium.ObservationWrapper):
    """CartPole with a Dict observation of its position and its angle."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        low, high = self.env.observation_space.low, self.env.observation_space.high
        parts = {name: gymnasium.spaces.Box(low[i:], high[i:]) for i, name in ((0, "all"), (2, "angle"))}
        self.observation_space = gymnasium.spaces.Dict(parts)

    def observation(self, observation):
        return {"all": observation, "angle": observation[2:]}


class PredictingParts(nn.Module):
    """A policy of a Dict observation, like a MultiInputPolicy of Stable-Baselines3."""

    observation_space = Parts().observation_space

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert (observation["all"][..., 2:] == observation["angle"]).all()
        return (observation["angle"][..., 0] > 0).astype(np.int64), state


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_policy_of_stable_baselines3_for_a_dict_observation(num_envs):
    policy = policy_from_agent(PredictingParts())
    with Collector(Parts, policy, num_envs=num_envs, frames_per_batch=24) as collector:
        batch = collector.next()
    assert torch.equal(batch["action"], batch["angle"][..., 0].gt(0).long())


def test_its_parameters_are_those_of_the_agent():
    agent = Agent()
    assert {*map(id, policy_from_agent(agent).parameters())} == {*map(id, agent.parameters())}


def test_another_object_is_refused():
    with pytest.raises(ValueError, match="but is of type Linear"):
        policy_from_agent(nn.Linear(4, 2))
