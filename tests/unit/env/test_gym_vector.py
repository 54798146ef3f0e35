from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from collectx.config import GymEnvConfig, GymVectorEnvConfig
from collectx.env import build
from collectx.env.base import StepRows
from collectx.errors import CollectxError, ConfigError, SpaceError

SEEDS = [3, 4, 5]
STEPS = 70
ACTIONS = np.random.default_rng(0).integers(0, 2, (len(SEEDS), STEPS))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # MuJoCo writes its log into the current directory.
    monkeypatch.chdir(tmp_path)


def config(**changes) -> GymVectorEnvConfig:
    base = GymVectorEnvConfig(
        kind="gym_vector",
        num_envs=len(SEEDS),
        id="CartPole-v1",
        entry_point=None,
        vectorization_mode="sync",
        autoreset_mode=None,
    )
    return dataclasses.replace(base, **changes)


def bare_stream(num_frames: int) -> list[list[tuple]]:
    """The transitions of hand-stepped envs: env e's frame f takes `ACTIONS[e, f]`."""
    streams = []
    for e, seed in enumerate(SEEDS):
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=seed)
        frames = []
        for action in ACTIONS[e, :num_frames]:
            after, reward, terminated, truncated, _ = env.step(int(action))
            frames.append((observation.tolist(), float(reward), terminated, truncated, after.tolist()))
            observation = env.reset()[0] if terminated or truncated else after
        env.close()
        streams.append(frames)
    return streams


def stream(cfg) -> list[list[tuple]]:
    """The same through an adapter; an env's action depends on how many frames it has had, as resets take steps."""
    env = build(cfg)
    size = len(SEEDS)
    streams: list[list[tuple]] = [[] for _ in SEEDS]
    before = np.zeros((size, 4), np.float32)
    env.reset(SEEDS, [before])
    while min(map(len, streams)) < 50:
        out = StepRows(
            [np.zeros((size, 4), np.float32)],
            np.zeros(size, np.float32),
            np.zeros(size, bool),
            np.zeros(size, bool),
            np.ones(size, bool),
        )
        ended = env.step([np.array([ACTIONS[e, len(streams[e])] for e in range(size)])], out)
        for e in np.flatnonzero(out.frame):
            flags = bool(out.terminated[e]), bool(out.truncated[e])
            streams[e].append((before[e].tolist(), float(out.reward[e]), *flags, out.observation[0][e].tolist()))
        before[:] = out.observation[0]
        if ended and not env.spec.ragged:
            env.restart(out.terminated | out.truncated, [before])
    env.close()
    return [frames[:50] for frames in streams]


@pytest.mark.parametrize(
    "cfg",
    [
        GymEnvConfig(kind="gym", num_envs=len(SEEDS), id="CartPole-v1", entry_point=None),
        *(config(autoreset_mode=mode) for mode in (None, "next_step", "SAME_STEP", "Disabled")),
        config(vectorization_mode="async", autoreset_mode="same_step"),
        config(vectorization_mode="async", autoreset_mode="next_step"),
    ],
    ids=lambda cfg: f"{cfg.kind}-{getattr(cfg, 'vectorization_mode', '')}-{getattr(cfg, 'autoreset_mode', '')}",
)
def test_every_way_of_resetting_gives_the_stream_of_the_bare_env(cfg):
    assert stream(cfg) == bare_stream(50)


def test_left_alone_the_mode_is_disabled():
    env = build(config())
    assert not env.spec.ragged
    assert env._mode is AutoresetMode.DISABLED
    env.close()


def next_step():
    return build(config(autoreset_mode="next_step")), [np.zeros((3, 4), np.float32)]


def same_step_of_the_users_own():
    return build(config(id=None, entry_point=BatchedFinalObs)), [np.zeros((3, 1))]


