"""Rewards are divided by the standard deviation of running discounted returns, whatever batches carry them."""

import numpy as np
import pytest
import torch

from collectx.trainer.returns import RewardScale

GAMMA, NUM_ENVS, STEPS = 0.9, 4, 96


def episodes():
    """Rewards, ends and trajectory ids of some envs, each `[envs, STEPS]`: episode n of env e has the id e + 4 n."""
    generator = np.random.default_rng(0)
    reward, done = generator.normal(1, 3, (NUM_ENVS, STEPS)), generator.random((NUM_ENVS, STEPS)) < 0.1
    numbers = np.cumsum(done, 1) - done
    ids = np.arange(NUM_ENVS)[:, None] + NUM_ENVS * numbers
    return torch.from_numpy(reward.astype(np.float32)), torch.from_numpy(done), torch.from_numpy(ids)


def expected(reward, done):
    """Returns the standard deviation of the running returns, one frame after another."""
    returns = np.zeros((NUM_ENVS, STEPS))
    for env in range(NUM_ENVS):
        total = 0.0
        for step in range(STEPS):
            total = GAMMA * total + float(reward[env, step])
            returns[env, step] = total
            total *= not done[env, step]
    return returns.std()


def sync(data):
    return [[each[:, start : start + 32] for each in data] for start in range(0, STEPS, 32)]


def asynchronous(data):
    """Splits the data into batches of two workers with two envs, which arrive in any order between the workers."""
    parts = [[each[first : first + 2] for each in data] for first in (0, 2)]
    return [[each[:, start : start + 16] for each in parts[worker]] for worker, start in ARRIVALS]


ARRIVALS = [(0, 0), (0, 16), (1, 0), (0, 32), (1, 16), (1, 32), (1, 48), (1, 64), (0, 48), (0, 64), (0, 80), (1, 80)]


@pytest.mark.parametrize("batches", [sync, asynchronous])
def test_the_scale_equals_that_of_a_loop_over_all_frames(batches):
    data, scale = episodes(), RewardScale(GAMMA)
    scaled = [(scale(*batch), batch[0]) for batch in batches(data)]
    last, reward = scaled[-1]
    deviation = expected(*data[:2])
    torch.testing.assert_close(last, reward / deviation, rtol=1e-6, atol=0)
    assert scale.state_dict()["moments"]["variance"].item() == pytest.approx(deviation**2, rel=1e-12)
    assert last.dtype == torch.float32


def test_a_restored_scale_continues():
    first, *others = sync(episodes())
    scale, restored = RewardScale(GAMMA), RewardScale(GAMMA)
    scale(*first)
    restored.load_state_dict(scale.state_dict())
    for batch in others:
        assert torch.equal(scale(*batch), restored(*batch))


def test_trajectories_that_never_end_are_forgotten(monkeypatch):
    monkeypatch.setattr("collectx.trainer.returns._MOST_TRAJECTORIES", 3)
    scale = RewardScale(GAMMA)
    ends = torch.zeros(2, 4, dtype=torch.bool)
    for number in range(4):
        scale(torch.ones(2, 4), ends, torch.tensor([[2 * number], [2 * number + 1]]).expand(2, 4))
    assert [*scale.state_dict()["sums"]] == [5, 6, 7]


def test_no_rewards_stay_no_rewards_and_ended_trajectories_leave_nothing():
    scale, zeros = RewardScale(GAMMA), torch.zeros(2, 4)
    ends = torch.tensor([[False] * 4, [False, False, False, True]])
    ids = torch.tensor([[0] * 4, [1] * 4])
    assert torch.equal(scale(zeros, ends, ids), zeros)
    assert [*scale.state_dict()["sums"]] == [0]
