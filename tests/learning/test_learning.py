"""Each learning trainer learns CartPole-v1 with the settings of its packaged experiment, from workers in this process.

Learning is chaotic: a processor that rounds otherwise has other returns in every batch. So a test asks for a mean return
only, and allows the frames of a whole run: each of 12 seeds needed less than half of them.
"""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch

from collectx import collector, env, policy, trainer
from collectx.cli.compose import compose
from collectx.run import RunFolder
from collectx.run.collection import RunCollection
from collectx.run.statistics import Statistics

# On a busy machine threads wait for one another in every small operation.
torch.set_num_threads(1)
# Experiment, and how many publishes the workers' weights are behind.
LAGS = {"ppo": 0, "impala": 2, "dqn": 2}


class Lagging(RunCollection):
    """Publishes the weights of `lag` calls before."""

    def __init__(self, lag, *args):
        super().__init__(*args)
        self._waiting = deque(maxlen=lag + 1)

    def publish(self, policy):
        self._waiting.append(copy.deepcopy(policy))
        return super().publish(self._waiting[0])


def learn(name, target_return, folder, *overrides) -> RunCollection:
    overrides = (f"experiment=cartpole_{name}", f"trainer.target_return={target_return}", "launcher=inline", *overrides)
    cfg = compose(overrides)
    spec = env.read_spec(cfg.env)
    module = policy.build(cfg.policy, spec, cfg.seed)
    learner = trainer.build(cfg.trainer, module, spec, cfg.seed, torch.device("cpu"))
    torch.manual_seed(cfg.seed)
    with collector.build(cfg, module, spec) as workers:
        collection = Lagging(LAGS[name], workers, RunFolder(folder), Statistics(cfg.collector.total_frames))
        learner.train(collection)
        collection.close()
    return collection


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LAGS)
def test_learns(name, tmp_path):
    """Random actions have a mean return of 22."""
    assert learn(name, 200, tmp_path).mean_return >= 200


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", LAGS)
def test_solves(name, seed, tmp_path):
    assert learn(name, 475, tmp_path, f"seed={seed}").mean_return >= 475


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_dqn_solves_with_uniform_sampling(tmp_path):
    assert learn("dqn", 475, tmp_path, "trainer.priority_alpha=null").mean_return >= 475
