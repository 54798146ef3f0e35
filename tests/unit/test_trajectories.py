"""Trajectories that are joined over several batches."""

import random

import pytest
import torch
from configurations import through_a_file

from collectx import trajectories
from collectx.batch import to_tensordict
from collectx.errors import DataError
from collectx.trajectories import Assembler, split_trajectories

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


@pytest.mark.parametrize(
    ("post_traj", "wrong"),
    [
        (lambda trajectory: trajectory[:0], r"a TensorDict of shape \[0\]\. Return a TensorDict of shape \[time\]"),
        (lambda trajectory: trajectory[None], r"a TensorDict of shape \[1, \d\]\. "),
        (lambda trajectory: trajectory[0], r"a TensorDict of shape \[\]\. "),
        (lambda trajectory: 3, r"a value of type int\. "),
        (
            lambda trajectory: (
                trajectory.exclude(("agents", "number")) if 1 in trajectory["collector", "traj_ids"] else trajectory
            ),
            r"trajectories with different keys: only some have agents\.number\. ",
        ),
    ],
)
def test_a_result_of_post_traj_that_is_no_trajectory_is_refused(post_traj, wrong):
    assembler = Assembler(4, "cat", False, post_traj)
    with pytest.raises(DataError, match=f"^post_traj returned {wrong}"):
        taken(assembler, range(3))


def test_the_rest_of_a_forgotten_trajectory_is_dropped():
    forgetful = Assembler(1, "cat", ends_with_batch=False)
    forgetful.add(batch(0))
    forgetful.forget()
    other = Assembler(1, "cat", ends_with_batch=False)
    other.load(through_a_file(forgetful.state()))
    for assembler in (forgetful, other):
        for number in (1, 2):
            assembler.add(batch(number))
        # 0, 1 and 2 began before.
        assert [each["collector", "traj_ids"].tolist() for each in assembler.take_ended()] == [[3, 3, 3]]
        assert assembler.state() == {"unfinished": {}, "ended": [], "dropped": []}


def test_a_trajectory_whose_env_begins_another_is_forgotten():
    """Worker 1 of two is lost three times, worker 0 is reset; then two envs with the same number."""
    kept, made = Assembler(1, "cat", ends_with_batch=False), []
    for env_of in (None, lambda index: (index % 10 % 2, index >= 100)):
        assembler = Assembler(1, "cat", ends_with_batch=False, env_of=env_of)
        made.append(assembler)
        for step, ids in enumerate([(0, 1), (0, 11), (0, 21), (0, 31), (2, 31)]):
            assembler.add(frames_of([(index, step, False) for index in ids], (2,)))
        assembler.forget()
        assembler.add(frames_of([(4, 5, False), (31, 5, False), (102, 5, False)], (3,)))
        assembler.add(frames_of([(4, 6, True), (6, 7, False), (31, 6, True)], (3,)))
    kept.load(through_a_file(made[0].state()))
    assert (kept.num_unfinished, kept.state()["dropped"]) == (2, [0, 1, 2, 11, 21])
    assert (made[1].num_unfinished, made[1].state()["dropped"]) == (2, [])
    for assembler in made:
        assert [rows_of(each) for each in assembler.take_ended()] == [[(4, 5, False), (4, 6, True)]]
        assert [rows_of(each) for each in assembler.unfinished()] == [[(102, 5, False)], [(6, 7, False)]]


def test_a_loaded_state_forgets_what_an_earlier_version_kept():
    old = Assembler(1, "cat", ends_with_batch=False)
    for ids in ([1, 3], [0, 5]):
        old.add(frames_of([(index, 0, False) for index in ids], (2,)))
    new = Assembler(1, "cat", ends_with_batch=False, env_of=lambda index: index % 2)
    new.load(through_a_file(old.state()))
    assert new.num_unfinished == 2
    assert [each["collector", "traj_ids"].tolist() for each in new.unfinished()] == [[0], [5]]


class Model:
    """What an `Assembler` does, on lists of (trajectory, number of the frame, done)."""

    def __init__(self, ends_with_batch, keeps):
        self.ends_with_batch, self.keeps = ends_with_batch, keeps
        self.unfinished, self.ended = {}, []

    def add(self, rows):
        for traj in sorted({row[0] for row in rows}):
            if traj < 0:
                continue
            self.unfinished.setdefault(traj, []).extend(row for row in rows if row[0] == traj)
            if self.unfinished[traj][-1][2]:
                ended = self.unfinished.pop(traj)
                if self.keeps(len(ended)):
                    self.ended.append(ended)
        if self.ends_with_batch:
            self.unfinished.clear()

    def take(self, count):
        count = len(self.ended) if count is None else count
        taken, self.ended = self.ended[:count], self.ended[count:]
        return taken


def frames_of(rows, shape):
    ids, numbers, done = zip(*rows, strict=True)
    frames = {
        ("collector", "traj_ids"): torch.tensor(ids),
        ("observation",): torch.tensor(numbers),
        ("next", "done"): torch.tensor(done).unsqueeze(-1),
    }
    return to_tensordict({key: value.view(*shape, *value.shape[1:]) for key, value in frames.items()}, shape)


def rows_of(frames):
    columns = (frames["collector", "traj_ids"], frames["observation"], frames["next", "done"].squeeze(-1))
    return [*zip(*(column.tolist() for column in columns), strict=True)]


