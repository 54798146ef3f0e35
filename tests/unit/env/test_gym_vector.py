from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from configurations import gym_vector
from env_stepping import Stepper
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from collectx.env import build
from collectx.errors import CollectxError, ConfigError, DataError, SpaceError


class Dense(gymnasium.vector.VectorEnv):
    """A user's env, in which env e counts to 2 + e; its final observations are one dense array, with an info entry."""

    single_observation_space = gymnasium.spaces.Box(-1e3, 1e3, (1,), np.float64)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs, mode=AutoresetMode.SAME_STEP, fault=None):
        self.num_envs, self.metadata, self.fault = num_envs, {"autoreset_mode": mode}, fault
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros((self.num_envs, 1))
        return self.t.copy(), {}

    def step(self, actions):
        if self.fault is not None and self.t.max() > 0:
            return self.fault, np.ones(self.num_envs), *np.zeros((2, self.num_envs), bool), {}
        self.t += 1
        ended = self.t[:, 0] >= 2 + np.arange(self.num_envs)
        final = self.t.copy()
        self.t[ended] = 0
        info = {"final_obs": final, "_final_obs": ended, "t": self.t[:, 0].copy(), "final_info": {"t": final[:, 0]}}
        return self.t.copy(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), info


def dense(num_envs=3, mode=None, info_keys=(), **kwargs):
    cfg = gym_vector(num_envs, mode)
    return replace(cfg, id=None, entry_point=Dense, kwargs=kwargs, info_keys=list(info_keys))


@pytest.mark.parametrize("cfg", [gym_vector(3, "next_step", "sync"), dense()], ids=["next_step", "users"])
def test_restart_before_the_end_is_refused_where_the_env_resets_itself(cfg):
    stepper = Stepper(build(cfg)).reset()
    assert not stepper.spec.can_reset_early
    with pytest.raises(CollectxError, match=r"no env can be reset before its episode ends.*autoreset_mode=disabled"):
        stepper.env.reset_some(np.array([True, False, False]), stepper.observation)
    stepper.env.close()


def test_dense_final_observations_and_infos():
    stepper = Stepper(build(dense(2, info_keys=["t"]))).reset()
    assert [type(env) for env in stepper.env.user_envs] == [Dense]
    assert [leaf.key for leaf in stepper.spec.observation] == [("observation",), ("info", "t"), ("info", "_t")]
    seen = []
    for _ in range(3):
        observation, t, _ = stepper.step().observation
        assert observation[:, 0].tolist() == t.tolist()
        seen.append((t.tolist(), stepper.observation[0][:, 0].tolist()))
    assert seen == [([1, 1], [1, 1]), ([2, 2], [0, 2]), ([1, 3], [1, 0])]


def test_an_env_that_does_not_say_how_it_resets():
    # Its own argument `mode` is the one that it tells.
    with pytest.raises(ConfigError, match=r"or set env.autoreset_mode to next_step, same_step or disabled"):
        build(replace(dense(), kwargs={"mode": None}))
    build(replace(dense(mode="same_step"), kwargs={"mode": None})).close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            np.zeros((2, 2)),
            r"env 0 returned a value of shape \(2,\).*, but its space has shape \(1,\) and dtype float64",
        ),
        (np.zeros((2, 1), complex), r"env 0 returned a value of .* dtype complex128 as 'observation'"),
        (np.zeros((1, 1)), "returned 1 value as 'observation', but its space has 2 values of shape .*, one per env"),
    ],
)
def test_observations_that_do_not_fit_are_refused_in_a_later_step(fault, message):
    stepper = Stepper(build(dense(2, fault=fault))).reset()
    stepper.step()
    with pytest.raises(DataError, match=message):
        stepper.step()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_infos_are_kept_in_every_mode(mode, tmp_path, monkeypatch):
    # MuJoCo writes its log into the current directory.
    monkeypatch.chdir(tmp_path)
    cfg = gym_vector(2, mode, "sync", "HalfCheetah-v5")
    cfg = replace(cfg, kwargs={"max_episode_steps": 3}, info_keys=["reward_ctrl", "x_position"])
    stepper = Stepper(build(cfg)).reset()
    for step in range(3):
        out = stepper.step(np.full((2, 6), 0.5, np.float32))
        assert (out.observation[1] < 0).all(), f"the action's cost is missing after step {step}"
    stepper.env.close()


class Listing(gymnasium.vector.VectorWrapper):
    def step(self, actions):
        *result, info = super().step(actions)
        return *result, {**info, "listed": [1, 2]}


def test_infos_of_a_vector_env_may_be_lists():
    env = Listing(gymnasium.make_vec("CartPole-v1", 2))
    stepper = Stepper(build(replace(gym_vector(2), id=None, entry_point=lambda num_envs: env, info_keys=["listed"])))
    out = stepper.reset().step(np.zeros(2, np.int64))
    assert [values.tolist() for values in out.observation[1:]] == [[1, 2], [True] * 2]


class Rewarding(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), np.zeros(2), False, False, {}


class Behind(gymnasium.vector.VectorEnv):
    """A user's vector env, with one of Gymnasium's behind it, which collectx does not see."""

    def __init__(self, num_envs):
        self._inner = gymnasium.vector.SyncVectorEnv([Rewarding] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        self.num_envs, self.metadata, self.step = num_envs, self._inner.metadata, self._inner.step
        self.single_observation_space, self.single_action_space = (
            self._inner.single_observation_space,
            self._inner.single_action_space,
        )
        self.observation_space, self.action_space = self._inner.observation_space, self._inner.action_space

    def reset(self, *, seed=None, options=None):
        return self._inner.reset(seed=seed, options=options)


def test_rewards_that_gymnasium_cannot_store_are_named():
    stepper = Stepper(build(replace(gym_vector(2), id=None, entry_point=Behind))).reset()
    with pytest.raises(DataError, match=r"could not store the rewards of its envs \(.+\). Return a float"):
        stepper.step(np.zeros(2, np.int64))


class Speaking(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(said=gymnasium.spaces.Text(6), t=gymnasium.spaces.Discrete(9))
    action_space = gymnasium.spaces.Discrete(2)

    def _result(self):
        return {"said": f"step {self.t}", "t": self.t}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._result(), {}

    def step(self, action):
        self.t += 1
        return self._result(), 0.0, self.t == 3, False, {}


@pytest.mark.parametrize("vectorize", [gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_texts_of_a_vector_env(vectorize):
    is_async = vectorize is gymnasium.vector.AsyncVectorEnv

    def make(num_envs, **kwargs):
        return vectorize([Speaking] * num_envs, autoreset_mode=AutoresetMode.DISABLED, **kwargs)

    cfg = replace(gym_vector(2, None), id=None, entry_point=make)
    if is_async:
        with pytest.raises(SpaceError, match=r"a Text, .*shared_memory=False"):
            build(cfg)
        cfg = replace(cfg, kwargs={"shared_memory": False})
    stepper = Stepper(build(cfg)).reset()
    texts = [stepper.observation[0].copy(), stepper.step().observation[0].copy()]
    assert [text.view("U6").squeeze(-1).tolist() for text in texts] == [["step 0"] * 2, ["step 1"] * 2]
    stepper.env.close()
