import math

import pytest

from collectx.run.statistics import RETURN_WINDOW, Statistics, WorkerTotals


def test_frames_per_s_leaves_out_the_first_batch(delivery):
    statistics, rates = Statistics(100), []
    for index, now_s in enumerate((10.0, 11.0, 14.0)):
        statistics.add(delivery(index, {"frames": 20}, {"worker": 1, "frames": 20}), now_s)
        rates.append((statistics.frames_per_s, statistics.rate))
    assert rates == [(None, None), (40.0, 40.0), (80 / 4, 40 / 3)]
    assert (statistics.frames, statistics.batches, statistics.waited_s) == (120, 3, 0.75)
    assert (statistics.first_s, statistics.last_s) == (10.0, 14.0)


def test_mean_return_is_over_the_last_episodes(delivery):
    statistics, means = Statistics(-1), []
    for returns in ([], [1000.0] * 10, [], [1.0] * 60 + [3.0] * 40):
        statistics.add(delivery(0, {"returns": returns}), 0.0)
        means.append(statistics.mean_return)
    assert math.isnan(means[0])
    assert means[1:] == [1000.0, 1000.0, pytest.approx(1.8)]
    assert statistics.num_episodes == RETURN_WINDOW + 10


def test_shares_are_of_what_was_measured_since():
    totals = WorkerTotals(2.0, 1.0, 1.0, 0.0)
    assert totals.shares() == (0.5, 0.25, 0.25, 0.0)
    assert totals.shares(WorkerTotals(2.0, 1.0, 0.0, 0.0)) == (0.0, 0.0, 1.0, 0.0)
    assert totals.shares(totals) == (0.0, 0.0, 0.0, 0.0)
