"""The numbers that envs are made with, where no worker makes them."""

import gymnasium
import pytest
from configurations import gym

from collectx.env import read_spec
from collectx.env.env_indices import SPACES, EnvNumbers, of_evaluation
from collectx.errors import ConfigError


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


@pytest.mark.parametrize(
    ("string", "filled"),
    [
        ("{env_index}", 5),
        ("{env_index + 5001}", 5006),
        ("{env_index*2-1}", 9),
        ("{worker_index % 2}", 1),
        ("cuda:{ worker_index%2 }", "cuda:1"),
        ("{env_index * 2 + 5001}/{worker_index}", "5011/3"),
        ("{env_index % 0}", "{env_index % 0}"),
        ("{env_index:03d} {step}", "005 {step}"),
        ("{env_index:03d}", "005"),
        ("{worker_index:02d}/{env_index * 2 + 5001:x}", "03/1393"),
        ("{ env_index + 4995:>6,}", " 5,000"),
        ("{restart_count}/{restart_count:03}", "7/007"),
        ("{env_index:}", "5"),
        ("{env_index!r} {env_index:{step}} {{env}}", "{env_index!r} {env_index:{step}} {{env}}"),
    ],
)
def test_braces_of_a_string_compute_ports_and_devices(string, filled):
    assert EnvNumbers(5, 3, 7).filled({"of": [string]}) == {"of": [filled]}


def test_a_format_that_is_not_for_integers_is_an_error():
    with pytest.raises(
        ConfigError,
        match=r"^\{env_index:3q\} cannot be filled in: Unknown format code 'q'.*such as \{env_index:03d\}\.$",
    ):
        EnvNumbers(5, 3).filled("videos/{env_index:3q}")


def test_the_env_that_shows_its_spaces_has_a_device_too():
    assert SPACES.filled("cuda:{worker_index % 4}") == "cuda:3"
