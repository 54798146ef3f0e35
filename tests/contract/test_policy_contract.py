"""What every policy promises (`collectx/policy/base.py`), over all kinds and spaces."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, TensorDictModuleBase, TensorDictSequential
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from collectx.batch import Leaf
from collectx.config import (
    CnnPolicyConfig,
    CustomPolicyConfig,
    MlpPolicyConfig,
    PolicyConfig,
    QCnnPolicyConfig,
    QMlpPolicyConfig,
)
from collectx.env.base import EnvSpec
from collectx.env.spaces import Structure
from collectx.errors import ConfigError, ShapeError, SpaceError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.random import RandomActor
from collectx.policy.weights import FlatWeights

CPU = torch.device("cpu")
MLP = MlpPolicyConfig("mlp", [16, 16], "tanh")
CNN = CnnPolicyConfig("cnn", [4, 8], [4, 3], [2, 2], 16, 255.0)
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
}
KINDS = [("random", "vector"), ("mlp", "vector"), ("mlp", "vector64"), ("mlp", "discrete"), ("mlp", "dict")]
KINDS += [("mlp", "stack"), ("cnn", "stack"), ("cnn", "colour")]
Q_MLP = QMlpPolicyConfig("q_mlp", [16, 16], "relu")
Q_CNN = QCnnPolicyConfig("q_cnn", [4, 8], [4, 3], [2, 2], 16, 255.0)


def make_spec(observation: spaces.Space, action: spaces.Space, rows: int = ROWS) -> EnvSpec:
    leaves = Structure(observation, ("observation",)).leaves
    return EnvSpec(rows, leaves, Structure(action, ("action",)).leaves, observation, action)


def observe(spec: EnvSpec) -> list[torch.Tensor]:
    columns = [
        Structure(spec.observation_space, ("observation",)).flatten(spec.observation_space.sample())
        for _ in range(spec.num_envs)
    ]
    return [torch.as_tensor(np.stack([np.asarray(c[i]) for c in columns])) for i in range(len(spec.observation))]


def act(actor, observation):
    with torch.inference_mode():
        values = actor.act(observation)
    return [value.clone() for value in values]


def config(kind: str) -> PolicyConfig:
    return {"random": PolicyConfig("random"), "mlp": MLP, "cnn": CNN, "q_mlp": Q_MLP, "q_cnn": Q_CNN}[kind]


CHOICES = [(*kind, action) for kind in KINDS for action in ACTIONS]
CHOICES += [
    (kind, seen, action)
    for kind, seen in (("q_mlp", "vector"), ("q_cnn", "stack"))
    for action in ("discrete", "discrete_start")
]


@pytest.mark.parametrize("exploration", list(ExplorationType), ids=lambda e: e.value)
@pytest.mark.parametrize(("kind", "observation", "action"), CHOICES)
def test_act(kind, observation, action, exploration):
    spec = make_spec(OBSERVATIONS[observation], ACTIONS[action])
    policy = build(config(kind), spec, seed=1)
    actor = make_actor(policy, spec, CPU, exploration)
    seen = observe(spec)
    torch.manual_seed(0)
    first = act(actor, seen)
    assert actor.leaves[: len(spec.action)] == spec.action
    for leaf, value in zip(actor.leaves, first, strict=True):
        assert value.shape == (ROWS, *leaf.shape)
        assert value.dtype == leaf.dtype
    if action not in ("box", "box2d") or kind == "random":
        assert all(spec.action_space.contains(row.numpy() if row.ndim else row.item()) for row in first[0])
    torch.manual_seed(0)
    again = act(make_actor(build(config(kind), spec, seed=1), spec, CPU, exploration), seen)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    if policy is None:
        assert actor.module is None
        return
    log_prob, entropy = policy.evaluate(seen, first[0])
    assert log_prob.shape == entropy.shape == (ROWS,)
    assert bool(entropy.isfinite().all())
    assert (("action_log_prob",) in [leaf.key for leaf in actor.leaves]) is (exploration is ExplorationType.RANDOM)
    if exploration is ExplorationType.RANDOM:
        torch.testing.assert_close(first[1], log_prob.detach(), rtol=1e-4, atol=1e-4)
    if kind.startswith("q_"):
        return  # its probabilities are steps: they have no gradient
    (log_prob.sum() + entropy.sum()).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in policy.parameters())


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_weights_read_in_place_are_acted_with(action):
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS[action])
    old, new = build(MLP, spec, seed=1), build(MLP, spec, seed=2)
    with torch.no_grad():
        new.out.weight.mul_(100)
    actor = make_actor(old, spec, CPU, ExplorationType.DETERMINISTIC)
    weights = FlatWeights(old)
    weights.adopt()
    buffer = torch.zeros(weights.nbytes, dtype=torch.uint8)
    FlatWeights(new).write(buffer)
    with torch.inference_mode():
        weights.read(buffer)
    seen = observe(spec)
    expected = act(make_actor(new, spec, CPU, ExplorationType.DETERMINISTIC), seen)
    assert torch.equal(act(actor, seen)[0], expected[0])


def test_samples_follow_the_distribution():
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["multidiscrete"], rows=20000)
    policy = build(MLP, spec, seed=0)
    with torch.no_grad():
        policy.out.weight.zero_()
        policy.out.bias.copy_(torch.arange(15) / 5)
    torch.manual_seed(0)
    action, log_prob = act(make_actor(policy, spec, CPU, ExplorationType.RANDOM), [torch.zeros(20000, 5)])
    for i, n in enumerate((2, 5, 3)):
        expected = policy.out.bias.view(3, 5)[i, :n].softmax(-1)
        torch.testing.assert_close(action[:, i].bincount(minlength=n) / 20000, expected.detach(), atol=0.02, rtol=0)
    assert bool((log_prob < 0).all())


def test_gaussian_agrees_with_torch():
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["box"])
    policy = build(MLP, spec, seed=0)
    with torch.no_grad():
        policy.head.log_std.copy_(torch.tensor([-0.5, 0.3]))
    seen = observe(spec)
    action = torch.randn(ROWS, 2)
    normal = torch.distributions.Normal(policy(seen), policy.head.log_std.exp())
    log_prob, entropy = policy.evaluate(seen, action)
    torch.testing.assert_close(log_prob, normal.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1))


class Argmax(nn.Module):
    """A user's own module, with running statistics that a dry forward must not touch."""

    def __init__(self, width: int = 5):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, observation):
        return self.net(observation).argmax(-1)


class ByTensorDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Argmax()

    def forward(self, td):
        td["action"] = self.net(td["observation"])
        td["extra", "random"] = torch.full((len(td), 2), float(interaction_type() is InteractionType.RANDOM))
        return td


def by_tensordict(tensordict):
    return tensordict.set("action", tensordict["observation"].sum(-1).gt(0))


class Annotated:
    """Neither a module nor a function, and its argument has a name of its own."""

    def __call__(self, seen: TensorDict) -> TensorDict:
        return by_tensordict(seen)


class Remembering(TensorDictModuleBase):
    """Counts its calls where nobody sees it."""

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["observation"], ["action"]

    def forward(self, data):
        data["_count"] = data.get("_count", torch.full((len(data),), -1)) + 1
        return TensorDict({"action": data["_count"].clone(), "counted": data["_count"] * 10}, [len(data)])


def function(observation):
    return observation.sum(-1).gt(0)


def make_argmax(spec, width=5):
    assert isinstance(spec, EnvSpec)
    return Argmax(width)


def make_module():
    return TensorDictModule(Argmax(), ["observation"], ["action"])


def make_sequence():
    net = TensorDictModule(nn.Linear(5, 4), ["observation"], ["logits"])
    return TensorDictSequential(net, TensorDictModule(lambda x: x.argmax(-1), ["logits"], ["action"]))


def custom(name: str, monkeypatch, **kwargs):
    """Builds this module's `name` by its import path."""
    import sys
    import types

    module = types.ModuleType("users_own")
    for key in ("Argmax", "ByTensorDict", "function", "make_argmax", "make_module", "make_sequence"):
        setattr(module, key, globals()[key])
    monkeypatch.setitem(sys.modules, "users_own", module)
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    return build(CustomPolicyConfig("custom", f"users_own:{name}", kwargs), spec, seed=0), spec


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("Argmax", []),
        ("function", []),
        ("make_argmax", []),
        ("make_module", []),
        ("make_sequence", [("logits",)]),
        ("ByTensorDict", [("extra", "random")]),
    ],
)
def test_custom(name, extra, monkeypatch):
    policy, spec = custom(name, monkeypatch)
    state = {k: v.clone() for k, v in policy.state_dict().items()} if isinstance(policy, nn.Module) else {}
    torch.manual_seed(7)
    expected_draw = torch.rand(3)
    torch.manual_seed(7)
    actor = make_actor(policy, spec, CPU, ExplorationType.RANDOM)
    assert torch.equal(torch.rand(3), expected_draw)
    if state:
        assert all(torch.equal(state[k], v) for k, v in policy.state_dict().items())
    assert [leaf.key for leaf in actor.leaves] == [("action",), *extra]
    for leaf, value in zip(actor.leaves, act(actor, observe(spec)), strict=True):
        assert value.shape == (ROWS, *leaf.shape)
        assert value.dtype == leaf.dtype
    if name == "ByTensorDict":
        assert bool(act(actor, observe(spec))[1].eq(1).all())