@pytest.mark.parametrize("make", [next_step, same_step_of_the_users_own])
def test_restart_before_the_end_is_refused_where_the_env_resets_itself(make):
    env, out = make()
    assert not env.spec.cuttable
    env.reset(SEEDS, out)
    with pytest.raises(CollectxError, match=r"cannot be restarted before its episode ends.*autoreset_mode=disabled"):
        env.restart(np.array([True, False, False]), out)
    env.close()


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_envs_that_ended_and_envs_that_did_not_are_restarted_together(how, mode):
    """Env 0 is cut at every fifth frame, and with it whoever's episode ends in that step; the others are as if nothing
    had been."""
    env = build(config(vectorization_mode=how, autoreset_mode=mode))
    assert env.spec.cuttable
    bare = [gymnasium.make("CartPole-v1") for _ in SEEDS]
    wanted = [one.reset(seed=seed)[0] for one, seed in zip(bare, SEEDS, strict=True)]
    before = np.zeros((3, 4), np.float32)
    env.reset(SEEDS, [before])
    together = 0
    for t in range(STEPS):
        np.testing.assert_array_equal(before, wanted)
        out = StepRows(
            [np.zeros((3, 4), np.float32)], np.zeros(3, np.float32), *np.zeros((2, 3), bool), np.ones(3, bool)
        )
        env.step([ACTIONS[:, t]], out)
        ended = out.terminated | out.truncated
        cut = ended | (np.arange(3) == 0) & (t % 5 == 4)
        together += ended.any() and (cut & ~ended).any()
        stepped = [one.step(int(action)) for one, action in zip(bare, ACTIONS[:, t], strict=True)]
        np.testing.assert_array_equal(out.observation[0], [step[0] for step in stepped])
        wanted = [one.reset()[0] if cut[e] else stepped[e][0] for e, one in enumerate(bare)]
        before[:] = out.observation[0]
        if cut.any():
            env.restart(cut, [before])
    env.close()
    assert together > 0


class BatchedFinalObs(gymnasium.vector.VectorEnv):
    """A SAME_STEP env that gives its final observations as one dense array, and info of its own."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

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


def test_batched_final_observations_and_infos():
    env = build(config(id=None, entry_point=BatchedFinalObs, num_envs=2, info_keys=["t"]))
    assert [leaf.key for leaf in env.spec.observation] == [("observation",), ("info", "t")]
    carry = [np.full((2, 1), -1.0), np.full(2, -1.0)]
    env.reset([0, 1], carry)
    seen = []
    for _ in range(3):
        out = StepRows(
            [np.zeros((2, 1)), np.zeros(2)],
            np.zeros(2, np.float32),
            np.zeros(2, bool),
            np.zeros(2, bool),
            np.ones(2, bool),
        )
        if env.step([np.zeros(2, np.int64)], out):
            after = [array.copy() for array in out.observation]
            env.restart(out.terminated, after)
        else:
            after = out.observation
        seen.append((out.observation[0][:, 0].tolist(), out.observation[1].tolist(), after[0][:, 0].tolist()))
    assert seen == [
        ([1, 1], [1, 1], [1, 1]),
        ([2, 2], [2, 2], [0, 2]),
        ([1, 3], [1, 3], [1, 0]),
    ]


def test_an_env_that_does_not_say_how_it_resets():
    kwargs = {"mode": None}
    with pytest.raises(ConfigError, match=r"set env.autoreset_mode, one of next_step, same_step, disabled"):
        build(config(id=None, entry_point=BatchedFinalObs, kwargs=kwargs))
    build(config(id=None, entry_point=BatchedFinalObs, kwargs=kwargs, autoreset_mode="same_step")).close()


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
        build(config(**changes))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_infos_are_kept_in_every_mode(mode):
    env = build(
        config(
            id="HalfCheetah-v5",
            num_envs=2,
            autoreset_mode=mode,
            kwargs={"max_episode_steps": 3},
            info_keys=["reward_ctrl", "x_position"],
        )
    )
    shapes = [(2, 17), (2,), (2,)]
    env.reset([1, 2], [np.zeros(shape) for shape in shapes])
    for step in range(3):
        out = StepRows(
            [np.zeros(shape) for shape in shapes],
            np.zeros(2, np.float32),
            np.zeros(2, bool),
            np.zeros(2, bool),
            np.ones(2, bool),
        )
        env.step([np.full((2, 6), 0.5, np.float32)], out)
        assert (out.observation[1] < 0).all(), f"the action's cost is missing after step {step}"
    env.close()


def test_unknown_info_key():
    with pytest.raises(SpaceError, match="no 'nothing'"):
        build(config(info_keys=["nothing"]))
