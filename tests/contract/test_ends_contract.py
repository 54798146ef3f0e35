"""Trajectories that are cut, and random frames at the beginning: what comparisons of batches do not show of them."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from collecting import batches, counting, custom, gym_vector, mlp, start, worker_pids
from ways import INLINE_SYNC, SHARED_SYNC, SINGLE, over

from collectx.errors import ConfigError

CUT = "max_frames_per_traj"


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
        start(way.kind, way.place, gym_vector(3), frames_per_batch=60, reset_at_each_iter=True, **{CUT: 5})
    starts = [problem.split(":")[0] for problem in raised.value.problems]
    assert starts == ["collector.max_frames_per_traj=5", "collector.reset_at_each_iter=true"]
    assert all("autoreset_mode=disabled or same_step" in problem for problem in raised.value.problems)
