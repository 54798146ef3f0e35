"""What every policy promises (`collectx/policy/base.py`), over all kinds and spaces."""

from __future__ import annotations

import copy
import dataclasses
import sys

import numpy as np
import pytest
import torch
from configurations import custom
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from collectx.config.schema.policy import CnnPolicyConfig, MlpPolicyConfig, MultiPolicyConfig, PolicyConfig
from collectx.env.base import EnvSpec
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves
from collectx.errors import ConfigError, SpaceError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.flat_weights import FlatWeights
from collectx.policy.random import RandomActor

CPU = torch.device("cpu")
ROWS = 3

ACTIONS = {
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(3, start=-1),
    "multidiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "multibinary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,)),
    "box2d": spaces.Box(-1, 1, (2, 2), np.float64),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (5,)),
    "vector64": spaces.Box(-1, 1, (5,), np.float64),
    "discrete": spaces.Discrete(6, start=1),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
    "stack": spaces.Box(0, 255, (4, 20, 24), np.uint8),
    "colour": spaces.Box(0, 255, (20, 24, 3), np.uint8),
    "parts": spaces.Dict(a=spaces.Box(0, 255, (9, 8), np.uint8), b=spaces.Box(-1, 1, (2,)), c=spaces.Discrete(3)),
}
POLICIES = {
    "random": PolicyConfig(kind="random"),
    "mlp": MlpPolicyConfig(kind="mlp", hidden_sizes=[16, 16], activation="tanh"),
    "cnn": CnnPolicyConfig(
        kind="cnn", channels=[4, 8], kernel_sizes=[4, 3], strides=[2, 2], hidden_size=16, scale=255.0
    ),
    "q_mlp": MlpPolicyConfig(kind="q_mlp", hidden_sizes=[16, 16], activation="relu"),
    "q_cnn": CnnPolicyConfig(
        kind="q_cnn", channels=[4, 8], kernel_sizes=[4, 3], strides=[2, 2], hidden_size=16, scale=255.0
    ),
}
POLICIES |= {kind: MultiPolicyConfig(kind=kind, hidden_sizes=[16], hidden_size=16) for kind in ("multi", "q_multi")}
RANDOM = ExplorationType.RANDOM

# Kind, observation, action, exploration. Observations and actions meet in one tensor of features only.
SEEN = [("mlp", name) for name in ("vector64", "discrete", "dict", "stack")] + [("cnn", "stack"), ("cnn", "colour")]
CHOICES = [(*kind, "multidiscrete", RANDOM) for kind in SEEN] + [("q_cnn", "stack", "discrete_start", RANDOM)]
CHOICES += [("multi", "parts", action, RANDOM) for action in ACTIONS] + [("q_multi", "parts", "discrete", RANDOM)]
CHOICES += [("mlp", "vector", action, exploration) for action in ACTIONS for exploration in ExplorationType]
CHOICES += [("random", "vector", action, RANDOM) for action in ACTIONS]
CHOICES += [("q_mlp", "vector", action, each) for action in ("discrete", "discrete_start") for each in ExplorationType]


def make_spec(observation: str, action: str | spaces.Space, rows: int = ROWS) -> EnvSpec:
    seen, acted = OBSERVATIONS[observation], ACTIONS[action] if isinstance(action, str) else action
    return EnvSpec(rows, ObservationLeaves(seen).leaves, SpaceLeaves(acted, ("action",)).leaves, seen, acted)


SPEC = make_spec("vector", "discrete")
MANY = make_spec("vector", spaces.Discrete(4, start=5), rows=20_000)


def observe(spec: EnvSpec) -> list[torch.Tensor]:
    structure = ObservationLeaves(spec.observation_space)
    columns = zip(*(structure.flatten(spec.observation_space.sample()) for _ in range(spec.num_envs)), strict=True)
    return [torch.as_tensor(np.stack([np.asarray(value) for value in column])) for column in columns]


def act(actor, observation):
    with torch.inference_mode():
        values = actor.act(observation)
    return [value.clone() for value in values]


def actor_of(policy, spec=SPEC, exploration=RANDOM):
    return make_actor(policy, spec, CPU, exploration)


