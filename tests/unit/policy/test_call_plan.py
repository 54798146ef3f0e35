"""What an actor makes of a user's policy: the calls, the outputs of two frames, or the error that refuses it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.policy.exploration import ExplorationType
from collectx.policy.user_actor import UserActor

CPU = torch.device("cpu")
SEEN = Leaf(("observation",), (2,), torch.float32)
PAIR = (Leaf(("observation", "0"), (2,), torch.float32), Leaf(("observation", "1"), (), torch.int64))
PARTS = (Leaf(("pose",), (2,), torch.float32), Leaf(("cameras", "left"), (), torch.int64))
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)


def spec(num_envs=3, action=DISCRETE, observation=(SEEN,), dtype=None, **fields):
    """Returns the spec of an env group; `action` are spaces by their names below "action", or one space."""
    seen = spaces.Dict() if len(observation) > 1 else spaces.Box(-9, 9, (2,), np.float32)
    parts = {("action", name): each for name, each in action.items()} if isinstance(action, dict) else {}
    leaves = tuple(
        Leaf(key, space.shape, dtype or (torch.int64 if space.shape == () else torch.float32))
        for key, space in (parts or {("action",): action}).items()
    )
    return EnvSpec(num_envs, observation, leaves, seen, spaces.Dict(action) if parts else action, **fields)


ONE, SEVERAL, GRID = spec(1, is_single=True), spec(3), spec(6, batch_shape=(2, 3))
TWO_ACTIONS = spec(3, {"move": DISCRETE, "push": BOX})


def one_hot():
    data = pytest.importorskip("torchrl.data")
    leaf = Leaf(("action",), (4,), torch.float32)
    return EnvSpec(3, (SEEN,), (leaf,), BOX, spaces.Space(), action_spec={leaf.key: data.OneHot(4)})


def one_hot_grid():
    data = pytest.importorskip("torchrl.data")
    leaf = Leaf(("action",), (4,), torch.float32)
    forms = {leaf.key: data.OneHot(4)}
    return EnvSpec(6, (SEEN,), (leaf,), BOX, spaces.Space(), action_spec=forms, batch_shape=(2, 3))


def index(observation):
    return observation[..., 0].long() % 4


def module(function, *writes, reads=("observation",), **options):
    return TensorDictModule(function, [*reads], [*writes], **options)


class Changing:
    """Returns another of `results` in each call; the first call is that which the actor is made with."""

    def __init__(self, *results):
        self.results, self.number = results, -1

    def __call__(self, observation):
        self.number += 1
        result = self.results[min(self.number, len(self.results) - 1)]
        return result(observation) if callable(result) else result


def by_tensordict(change):
    return lambda td: change(td)


def changing_td(*changes):
    """Returns a policy that writes other keys in each call."""
    calls = iter(changes)

    def call(td):
        return td.update(TensorDict(next(calls)(td["observation"]), td.batch_size))

    return call


def doubled(observation):
    observation *= 2
    return index(observation)


class Net(nn.Module):
    """A linear network of known weights."""

    def __init__(self, *rows):
        super().__init__()
        self.linear = nn.Linear(2, len(rows), bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor(rows))

    def forward(self, observation):
        return self.linear(observation)


SCORES = Net([0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0])
CASES = {
    # Forms of results.
    "an index": (SEVERAL, index),
    "an index, one env": (ONE, index),
    "an index, a grid of envs": (GRID, index),
    "an index [1]": (SEVERAL, lambda observation: index(observation)[..., None]),
    "an index [1, 1], a grid": (GRID, lambda observation: index(observation)[..., None, None]),
    "a float without a fraction": (SEVERAL, lambda observation: observation[..., 0]),
    "a float with a fraction": (SEVERAL, lambda observation: observation[..., 0] + 0.5),
    "a NaN": (SEVERAL, lambda observation: observation[..., 0] * torch.nan),
    "a bool": (SEVERAL, lambda observation: observation[..., 0] > 0),
    "an int32": (SEVERAL, lambda observation: index(observation).int()),
    "a wide integer": (spec(dtype=torch.uint8), lambda observation: index(observation) + 254),
    "a wide integer of a bool": (spec(dtype=torch.bool), lambda observation: index(observation)),
    "a number": (ONE, lambda observation: 3),
    "a float number": (ONE, lambda observation: 2.0),
    "a numpy number": (ONE, lambda observation: np.int32(3)),
    "a list of numbers": (SEVERAL, lambda observation: [1, 2, np.int64(3)]),
    "an empty list": (SEVERAL, lambda observation: []),
    "a list of outputs": (SEVERAL, lambda observation: [index(observation), observation]),
    "an array": (SEVERAL, lambda observation: index(observation).numpy()),
    "a tuple of an array": (SEVERAL, lambda observation: (index(observation).numpy(), observation.numpy())),
    "more outputs": (SEVERAL, lambda observation: (index(observation), observation.sum(-1), observation)),
    "no tensor": (SEVERAL, lambda observation: "left"),
    "None": (SEVERAL, lambda observation: None),
    "text beside the action": (SEVERAL, lambda observation: (index(observation), "left")),
    "another number of envs": (SEVERAL, lambda observation: index(observation)[:2]),
    "logits": (SEVERAL, lambda observation: observation),
    "several actions of one env": (ONE, lambda observation: torch.full((len(observation),), 1)),
    "too few numbers": (spec(action=BOX), lambda observation: observation[..., :1]),
    "doubles": (spec(action=BOX), lambda observation: observation.double()),
    "integers": (spec(action=BOX), lambda observation: observation.long()),
    # Several actions.
    "two actions": (TWO_ACTIONS, lambda observation: (index(observation), observation)),
    "two actions and more": (TWO_ACTIONS, lambda observation: (index(observation), observation, observation + 1)),
    "one of two actions": (TWO_ACTIONS, lambda observation: (index(observation),)),
    "a tensor for two actions": (TWO_ACTIONS, index),
    # One-hot actions.
    "an index for one-hot": (one_hot, index),
    "an index [1] for one-hot": (one_hot, lambda observation: index(observation)[..., None]),
    "a bool for one-hot": (one_hot, lambda observation: observation[..., 0] > 0),
    "scores": (one_hot, lambda observation: SCORES(observation)),
    "one-hot": (one_hot, lambda observation: torch.eye(4)[index(observation)].long()),
    "the index of no action": (one_hot, lambda observation: index(observation) + 3),
    "a negative index": (one_hot, lambda observation: index(observation) - 4),
    "scores with NaN": (one_hot, lambda observation: SCORES(observation) * torch.nan),
    "an index for a grid of one-hot": (one_hot_grid, index),
    # Arguments.
    "parts by name": (spec(observation=PARTS), lambda cameras, pose: index(pose) + cameras["left"]),
    "a dict": (spec(observation=PARTS), lambda x: index(x["pose"]) + x["cameras"]["left"]),
    "a dict of a Tuple": (
        replace(spec(observation=PAIR), observation_space=spaces.Tuple([])),
        lambda x: index(x["0"]) + x["1"],
    ),
    "one by one": (spec(observation=PARTS), lambda x, y: index(x) + y),
    "an argument with a default": (SEVERAL, lambda x, scale=2: index(x) * scale),
    "two arguments with defaults": (spec(observation=PARTS), lambda x=1, y=2: index(x["pose"]) + y),
    # Modules.
    "modules": (SEVERAL, TensorDictSequential(module(SCORES, "logits"), module(index, "action", reads=["logits"]))),
    "modules, one env": (ONE, TensorDictSequential(module(SCORES, "logits"), module(index, "action"))),
    "a module": (SEVERAL, Net([1.0, 1.0])),
    "an unknown key": (SEVERAL, module(index, "action", reads=["pixels"])),
    "no action": (SEVERAL, module(index, "logits")),
    "a private key": (SEVERAL, module(lambda seen: (index(seen), seen), "action", "_hidden")),
    "a tuple for one key": (SEVERAL, module(lambda seen: (index(seen),), "action")),
    "the observation as an output": (SEVERAL, module(lambda seen: (index(seen), -seen), "action", "observation")),
    "the observation in another shape": (
        SEVERAL,
        module(lambda seen: (index(seen), seen[..., 0]), "action", "observation"),
    ),
    "the observation, changed in place": (SEVERAL, doubled),
    # TensorDicts.
    "a TensorDict": (SEVERAL, by_tensordict(lambda td: td.set("action", index(td["observation"])))),
    "a TensorDict that is new": (
        SEVERAL,
        by_tensordict(lambda td: TensorDict({"action": index(td["observation"])}, td.batch_size)),
    ),
    "a TensorDict and nothing": (
        SEVERAL,
        by_tensordict(lambda td: [td.set("action", index(td["observation"])), None][1]),
    ),
    "a tensor for a TensorDict": (SEVERAL, by_tensordict(lambda td: index(td["observation"]))),
    "a TensorDict of a grid": (GRID, by_tensordict(lambda td: td.set("action", index(td["observation"])))),
    "a nested key": (
        SEVERAL,
        by_tensordict(lambda td: td.set("action", index(td["observation"])).set(("a", "b"), td["observation"])),
    ),
    # Later calls; those of two frames.
    "another shape": (SEVERAL, Changing(index, lambda x: index(x)[:, None, None])),
    "another shape of an output": (SEVERAL, Changing(lambda x: (index(x), x), lambda x: (index(x), x[:, :1]))),
    "a wider dtype of an output": (SEVERAL, Changing(lambda x: (index(x), x), lambda x: (index(x), x.double()))),
    "a complex output": (SEVERAL, Changing(lambda x: (index(x), x), lambda x: (index(x), x * 1j))),
    "another dtype of the action": (SEVERAL, Changing(index, lambda x: x[..., 0])),
    "a missing output": (SEVERAL, Changing(lambda x: (index(x), x, x), index)),
    "a further output": (SEVERAL, Changing(index, lambda x: (index(x), x))),
    "a missing key": (SEVERAL, changing_td(lambda x: {"action": index(x), "b": x}, lambda x: {"b": x})),
    "a further key": (
        SEVERAL,
        changing_td(lambda x: {"action": index(x)}, *[lambda x: {"action": index(x), "b": x}] * 2),
    ),
    "a late overwritten observation": (
        SEVERAL,
        changing_td(lambda x: {"action": index(x)}, lambda x: {"action": index(x), "observation": x + 1}),
    ),
}


def told(of, policy):
    """Returns the calls, their outputs, and the outputs in two frames, or the error and its notes."""
    of = of() if callable(of) else of
    try:
        actor = UserActor(policy, of, CPU, ExplorationType.RANDOM)
        plan = actor.plan.describe()
        frames = []
        for first in (1, 5):
            seen = []
            for leaf in of.observation:
                shape = (of.num_envs, *leaf.shape)
                seen.append((torch.arange(math.prod(shape)) + first).reshape(shape).to(leaf.dtype))
            with torch.inference_mode():
                frames.append([output.tolist() for output in actor.act(seen)])
    except Exception as error:
        return [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
    calls = [
        f"{each['calls'].rpartition('.')[2]} with {each['with']}: {each['reads']} -> {each['writes']}"
        for each in plan["calls"]
    ]
    outputs = {".".join(leaf.key): f"{[*leaf.shape]} {leaf.dtype}" for leaf in actor.leaves}
    assert outputs == plan["outputs"]
    return {"batch size": plan["batch_size"], "calls": calls, "outputs": outputs, "frames": frames}


def test_how_a_policy_is_called_and_what_it_gives(expected):
    expected("calls", {name: told(*case) for name, case in CASES.items()})


@pytest.mark.parametrize("of", [SEVERAL, ONE])
def test_a_layer_for_another_number_of_features_is_told(of):
    *_, note = told(of, nn.Linear(7, 2))
    assert note == "a layer takes 7 features, but gets 2"
