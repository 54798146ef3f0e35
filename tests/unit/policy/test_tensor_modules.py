"""Policies of modules of tensordict and TorchRL give the same bits when they are called without a TensorDict."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.nn import ProbabilisticTensorDictModule as Sampler
from tensordict.nn import TensorDictSequential as Sequence
from torch import nn
from torch.distributions import Categorical, Normal

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl.data import Bounded, OneHot
from torchrl.modules import (
    ActorValueOperator,
    AdditiveGaussianModule,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    SafeModule,
    TanhNormal,
    ValueOperator,
)

from collectx import Collector
from collectx.batch import Leaf, as_key
from collectx.env.base import EnvSpec
from collectx.policy.call_plan import CallPlan
from collectx.policy.exploration import ExplorationType, exploration
from collectx.policy.fast_call import Acceleration
from collectx.policy.tensor_modules import is_private, tensor_modules


def network(num_outputs, *layers):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, num_outputs), *layers)


def reads(module, *keys):
    return TensorDictModule(module, ["observation"], list(keys))


def seen_by(size):
    """Returns the spec of envs with these dimensions and an observation of three numbers."""
    seen = (Leaf(("observation",), (3,), torch.float32),)
    return EnvSpec(*size or (1,), seen, (), gymnasium.Space(), gymnasium.Space(), is_single=size == ())


def discrete(distribution=OneHotCategorical, **keywords):
    return ProbabilisticActor(reads(network(4), "logits"), ["logits"], distribution_class=distribution, **keywords)


def continuous(distribution=TanhNormal, **keywords):
    parameters = reads(network(4, NormalParamExtractor()), "loc", "scale")
    keywords = {"in_keys": ["loc", "scale"], "distribution_class": distribution, **keywords}
    return ProbabilisticActor(parameters, **keywords)


def shared_trunk():
    trunk = SafeModule(network(5), ["observation"], ["hidden"])
    actor = TensorDictModule(nn.Linear(5, 4), ["hidden"], [("params", "logits")])
    actor = ProbabilisticActor(actor, {"logits": ("params", "logits")}, distribution_class=Categorical)
    return ActorValueOperator(trunk, actor, ValueOperator(nn.Linear(5, 1), ["hidden"]))


ACTORS = {
    "categorical": partial(discrete, Categorical, return_log_prob=True),
    "one-hot": discrete,
    "normal": partial(continuous, Normal, return_log_prob=True, log_prob_key="log"),
    "tanh-normal": partial(continuous, return_log_prob=True, distribution_kwargs={"low": -2, "high": 1}),
    "value": shared_trunk,
    "q-values": lambda: Sequence(QValueActor(network(4), spec=OneHot(4)), EGreedyModule(OneHot(4), eps_init=0.5)),
    "noise": lambda: Sequence(reads(network(2), "action"), AdditiveGaussianModule(Bounded(-1, 1, (2,)))),
    "sampler": lambda: ProbabilisticTensorDictSequential(reads(network(4), "logits"), sampler()),
}


def sampler(**keywords):
    return Sampler(["logits"], ["action"], distribution_class=Categorical, **keywords)


# No distribution has all: the mean of a choice is none, nor has a squashed normal distribution a mode.
KINDS = {
    True: (ExplorationType.RANDOM, ExplorationType.MODE, ExplorationType.DETERMINISTIC),
    False: (ExplorationType.RANDOM, ExplorationType.MEAN, ExplorationType.DETERMINISTIC),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in ACTORS for kind in KINDS["normal" not in name]])
@pytest.mark.parametrize("size", [(), (6,)], ids=["one", "several"])
def test_the_outputs_are_those_of_the_policy(name, size, kind):
    policy, observation = ACTORS[name](), torch.randn(*size, 3)
    steps = tensor_modules(policy, size, kind, Acceleration())
    plan = CallPlan(steps, seen_by(size))
    with exploration(kind), torch.no_grad():
        torch.manual_seed(5)
        theirs = policy(TensorDict({"observation": observation}, size)).exclude("observation")
        torch.manual_seed(5)
        _, *values = plan.run([observation[None] if size == () else observation])
    ours = dict(zip(plan.written(), values, strict=True))
    theirs = {as_key(key): value for key, value in theirs.items(True, True)}
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    "make",
    [
        partial(discrete, num_samples=3),
        partial(discrete, generator=torch.Generator()),
        partial(discrete, generator="seed"),
        partial(continuous, Normal, spec=Bounded(-1, 1, (2,)), safe=True),
        partial(discrete, lambda logits: Categorical(logits=logits)),
        lambda: TensorDictModule(network(4), ["observation"], ["action"], method="forward"),
        lambda: EGreedyModule(OneHot(4), action_key=("agents", "action")),
        lambda: ProbabilisticTensorDictSequential(reads(network(4), "logits"), sampler(), partial_tolerant=True),
    ],
    ids=["samples", "generator", "stream", "projected", "function", "method", "nested", "tolerant"],
)
def test_what_does_more_is_called_itself(make):
    assert tensor_modules(make(), (), ExplorationType.RANDOM, Acceleration()) is None


class Returns(nn.Module):
    """A network whose result has another form, and that has an attribute."""

    def __init__(self, form=lambda logits: logits):
        super().__init__()
        self.form, self.net, self.factor = form, network(2), 1.0

    def forward(self, observation):
        return self.form(self.net(observation) * self.factor)


def choosing(net):
    return ProbabilisticActor(reads(net, "logits"), ["logits"], distribution_class=Categorical)


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: {"logits": logits, "more": logits},
        lambda logits: (logits,),
        lambda logits: logits.numpy(force=True),
    ],
    ids=["dict", "tuple", "numpy"],
)
def test_other_results_are_read_by_tensordict(form):
    with Collector(cartpole, choosing(Returns(form)), frames_per_batch=5) as collector:
        assert collector.next()["logits"].shape == (5, 2)


def test_changes_of_the_policy_take_effect_in_the_next_batch():
    net, calls = Returns(), []
    policy = choosing(net)
    with Collector(cartpole, policy, frames_per_batch=5) as collector:

        def collect():
            batch = collector.next()
            torch.testing.assert_close(batch["logits"], policy.module[0].module(batch["observation"]))

        collect()
        net.factor = 100.0
        collect()
        net.net[2] = nn.Linear(8, 2)
        collect()
        policy.module[0].module = nn.Linear(3, 2)
        collect()
        policy.module[0].register_forward_hook(lambda *_: calls.append(None))
        collect()
    assert len(calls) == 5


def cartpole():
    """Makes a CartPole that does not show its position."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    return gymnasium.wrappers.TransformObservation(gymnasium.make("CartPole-v1"), lambda seen: seen[1:], space)


def test_keys_with_an_underscore_are_private():
    keys = ("a",), ("_a",), ("a", "_b"), ("_a", "b"), ("a_", "b_")
    assert [is_private(key) for key in keys] == [False, True, True, True, False]
