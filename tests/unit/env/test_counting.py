"""The checks of streams of counting envs."""

import numpy as np
import pytest
from user_code.countedframes import Stream
from user_code.streams import check_stream

from collectx.env.counting import frame

STEPS = 11


def batches(first_env=0, count=3):
    """Yields correct batches of two envs, as arrays."""
    stream = Stream(2, first_env, 4, 6)
    for _ in range(count):
        batch = stream.take(STEPS)
        keys = ("observation", ("next", "observation"), ("next", "done"), ("collector", "traj_ids"))
        yield {key: batch[key].numpy() for key in keys}


def test_right_batches_of_two_workers_pass_in_any_interleaving():
    (a, b, c), (d, e, f) = batches(0), batches(2)
    assert check_stream([a, b, d, c, e, f]) == 6 * 2 * STEPS


def test_lost_repeated_and_reordered_frames():
    first, second, third = batches()
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 0: lost"):
        check_stream([second, third])
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: lost"):
        check_stream([first, third])
    with pytest.raises(AssertionError, match="env 0, frame 0 of batch 1: repeated"):
        check_stream([first, first])
    for array in first.values():
        array[1, [3, 2]] = array[1, [2, 3]]
    with pytest.raises(AssertionError, match=r"env 1, frame 13 of batch 0: reordered: expected episode 0, step 2"):
        check_stream([first, second, third])


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
    (batch,) = batches(count=1)
    batch[key][at] = value
    with pytest.raises(AssertionError, match=message):
        check_stream([batch])
