"""Each learning trainer learns CartPole-v1, and SAC Pendulum-v1, with the settings of its packaged experiment, from
workers in this process.

Learning is chaotic: where a processor rounds otherwise, every later batch has other returns. So the tests ask for no
more than nearly every seed reaches, and allow the frames of the experiment. Of 12 seeds of PPO and IMPALA each needed
less than a third of them for a mean return of 200; PPO reached 475 with all, IMPALA 400 with 11.
"""

import copy
from collections import deque

import pytest
import torch

from collectx import collector, env, policy, trainer
from collectx.cli.compose import compose
from collectx.run import RunFolder
from collectx.run.batches import RunBatches
from collectx.run.context import RunContext
from collectx.run.folder.result import ResultBuilder
from collectx.run.signals import Signals

# On a busy machine threads wait for one another in every small operation.
torch.set_num_threads(1)
# Experiment, and how many publishes the workers' weights are behind.
LAGS = {"ppo": 0, "impala": 2, "dqn": 2, "sac": 0}


class Lagging(RunBatches):
    """Publishes the weights of `lag` calls before."""

    def __init__(self, lag, *args):
        super().__init__(*args)
        self._waiting = deque(maxlen=lag + 1)

    def publish(self, policy):
        self._waiting.append(copy.deepcopy(policy))
        return super().publish(self._waiting[0])


def learn(name, target_return, folder, *overrides) -> RunBatches:
    env_name = "pendulum" if name == "sac" else "cartpole"
    overrides = (
        f"experiment={env_name}_{name}",
        f"trainer.target_return={target_return}",
        "launcher=inline",
        *overrides,
    )
    cfg = compose(overrides)
    spec = env.read_spec(cfg.env)
    module = policy.build(cfg.policy, spec, cfg.seed)
    learner = trainer.build(cfg.trainer, module, spec, cfg.seed, torch.device("cpu"))
    torch.manual_seed(cfg.seed)
    folder.mkdir(exist_ok=True)
    with collector.start_collector(cfg, module, spec) as workers:
        signals = Signals()
        context = RunContext(cfg, RunFolder(folder), signals, ResultBuilder(cfg, signals))
        collection = Lagging(LAGS[name], context, workers)
        learner.train(collection)
        collection.close()
    return collection


# With rewards of one step alone, all that DQN knows of later ones comes from its target network. Each of six seeds
# reached 100 within 14,100 frames; with goals that are wrong in any of five ways, or without new weights in the
# workers, the mean return was below 25 after 30,000.
ONE_STEP = ["trainer.num_steps=1", "collector.total_frames=30208"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "target_return", "overrides"),
    [
        pytest.param("ppo", 200, [], id="ppo"),
        pytest.param("impala", 200, [], id="impala", marks=pytest.mark.nightly),
        pytest.param("dqn", 100, ONE_STEP, id="dqn", marks=pytest.mark.nightly),
    ],
)
def test_learns(name, target_return, overrides, tmp_path):
    """Random actions have a mean return of 22."""
    assert learn(name, target_return, tmp_path, *overrides).mean_return >= target_return


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_sac_swings_a_pendulum_up(tmp_path):
    """Random actions have a mean return of -1200, a pendulum that is always swung up at once has -150."""
    assert learn("sac", -300, tmp_path).mean_return >= -300


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "target_return", "overrides"),
    [("ppo", 475, []), ("impala", 400, []), ("dqn", 475, []), ("dqn", 475, ["trainer.priority_alpha=null"])],
    ids=["ppo", "impala", "dqn", "dqn with uniform sampling"],
)
def test_solves(name, target_return, overrides, tmp_path):
    """Most of five seeds solve the env."""
    returns = []
    for seed in range(5):
        collection = learn(name, target_return, tmp_path / str(seed), f"seed={seed}", *overrides)
        returns.append(collection.mean_return)
        if sum(each >= target_return for each in returns) == 3:
            return
    pytest.fail(f"mean returns with five seeds: {returns}")
