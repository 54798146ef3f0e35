"""Wrappers that keep statistics in each env are found where users put them."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.wrappers import vector

from collectx.env.sb3 import VecEnvAdapter
from collectx.env.wrappers import layers, normalizers_of, note_of, outputs_of, statistics_of, with_statistics


def cartpole():
    return gymnasium.make("CartPole-v1")


def test_of_gymnasium():
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(cartpole()))
    assert normalizers_of([env, cartpole()]) == ("NormalizeReward", "NormalizeObservation")
    assert normalizers_of([]) == normalizers_of([cartpole()]) == ()
    envs = vector.NormalizeObservation(gymnasium.vector.SyncVectorEnv([cartpole]))
    assert normalizers_of([envs]) == ("NormalizeObservation",)
    assert [*layers(env)][-1] is env.unwrapped


def test_statistics_of_one_env_are_those_of_another():
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(cartpole()))
    env.reset(seed=0)
    for _ in range(5):
        env.step(0)
    saved = statistics_of([env])
    assert [each["wrapper"] for each in saved] == ["NormalizeReward", "NormalizeObservation"]
    assert saved[1]["count"] == pytest.approx(6, abs=0.01)
    single = lambda: wrappers.NormalizeReward(wrappers.NormalizeObservation(cartpole()))  # noqa: E731
    other = with_statistics(gymnasium.vector.SyncVectorEnv([single] * 2), saved)
    other.reset(seed=1)
    other.step(np.zeros(2, int))
    assert statistics_of([other]) == statistics_of(other.envs[1:]) == saved
    assert normalizers_of([other]) == ("NormalizeReward", "NormalizeObservation")
    assert statistics_of([]) == statistics_of([3]) == []


def test_of_stable_baselines3():
    class VecNormalize(SimpleNamespace):
        pass

    space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    outer = SimpleNamespace(venv=VecNormalize(venv=None), num_envs=1, observation_space=space, action_space=space)
    assert normalizers_of([VecEnvAdapter(outer)]) == ("VecNormalize",)


def test_envs_with_odd_attributes_are_the_last_layer():
    class Odd:
        transform = SimpleNamespace(transforms=3)
        _modules = 4

        @property
        def base_env(self):
            raise RuntimeError("not before a reset")

    odd = Odd()
    odd.env = odd
    assert list(layers(odd)) == [odd]
    assert normalizers_of([odd, 3]) == normalizers_of([3]) == ()


def test_of_torchrl():
    envs = pytest.importorskip("torchrl.envs")
    transforms = envs.Compose(envs.StepCounter(), envs.VecNormV2(in_keys=["observation"]))
    made = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), transforms)
    assert normalizers_of([made]) == ("VecNormV2",)
    assert "normalize_observations=true and trainer.normalize_rewards=true" in note_of("VecNormV2")


def test_what_a_user_should_know_of_a_normaliser(expected):
    names = ("NormalizeObservation", "NormalizeReward", "VecNorm", "VecNormV2", "VecNormalize")
    expected("notes", {name: [note_of(name), note_of(name, of_run=False)] for name in names})


def test_where_wrappers_write():
    def of(name, **fields):
        return type(name, (SimpleNamespace,), {})(**fields)

    inner = of("Monitor", results_writer=SimpleNamespace(file_handler=SimpleNamespace(name="m.csv")), env=of("Env"))
    assert [*outputs_of(of("RecordVideo", video_folder="videos", env=inner))] == ["videos", "m.csv"]
    assert [*outputs_of(of("Monitor", results_writer=None))] == [*outputs_of(of("Env", video_folder="videos"))] == []


def test_layers_go_inwards_and_end():
    a, b = SimpleNamespace(), SimpleNamespace()
    a.env, b.base_env, b._env = b, None, a
    assert [*layers(a)] == [a, b]
    assert [*layers(None)] == []