@pytest.mark.parametrize(("kind", "observation", "action", "exploration"), CHOICES)
def test_act(kind, observation, action, exploration):
    spec = make_spec(observation, action)
    policy, same_policy = (build(POLICIES[kind], spec, seed=1) for _ in range(2))
    actor, seen = actor_of(policy, spec, exploration), observe(spec)
    torch.manual_seed(0)
    values = act(actor, seen)
    torch.manual_seed(0)
    assert all(map(torch.equal, values, act(actor_of(same_policy, spec, exploration), seen)))
    assert actor.leaves[: len(spec.action)] == spec.action
    check_leaves(actor, values)
    if kind == "random" or not action.startswith("box"):
        assert all(spec.action_space.contains(row.numpy() if row.ndim else row.item()) for row in values[0])
    if kind == "random":
        return
    log_prob, entropy = policy.evaluate(seen, values[0])
    assert log_prob.shape == entropy.shape == (ROWS,)
    assert entropy.isfinite().all()
    assert (("action_log_prob",) in [leaf.key for leaf in actor.leaves]) is (exploration is RANDOM)
    if exploration is RANDOM:
        torch.testing.assert_close(values[1], log_prob.detach(), rtol=1e-4, atol=1e-4)
    if not kind.startswith("q_"):  # whose probabilities are steps: they have no gradient
        (log_prob.sum() + entropy.sum()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())


def check_leaves(actor, values):
    for leaf, value in zip(actor.leaves, values, strict=True):
        assert (value.shape, value.dtype) == ((ROWS, *leaf.shape), leaf.dtype)


def set_out(policy, bias):
    """Lets a policy's last layer give `bias`, whatever is observed."""
    with torch.no_grad():
        policy.out.weight.zero_()
        policy.out.bias.copy_(bias)
    return policy


def greedy(epsilon):
    """Makes an epsilon-greedy policy to which the second of four actions is the best."""
    policy = build(POLICIES["q_mlp"], MANY, seed=0)
    policy.epsilon.fill_(epsilon)
    return set_out(policy, torch.tensor([0.0, 3.0, 1.0, 2.0]))


@pytest.mark.sample(1)
@pytest.mark.parametrize("action", ["discrete", "box", "epsilon"])
def test_weights_read_in_place_are_acted_with(action):
    if action == "epsilon":  # it is among the weights
        spec, old, new = MANY, greedy(1.0), greedy(0.0)
    else:
        spec = make_spec("vector", action)
        old, new = (build(POLICIES["mlp"], spec, seed) for seed in (1, 2))
    seen, actors = observe(spec), [actor_of(each, spec) for each in (old, new)]
    torch.manual_seed(0)
    expected = act(actors[1], seen)
    assert not torch.equal(act(actors[0], seen)[-1], expected[-1])
    weights = FlatWeights(old)
    weights.adopt()
    buffer = torch.zeros(weights.nbytes, dtype=torch.uint8)
    FlatWeights(new).write(buffer)
    with torch.inference_mode():
        weights.read(buffer)
    torch.manual_seed(0)
    assert all(map(torch.equal, act(actors[0], seen), expected))


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_epsilon_greedy_frequencies_and_probabilities(epsilon):
    policy, seen = greedy(epsilon), [torch.zeros(20_000, 5)]
    torch.manual_seed(0)
    action, log_prob = act(actor_of(policy, MANY), seen)
    probability = torch.full((4,), epsilon / 4)
    probability[1] += 1 - epsilon
    torch.testing.assert_close((action - 5).bincount(minlength=4) / 20_000, probability, atol=0.015, rtol=0)
    torch.testing.assert_close(log_prob.exp(), probability[action - 5])
    evaluated, entropy = policy.evaluate(seen, action)
    torch.testing.assert_close(evaluated, log_prob)
    torch.testing.assert_close(entropy[0], torch.special.entr(probability).sum())
    (action,) = act(actor_of(policy, MANY, ExplorationType.DETERMINISTIC), seen)
    assert action.unique().tolist() == [6]


class Argmax(nn.Sequential):
    """A user's module, with running statistics that a dry forward must not touch."""

    def __init__(self, width: int = 5):
        super().__init__(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))

    def forward(self, observation):
        return super().forward(observation).argmax(-1)


def positive(observation):
    return observation.sum(-1).gt(0)


def by_tensordict(tensordict):
    return tensordict.set("action", positive(tensordict["observation"]))


def overwriting(td):
    return by_tensordict(td).set("observation", td["observation"] / 2)


def in_place(observation):
    return positive(observation.div_(2))


class Annotated:
    """A callable that is neither a module nor a function, and whose argument has another name."""

    def __call__(self, seen: TensorDict) -> TensorDict:
        return by_tensordict(seen)


class Counting(TensorDictModuleBase):
    """Counts its calls under a private key."""

    in_keys, out_keys = ("observation",), ("action",)

    def forward(self, data):
        data["_count"] = data.get("_count", torch.full((len(data),), -1)) + 1
        return TensorDict({"action": data["_count"].clone(), "counted": data["_count"] * 10}, [len(data)])


def make_argmax(spec, width=5):
    assert isinstance(spec, EnvSpec)
    return Argmax(width)


