"""An env's values reach the batch unchanged, or an error names the value; in scripts, as users write them."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from commands import collectx
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.vector import SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded, Composite, Unbounded
from user_code.spaceenv import SpaceEnv
from user_code.torchrlenvs import Toy

from collectx import Collector
from collectx.errors import DataError

SHARING = """
import itertools, json
import gymnasium as gym, numpy as np, torch
from collectx import Collector, RandomPolicy

NUMBERS, LENGTH = itertools.count(1), 3
FRAME, REWARD, TIME = np.zeros(2, np.float32), np.zeros(()), np.zeros(1, np.int64)
BOX = gym.spaces.Box(0, 999, (2,), np.float32)

class Shared(gym.Env):
    '''Envs that return the same arrays: their number and step.'''
    observation_space, action_space = BOX, gym.spaces.Discrete(2)
    def __init__(self):
        self.number = next(NUMBERS)
    def reset(self, *, seed=None, options=None):
        self.step_count = 0
        return self.observe()
    def observe(self):
        FRAME[:] = self.number, self.step_count
        TIME[0] = self.step_count
        return FRAME, {"time": TIME}
    def step(self, action):
        self.step_count += 1
        observation, info = self.observe()
        REWARD[...] = self.number
        return observation, REWARD, self.step_count == LENGTH, False, info

class Parts(Shared):
    observation_space = gym.spaces.Dict(observation=BOX, pair=gym.spaces.Tuple([BOX, gym.spaces.Discrete(999)]))
    def observe(self):
        frame, info = super().observe()
        return {"observation": frame, "pair": (frame, self.number)}, info

class Bytes(gym.Env):
    '''Checks the dtype of its actions.'''
    observation_space, action_space = BOX, gym.spaces.Discrete(2, dtype=np.uint8)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        assert action.dtype == np.uint8, action.dtype
        return np.zeros(2, np.float32), 0.0, False, False, {}

def vector(cls, mode):
    return lambda: gym.vector.SyncVectorEnv([cls] * 3, autoreset_mode=mode)

makers = {"box": (Shared, 3), "parts": (Parts, 3), "one": (Shared, 1)}
makers |= {mode: (vector(Parts, mode), 3) for mode in ("NextStep", "SameStep", "Disabled")}
rows = {}
for name, (make, num_envs) in makers.items():
    frames = 8 * num_envs
    with Collector(make, RandomPolicy(), num_envs=num_envs, frames_per_batch=frames, info_keys=["time"]) as collector:
        batch = collector.next().reshape(num_envs, 8)
    seen, following = batch["observation"], batch["next", "observation"]
    assert (following[..., 1] == seen[..., 1] + 1).all(), (name, seen, following)
    assert torch.equal(following[..., 1], batch["next", "info", "time"][..., 0].float()), name
    assert torch.equal(batch["next", "done"][..., 0], following[..., 1] == LENGTH), name
    numbers = batch["next", "reward"].expand_as(seen[..., :1])
    assert torch.equal(numbers, seen[..., :1]), name
    if ("pair", "0") in batch.keys(True):
        assert torch.equal(batch["pair", "0"], seen), name
        assert torch.equal(batch["next", "pair", "0"], following), name
        assert torch.equal(batch["pair", "1"].float().reshape_as(numbers), numbers), name
    assert (numbers == numbers[:, :1]).all(), name
    rows[name] = len(numbers[:, 0].unique())
with Collector(vector(Bytes, "Disabled"), RandomPolicy(), frames_per_batch=6) as collector:
    collector.next()
print(json.dumps(rows))
"""


@pytest.mark.ci
def test_envs_that_return_the_same_arrays_keep_their_own_values(tmp_path):
    (tmp_path / "script.py").write_text(SHARING)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    vectors = {"NextStep": 3, "SameStep": 3, "Disabled": 3}
    assert json.loads(done.stdout) == {"box": 3, "parts": 3, "one": 1} | vectors


class Bytes(Toy):
    """Acts with bytes. Its done_spec has done and terminated, as that of every new env of TorchRL."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Bounded(0, 9, (1,), dtype=torch.uint8)

    def _values(self):
        return {"observation": torch.ones(1)}


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize(
    ("action", "kinds"),
    [(Discrete(3, dtype=np.int32), int), (Tuple([Discrete(2), Box(-1, 1, (1,))]), (int, np.ndarray))],
    ids=["Discrete", "Tuple"],
)
def test_a_discrete_action_is_an_int_unless_a_vector_env_steps_the_env(action, kinds, num_envs):
    """As the page on envs says."""
    passed = []

    class Noting(SpaceEnv):
        def step(self, action):
            passed.append(tuple(map(type, action)) if isinstance(action, tuple) else type(action))
            return super().step(action)

    make_env = partial(Noting, Box(0, 1), action, 5)
    with Collector(make_env, frames_per_batch=4, num_envs=num_envs) as collector:
        collector.next()
    assert {*passed} == {kinds}
    vector = partial(SyncVectorEnv, [make_env] * 2)
    if num_envs is None and kinds is int:
        passed.clear()
        with Collector(vector, frames_per_batch=4) as collector:
            collector.next()
        assert {*passed} == {np.int32}


