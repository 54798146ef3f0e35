"""Training that ends in NaN, and policies that sample where they should be greedy: what the commands say about them."""

import csv
import math
import textwrap

import pytest
from commands import collectx, forked, result

from collectx.run.statistics import MetricsTail

NOT_FINITE = "the policy's weight body.0.weight contains nan (6 of 6 weights are not finite)"
DIVERGING = """
import torch
class Trainer:
    def __init__(self, policy, weights=False):
        self.policy, self.weights = policy, weights
    def train(self, collection):
        for batch in collection:
            collection.log(loss=torch.tensor(float("nan")), huge=1.72e25)
            if self.weights:
                for weight in self.policy.parameters():
                    weight.data.fill_(torch.nan)
            collection.publish(self.policy)
"""
RUN = ["trainer=custom", "trainer.target=diverging:Trainer", "debug=tiny"]
ACTOR = """
import torch
from tensordict.nn.probabilistic import InteractionType, interaction_type
from torch import nn
from torch.distributions import Categorical

class Sampling(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.network = nn.Linear(4, 2)
    def forward(self, tensordict):
        return tensordict.update({"action": self.act(Categorical(logits=self.network(tensordict["observation"])))})
    def act(self, distribution):
        return distribution.sample()

class Greedy(Sampling):
    def act(self, distribution):
        return distribution.sample() if interaction_type() is InteractionType.RANDOM else distribution.mode

class Certain(Sampling):
    def act(self, distribution):
        return Categorical(probs=torch.tensor([1.0, 0.0]).expand(distribution.probs.shape)).sample()
"""


@pytest.fixture
def diverging(tmp_path):
    (tmp_path / "diverging.py").write_text(DIVERGING)
    return tmp_path


def test_a_scalar_that_is_not_finite_is_said_once_and_shown(diverging):
    done = collectx("run", *RUN, "logger=csv", "hydra.run.dir=run", cwd=diverging)
    assert (done.stdout + done.stderr).count("the trainer logged loss=nan in batch 0.") == 1
    assert "loss nan | huge 1.72e+25" in done.stdout
    assert result(diverging / "run")["status"] == "completed"
    with open(diverging / "run/progress.csv") as file:
        assert [row["train/loss"] for row in csv.DictReader(file)] == ["nan"] * 2
    # `collectx status` reads the file, in which NaN is null.
    tail = MetricsTail(diverging / "run/metrics.jsonl", -1)
    assert tail.update()
    assert math.isnan(tail.scalars["loss"])


def test_weights_that_are_not_finite_are_not_published(diverging):
    done = collectx("run", *RUN, "trainer.kwargs.weights=true", "hydra.run.dir=run", cwd=diverging, status=1)
    assert f"TrainingDivergedError: {NOT_FINITE}: training diverged." in done.stderr
    # What was published before is kept.
    forked("eval", "run", "episodes=1", cwd=diverging)


def test_eval_export_and_load_policy_name_weights_that_are_not_finite(diverging):
    words = ["trainer.kwargs.weights=true", "collector.check_finite=false", "hydra.run.dir=run"]
    done = collectx("run", *RUN, *words, cwd=diverging)
    assert "the trainer logged" not in done.stdout + done.stderr
    refused = forked("eval", "run", "episodes=1", "collector.check_finite=true", cwd=diverging, status=1)
    assert f"{NOT_FINITE}: training diverged." in refused.stderr
    note = f"note: {NOT_FINITE}, so its actions have no meaning."
    assert note in forked("eval", "run", "episodes=1", cwd=diverging).stderr
    assert note in forked("export", "run", "format=torchscript", cwd=diverging).stderr


@pytest.mark.parametrize("policy", ["Sampling", "Greedy", "Certain"])
def test_a_policy_that_samples_is_not_called_greedy(tmp_path, policy):
    (tmp_path / "actor.py").write_text(textwrap.dedent(ACTOR))
    run = ["policy=custom", f"policy.target=actor:{policy}", "trainer=meter", "debug=tiny", "hydra.run.dir=run"]
    forked("run", *run, cwd=tmp_path)
    note = "returned several actions for one observation with exploration_type=deterministic"
    said = [
        forked("eval", "run", "episodes=1", cwd=tmp_path).stderr,
        forked("export", "run", "format=torchscript", cwd=tmp_path).stderr,
    ]
    assert [note in each for each in said] == [policy == "Sampling"] * 2
    assert ("the graph draws random numbers (aten::multinomial)" in said[1]) == (policy == "Certain")
    assert note not in forked("eval", "run", "episodes=1", "exploration_type=random", cwd=tmp_path).stderr
