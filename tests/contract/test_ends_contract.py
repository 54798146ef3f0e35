"""Where trajectories and batches end, compared with a model that counts; and random frames at the beginning."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from collecting import batches, counting, custom, gym, gym_vector, mlp, start, worker_pids
from ways import INLINE_SYNC, SHARED_SYNC, SINGLE, SYNC, WAYS, over

from collectx.env.counting import episode_length
from collectx.errors import ConfigError

CUT = "max_frames_per_traj"
ALL = {CUT: 5, "reset_at_each_iter": True, "set_truncated": True}


def expected(index, steps, max_frames_per_traj=None, reset_at_each_iter=False, set_truncated=False):
    """What env `index` has in each of its batches: per frame episode, step, terminated, truncated; and the lengths of
    the trajectories that ended in that batch. Endless."""
    length = int(episode_length(np.array(index), 7))
    episode = step = 0
    while True:
        row, ended = [], []
        for t in range(steps):
            last = t == steps - 1
            terminated, cut = step + 1 == length, step + 1 == max_frames_per_traj
            row.append((episode, step, terminated, cut or (last and set_truncated)))
            step += 1
            if terminated or cut or (last and reset_at_each_iter):
                ended.append(step)
                episode, step = episode + 1, 0
        yield row, ended


def check(way, options, steps=10, num_batches=12, num_envs=3):
    """Compares each env's rows, in the order of its batches, with the model, until each env has that many."""
    total_envs = num_envs * way.num_workers
    frames = steps * (total_envs if way.is_sync else num_envs)
    models = [expected(index, steps, **options) for index in range(total_envs)]
    seen = [0] * total_envs
    with start(way.kind, way.place, counting(num_envs), frames_per_batch=frames, total_frames=-1, **options) as some:
        while min(seen) < num_batches:
            ended = []
            for row in next(some).reshape(-1, steps):
                index = int(row["observation"][0, 0])
                frames_of_row, lengths = next(models[index])
                ended += lengths
                seen[index] += 1
                check_row(row, index, total_envs, frames_of_row, CUT in options)
            lengths, returns = zip(*[(part.lengths, part.returns) for part in some.delivery.parts], strict=True)
            lengths, returns = np.concatenate(lengths), np.concatenate(returns)
            assert sorted(lengths.tolist()) == sorted(ended)
            assert (returns == lengths * (lengths + 1) / 2).all()


def check_row(row, index, total_envs, frames, counted):
    episodes, steps, terminated, truncated = torch.tensor(frames).T
    assert row["observation"][:, :3].tolist() == [[index, *frame[:2]] for frame in frames]
    assert row["next", "observation"][:, :3].tolist() == [[index, e, t + 1] for e, t, *_ in frames]
    ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    for name, values in ends.items():
        assert torch.equal(row["next", name][:, 0], values.bool())
        assert not row[name].any()
    assert torch.equal(row["collector", "traj_ids"], index + episodes * total_envs)
    for prefix, more in (((), 0), (("next",), 1)):
        if counted:
            assert torch.equal(row[(*prefix, "step_count")], steps[:, None] + more)
        else:
            assert (*prefix, "step_count") not in row.keys(True)


@pytest.mark.parametrize(
    ("options", "steps", "num_batches"),
    [
        ({CUT: 1}, 10, 12),
        ({CUT: 7}, 10, 12),  # as long as every third env's episodes
        ({"reset_at_each_iter": True}, 10, 12),
        ({"set_truncated": True}, 10, 12),
        ({CUT: 4}, 1, 40),
        (ALL, 1, 40),
        (ALL, 2, 40),
    ],
)
def test_trajectories_end_where_the_model_says(options, steps, num_batches):
    check(SINGLE, options, steps, num_batches)


@over(WAYS)
def test_every_way_ends_trajectories_alike(way):
    check(way, ALL)


@over(way for way in SYNC if way is not INLINE_SYNC)
def test_random_frames_are_the_same_everywhere(way):
    options = {"frames_per_batch": 40, "total_frames": 160, "init_random_frames": 80, "seed": 4}
    found, inline = (batches(each.kind, each.place, gym(2), mlp(), **options) for each in (way, INLINE_SYNC))
    assert all((one == other).all() for one, other in zip(found, inline, strict=True))
    assert [(batch["action_log_prob"] == 0).float().mean() for batch in found] == [1, 1, 0, 0]


@over([SHARED_SYNC])
def test_a_worker_that_was_started_again_takes_no_random_frames(way):
    options = {"frames_per_batch": 40, "total_frames": -1, "init_random_frames": 10**9, "on_worker_failure": "restart"}
    with start(way.kind, way.place, counting(2), mlp(), **options) as collector:
        for _ in range(3):
            assert (next(collector)["action_log_prob"] == 0).all()
        os.kill(worker_pids(collector)[1], signal.SIGKILL)
        for batch in collector:
            log_prob = batch["action_log_prob"]
            assert (log_prob[0] == 0).all()
            if batch["observation"][1, 0, 0, 1] >= 2**32:  # its second life
                assert (log_prob[1] < 0).all()
                break
            assert (log_prob[1] == 0).all()


@over((INLINE_SYNC, SHARED_SYNC))
def test_a_policy_may_read_the_step_count(way):
    policy = custom("worlds.faulty:step_counting_policy")
    options = {"frames_per_batch": 60, "total_frames": 600, CUT: 5}
    for batch in batches(way.kind, way.place, counting(3), policy, **options):
        assert torch.equal(batch["action"], batch["step_count"][..., 0] % 2)


def test_the_built_in_policy_does_not_read_it():
    counted, plain = (
        batches("single", "inline", counting(2), mlp(), frames_per_batch=40, total_frames=40, **options)[0]
        for options in ({CUT: 100}, {})
    )
    assert (counted.select(*plain.keys(True, True)) == plain).all()


@over((SINGLE, SHARED_SYNC), smoke=True)
def test_envs_that_reset_by_themselves_are_refused_before_anything_starts(way):
    with pytest.raises(ConfigError) as raised:
        start(way.kind, way.place, gym_vector(3), frames_per_batch=60, **ALL)
    starts = [problem.split(":")[0] for problem in raised.value.problems]
    assert starts == ["collector.max_frames_per_traj=5", "collector.reset_at_each_iter=true"]
    assert all("autoreset_mode=disabled or same_step" in problem for problem in raised.value.problems)
