"""Which values `collector.check_finite` looks at."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.batch import TRAJ_IDS, Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ShapeError
from collectx.rollout.finite import FiniteCheck

OBSERVATION, INFO = Leaf(("observation",), (1,), torch.float32), Leaf(("info", "speed"), (1,), torch.float32)
BOX = spaces.Box(-1, 1, (1,), np.float32)


def check(*inputs):
    spec = EnvSpec(1, (OBSERVATION, INFO), (Leaf(("action",), (1,), torch.float32),), BOX, BOX, inputs=inputs)
    leaves = (OBSERVATION, INFO, *spec.action, OBSERVATION.under("next"), INFO.under("next"))
    arrays = {leaf.key: np.zeros((1, 3, 1), np.float32) for leaf in leaves} | {TRAJ_IDS: np.zeros((1, 3), np.int64)}
    return FiniteCheck(spec, (), [SimpleNamespace(arrays=lambda: arrays)], 0, 0, 1), arrays


def test_what_the_policy_and_the_trainer_read():
    checked, arrays = check(OBSERVATION)
    arrays["info", "speed"][:] = arrays["next", "info", "speed"][:] = np.nan
    checked(0, 3)
    arrays["next", "observation"][0, 2] = np.inf
    checked(0, 2)
    with pytest.raises(ShapeError, match="worker 0"):
        checked(0, 3)


def test_an_info_that_the_policy_reads_too():
    checked, arrays = check(OBSERVATION, INFO)
    arrays["info", "speed"][0, 1] = np.nan
    with pytest.raises(ShapeError, match=r"info\.speed"):
        checked(0, 3)