@pytest.mark.parametrize("policy", [by_tensordict, Annotated()], ids=str)
def test_a_callable_that_is_no_module_may_take_a_tensordict(policy):
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    actor, seen = make_actor(policy, spec, CPU, ExplorationType.RANDOM), observe(spec)
    assert [leaf.key for leaf in actor.leaves] == [("action",)]
    assert torch.equal(act(actor, seen)[0], seen[0].sum(-1).gt(0).long())


def test_a_policy_finds_what_it_has_kept_from_its_first_frame_on():
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    actor, seen = make_actor(Remembering(), spec, CPU, ExplorationType.RANDOM), observe(spec)
    assert [leaf.key for leaf in actor.leaves] == [("action",), ("counted",)]
    for count in range(3):
        action, counted = act(actor, seen)
        assert action.unique().tolist() == [count]
        assert counted.unique().tolist() == [10 * count]


def test_torchrls_random_policy_is_none():
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    given = type("RandomPolicy", (), {"__call__": lambda self, td: td})()
    assert isinstance(make_actor(given, spec, CPU, ExplorationType.RANDOM), RandomActor)


def test_dict_observation_by_key():
    spec = make_spec(OBSERVATIONS["dict"], ACTIONS["discrete"])
    policies = [
        lambda a, b: (a.sum(-1) + b).long(),
        lambda observation: (observation["a"].sum(-1) + observation["b"]).long(),
        TensorDictModule(lambda a, b: (a.sum(-1) + b).long(), [("observation", "a"), ("observation", "b")], ["action"]),
    ]
    seen = observe(spec)
    expected = (seen[0].sum(-1) + seen[1]).long()
    for policy in policies:
        assert torch.equal(act(make_actor(policy, spec, CPU, ExplorationType.RANDOM), seen)[0], expected)


def test_mistakes_are_named(monkeypatch):
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    random = ExplorationType.RANDOM
    with pytest.raises(ShapeError, match="argmax"):
        make_actor(nn.Linear(5, 4), spec, CPU, random)
    with pytest.raises(ShapeError, match=r"float32.*int64"):
        make_actor(lambda observation: observation.sum(-1), spec, CPU, random)
    with pytest.raises(ConfigError, match=r"reads pixels.*writes observation"):
        make_actor(TensorDictModule(nn.Linear(5, 4), ["pixels"], ["action"]), spec, CPU, random)
    with pytest.raises(ConfigError, match="wrote logits"):
        make_actor(TensorDictModule(nn.Linear(5, 4), ["observation"], ["logits"]), spec, CPU, random)
    with pytest.raises(ConfigError, match="has no 'Missing'"):
        build(CustomPolicyConfig("custom", "collectx.errors:Missing", {}), spec, 0)
    with pytest.raises(ConfigError, match="PYTHONPATH"):
        build(CustomPolicyConfig("custom", "no_such_package:Missing", {}), spec, 0)
    with pytest.raises(SpaceError, match="policy=custom"):
        build(MLP, make_spec(OBSERVATIONS["vector"], spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])), 0)
    with pytest.raises(ConfigError, match="needs an image"):
        build(CNN, spec, 0)
    with pytest.raises(ConfigError, match="unknown"):
        build(MlpPolicyConfig("mlp", [4], "tanhh"), spec, 0)


def test_random_covers_the_space():
    bounds = np.array([[-np.inf, 0.0], [0.0, np.inf]], np.float32)
    space = spaces.Dict({"free": spaces.Box(bounds[0], bounds[1]), "int": spaces.Box(0, 3, (2,), np.uint8)})
    spec = make_spec(OBSERVATIONS["vector"], space, rows=500)
    actor = make_actor(None, spec, CPU, ExplorationType.RANDOM)
    for _ in range(300):
        free, integers = act(actor, [])
        assert bool((free[:, 0] <= 0).all())
        assert bool((free[:, 1] >= 0).all())
        assert set(integers.unique().tolist()) == {0, 1, 2, 3}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_acts_on_an_accelerator(action):
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS[action])
    actor = make_actor(build(MLP, spec, 0), spec, torch.device("cuda"), ExplorationType.RANDOM)
    seen = [tensor.cuda() for tensor in observe(spec)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            out = actor.act(seen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.device.type == "cuda" for value in out)


def test_leaf_of_one_more_dimension_is_accepted():
    spec = make_spec(OBSERVATIONS["vector"], ACTIONS["discrete"])
    actor = make_actor(lambda observation: observation[:, :1].int(), spec, CPU, ExplorationType.RANDOM)
    assert actor.leaves == (Leaf(("action",), (), torch.int64),)
    assert act(actor, observe(spec))[0].shape == (ROWS,)
