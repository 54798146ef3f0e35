"""What `collectx.env.base` promises, over every kind of env."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from collecting import counting, gym_vector
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from numpy.testing import assert_array_equal, assert_equal
from stepping import Stepper, memory

from collectx.config import EnvPoolEnvConfig, GymEnvConfig, GymVectorEnvConfig, TorchrlEnvConfig
from collectx.env import build, read_spec
from collectx.env.spaces import Structure

ATARI_WRAPPERS = [
    {"_target_": "gymnasium.wrappers.AtariPreprocessing", "frame_skip": 4},
    {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 4},
]


def gym(id: str, num_envs: int, info_keys=(), wrappers=(), **kwargs) -> GymEnvConfig:
    return GymEnvConfig("gym", num_envs, id, None, kwargs, list(wrappers), list(info_keys))


CARTPOLES = {
    "cartpole": gym("CartPole-v1", 3),
    "sync-next-step": gym_vector(3, "next_step", "sync"),
    "sync-same-step": gym_vector(3, "SAME_STEP", "sync"),
    "sync-disabled": gym_vector(3, "Disabled", "sync"),
    "async": gym_vector(3, None, "async"),
    "async-next-step": gym_vector(3, "next_step", "async"),
    "async-same-step": gym_vector(3, "same_step", "async"),
}
# By the functions of `worlds/torchrlenvs.py`: unbatched, with transforms, batched, SerialEnv, ParallelEnv.
TORCHRL = {"walking": 2, "pushing": 2, "counted": 2, "serial": 3, "counted_serial": 3, "parallel": 2}
CONFIGS = CARTPOLES | {
    "cartpole-one": gym("CartPole-v1", 1),
    "pendulum": gym("Pendulum-v1", 2, max_episode_steps=20),
    "half-cheetah": gym("HalfCheetah-v5", 2, ["x_position", "reward_ctrl"], max_episode_steps=20),
    "pong-raw": gym("ALE/Pong-v5", 2, ["lives"], max_episode_steps=20),
    "pong-stacked": gym("ALE/Pong-v5", 2, (), ATARI_WRAPPERS, max_episode_steps=120, frameskip=1),
    "vector-entry-point": gym_vector(3),
    "envpool": EnvPoolEnvConfig("envpool", 9, "CartPole-v1", {}, num_threads=2),
    "counting": counting(3, 4),
    **{f"torchrl-{n}": TorchrlEnvConfig("torchrl", e, f"worlds.torchrlenvs:{n}") for n, e in TORCHRL.items()},
}
# Their processes, and the ROM that every seeded reset loads, take seconds.
SLOW = ("async", "async-next-step", "async-same-step", "pong-raw", "pong-stacked", "torchrl-parallel")


def param(name: str, *values, fast: tuple[str, ...] = ()):
    marks = [pytest.mark.ci] if name in SLOW and name not in fast else []
    if name.startswith("torchrl"):
        marks.append(pytest.mark.skipif(find_spec("torchrl") is None, reason="needs the torchrl extra"))
    if name == "envpool":
        marks.append(pytest.mark.xdist_group("envpool"))
    return pytest.param(name, *values, marks=marks)


def sample_actions(spec, steps: int) -> list[list[np.ndarray]]:
    """For each step one array per action leaf, drawn from the single env's action space."""
    structure = Structure(spec.action_space, ("action",))
    spec.action_space.seed(7)
    actions = [memory(spec.action, spec.num_envs) for _ in range(steps)]
    for e in range(spec.num_envs):
        for rows in actions:
            for array, value in zip(rows, structure.flatten(spec.action_space.sample()), strict=True):
                array[e] = value
    return actions


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory):
    # MuJoCo writes its log into the current directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        yield