@pytest.mark.difference("an integer action that does not fit the dtype of its spec")
def test_an_integer_that_the_action_spec_cannot_hold_is_refused():
    def policy(value):
        return TensorDictModule(
            lambda seen: torch.full_like(seen, value, dtype=torch.int64), ["observation"], ["action"]
        )

    with Collector(Bytes, policy(255), frames_per_batch=4) as collector:
        assert collector.next()["action"].unique().tolist() == [255]
    words = r"returned 256 \(torch.int64\) .*uint8, .* Clamp it to the range from 0 to 255, or .* dtype torch.int64"
    with pytest.raises(DataError, match=words), Collector(Bytes, policy(256), frames_per_batch=4) as collector:
        collector.next()


@pytest.mark.difference("`truncated` of an env whose `done_spec` has only `done` and `terminated`")
def test_every_batch_has_truncated():
    assert set(Bytes().done_spec.keys()) == {"done", "terminated"}
    with Collector(Bytes, frames_per_batch=14) as collector:
        batch = collector.next()
    assert not batch["truncated"].any()
    assert not batch["next", "truncated"].any()
    assert torch.equal(batch["next", "terminated"], batch["next", "done"])


REUSING = '''
import gymnasium as gym, numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

class Reusing(gym.Env):
    """Returns the same arrays in each step: the numbers of the episode and of the step."""
    observation_space = gym.spaces.Box(0, 999, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self):
        self.seen, self.episode = np.zeros(2, np.float32), 0
        self.info = {"seen": np.zeros(2), "inner": {"seen": np.zeros(2)}}
    def observe(self):
        for array in (self.seen, self.info["seen"], self.info["inner"]["seen"]):
            array[:] = self.episode, self.number
        return self.seen
    def reset(self, *, seed=None, options=None):
        self.episode, self.number = self.episode + 1, 0
        return self.observe(), self.info
    def step(self, action):
        self.number += 1
        return self.observe(), 0.0, self.number == 3, False, self.info

gym.register("Reusing-v0", Reusing, disable_env_checker=True)

def processes(num_envs, mode="SAME_STEP"):
    return AsyncVectorEnv([Reusing] * num_envs, autoreset_mode=AutoresetMode[mode])

def vec_env(num_envs, name):
    from stable_baselines3.common import vec_env
    return getattr(vec_env, name)([Reusing] * num_envs)

class Checking:
    def train(self, collection):
        for batch in collection:
            seen, following = batch["observation"], batch["next", "observation"]
            assert (following - seen == following.new_tensor([0, 1])).all(), (seen, following)
            for key in ("seen",), ("inner", "seen"):
                if ("info", *key) in batch.keys(True):
                    assert (batch["info", *key] == seen).all()
                    assert (batch["next", "info", *key] == following).all(), (key, batch["next", "info", *key])
'''
REUSE = (
    *["env=gym_vector", "env.num_envs=2", "policy=random", "trainer=custom", "trainer.target=reusing:Checking"],
    "debug=tiny",
)


@pytest.mark.ci
def test_processes_of_envs_that_reuse_their_arrays_lose_no_final_observation(tmp_path):
    (tmp_path / "reusing.py").write_text(REUSING)
    keys = "env.info_keys=[seen,inner]"
    ways = "env.vectorization_mode=async", "env.autoreset_mode=same_step"
    collectx("run", "debug=tiny", *REUSE, "env.id=reusing:Reusing-v0", *ways, keys, cwd=tmp_path)
    own = (*REUSE, "env.entry_point=reusing:processes", keys)
    refused = collectx("run", "debug=tiny", *own, cwd=tmp_path, status=2)
    assert "loses the final observations" in refused.stderr
    assert "autoreset_mode=AutoresetMode.DISABLED" in refused.stderr
    collectx("run", "debug=tiny", *own, "env.kwargs.mode=DISABLED", cwd=tmp_path)


@pytest.mark.ci
def test_vec_envs_of_envs_that_reuse_their_arrays_lose_no_final_observation_in_silence(tmp_path):
    pytest.importorskip("stable_baselines3")
    (tmp_path / "reusing.py").write_text(REUSING)
    own = (*REUSE, "env.entry_point=reusing:vec_env")
    collectx("run", "debug=tiny", *own, "env.kwargs.name=DummyVecEnv", cwd=tmp_path)
    failed = collectx("run", "debug=tiny", *own, "env.kwargs.name=SubprocVecEnv", cwd=tmp_path, status=1)
    assert "return the same array, return a copy" in failed.stderr
