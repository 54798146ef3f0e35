"""What `collectx.env.base` promises, over every kind of env."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from collectx.config import (
    CountingEnvConfig,
    EnvConfig,
    EnvPoolEnvConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    TorchrlEnvConfig,
)
from collectx.env import build, read_spec
from collectx.env.base import Env, EnvSpec, StepRows
from collectx.env.spaces import Structure, numpy_dtype

ATARI_WRAPPERS = [
    {"_target_": "gymnasium.wrappers.AtariPreprocessing", "frame_skip": 4},
    {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 4},
]


def gym(env_id: str, num_envs: int, **kwargs) -> GymEnvConfig:
    return GymEnvConfig(kind="gym", num_envs=num_envs, id=env_id, entry_point=None, **kwargs)


def vector(mode: str, autoreset_mode: str | None = None) -> GymVectorEnvConfig:
    return GymVectorEnvConfig(
        kind="gym_vector",
        num_envs=3,
        id="CartPole-v1",
        entry_point=None,
        vectorization_mode=mode,
        autoreset_mode=autoreset_mode,
    )


CONFIGS = {
    "cartpole": gym("CartPole-v1", 3),
    "cartpole-one": gym("CartPole-v1", 1),
    "pendulum": gym("Pendulum-v1", 2, kwargs={"max_episode_steps": 20}),
    "half-cheetah": gym("HalfCheetah-v5", 2, kwargs={"max_episode_steps": 20}, info_keys=["x_position", "reward_ctrl"]),
    "pong-raw": gym("ALE/Pong-v5", 2, kwargs={"max_episode_steps": 20}, info_keys=["lives"]),
    "pong-stacked": gym("ALE/Pong-v5", 2, kwargs={"max_episode_steps": 120, "frameskip": 1}, wrappers=ATARI_WRAPPERS),
    "vector-entry-point": vector("vector_entry_point"),
    "sync-next-step": vector("sync", "next_step"),
    "sync-same-step": vector("sync", "same_step"),
    "sync-disabled": vector("sync", "disabled"),
    "sync-default": vector("sync"),
    "async": vector("async"),
    "async-same-step": vector("async", "same_step"),
    "envpool": EnvPoolEnvConfig(kind="envpool", num_envs=9, id="CartPole-v1", num_threads=2),
    "counting": CountingEnvConfig(kind="counting", num_envs=3, episode_length=4, observation_size=5, step_s=0.0),
}
# By the functions of `tests/torchrlenvs.py`: unbatched, with transforms, batched, SerialEnv, ParallelEnv.
needs_torchrl = pytest.mark.skipif(find_spec("torchrl") is None, reason="needs the torchrl extra")
TORCHRL = {"cartpole": 2, "pendulum": 2, "counted": 2, "batched": 3, "serial": 3, "counted_serial": 3, "parallel": 2}
for name, num_envs in TORCHRL.items():
    CONFIGS[f"torchrl-{name}"] = TorchrlEnvConfig("torchrl", num_envs, f"worlds.torchrlenvs:{name}")
MARKS = {name: [needs_torchrl] for name in CONFIGS if name.startswith("torchrl")}
MARKS["torchrl-parallel"].append(pytest.mark.ci)  # its processes take seconds to start
NAMES = [pytest.param(name, marks=MARKS.get(name, ())) for name in CONFIGS]


@dataclass
class Stream:
    """The transitions of each env, as hand-made lists: (observation, action, reward, terminated, truncated, next)."""

    env: Env
    steps: int
    frames: list[list[tuple]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = self.env.spec
        self.memory = Memory(self.spec, self.steps)
        self.frames = [[] for _ in range(self.spec.num_envs)]

    def collect(self, seeds: list[int] | None, actions: list[list[np.ndarray]]) -> list[list[tuple]]:
        before = self.memory.scratch()
        self.env.reset(seeds, before)
        for t, action in enumerate(actions):
            out = self.memory.rows(t)
            any_ended = self.env.step(action, out)
            ended = out.terminated | out.truncated
            assert any_ended is bool(ended.any())
            if not self.spec.ragged:
                assert out.frame.all()
            for e in np.flatnonzero(out.frame):
                self.frames[e].append(
                    (
                        *[row[e].copy() for row in before],
                        *[row[e].copy() for row in action],
                        float(out.reward[e]),
                        bool(out.terminated[e]),
                        bool(out.truncated[e]),
                        *[row[e].copy() for row in out.observation],
                    )
                )
            for row, after in zip(before, out.observation, strict=True):
                row[:] = after
            if any_ended and not self.spec.ragged:
                untouched = [row.copy() for row in before]
                self.env.restart(ended, before)
                for row, was in zip(before, untouched, strict=True):
                    np.testing.assert_array_equal(row[~ended], was[~ended])
        return self.frames


class Memory:
    """Rows as the rollout hands them over: views of time-strided memory."""

    def __init__(self, spec: EnvSpec, steps: int):
        self.spec = spec
        size = spec.num_envs
        self.observation = [np.zeros((size, steps, *leaf.shape), numpy_dtype(leaf)) for leaf in spec.observation]
        self.reward = np.full((size, steps), np.nan, np.float32)
        self.flags = [np.full((size, steps), value) for value in (False, False, True)]

    def scratch(self) -> list[np.ndarray]:
        return [np.zeros((self.spec.num_envs, *leaf.shape), numpy_dtype(leaf)) for leaf in self.spec.observation]

    def rows(self, t: int) -> StepRows:
        self.flags[0][:, t] = self.flags[1][:, t] = False
        return StepRows([array[:, t] for array in self.observation], self.reward[:, t], *(f[:, t] for f in self.flags))


def sample_actions(spec: EnvSpec, steps: int) -> list[list[np.ndarray]]:
    """For each step one strided array per action leaf, drawn from the single env's action space."""
    structure = Structure(spec.action_space, ("action",))
    spec.action_space.seed(7)
    memory = [np.zeros((spec.num_envs, steps, *leaf.shape), numpy_dtype(leaf)) for leaf in spec.action]
    for t in range(steps):
        for e in range(spec.num_envs):
            for array, value in zip(memory, structure.flatten(spec.action_space.sample()), strict=True):
                array[e, t] = value
    return [[array[:, t] for array in memory] for t in range(steps)]


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory):
    # MuJoCo writes its log into the current directory.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        yield


