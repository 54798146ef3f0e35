from __future__ import annotations

import numpy as np
import pytest

from collectx.config import CountingEnvConfig
from collectx.env import build
from collectx.env.base import StepRows
from collectx.env.counting import StreamChecker, check_stream, episode_length, frame

STEPS = 11


def batches(first_index: int = 0, count: int = 3, num_envs: int = 2) -> list[dict]:
    """Right batches `[num_envs, STEPS]`, made as a rollout makes them."""
    cfg = CountingEnvConfig(kind="counting", num_envs=num_envs, episode_length=4, observation_size=6, step_s=0.0)
    env = build(cfg, first_index)
    before = np.zeros((num_envs, 6), np.int64)
    env.reset(None, [before])
    trajectory = 1000 * (first_index + np.arange(num_envs))
    made = []
    for _ in range(count):
        batch = {
            "observation": np.zeros((num_envs, STEPS, 6), np.int64),
            ("next", "observation"): np.zeros((num_envs, STEPS, 6), np.int64),
            ("next", "done"): np.zeros((num_envs, STEPS, 1), bool),
            ("collector", "traj_ids"): np.zeros((num_envs, STEPS), np.int64),
        }
        for t in range(STEPS):
            batch["observation"][:, t] = before
            batch["collector", "traj_ids"][:, t] = trajectory
            done = batch["next", "done"][:, t, 0]
            after = batch["next", "observation"][:, t]
            out = StepRows([after], np.zeros(num_envs, np.float32), done, np.zeros(num_envs, bool), np.ones(1, bool))
            env.step([np.zeros(num_envs, np.int64)], out)
            assert (out.reward == after[:, 2]).all()
            before[:] = after
            env.restart(done, [before])
            trajectory[done] += 1
        made.append(batch)
    return made


def test_right_batches_of_two_workers_pass_in_any_interleaving():
    one, two = batches(0), batches(2)
    assert check_stream([one[0], one[1], two[0], one[2], two[1], two[2]]) == 6 * 2 * STEPS


def test_envs_do_not_end_in_lockstep():
    assert episode_length(np.arange(4), 4).tolist() == [4, 5, 6, 4]
    done = batches(0, count=1)[0]["next", "done"]
    assert (done[0] != done[1]).any()


def test_a_lost_batch():
    made = batches()
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: lost"):
        check_stream([made[0], made[2]])


def test_a_repeated_batch():
    made = batches()
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: repeated"):
        check_stream([made[0], made[0]])


def test_reordered_frames():
    batch = batches()[0]
    for array in batch.values():
        array[1, [3, 2]] = array[1, [2, 3]]
    with pytest.raises(AssertionError, match=r"env 1, frame 13 of batch 0: reordered: expected episode 0, step 2"):
        check_stream([batch])


@pytest.mark.parametrize("key", ["observation", ("next", "observation")])
def test_a_torn_frame(key):
    batch = batches()[0]
    batch[key][1, 4, 5] += 1
    with pytest.raises(AssertionError, match="env 1, frame 15 of batch 0: torn"):
        check_stream([batch])


def test_a_next_observation_of_the_next_episode():
    batch = batches()[0]
    batch["next", "observation"][0, 3] = frame(np.array([0]), np.array([1]), np.array([0]), 6)[0]
    with pytest.raises(AssertionError, match=r"frame 3 of batch 0: next\.observation is env 0, episode 1, step 0"):
        check_stream([batch])


def test_a_done_flag_that_is_missing():
    batch = batches()[0]
    batch["next", "done"][0, 3] = False
    with pytest.raises(AssertionError, match="env 0, frame 4 of batch 0: lost: expected episode 0, step 4"):
        check_stream([batch])


def test_trajectory_ids():
    made = batches()
    made[0]["collector", "traj_ids"][0, 2] = 77
    with pytest.raises(AssertionError, match="traj_ids changed from 0 to 77 within an episode"):
        check_stream(made)
    made = batches()
    made[0]["collector", "traj_ids"][0, 4:9] = 0
    with pytest.raises(AssertionError, match="traj_ids 0 was already used by"):
        check_stream(made)


def test_a_stream_joined_late():
    made = batches()
    with pytest.raises(AssertionError, match="lost"):
        check_stream(made[1:])
    assert check_stream(made[1:], from_start=False) == 4 * STEPS


def test_flat_batches():
    checker = StreamChecker()
    for batch in batches():
        checker.take({key: array.reshape(2 * STEPS, *array.shape[2:]) for key, array in batch.items()})
    assert checker.frames == 6 * STEPS