def make_sequence():
    net = TensorDictModule(nn.Linear(5, 4), ["observation"], ["logits"])
    return TensorDictSequential(net, TensorDictModule(lambda x: x.argmax(-1), ["logits"], ["action"]))


def build_custom(name):
    return build(custom(f"users:{name}"), SPEC, seed=0)


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda: build_custom("Argmax"), []),
        (lambda: build_custom("positive"), []),
        (lambda: build_custom("make_argmax"), []),
        (lambda: build_custom("make_sequence"), [("logits",)]),
        (Counting, [("counted",)]),
        (lambda: by_tensordict, []),
        (Annotated, []),
        (lambda: overwriting, [("observation",)]),
        (lambda: in_place, [("observation",)]),
        (lambda: TensorDictModule(in_place, ["observation"], ["action"]), [("observation",)]),
        (lambda: lambda td: by_tensordict(td.update_({"observation": td["observation"] / 2})), [("observation",)]),
        (lambda: lambda seen: (positive(seen), seen * 2, seen.sum(-1)), [("output1",), ("output2",)]),
        (lambda: lambda observation: positive(observation)[:, None].int(), []),  # of one more dimension
        (lambda: lambda observation: positive(observation).double(), []),
        (lambda: lambda observation: positive(observation).numpy().astype(np.int32), []),
        (lambda: lambda observation: positive(observation).tolist(), []),
        (lambda: lambda observation: (positive(observation).numpy(), observation.numpy()), [("output1",)]),
    ],
)
def test_a_custom_policy(make, extra, monkeypatch):
    """It acts as it does by itself, and the dry call that finds out what it writes leaves no trace."""
    monkeypatch.setitem(sys.modules, "users", sys.modules[__name__])
    policy, seen = make(), observe(SPEC)
    state = copy.deepcopy(policy.state_dict()) if isinstance(policy, nn.Module) else {}
    generator = torch.get_rng_state()
    actor = actor_of(policy)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, policy.state_dict()[key]) for key, value in state.items())
    assert [leaf.key for leaf in actor.leaves] == [("action",), *extra]
    values = act(actor, [tensor.clone() for tensor in seen])
    check_leaves(actor, values)
    if extra == [("observation",)]:
        assert torch.equal(values[1], seen[0] / 2)
    if make is Counting:
        for count in (1, 2):
            assert [value.unique().tolist() for value in act(actor, seen)] == [[count], [10 * count]]
    elif not state:
        assert torch.equal(values[0], positive(seen[0]).long())


def test_a_scalar_observation_of_a_single_env_is_changed_in_place():
    spec = dataclasses.replace(make_spec("discrete", "discrete", 1), is_single=True)
    actor = actor_of(lambda observation: observation.add_(1), spec)
    assert [value.flatten().tolist() for value in act(actor, [torch.tensor([1])])] == [[2], [2]]


def test_lazy_layers_can_be_trained():
    net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(4))
    actor = actor_of(TensorDictSequential(TensorDictModule(net, ["observation"], ["logits"]), make_sequence()[1]))
    act(actor, observe(SPEC))
    net(observe(SPEC)[0]).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_torchrls_random_policy_is_none():
    policy = type("RandomPolicy", (), {"__call__": lambda self, td: td})()
    assert isinstance(actor_of(policy), RandomActor)


TWO_ACTIONS = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


@pytest.mark.parametrize(
    ("cfg", "action", "error", "message"),
    [
        (custom("collectx.errors:No"), "discrete", ConfigError, "collectx.errors has no No"),
        (custom("no_such:No"), "discrete", ConfigError, "PYTHONPATH"),
        (POLICIES["mlp"], TWO_ACTIONS, SpaceError, "policy=custom"),
        (POLICIES["q_mlp"], "box", SpaceError, "policy=q_mlp"),
        (POLICIES["cnn"], "discrete", ConfigError, "needs images"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(cfg, action, error, message):
    with pytest.raises(error, match=message):
        build(cfg, make_spec("vector", action), 0)


def test_one_hot_actions_are_refused_by_a_built_in_policy():
    # TorchRL's alone: a bare `Space` stands for them.
    spec = dataclasses.replace(make_spec("vector", "discrete"), action_space=spaces.Space((3,), np.int64))
    with pytest.raises(SpaceError, match="not one-hot actions"):
        build(POLICIES["mlp"], spec, 0)


@pytest.mark.parametrize("kind", ["mlp", "q_mlp", "cnn", "multi"])
def test_a_network_without_an_observation_is_refused(kind):
    spec = dataclasses.replace(
        make_spec("vector", "discrete"), observation=(), inputs=(), observation_space=spaces.Dict({})
    )
    with pytest.raises(ConfigError, match=r"an observation, but the env returns none|but the env observes nothing"):
        build(POLICIES[kind], spec, 0)
