import math

import pytest

from collectx.run.statistics import RETURN_WINDOW, Statistics, WorkerTotals


def test_frames_per_s_leaves_out_the_first_batch(part, delivery):
    statistics = Statistics(100)
    assert statistics.frames_per_s is None
    for index, now_s in enumerate((10.0, 11.0, 14.0)):
        statistics.add(delivery(index, [part(frames=20), part(worker=1, frames=20)]), now_s)
        if index == 0:
            assert statistics.frames_per_s is None
            assert statistics.rate is None
    assert (statistics.frames, statistics.batches) == (120, 3)
    assert (statistics.first_s, statistics.last_s) == (10.0, 14.0)
    assert statistics.frames_per_s == 80 / 4
    assert statistics.rate == 40 / 3
    assert statistics.waited_s == 0.75


def test_lag_is_weighted_by_frames(part, delivery):
    statistics = Statistics(-1)
    parts = [part(worker=0, policy_version=5, frames=30), part(worker=1, policy_version=3, frames=10)]
    statistics.add(delivery(0, parts, version=5), 0.0)
    assert statistics.lag == 0.5
    assert [statistics.workers[worker].lag for worker in (0, 1)] == [0, 2]


def test_mean_return_is_over_the_last_episodes(part, delivery):
    statistics = Statistics(-1)
    assert math.isnan(statistics.mean_return)
    statistics.add(delivery(0, [part(returns=[1000.0] * 10)]), 0.0)
    assert statistics.mean_return == 1000.0
    statistics.add(delivery(1, [part()]), 1.0)
    assert statistics.mean_return == 1000.0
    statistics.add(delivery(2, [part(returns=[1.0] * 60), part(worker=1, returns=[3.0] * 40)]), 2.0)
    assert statistics.mean_return == pytest.approx(1.8)
    assert statistics.num_episodes == RETURN_WINDOW + 10


def test_shares():
    totals = WorkerTotals(2.0, 1.0, 1.0, 0.0)
    assert totals.shares() == (0.5, 0.25, 0.25, 0.0)
    assert totals.shares(WorkerTotals(2.0, 1.0, 0.0, 0.0)) == (0.0, 0.0, 1.0, 0.0)
    assert totals.shares(totals) == (0.0, 0.0, 0.0, 0.0)