@pytest.fixture(params=[param(name) for name in CONFIGS], scope="module")
def cfg(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def env(cfg):
    """One for all tests of a kind: each begins with a reset. Closing may be done twice."""
    env = build(cfg)
    yield env
    env.close()
    env.close()


def test_spec_is_read_without_building_the_group(cfg, env):
    spec = read_spec(cfg)
    assert spec.num_envs == cfg.num_envs
    assert (spec.observation, spec.action) == (env.spec.observation, env.spec.action)
    assert (spec.ragged, spec.cuttable) == (env.spec.ragged, env.spec.cuttable)
    assert not (spec.ragged and spec.cuttable)


def test_frames_follow_one_another_and_equal_seeds_and_actions_give_the_same(cfg, env):
    """Where envs can be cut, one is restarted before its episode ends."""
    steps, cut_at = 45, 1 if env.spec.cuttable else None
    actions = sample_actions(env.spec, steps)
    other = build(cfg)
    seeds = [100 + e for e in range(env.spec.num_envs)]
    streams = []
    for each, length in ((env, steps), (other, steps), (env, 5)):
        stepper = Stepper(each).reset(seeds)
        for t, action in enumerate(actions[:length]):
            stepper.step(*action, cut=(np.arange(env.spec.num_envs) == 0) & (t == cut_at))
        streams.append(stepper.frames)
    other.close()
    ends = 0
    for e, (frames, same_frames, repeated) in enumerate(zip(*streams, strict=True)):
        assert len(frames) >= steps // 2
        for t, (frame, following) in enumerate(pairwise(frames)):
            same = all(map(np.array_equal, frame.after, following.before))
            assert same is not (frame.ended or (e, t) == (0, cut_at))
            ends += frame.ended
        assert_equal(frames, same_frames)
        assert_equal(frames[: len(repeated)], repeated)
    assert ends > 0


def test_a_reset_may_be_without_seeds(env):
    out = memory(env.spec.observation, env.spec.num_envs)
    env.reset(None, out)
    assert any(array.any() for array in out)


class Echo(gymnasium.Env):
    """Keeps the array of its action, adds one to it, and observes it after the next step."""

    observation_space = action_space = spaces.Box(-9, 9, (2,))

    def reset(self, *, seed=None, options=None):
        self._action = np.zeros(2, np.float32)
        return self._action.copy(), {}

    def step(self, action):
        observation, self._action = self._action.copy(), action
        action += 1
        return observation, 0.0, False, False, {}


def echoes(kind):
    if kind == "gym":
        return GymEnvConfig("gym", 3, None, Echo)
    if kind == "gym_vector":
        return GymVectorEnvConfig("gym_vector", 3, None, lambda num_envs: SyncVectorEnv([Echo] * num_envs))
    wrapper = pytest.importorskip("torchrl.envs", reason="needs the torchrl extra").GymWrapper
    return TorchrlEnvConfig("torchrl", 3, lambda: wrapper(Echo()))


@pytest.mark.parametrize("kind", ["gym", "gym_vector", "torchrl"])
def test_an_env_has_the_memory_of_its_actions_and_the_caller_its_own(kind):
    """The caller overwrites its action after the step, and the env what it was passed."""
    stepper = Stepper(build(echoes(kind))).reset()
    (action,) = memory(stepper.spec.action, 3)
    action[:] = actions = np.arange(6).reshape(3, 2)
    stepper.step(action)
    assert_array_equal(action, actions)
    action[:] = -1
    assert_array_equal(stepper.step(action).observation[0], actions + 1)
    stepper.env.close()


def cartpole_frames(length: int, cut_every: int | None) -> list[list[tuple]]:
    """Of three CartPoles stepped by hand, of which the first is also reset after each `cut_every` frames."""
    streams = []
    for e, seed in enumerate(SEEDS):
        env, frames = gymnasium.make("CartPole-v1"), []
        observation, _ = env.reset(seed=seed)
        for t, action in enumerate(ACTIONS[e, :length]):
            after, reward, terminated, truncated, _ = env.step(int(action))
            frames.append(([observation], [action], reward, terminated, truncated, [after]))
            cut = cut_every is not None and e == 0 and t % cut_every == cut_every - 1
            observation = env.reset()[0] if terminated or truncated or cut else after
        streams.append(frames)
    return streams


SEEDS = [3, 4, 5]
ACTIONS = np.random.default_rng(0).integers(0, 2, (3, 120))


WHOLE = [param(name, None) for name in CARTPOLES]
CUT = [param(name, 3, fast=("async-same-step",)) for name in CARTPOLES if "next-step" not in name]


@pytest.mark.parametrize(("name", "cut_every"), [*WHOLE, *CUT])
def test_every_way_of_resetting_gives_the_frames_of_the_bare_env(name, cut_every):
    """So it does where an env is cut, also in the step in which others end."""
    length = 70
    stepper = Stepper(build(CONFIGS[name])).reset(SEEDS)
    together = 0
    while min(map(len, stepper.frames)) < length:
        # An env's action depends on how many frames it has had, as resets may take steps.
        done = [len(frames) for frames in stepper.frames]
        cut = (np.arange(3) == 0) & (cut_every is not None and done[0] % cut_every == cut_every - 1)
        out = stepper.step(ACTIONS[range(3), done], cut=cut)
        ended = out.terminated | out.truncated
        together += ended.any() and (cut & ~ended).any()
    stepper.env.close()
    assert together > 0 or cut_every is None
    for frames, expected in zip(stepper.frames, cartpole_frames(length, cut_every), strict=True):
        assert_equal([tuple(frame) for frame in frames[:length]], expected)
