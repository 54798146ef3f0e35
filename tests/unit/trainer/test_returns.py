"""Scaled rewards, and GAE and V-trace against their definitions, written as loops."""

import numpy as np
import pytest
import torch

from collectx import ReplayBuffer
from collectx.batch import to_tensordict
from collectx.trainer.actor_critic import Transitions, next_values
from collectx.trainer.off_policy import NstepWriter
from collectx.trainer.returns import RewardScale, gae, nstep, vtrace

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


# --- targets ---


def frames(rows: int, steps: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    reward, value, following, log_ratio = torch.randn(4, rows, steps, generator=generator).unbind(0)
    terminated = torch.rand(rows, steps, generator=generator) < 0.15
    done = terminated | (torch.rand(rows, steps, generator=generator) < 0.15)
    # Within an episode the next value is the following frame's.
    inside = ~done[:, :-1]
    following[:, :-1][inside] = value[:, 1:][inside]
    following[terminated] = 0.0
    return reward, value, following, log_ratio, done


@pytest.mark.parametrize("steps", [1, 2, 7, 32])
def test_gae(steps):
    reward, value, following, _, done = frames(3, steps, steps)
    expected = torch.zeros(3, steps)
    for r in range(3):
        carried = 0.0
        for t in reversed(range(steps)):
            if done[r, t]:
                carried = 0.0
            delta = reward[r, t] + 0.9 * following[r, t] - value[r, t]
            carried = delta + 0.9 * 0.8 * carried
            expected[r, t] = carried
    torch.testing.assert_close(gae(reward, value, following, done, 0.9, 0.8), expected)


@pytest.mark.parametrize("steps", [1, 2, 7, 32])
def test_vtrace(steps):
    reward, value, following, log_ratio, done = frames(3, steps, 10 + steps)
    target, advantage = torch.zeros(3, steps), torch.zeros(3, steps)
    for r in range(3):
        for t in reversed(range(steps)):
            last = t == steps - 1 or bool(done[r, t])
            next_target = following[r, t] if last else target[r, t + 1]
            next_value = following[r, t] if last else value[r, t + 1]
            rho = min(1.2, log_ratio[r, t].exp().item())
            c = min(0.9, log_ratio[r, t].exp().item())
            delta = rho * (reward[r, t] + 0.9 * following[r, t] - value[r, t])
            target[r, t] = value[r, t] + delta + 0.9 * c * (next_target - next_value)
            advantage[r, t] = rho * (reward[r, t] + 0.9 * next_target - value[r, t])
    found = vtrace(log_ratio, reward, value, following, done, 0.9, 1.2, 0.9)
    torch.testing.assert_close(found[0], target)
    torch.testing.assert_close(found[1], advantage)


@pytest.mark.parametrize(("steps", "num_steps"), [(1, 1), (1, 3), (7, 1), (7, 3), (32, 5), (4, 9)])
def test_nstep(steps, num_steps):
    reward, _, _, _, done = frames(3, steps, 20 + steps)
    total, discount, last = nstep(reward, done, 0.9, num_steps)
    for r in range(3):
        for t in range(steps):
            end = t
            while end - t + 1 < num_steps and end + 1 < steps and not done[r, end]:
                end += 1
            assert last[r, t] == end
            assert discount[r, t].item() == pytest.approx(0.9 ** (end - t + 1))
            rewards = reward[r, t : end + 1]
            torch.testing.assert_close(total[r, t], (rewards * 0.9 ** torch.arange(len(rewards))).sum())


def test_next_values_at_the_ends():
    """Frames: inside, truncated, terminated, last of the batch."""
    observation = torch.tensor([[[1.0], [2.0], [10.0], [20.0]]])
    following = torch.tensor([[[2.0], [3.0], [11.0], [21.0]]])
    terminated = torch.tensor([[False, False, True, False]])
    truncated = torch.tensor([[False, True, False, False]])
    unused = torch.zeros(1, 4)
    batch = Transitions([observation], [following], unused, unused, unused, terminated, done=terminated | truncated)
    next_value = next_values(lambda seen: seen[0].squeeze(-1), observation.squeeze(-1), batch)
    assert next_value.tolist() == [[2.0, 3.0, 0.0, 21.0]]


def test_dqn_counts_the_next_value_at_a_truncation_and_not_at_a_termination():
    """Frames: inside, truncated, terminated, last of the batch."""
    ends = {"truncated": [False, True, False, False], "terminated": [False, False, True, False]}
    ends["done"] = [False, True, True, False]
    buffer, seen = ReplayBuffer(4), ("observation",)
    batch = {
        seen: torch.tensor([[1.0], [2.0], [10.0], [20.0]]),
        ("action",): torch.arange(4),
        ("next", *seen): torch.tensor([[2.0], [3.0], [11.0], [21.0]]),
        ("next", "reward"): torch.tensor([[1.0], [2.0], [4.0], [8.0]]),
        **{("next", name): torch.tensor(flags).unsqueeze(-1) for name, flags in ends.items()},
    }
    NstepWriter(buffer, [seen], gamma=0.5, num_steps=2).extend(to_tensordict(batch, (4,)))
    stored = buffer[torch.arange(4)]
    assert stored["return"].tolist() == [2.0, 2.0, 4.0, 8.0]
    assert stored["discount"].tolist() == [0.25, 0.5, 0.0, 0.5]
    assert stored["next", "observation"].flatten().tolist() == [3.0, 3.0, 11.0, 21.0]