@pytest.fixture(params=NAMES, scope="module")
def cfg(request) -> EnvConfig:
    return CONFIGS[request.param]


@pytest.fixture(scope="module")
def env(cfg):
    """One for all tests of a kind: each begins with a reset. Closing may be done twice."""
    env = build(cfg)
    yield env
    env.close()
    env.close()


STEPS = 45


def test_spec_is_read_without_building_the_group(cfg, env):
    spec = read_spec(cfg)
    assert spec.num_envs == cfg.num_envs
    assert (spec.observation, spec.action) == (env.spec.observation, env.spec.action)
    assert (spec.ragged, spec.cuttable) == (env.spec.ragged, env.spec.cuttable)
    assert not (spec.ragged and spec.cuttable)


def test_frames_follow_one_another_and_no_frame_crosses_a_reset(env):
    num_leaves = len(env.spec.observation)
    frames = Stream(env, STEPS).collect(list(range(env.spec.num_envs)), sample_actions(env.spec, STEPS))
    ends = 0
    for of_env in frames:
        assert len(of_env) >= STEPS // 2
        for frame, following in pairwise(of_env):
            *_, terminated, truncated = frame[:-num_leaves]
            same = all(
                np.array_equal(after, start)
                for after, start in zip(frame[-num_leaves:], following[:num_leaves], strict=True)
            )
            assert same is not (terminated or truncated)
            ends += terminated or truncated
    assert ends > 0


def test_same_seeds_and_actions_give_the_same_stream(cfg, env):
    actions = sample_actions(env.spec, 30)
    seeds = [100 + e for e in range(env.spec.num_envs)]
    first = Stream(env, 30).collect(seeds, actions)
    other = build(cfg)
    try:
        second = Stream(other, 30).collect(seeds, actions)
    finally:
        other.close()
    again = Stream(env, 30).collect(seeds, actions)
    for one, two, three in zip(first, second, again, strict=True):
        for a, b, c in zip(one, two, three, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            assert all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


def test_a_reset_may_be_without_seeds(env):
    out = Memory(env.spec, 1).scratch()
    env.reset(None, out)
    assert any(array.any() for array in out)


def test_action_memory_may_be_overwritten_after_the_step(env):
    memory = Memory(env.spec, 2)
    env.reset(list(range(env.spec.num_envs)), memory.scratch())
    actions = sample_actions(env.spec, 2)
    expected = Stream(env, 2).collect(list(range(env.spec.num_envs)), actions)
    env.reset(list(range(env.spec.num_envs)), memory.scratch())
    env.step([action.copy() for action in actions[0]], memory.rows(0))
    passed = [action.copy() for action in actions[1]]
    env.step(passed, memory.rows(1))
    for array, kept in zip(passed, actions[1], strict=True):
        np.testing.assert_array_equal(array, kept)
        array[:] = 0
    for leaf, array in enumerate(memory.observation):
        for e in range(env.spec.num_envs):
            np.testing.assert_array_equal(array[e, 1], expected[e][1][leaf - len(env.spec.observation)])


@pytest.mark.parametrize(
    "name",
    [
        *("cartpole", "sync-disabled", "sync-same-step", "async-same-step", "envpool", "counting"),
        *(pytest.param(f"torchrl-{name}", marks=needs_torchrl) for name in ("cartpole", "counted_serial", "serial")),
    ],
)
def test_restart_of_an_env_that_did_not_end(name):
    env = build(CONFIGS[name])
    try:
        memory = Memory(env.spec, 3)
        before = memory.scratch()
        env.reset(list(range(env.spec.num_envs)), before)
        actions = sample_actions(env.spec, 3)
        env.step(actions[0], memory.rows(0))
        cut = np.arange(env.spec.num_envs) == 1
        now = [array[:, 0].copy() for array in memory.observation]
        env.restart(cut, now)
        np.testing.assert_array_equal(now[0][~cut], memory.observation[0][~cut, 0])
        assert not np.array_equal(now[0][cut], memory.observation[0][cut, 0])
        assert not np.array_equal(now[0][cut], before[0][cut])
        env.step(actions[1], memory.rows(1))
        assert (memory.reward[:, 1] != 0).all()
    finally:
        env.close()
