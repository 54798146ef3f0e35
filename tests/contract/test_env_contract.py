"""What `collectx.env.base` promises, over every kind of env."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from configurations import counting, gym, gym_vector
from env_stepping import Stepper, memory
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal, assert_equal

from collectx.config.schema.env import EnvPoolEnvConfig, TorchrlEnvConfig
from collectx.env import build, read_spec
from collectx.env.gym_vector import GymVectorEnv
from collectx.errors import DataError
from collectx.policy.random import RandomActor

ATARI_WRAPPERS = [{"AtariPreprocessing": {"frame_skip": 4}}, {"FrameStackObservation": {"stack_size": 4}}]
HALF_CHEETAH, PONG = (gym(2, id, max_episode_steps=20) for id in ("HalfCheetah-v5", "ALE/Pong-v5"))
CARTPOLES = {"gym": gym(3)} | {
    f"{how}-{mode}": gym_vector(3, mode, how) for how in ("sync", "async") for mode in (None, "next_step", "SAME_STEP")
}
# By the functions of `user_code/torchrlenvs.py`: unbatched, with transforms, batched, SerialEnv, ParallelEnv.
TORCHRL = {"walking": 2, "pushing": 2, "counted": 2, "serial": 3, "counted_serial": 3, "parallel": 2}
CONFIGS = CARTPOLES | {
    "gym-one": gym(1, "gymnasium:CartPole-v1"),
    "pendulum": gym(2, "Pendulum-v1", max_episode_steps=20),
    "half-cheetah": replace(HALF_CHEETAH, info_keys=["x_position", "reward_ctrl"]),
    "pong-raw": replace(PONG, info_keys=["lives"]),
    "pong-stacked": replace(PONG, wrappers=ATARI_WRAPPERS, kwargs={"max_episode_steps": 120, "frameskip": 1}),
    "vector-entry-point": gym_vector(3),
    "envpool": EnvPoolEnvConfig(kind="envpool", num_envs=9, id="CartPole-v1", kwargs={}, num_threads=2),
    "counting": counting(3, 4),
    **{
        f"torchrl-{n}": TorchrlEnvConfig(kind="torchrl", num_envs=e, target=f"user_code.torchrlenvs:{n}")
        for n, e in TORCHRL.items()
    },
}
# Their processes, and the ROM that every seeded reset loads, take seconds.
SLOW = {"async-None": "ci", "pong-stacked": "ci", "torchrl-parallel": "ci"}
SLOW |= dict.fromkeys(("async-next_step", "async-SAME_STEP", "pong-raw"), "nightly")


def param(name: str, *values):
    marks = [getattr(pytest.mark, SLOW[name])] if name in SLOW else []
    if name.startswith("torchrl"):
        marks.append(pytest.mark.skipif(find_spec("torchrl") is None, reason="needs the torchrl extra"))
    if name == "envpool":
        marks += [pytest.mark.xdist_group("envpool"), pytest.mark.ci]
    return pytest.param(name, *values, marks=marks)


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
    """Makes one env for all tests of a kind: each begins with a reset. It may be closed twice."""
    env = build(cfg)
    yield env
    env.close()
    env.close()


@pytest.mark.sample(4)
def test_spec_is_read_without_building_the_group(cfg, env):
    spec = read_spec(cfg)
    assert spec.num_envs == cfg.num_envs
    assert (spec.observation, spec.action) == (env.spec.observation, env.spec.action)
    assert (spec.ragged, spec.can_reset_early) == (env.spec.ragged, env.spec.can_reset_early)
    assert not (spec.ragged and spec.can_reset_early)


@pytest.mark.sample(4)
def test_frames_follow_one_another_and_equal_seeds_and_actions_give_the_same(cfg, env):
    """One env is restarted before its episode ends, if its episodes can be cut."""
    steps, cut_at = 45, 1 if env.spec.can_reset_early else None
    torch.manual_seed(7)
    actor, other = RandomActor(env.spec), build(cfg)
    actions = [[leaf.numpy() for leaf in actor.act([])] for _ in range(steps)]
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


def torchrls_echo():
    return pytest.importorskip("torchrl.envs", reason="needs the torchrl extra").GymWrapper(Echo())


ECHOES = {
    "gym": gym(3, entry_point=Echo),
    "gym_vector": replace(gym_vector(3), id=None, entry_point=lambda num_envs: SyncVectorEnv([Echo] * num_envs)),
    "torchrl": TorchrlEnvConfig(kind="torchrl", num_envs=3, target=torchrls_echo),
}


@pytest.mark.parametrize("kind", ECHOES)
def test_an_env_has_the_memory_of_its_actions_and_the_caller_its_own(kind):
    """The caller overwrites its action after the step, and the env what it was passed."""
    stepper = Stepper(build(ECHOES[kind])).reset()
    (action,) = memory(stepper.spec.action, 3)
    action[:] = actions = np.arange(6).reshape(3, 2)
    stepper.step(action)
    assert_array_equal(action, actions)
    action[:] = -1
    assert_array_equal(stepper.step(action).observation[0], actions + 1)
    stepper.env.close()


SEEDS = [3, 4, 5]
ACTIONS = np.random.default_rng(0).integers(0, 2, (3, 120))


def cartpole_frames(length: int, cut_every: int | None) -> list[list[tuple]]:
    """Returns the frames of three CartPoles stepped by hand. The first is also reset after each `cut_every` frames."""
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


CUT = [param(name, 3) for name in CARTPOLES if "next_step" not in name]


@pytest.mark.parametrize(("name", "cut_every"), [*(param(name, None) for name in CARTPOLES), *CUT])
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


class Bytes(gymnasium.Env):
    """Observes values that are no bytes in its second step."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Discrete(2)
    t = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.array([300.7, -1.0]) if self.t == 2 else np.zeros(2, np.uint8), 0.0, False, False, {}


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs an env's error by a warning
def test_an_async_env_stores_no_value_that_was_converted():
    gymnasium.register("Bytes-v0", Bytes)
    stepper = Stepper(build(gym_vector(2, None, "async", "Bytes-v0"))).reset()
    stepper.step()
    with pytest.raises(DataError, match=r"env [01] returned .* of shape .* dtype float64 .* but .* dtype uint8"):
        stepper.step()
    stepper.env.close()
    # Gymnasium's own error comes before all results are read: closing does not wait for them.
    env = gymnasium.vector.AsyncVectorEnv([Bytes] * 2, shared_memory=False, autoreset_mode=AutoresetMode.DISABLED)
    stepper = Stepper(GymVectorEnv(env)).reset()
    stepper.step()
    with pytest.raises(TypeError):
        stepper.step()
    stepper.env.close()
