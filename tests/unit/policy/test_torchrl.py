"""TorchRL's actors over TorchRL's envs: nested keys, distributions, exploration types, what they write."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from tensordict.nn import TensorDictModule, TensorDictSequential
from tensordict.nn.distributions import NormalParamExtractor
from torchrl.envs import InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType
from torchrl.modules import (
    EGreedyModule,
    MultiStepActorWrapper,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)
from worlds import torchrlenvs

from collectx import Collector

torch.set_num_threads(1)


def gaussian(read):
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, [read], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -1.0, "high": 1.0},
        return_log_prob=True,
    )


def categorical():
    net = TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["logits"])
    return ProbabilisticActor(net, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)


def collect(make, policy, **keywords):
    with Collector(make, policy, frames_per_batch=40, total_frames=40, **keywords) as collector:
        return collector.next()


def test_a_gaussian_actor_reads_a_nested_key():
    policy = gaussian(("agent", "state"))
    batch = collect(torchrlenvs.normed, policy)
    assert batch["action"].shape == (40, 1)
    assert batch["action"].unique().numel() > 30
    with torch.no_grad():
        log_prob = policy.get_dist(batch).log_prob(batch["action"])
    assert batch["action_log_prob"].shape == (40,)
    torch.testing.assert_close(log_prob, batch["action_log_prob"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["DETERMINISTIC", "MODE"])
def test_a_distribution_is_taken_as_the_exploration_type_says(mode):
    policy = categorical()
    batch = collect(torchrlenvs.one_hot, policy, exploration_type=ExplorationType[mode])
    assert torch.equal(batch["action"].argmax(-1), batch["logits"].argmax(-1))
    with torch.no_grad():
        policy.module[0].module.weight.zero_()
        policy.module[0].module.bias.zero_()
    batch = collect(torchrlenvs.one_hot, policy, exploration_type=ExplorationType.RANDOM)
    assert (batch["action"].sum(-1) == 1).all()
    assert 0 < batch["action"][:, 0].sum() < 40
    torch.testing.assert_close(batch["action_log_prob"], torch.full((40,), 0.5).log())


@pytest.mark.parametrize(("eps", "least", "most"), [(0.0, 0, 0), (1.0, 5, 35)])
def test_q_values_with_random_actions_between(eps, least, most):
    spec = torchrlenvs.one_hot().action_spec
    actor = QValueActor(torch.nn.Linear(3, 2), in_keys=["observation"], spec=spec)
    policy = TensorDictSequential(actor, EGreedyModule(spec, eps_init=eps, eps_end=eps))
    batch = collect(torchrlenvs.one_hot, policy)
    assert batch["action"].dtype == torch.int64
    differ = batch["action"].argmax(-1) != batch["action_value"].argmax(-1)
    assert least <= int(differ.sum()) <= most


class Plan(torch.nn.Module):
    """Four actions at a time, of the same observation."""

    def forward(self, observation):
        return (
            torch.tensor([0.0, 0.5, 1.0, 1.5]).reshape(1, 4, 1).expand(len(observation), 4, 1)
            + observation[:, None, :1]
        )


def test_an_actor_of_several_steps_goes_on_with_its_plan():
    def create():
        return TransformedEnv(torchrlenvs.pushing(), InitTracker())

    policy = MultiStepActorWrapper(TensorDictModule(Plan(), ["observation"], ["action"]), n_steps=4)
    batch = collect(create, policy, max_frames_per_traj=6)
    number = batch["step_count"][:, 0]  # of the frame in its trajectory
    assert number.max() == 5
    planned = batch["observation"][torch.arange(40) - number % 4, 0] + 0.5 * (number % 4)
    torch.testing.assert_close(batch["action"][:, 0], planned)
