from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stepping import Stepper

from collectx.config import GymVectorEnvConfig
from collectx.env import build
from collectx.errors import CollectxError, ConfigError, SpaceError

SEEDS = [3, 4, 5]
CONFIG = GymVectorEnvConfig(
    "gym_vector", len(SEEDS), id="CartPole-v1", entry_point=None, vectorization_mode="sync", autoreset_mode=None
)


class BatchedFinalObs(gymnasium.vector.VectorEnv):
    """A SAME_STEP env of the user's, whose final observations are one dense array, with an info entry."""

    def __init__(self, num_envs: int, mode: AutoresetMode | None = AutoresetMode.SAME_STEP):
        self.num_envs = num_envs
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = gymnasium.spaces.Box(-1e3, 1e3, (1,), np.float64)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros((self.num_envs, 1))
        return self.t.copy(), {}

    def step(self, actions):
        self.t += 1
        ended = self.t[:, 0] >= 2 + np.arange(self.num_envs)
        final = self.t.copy()
        self.t[ended] = 0
        info = {"final_obs": final, "_final_obs": ended, "t": self.t[:, 0].copy(), "final_info": {"t": final[:, 0]}}
        return self.t.copy(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), info


def make(**changes):
    return build(dataclasses.replace(CONFIG, **changes))


def make_batched(num_envs=3, **changes):
    return make(id=None, entry_point=BatchedFinalObs, num_envs=num_envs, **changes)


def test_the_mode_is_disabled_by_default():
    env = make()
    assert env.users_envs[0].metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.close()


@pytest.mark.parametrize("create", [lambda: make(autoreset_mode="next_step"), make_batched])
def test_restart_before_the_end_is_refused_where_the_env_resets_itself(create):
    stepper = Stepper(create()).reset()
    assert not stepper.spec.cuttable
    with pytest.raises(CollectxError, match=r"cannot be restarted before its episode ends.*autoreset_mode=disabled"):
        stepper.env.restart(np.array([True, False, False]), stepper.observation)
    stepper.env.close()


def test_batched_final_observations_and_infos():
    stepper = Stepper(make_batched(2, info_keys=["t"])).reset()
    assert [leaf.key for leaf in stepper.spec.observation] == [("observation",), ("info", "t")]
    seen = []
    for _ in range(3):
        observation, t = stepper.step().observation
        assert observation[:, 0].tolist() == t.tolist()
        seen.append((t.tolist(), stepper.observation[0][:, 0].tolist()))
    assert seen == [([1, 1], [1, 1]), ([2, 2], [0, 2]), ([1, 3], [1, 0])]


def test_an_env_that_does_not_say_how_it_resets():
    with pytest.raises(ConfigError, match=r"set env.autoreset_mode, one of next_step, same_step, disabled"):
        make_batched(kwargs={"mode": None})
    make_batched(kwargs={"mode": None}, autoreset_mode="same_step").close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autoreset_mode": "sometimes"}, "autoreset_mode=sometimes: one of next_step"),
        ({"vectorization_mode": "threads"}, "vectorization_mode=threads is not one of async, sync, vector_entry_point"),
        ({"vectorization_mode": "vector_entry_point", "autoreset_mode": "disabled"}, "gives no choice"),
        ({"entry_point": "a:b"}, "give exactly one of the two"),
    ],
)
def test_wrong_configuration(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_infos_are_kept_in_every_mode(mode, tmp_path, monkeypatch):
    # MuJoCo writes its log into the current directory.
    monkeypatch.chdir(tmp_path)
    keys = ["reward_ctrl", "x_position"]
    env = make(id="HalfCheetah-v5", num_envs=2, autoreset_mode=mode, kwargs={"max_episode_steps": 3}, info_keys=keys)
    stepper = Stepper(env).reset()
    for step in range(3):
        out = stepper.step(np.full((2, 6), 0.5, np.float32))
        assert (out.observation[1] < 0).all(), f"the action's cost is missing after step {step}"
    env.close()


def test_unknown_info_key():
    with pytest.raises(SpaceError, match="no 'nothing'"):
        make(info_keys=["nothing"])
