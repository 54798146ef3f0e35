"""Trajectories that are joined over several batches."""

import pytest
import torch
from configurations import through_a_file

from collectx.batch import to_tensordict
from collectx.trajectories import Assembler

# The trajectory of each frame, by batch: 0 to 3 end with the frame in which they are last named.
BATCHES = [[0, 0, 1, 2], [0, 1, 1, 3], [2, 2, 3, 3]]


def batch(number):
    ids = torch.tensor(BATCHES[number])
    later = {traj for each in BATCHES[number + 1 :] for traj in each}
    ends = [traj not in (*BATCHES[number][place + 1 :], *later) for place, traj in enumerate(BATCHES[number])]
    frames = {
        ("collector", "traj_ids"): ids,
        ("observation",): 10.0 * number + torch.arange(4),
        ("next", "done"): torch.tensor(ends).unsqueeze(-1),
        ("agents", "number"): torch.arange(12.0).view(4, 3) + number,
    }
    return to_tensordict(frames, (4,), dims={("agents",): (3,)})


def taken(assembler, numbers):
    batches = []
    for number in numbers:
        assembler.add(batch(number))
        while (joined := assembler.take()) is not None:
            assert joined["agents"].batch_size == (*joined.batch_size, 3)
            batches.append(joined.to_dict())
    return batches


@pytest.mark.parametrize("traj_format", ["cat", "padded"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_restored_assembler_continues_the_trajectories(traj_format, cut):
    saved, other = Assembler(3, traj_format, False), Assembler(3, traj_format, False)
    assert not taken(saved, range(cut))  # one has ended, the others go on
    other.add(batch(0))
    other.load(through_a_file(saved.state()))
    expected = taken(saved, range(cut, 3))
    assert [set(each["collector"]["traj_ids"].flatten().tolist()) for each in expected] == [{0, 1, 2}]
    torch.testing.assert_close(taken(other, range(cut, 3)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("breaks_off", [True, False])
def test_frames_of_trajectories_that_do_not_go_on_are_not_kept(breaks_off):
    assembler = Assembler(3, "cat", breaks_off)
    for number in (0, 1):
        assembler.add(batch(number))
        unfinished = assembler.state()["unfinished"]
        assert set(unfinished) == (set() if breaks_off else {0: {0, 1, 2}, 1: {2, 3}}[number])
    assembler.forget()
    assert assembler.state() == {"unfinished": {}, "ended": []}


def test_long_unfinished_trajectories_are_taken_out():
    assembler = Assembler(3, "cat", breaks_off=False)
    assembler.add(batch(0))
    assert assembler.num_unfinished == 4
    (taken,) = assembler.take_unfinished(2)
    assert (taken["collector", "traj_ids"].tolist(), assembler.num_unfinished) == ([0, 0], 2)
    assembler.add(batch(1))
    ended = assembler.take_ended()
    # The later frames alone.
    assert sorted(each["collector", "traj_ids"].tolist() for each in ended) == [[0], [1, 1, 1]]
