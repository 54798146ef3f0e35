"""What is added to the batches of a user's collector: flags, trajectory ids, returns and lengths."""

import pytest
import torch

from collectx.batch import TRAJ_IDS
from collectx.worker.spec import Placement
from collectx.worker.user_collector import _complete, _Trajectories

FLAGS = ("done", "terminated", "truncated")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # done, terminated, truncated of three frames; - is a flag that the batch lacks
        ("- 100 010", "110 100 010"),
        ("110 100 -", "110 100 010"),
        ("110 - 010", "110 100 010"),
        ("111 100 010", "111 100 010"),
        ("110 - -", "110 - -"),
        ("- 100 -", "- 100 -"),
    ],
)
def test_flags_that_follow_from_others_are_added(flags, expected):
    def leaves(text):
        pairs = zip(FLAGS, text.split(), strict=True)
        return {("next", name): [[each == "1"] for each in bits] for name, bits in pairs if bits != "-"}

    completed = {key: torch.tensor(value) for key, value in leaves(flags).items()}
    _complete(completed)
    before = {} if expected.startswith("-") else {(name,): [[False]] * 3 for name in FLAGS}
    assert {key: value.tolist() for key, value in completed.items()} == leaves(expected) | before


def slot(done, ids=None):
    done = torch.tensor(done, dtype=torch.bool)
    reward = torch.arange(1.0, done.numel() + 1).reshape(done.shape)
    found = torch.zeros(done.shape, dtype=torch.int64) if ids is None else torch.tensor(ids)
    return {("next", "reward"): reward[..., None], ("next", "done"): done[..., None], TRAJ_IDS: found}


def test_ids_returns_and_lengths_of_rows():
    """The second of three workers, after one restart, so that no other trajectory has these ids."""
    trajectories, base = _Trajectories(2, Placement(1, 1, 3, 1)), 1 + 2**32 * 3
    first, second = slot([[0, 1, 0], [0, 0, 0]]), slot([[0, 0, 1], [1, 0, 0]])
    results = [trajectories.take(each, False) for each in (first, second)]
    assert ((first[TRAJ_IDS] - base) / 3).tolist() == [[0, 0, 2], [1, 1, 1]]
    assert ((second[TRAJ_IDS] - base) / 3).tolist() == [[2, 2, 2], [1, 3, 3]]
    # By the order of their ends; rewards are 1 to 6.
    assert [[array.tolist() for array in each] for each in results] == [[[3.0], [2]], [[19.0, 9.0], [4, 4]]]
    trajectories.abandon()
    third = slot([[1, 0], [0, 1]])
    assert [array.tolist() for array in trajectories.take(third, False)] == [[1.0, 7.0], [1, 2]]
    assert ((third[TRAJ_IDS] - base) / 3).tolist() == [[6, 8], [5, 5]]


def test_the_collectors_own_ids_are_kept_apart_and_old_trajectories_forgotten():
    trajectories = _Trajectories(1, Placement(0, 0, 2, 0))
    ids = [[7, 7, 9]]
    batch = slot([[0, 1, 0]], ids)
    assert [array.tolist() for array in trajectories.take(batch, True)] == [[3.0], [2]]
    assert batch[TRAJ_IDS].tolist() == [[14, 14, 18]]
    # At most four trajectories of one env are remembered; the oldest was ended by a reset.
    for number in range(10, 14):
        trajectories.take(slot([[0]], [[number]]), True)
    assert [trajectories.take(slot([[1]], [[number]]), True)[1].tolist() for number in (9, 10)] == [[1], [2]]


def test_padding_of_the_collectors_batch_is_in_no_trajectory():
    """In a worker that was restarted, whose ids are large."""
    trajectories = _Trajectories(1, Placement(0, 0, 2, 1))
    batch = slot([[0, 1, 0, 0]], [[7, 7, -1, -1]])
    assert [array.tolist() for array in trajectories.take(batch, True)] == [[3.0], [2]]
    assert batch[TRAJ_IDS].tolist() == [[2**33 + 14] * 2 + [-1, -1]]


def test_four_trajectories_of_each_env_are_remembered():
    trajectories = _Trajectories(3, Placement(0, 0, 1, 0))
    for number in range(10):
        trajectories.take(slot([[0]] * 3, [[3 * number], [3 * number + 1], [3 * number + 2]]), True)
    assert [*trajectories._running] == [*range(18, 30)]
