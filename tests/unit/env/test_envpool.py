from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest

from collectx.config import EnvPoolEnvConfig
from collectx.env import build
from collectx.env.base import StepRows
from collectx.errors import ConfigError


def config(**changes) -> EnvPoolEnvConfig:
    return EnvPoolEnvConfig(**{"kind": "envpool", "num_envs": 16, "id": "CartPole-v1", "num_threads": 2, **changes})


def rows(size: int) -> StepRows:
    return StepRows(
        [np.zeros((size, 4), np.float32)],
        np.zeros(size, np.float32),
        np.zeros(size, bool),
        np.zeros(size, bool),
        np.ones(size, bool),
    )


@pytest.mark.parametrize("num_envs", [1, 16])
@pytest.mark.parametrize("greedy", [False, True], ids=["random", "all-end-together"])
def test_every_frame_obeys_the_physics_of_cartpole(num_envs, greedy):
    """There is no other stream to compare with, but a frame of the wrong env, or a reset, breaks the physics."""
    env = build(config(num_envs=num_envs))
    physics = gymnasium.make("CartPole-v1").unwrapped
    physics.reset(seed=0)
    before = np.zeros((num_envs, 4), np.float32)
    env.reset(list(range(num_envs)), [before])
    rng = np.random.default_rng(1)
    ends = 0
    for _ in range(120):
        # Pushing always to the same side ends all episodes within a step or two: more than there are spares.
        action = np.zeros(num_envs, np.int64) if greedy else rng.integers(0, 2, num_envs)
        out = rows(num_envs)
        any_ended = env.step([action], out)
        for e in range(num_envs):
            physics.state = tuple(before[e].astype(np.float64))
            after, _, terminated, *_ = physics.step(int(action[e]))
            physics.steps_beyond_terminated = None
            np.testing.assert_allclose(out.observation[0][e], after, atol=1e-4)
            assert terminated == out.terminated[e]
        assert (out.reward == 1).all()
        before[:] = out.observation[0]
        ends += int((out.terminated | out.truncated).sum())
        if any_ended:
            env.restart(out.terminated | out.truncated, [before])
            assert (abs(before[out.terminated]) <= 0.05).all()
    assert ends >= 3 * num_envs
    env.close()


def test_truncation_and_envs_cut_short():
    env = build(config(num_envs=4, kwargs={"max_episode_steps": 5}))
    before = np.zeros((4, 4), np.float32)
    env.reset([0, 1, 2, 3], [before])
    lengths = np.zeros(4, int)
    for t in range(40):
        out = rows(4)
        ended = env.step([np.full(4, t % 2)], out)
        lengths += 1
        assert (out.truncated == (lengths == 5)).all()
        assert not out.terminated.any()
        assert ended == out.truncated.any()
        restart = out.truncated | (np.arange(4) == t % 7)
        env.restart(restart, [before])
        lengths[restart] = 0


def test_every_env_has_its_own_seed():
    env = build(config(num_envs=3))
    one, two = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    env.reset([5, 6, 2**31 + 7], [one])
    env.reset([9, 6, 7], [two])
    assert (one[1:] == two[1:]).all()
    assert (one[0] != two[0]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "CartPole-v99"}, "CartPole-v99 is not a task of EnvPool"),
        ({"kwargs": {"batch_size": 3, "seed": 1}}, "env.kwargs has batch_size, seed"),
    ],
)
def test_wrong_configuration(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(config(**changes))


def test_without_envpool(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"pip install 'collectx\[envpool\]'"):
        build(config())
