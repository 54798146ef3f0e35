from __future__ import annotations

import numpy as np
import pytest
from collecting import counting
from stepping import Stepper

from collectx.env import build
from collectx.env.counting import StreamChecker, check_stream, episode_length, frame
from collectx.errors import ConfigError

STEPS = 11


def batches(first_index: int = 0, count: int = 3, num_envs: int = 2) -> list[dict]:
    """Correct batches `[num_envs, STEPS]`."""
    stepper = Stepper(build(counting(num_envs, 4, 6), first_index)).reset()
    for _ in range(count * STEPS):
        out = stepper.step()
        assert (out.reward == out.observation[0][:, 2]).all()
    made = []
    for start in range(0, count * STEPS, STEPS):
        rows = [frames[start : start + STEPS] for frames in stepper.frames]
        observation = np.array([[each.before[0] for each in row] for row in rows])
        made.append(
            {
                "observation": observation,
                ("next", "observation"): np.array([[each.after[0] for each in row] for row in rows]),
                ("next", "done"): np.array([[[each.ended] for each in row] for row in rows]),
                ("collector", "traj_ids"): 1000 * observation[..., 0] + observation[..., 1],
            }
        )
    return made


def test_right_batches_of_two_workers_pass_in_any_interleaving():
    one, two = batches(0), batches(2)
    assert check_stream([one[0], one[1], two[0], one[2], two[1], two[2]]) == 6 * 2 * STEPS


def test_envs_do_not_end_in_lockstep():
    assert episode_length(np.arange(4), 4).tolist() == [4, 5, 6, 4]
    done = batches(count=1)[0]["next", "done"]
    assert (done[0] != done[1]).any()


def test_lost_repeated_and_reordered_frames():
    made = batches()
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: lost"):
        check_stream([made[0], made[2]])
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: repeated"):
        check_stream([made[0], made[0]])
    for array in made[0].values():
        array[1, [3, 2]] = array[1, [2, 3]]
    with pytest.raises(AssertionError, match=r"env 1, frame 13 of batch 0: reordered: expected episode 0, step 2"):
        check_stream(made)


NEXT_EPISODE = frame(*np.array([[0], [1], [0]]), 6)[0]


@pytest.mark.parametrize(
    ("key", "at", "value", "message"),
    [
        ("observation", (1, 4, 5), -1, "env 1, frame 15 of batch 0: torn"),
        (("next", "observation"), (1, 4, 5), -1, "env 1, frame 15 of batch 0: torn"),
        (("next", "observation"), (0, 3), NEXT_EPISODE, r"frame 3 .* next\.observation is env 0, episode 1, step 0"),
        (("next", "done"), (0, 3), False, "env 0, frame 4 of batch 0: lost: expected episode 0, step 4"),
        (("collector", "traj_ids"), (0, 2), 77, "traj_ids changed from 0 to 77 within an episode"),
        (("collector", "traj_ids"), (0, slice(4, 9)), 0, "traj_ids 0 was already used by"),
    ],
)
def test_a_wrong_leaf(key, at, value, message):
    made = batches()
    made[0][key][at] = value
    with pytest.raises(AssertionError, match=message):
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


def test_counting_rejects_what_it_cannot_count():
    with pytest.raises(ConfigError, match=r"observation_size=2 is below 3[\s\S]*episode_length=0"):
        build(counting(episode_length=0, observation_size=2))
