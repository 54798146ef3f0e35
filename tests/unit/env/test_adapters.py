"""Adapters of vector envs that are not Gymnasium's, and the counting env, step by step."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from configurations import counting
from env_stepping import Stepper
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from user_code.tensorenv import TensorCountingEnv

from collectx.config.schema.env import EnvPoolEnvConfig
from collectx.env import build
from collectx.env.base import StepArrays, first_observations
from collectx.env.gym_vector import adapter
from collectx.env.sb3 import as_vector_env, is_vec_env
from collectx.env.tensor_vector import TensorVectorEnv
from collectx.errors import CollectxError, ConfigError, DataError, SpaceError


class Vec:
    """A VecEnv of three envs, of which env e ends after e + 2 steps; env 1 by its limit of time."""

    num_envs = 3
    observation_space, action_space = spaces.Box(0, 99, (1,)), spaces.Discrete(2)

    def __init__(self):
        self.t, self.calls = np.zeros(3), []

    def seed(self, seed):
        self.calls.append(seed)

    def reset(self):
        self.t[:] = 0
        return self.t[:, None].copy()

    def step_async(self, actions):
        self.calls.append(actions)

    def step_wait(self):
        self.t += 1
        ended = self.t >= np.arange(3) + 2
        infos = [{"terminal_observation": self.t[e : e + 1].copy()} if ended[e] else {} for e in range(3)]
        infos[1]["TimeLimit.truncated"] = bool(ended[1])
        infos[2]["TimeLimit.truncated"] = True
        rewards = self.t.copy()
        self.t[ended] = 0
        return self.t[:, None].copy(), rewards, ended if self.t[0] else [*ended], infos

    def env_is_wrapped(self, kind):
        return [False] * 3

    def close(self):
        self.calls.append("closed")


def test_a_vec_env_of_stable_baselines3():
    vec = Vec()
    vec.metadata = {"fps": 3}
    env = as_vector_env(vec)
    assert (env.num_envs, env.metadata) == (3, {"fps": 3, "autoreset_mode": AutoresetMode.SAME_STEP})
    assert (env.observation_space.shape, env.action_space.nvec.tolist()) == ((3, 1), [2, 2, 2])
    for seed in (None, 7, 2**32 - 4, 2**32 - 3, 2**32 + 1):
        observation, info = env.reset(seed=seed)
        assert (observation.tolist(), info) == ([[0], [0], [0]], {})
    assert vec.calls == [7, 2**32 - 4, 0, 4]
    rows = []
    for _ in range(4):
        observation, rewards, terminated, truncated, info = env.step("actions")
        final = [None if each is None else each.tolist() for each in info.get("final_obs", ())]
        rows.append([observation[:, 0].tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist(), final])
    assert rows == [
        [[1, 1, 1], [1, 1, 1], [False] * 3, [False] * 3, []],
        [[0, 2, 2], [2, 2, 2], [True, False, False], [False] * 3, [[2], None, None]],
        [[1, 0, 3], [1, 3, 3], [False] * 3, [False, True, False], [None, [3], None]],
        [[0, 1, 0], [2, 1, 4], [True, False, False], [False, False, True], [[2], None, [4]]],
    ]
    env.close(timeout=3)
    assert vec.calls[-1] == "closed"
    with pytest.raises(ConfigError, match=r"Leave out info_keys and metrics \(a, b\)\.$"):
        as_vector_env(vec, ["a", "b"])
    assert [is_vec_env(each) for each in (vec, Vec, env, 3)] == [True, False, False, False]
    group = adapter(as_vector_env(Vec()), (), ())
    stepper = Stepper(group).reset()
    for _ in range(12):
        stepper.step()
    for e, frames in enumerate(stepper.frames):
        assert [float(frame.after[0][0]) for frame in frames] == [1 + t % (e + 2) for t in range(12)]
        assert [frame.ended for frame in frames] == [t % (e + 2) == e + 1 for t in range(12)]


def test_first_observations_are_the_callers():
    env = build(counting(2))
    (first,) = first_observations(env, [1, 1]).values()
    assert (first.shape, first.dtype, first[:, 0].tolist()) == ((2, 5), torch.int64, [0, 1])
    tensors = adapter(TensorCountingEnv(2), (), ())
    (first,) = first_observations(tensors, [1, 1]).values()
    assert (first.device.type, first[:, 2].tolist()) == ("cpu", [0, 0])


class Tensors(TensorCountingEnv):
    """Lets a step return something else."""

    closed = False

    def __init__(self, change=lambda result: result, **options):
        super().__init__(2, **options)
        self.change = change

    def step(self, actions):
        return self.change(list(super().step(actions)))

    def close(self, **options):
        self.closed = True


def changed(place, change):
    def apply(result):
        result[place] = change(result[place])
        return result

    return apply


WRONG = [
    (
        changed(0, lambda x: x.numpy()),
        "returned observation as ndarray, but it has an attribute 'device', so it must return tensors on cpu",
    ),
    (
        changed(0, lambda x: x[:1]),
        r"observation with shape \[1, 5\], torch.int64, on cpu, but it must have shape \[2, 5\], torch.int64, on cpu",
    ),
    (changed(0, lambda x: x.double()), r"returned observation with shape \[2, 5\], torch.float64, on cpu, but"),
    (changed(0, lambda x: x.to("meta")), "returned observation with .* torch.int64, on meta, but"),
    (
        changed(1, lambda x: x[:, None]),
        r"reward with shape \[2, 1\], torch.float32, on cpu, but it must have shape \[2\], torch.float32, on cpu",
    ),
    (
        changed(2, lambda x: x.long()),
        r"terminated with .*, torch.int64, on cpu, but it must have shape \[2\], torch.bool",
    ),
    (changed(3, lambda x: x[:1]), r"truncated with .* but it must have shape \[2\]"),
    (
        changed(4, lambda x: {"final_obs": x["final_obs"].double()}),
        "returned observation with .* torch.float64, on cpu, but",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_vector_env_of_tensors_must_return_what_its_space_says(change, message):
    env = Tensors(change)
    group = adapter(env, (), ())
    out = arrays(group)
    group.reset([5, 6], out.observation)
    with pytest.raises(DataError, match=message):
        group.step([torch.zeros(2, dtype=torch.int64)], out)
    assert not env.closed
    group.close()
    assert env.closed


def arrays(group):
    observation = [torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for leaf in group.spec.observation]
    return StepArrays(observation, torch.zeros(2), *torch.zeros(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("key", ["final_obs", "final_observation", None])
def test_steps_of_a_vector_env_of_tensors(key):
    group = adapter(Tensors(length=2, final=key), (), ())
    assert isinstance(group, TensorVectorEnv)
    assert not group.spec.can_reset_early
    out, action, seen = arrays(group), torch.zeros(2, dtype=torch.int64), []
    group.reset(None, out.observation)
    for _ in range(4):
        assert group.step([action], out) is True
        final = out.observation[0][:, 1:3].tolist()
        group.reset_some(out.terminated, out.observation)
        seen.append([final, out.observation[0][:, 1:3].tolist(), out.reward.tolist(), out.terminated.tolist()])
        assert not out.truncated.any()
    assert action.tolist() == [0, 0]
    following = [[[0, 1], [0, 1]], [[1, 0], [0, 2]], [[1, 1], [1, 0]], [[2, 0], [1, 1]]]
    finals = [[[0, 1], [0, 1]], [[0, 2], [0, 2]], [[1, 1], [0, 3]], [[1, 2], [1, 1]]]
    assert [row[1] for row in seen] == following
    assert [row[0] for row in seen] == (finals if key else following)
    assert [row[2] for row in seen] == [[1, 1], [2, 2], [1, 3], [2, 1]]
    assert [row[3] for row in seen] == [[False, False], [True, False], [False, True], [True, False]]
    if key is None:
        with pytest.raises(
            CollectxError, match=r"^env 0 of .* ended an episode, but the infos contain no final observation"
        ):
            group.check_final()
    group.check_final()
    # Those of a batch in which only the last env has ended.
    if key is None:
        group.reset(None, out.observation)
        for _ in range(2):
            group.step([action], out)
        with pytest.raises(CollectxError, match=r"^env 0 of "):
            group.check_final()
        group.step([action], out)
        with pytest.raises(CollectxError, match=r"^env 1 of "):
            group.check_final()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"info_keys": ["a"], "metrics": ["b"]}, r"Leave out info_keys and metrics \(a, b\), or add the values"),
    ],
)
def test_what_envs_of_tensors_cannot_do_is_refused(options, message):
    env = Tensors()
    with pytest.raises(ConfigError, match=message):
        adapter(env, options.pop("info_keys", ()), (), **options)
    assert env.closed


def test_an_envpool_whose_action_is_several_arrays_is_refused(monkeypatch):
    space = SimpleNamespace(
        gymnasium_observation_space=spaces.Discrete(2), gymnasium_action_space=spaces.Tuple([spaces.Discrete(2)])
    )
    module = SimpleNamespace(list_all_envs=lambda: ["Task-v0"], make_spec=lambda *_, **arguments: space)
    monkeypatch.setitem(sys.modules, "envpool", module)
    with pytest.raises(
        SpaceError, match=r"env=envpool needs an action space that is a single array, but that of .* is Tuple"
    ):
        build(EnvPoolEnvConfig(kind="envpool", num_envs=2, id="Task-v0", num_threads=2))
