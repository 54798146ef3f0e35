"""Trajectory ids, returns and lengths, over batches that cut episodes anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from collectx.rollout.episodes import Episodes


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 12])
def test_ids_returns_and_lengths_do_not_depend_on_where_batches_are_cut(cut):
    done = np.zeros((12, 2), bool)
    done[[0, 3, 4, 11], 0] = True
    done[[6], 1] = True
    reward = np.arange(24, dtype=np.float32).reshape(12, 2)
    episodes = Episodes(first_env=2, num_envs=2, total_envs=6)
    ids = np.zeros((12, 2), np.int64)
    finished = []
    for start in range(0, 12, cut):
        part = slice(start, start + cut)
        episodes.record(slice(None), reward[part], done[part], ids[part])
        finished += zip(*map(np.ndarray.tolist, episodes.take()), strict=True)
    assert ids[:, 0].tolist() == [2, 8, 8, 8, 14, 20, 20, 20, 20, 20, 20, 20]
    assert ids[:, 1].tolist() == [3] * 7 + [9] * 5
    assert finished == [(0.0, 1), (12.0, 3), (8.0, 1), (49.0, 7), (112.0, 7)]
    assert [array.tolist() for array in episodes.take()] == [[], []]