@pytest.mark.parametrize(
    ("ends_with_batch", "traj_format", "count"),
    [(False, "cat", 1), (False, "padded", 3), (True, "padded", 1), (True, "cat", 3)],
)
def test_an_assembler_does_what_its_model_does(ends_with_batch, traj_format, count):
    """Three envs, whose trajectories end at random; now and then a part of a batch is not filled."""
    draw = random.Random(count)
    keeps = (lambda length: length % 4 != 1) if count == 3 else (lambda length: True)
    post = (lambda frames: frames if keeps(len(frames)) else None) if count == 3 else None
    assembler, model = Assembler(count, traj_format, ends_with_batch, post), Model(ends_with_batch, keeps)
    number, current = 0, [0, 1, 2]
    for _ in range(60):
        rows, steps = [], draw.choice([1, 2, 4])
        for env in range(3):
            filled = draw.choice([steps, steps, 0])
            for step in range(steps):
                number += 1
                done = step < filled and draw.random() < 0.3
                rows.append((current[env] if step < filled else -1, number, done))
                current[env] = max(current) + 1 if done else current[env]
        assembler.add(frames_of(rows, (3, steps)))
        model.add(rows)
        assert assembler.num_unfinished == sum(map(len, model.unfinished.values()))
        assert [rows_of(each) for each in assembler.unfinished()] == [*model.unfinished.values()]
        match draw.randrange(6):
            case 0:
                assert [rows_of(each) for each in assembler.take_ended()] == model.take(None)
            case 1:
                written = [row for each in assembler.writes(draw.choice([None, 1, 2])) for row in rows_of(each)]
                assert written == [row for each in model.take(None) for row in each]
            case 2:
                long = [traj for traj, each in model.unfinished.items() if len(each) >= 3]
                wanted = [model.unfinished.pop(traj) for traj in long]
                assert [rows_of(each) for each in assembler.take_unfinished(3)] == wanted
            case 3:
                other = Assembler(count, traj_format, ends_with_batch, post)
                other.load(assembler.state())
                assembler = other
            case _:
                found = assembler.take()
                if len(model.ended) < count:
                    assert found is None
                    continue
                wanted = model.take(count)
                if traj_format == "padded":
                    assert found.shape == (count, max(map(len, wanted)))
                    mask = found["collector", "mask"]
                    assert mask.sum(-1).tolist() == [len(each) for each in wanted]
                    assert not found["observation"][~mask].any()
                    found = found[mask]
                assert found.names == (["time"] if traj_format == "cat" else [None])
                assert rows_of(found) == [row for each in wanted for row in each]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_batch_is_split_by_ids_or_by_ends():
    """A trajectory in several places is joined; without ids, each row of the batch begins one."""
    rows = [(5, 0, False), (5, 1, True), (7, 2, False), (2, 3, False), (7, 4, False), (7, 5, True)]
    whole = frames_of(rows, (2, 3))
    split = split_trajectories(whole)
    assert split["observation"].tolist() == [[3, 0, 0], [0, 1, 0], [2, 4, 5]]
    assert split["collector", "mask"].tolist() == [[True, False, False], [True, True, False], [True] * 3]
    assert split.names == [None, "time"]
    nested = split_trajectories(whole, as_nested=True)
    assert [each.tolist() for each in nested["observation"].unbind()] == [[3], [0, 1], [2, 4, 5]]
    by_ends = split_trajectories(whole.exclude("collector"))
    flat = whole.exclude("collector").clone()
    flat["next", "done"] = flat["next", "done"].squeeze(-1)
    assert split_trajectories(flat)["mask"].tolist() == by_ends["mask"].tolist()
    assert by_ends["observation"].tolist() == [[0, 1, 0], [2, 0, 0], [3, 4, 5]]
    assert by_ends["traj_ids"].unique().tolist() == [*range(by_ends.shape[0])]
    other = flat.set(("next", "end"), flat["next", "done"]).exclude(("next", "done"))
    assert split_trajectories(other, done_key="end")["mask"].tolist() == by_ends["mask"].tolist()
    renamed = whole.exclude("collector").set("id", whole["collector", "traj_ids"])
    assert split_trajectories(renamed, trajectory_key="id")["mask"].tolist() == split["collector", "mask"].tolist()
    renamed = whole.exclude("collector").set(("a", "traj_ids"), whole["collector", "traj_ids"])
    assert split_trajectories(renamed, prefix="a")["a", "mask"].tolist() == split["collector", "mask"].tolist()


def test_a_long_wait_for_trajectories_is_said_once(within, monkeypatch):
    now, said = [0.0], []
    within(trajectories, "time", monotonic=lambda: now[0])
    assembler = Assembler(2, "cat", ends_with_batch=False, say=said.append, prefix="collector.")
    for now[0], rows in (
        (0.0, [(0, 0, False)]),
        (10.0, [(1, 1, True)]),  # not yet
        (10.5, [(0, 2, False), (2, 3, True)]),  # two have ended
        (11.0, [(0, 2, False)]),
    ):
        assembler.add(frames_of(rows, (len(rows),)))
    assert said == []
    assert assembler.take() is not None
    for now[0] in (100.0, 110.0, 110.1, 200.0):
        assembler.add(frames_of([(0, 0, False)] * 500, (500,)))
    assert said == [
        "only 0 of the 2 trajectories of a batch (collector.trajs_per_batch=2) ended within 10 s, and memory holds "
        "1,503 frames of unfinished ones. If these never end, cut each after N frames with "
        "collector.max_frames_per_traj=N."
    ]
