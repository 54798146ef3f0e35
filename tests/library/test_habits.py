"""What users of other libraries expect of a collector: `async for`, a replay buffer that is filled, whole trajectories,
and a VecEnv of Stable-Baselines3."""

import asyncio
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from library_collectors import make
from stable_baselines3.common.vec_env import DummyVecEnv
from user_code.cartpoles import cartpole
from ways import SHARED_SYNC, SINGLE, over

from collectx import ReplayBuffer
from collectx.errors import ConfigError

FRAMES = {"frames_per_batch": 20, "total_frames": 60, "seed": 1}


@over([SINGLE, SHARED_SYNC])
def test_async_for_gives_the_same_batches_and_blocks_no_task(way):
    with make(way, **FRAMES) as collector:
        expected = [batch["observation"] for batch in collector]

    async def collect():
        ticks, batches = 0, []

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        with make(way, **FRAMES) as collector:
            async for batch in collector:
                batches.append(batch["observation"])
                before, ticks = ticks, 0
                assert before > 0
        ticker.cancel()
        return batches

    torch.testing.assert_close(asyncio.run(collect()), expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_cancelled_wait_loses_no_batch(is_complete):
    with make(SINGLE, **FRAMES) as collector:
        expected = [batch["observation"] for batch in collector]

    async def cancel(collector):
        waiting = asyncio.ensure_future(anext(collector))
        await asyncio.sleep(0)
        if is_complete:
            collector._thread.submit(int).result()  # and `waiting` has not resumed yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def collect(collector):
        return [batch["observation"] async for batch in collector]

    async def cancel_and_collect(collector):
        await cancel(collector)
        return await collect(collector)

    with make(SINGLE, **FRAMES) as collector:
        torch.testing.assert_close(asyncio.run(cancel_and_collect(collector)), expected, rtol=0, atol=0)
    with make(SINGLE, **FRAMES) as collector:  # the loop of the cancelled task is closed
        asyncio.run(cancel(collector))
        torch.testing.assert_close(asyncio.run(collect(collector)), expected, rtol=0, atol=0)
    with make(SINGLE, **FRAMES) as collector:
        asyncio.run(cancel(collector))
        torch.testing.assert_close([batch["observation"] for batch in collector], expected, rtol=0, atol=0)
        asyncio.run(cancel(collector))
        assert (collector.next(), collector.next()) == (None, None)


def test_async_for_raises_what_next_raises():
    def fails():
        raise ValueError("no batch")

    async def collect(collector):
        return [batch async for batch in collector]

    with make(SINGLE, pre_collect_hook=fails, **FRAMES) as collector, pytest.raises(ValueError, match="no batch"):
        asyncio.run(collect(collector))


class Line(gymnasium.Env):
    """A walk from 0 towards a goal, one step left or right. The reward is 0 at the goal, otherwise -1."""

    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-9, 9, (1,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps, self.goal = 0, 0, float(self.np_random.integers(3, 6))
        return self.observe(), {}

    def step(self, action):
        self.place += 2 * action - 1
        self.steps += 1
        reached = self.place == self.goal
        return self.observe(), float(reached) - 1, reached, self.steps == 8, {}

    def observe(self):
        place = np.array([self.place], np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": np.array([self.goal], np.float32)}


def relabel(trajectory):
    """Returns the trajectory and a copy whose goal is where it has ended: hindsight experience replay."""
    copy = trajectory.clone()
    goal = copy["next", "achieved_goal"][-1]
    copy["desired_goal"][:] = copy["next", "desired_goal"][:] = goal
    reached = copy["next", "achieved_goal"] == goal
    copy["next", "reward"] = reached.float() - 1
    copy["next", "terminated"] = reached
    copy["next", "done"] = reached | copy["next", "truncated"]
    return torch.cat([trajectory, copy])


def test_post_traj_relabels_whole_trajectories():
    options = {"frames_per_batch": 20, "total_frames": 200, "seed": 0}
    buffer = ReplayBuffer(1000)
    with make(SINGLE, Line, trajs_per_batch=1, post_traj=relabel, replay_buffer=buffer, **options) as collector:
        while collector.fill():
            pass
    frames = buffer[:]
    assert len(frames) % 2 == 0
    assert len(frames) > 300
    with make(SINGLE, Line, trajs_per_batch=1, traj_format="cat", post_traj=relabel, **options) as collector:
        for batch in collector:
            one, copy = batch.chunk(2)
            torch.testing.assert_close(one["observation"], copy["observation"])
            assert one["next", "done"][-1]
            assert copy["next", "reward"][-1] == 0
            assert copy["desired_goal"].unique() == copy["next", "achieved_goal"][-1]


def test_post_traj_may_leave_out_and_needs_whole_trajectories():
    def long_ones(trajectory):
        return trajectory if len(trajectory) > 20 else None

    options = {"frames_per_batch": 100, "total_frames": 1000, "traj_format": "cat", "seed": 0}
    with make(SINGLE, trajs_per_batch=1, post_traj=long_ones, **options) as collector:
        lengths = [len(batch) for batch in collector]
    assert len(lengths) > 3
    assert min(lengths) > 20
    with pytest.raises(ConfigError, match=r"post_traj=.* has no effect without trajs_per_batch"):
        make(SINGLE, post_traj=long_ones, **FRAMES)
    with pytest.raises(ConfigError, match="post_traj=3 must be a callable"):
        make(SINGLE, post_traj=3, trajs_per_batch=1, **FRAMES)


@pytest.mark.parametrize("is_env", [False, True])
@over([SINGLE, SHARED_SYNC])
def test_a_vec_env_has_the_true_last_observations(way, is_env):
    """They are in the infos as "terminal_observation"; `step` returns the first observation of the next episode."""
    make_env = partial(DummyVecEnv, [partial(cartpole, max_episode_steps=12)] * 3)
    options = {"frames_per_batch": 240 * way.num_workers, "total_frames": 240 * way.num_workers, "seed": 0}
    with make(way, make_env() if is_env else make_env, **options) as collector:
        (batch,) = collector
    batch = batch.reshape(-1, 80)
    done = batch["next", "done"].squeeze(-1)
    after, following = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
    ended = done[:, :-1]
    torch.testing.assert_close(after[~ended], following[~ended], rtol=0, atol=0)
    assert following[ended].abs().max() <= 0.05
    terminated, truncated = (batch["next", name].squeeze(-1) for name in ("terminated", "truncated"))
    angle = batch["next", "observation"][..., 2].abs()
    assert torch.equal(terminated, angle > 12 * 2 * torch.pi / 360)
    assert truncated.any()
    assert not (truncated & terminated).any()


def test_a_vec_env_is_seeded():
    make_env = partial(DummyVecEnv, [cartpole] * 2)
    first = []
    for seed in (0, 0, 1):
        with make(SINGLE, make_env, frames_per_batch=20, total_frames=20, seed=seed) as collector:
            first.append(next(collector)["observation"])
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0][0], first[0][1])
    with pytest.raises(ConfigError, match="cannot read the infos of a Stable-Baselines3 VecEnv"):
        make(SINGLE, make_env, info_keys=["x"], **FRAMES)
