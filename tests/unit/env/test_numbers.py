"""The numbers that envs are made with, where no worker makes them."""

import gymnasium
from configurations import gym

from collectx.env import read_spec
from collectx.env.numbers import SPACES, EnvNumbers, of_evaluation


def test_the_env_that_shows_its_spaces_has_number_minus_one():
    made = []

    def make(**numbers):
        made.append(numbers)
        return gymnasium.make("CartPole-v1")

    def takes(env_index, worker_index):
        return make(env_index=env_index, worker_index=worker_index)

    cfg = gym(3)
    cfg.id, cfg.entry_point = None, takes
    read_spec(cfg, False)
    assert made == [{"env_index": -1, "worker_index": -1}]
    assert EnvNumbers(-1, -1) == SPACES


def test_envs_of_an_evaluation_have_numbers_below_those():
    numbers = of_evaluation(3)
    assert [numbers.of(e) for e in range(3)] == [EnvNumbers(index, -2) for index in (-4, -3, -2)]
