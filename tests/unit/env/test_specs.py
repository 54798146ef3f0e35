"""What is read of each kind of env before a run, as whole specs."""

import dataclasses
import re
import warnings
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from configurations import counting, gym, gym_vector
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from user_code.spaceenv import SpaceEnv
from user_code.tensorenv import TensorCountingEnv
from worlds.masked import MaskedEnv

from collectx.env import read_spec
from collectx.env.spaces import outside, parts_of
from collectx.user_objects import UserEnvConfig

torchrlenvs = pytest.importorskip("user_code.torchrlenvs", reason="needs the torchrl extra")
from torchrl import envs  # noqa: E402


def python(create, num_envs=0, **fields):
    return UserEnvConfig(kind="python", num_envs=num_envs, create=create, kwargs={}, **fields)


def keys(leaves):
    return {".".join(leaf.key): f"{[*leaf.shape]} {leaf.dtype}".replace("torch.", "") for leaf in leaves}


def text(space):
    """Describes a space, also one that TorchRL alone knows; of bounds, the lowest and the highest."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {str(name): text(part) for name, part in parts_of(space)}
    form = f"{type(space).__name__} {[*space.shape]} {space.dtype}"
    if isinstance(space, spaces.Box):
        limits = np.iinfo(space.dtype) if space.dtype.kind in "iu" else np.finfo(space.dtype)
        names = {limits.min: "min", limits.max: "max"}
        low, high = space.low.min(), space.high.max()
        return f"{form} {names.get(low, low)} .. {names.get(high, high)}"
    starts = getattr(space, "start", 0)
    return f"{form} {getattr(space, 'nvec', getattr(space, 'n', ''))} {starts if np.any(starts) else ''}".strip()


def described(cfg):
    """Returns the fields of a spec that differ from their defaults, or the error."""
    seen = []
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Creating a tensor from a list")
            spec = read_spec(cfg, True, lambda group: seen.append(group.spec.num_envs))
    except Exception as error:
        return re.sub("<function .*>", "<function>", f"{type(error).__name__}: {error}")
    row = {"made": seen[0], "envs": spec.num_envs}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name in ("num_envs", "draw", "action_spec") or value in (field.default, (), {}):
            continue
        if field.name in ("observation", "action", "agents_ends", "rewards", "deltas", "inputs"):
            value = keys(value)
        elif isinstance(value, gymnasium.Space):
            value = text(value)
        elif field.name == "example_observation":
            value = {
                ".".join(key): f"{[*each.shape]} {each.dtype}".replace("torch.", "") for key, each in value.items()
            }
        elif field.name == "nested_dims":
            value = {".".join(key): dims for key, dims in value.items()}
        row[field.name] = value
    if row.get("inputs") == row.get("observation"):
        row.pop("inputs", None)
    assert row.pop("example_observation", {}).keys() == row["observation"].keys()
    assert (spec.draw is not None) == bool(spec.path)
    return row | {"policy shape": spec.policy_shape} | ({"cuts": spec.agents_cuts} if spec.agents_cuts else {})


WALK = "user_code.walk:Walk-v0"
plain = partial(SpaceEnv, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), 3)


def vector(num_envs, mode="Disabled", make=None):
    return SyncVectorEnv([make or plain] * num_envs, autoreset_mode=AutoresetMode(mode))


def masked(**options):
    return partial(MaskedEnv, where="info", **options)


SPACE = spaces.Dict(pose=spaces.Box(-1, 1, (2,), np.float64), room=spaces.Discrete(3))
GYMNASIUM = {
    "counting": counting(3),
    "one": gym(1, entry_point=partial(SpaceEnv, SPACE, spaces.Discrete(2), 3)),
    "several": gym(
        3, entry_point=partial(SpaceEnv, SPACE, spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]), 3)
    ),
    "without a part, and with an info": replace(
        gym(2, entry_point=partial(SpaceEnv, SPACE, spaces.Discrete(2), 3)),
        exclude_keys=["pose"],
        info_keys=[{"speed": ["float32", 2]}],
    ),
    "normalised": replace(gym(2, WALK), wrappers=["NormalizeObservation"]),
    "masks in the infos": gym(2, entry_point=masked()),
    "masks in the infos, left out": replace(gym(2, entry_point=masked()), exclude_keys=["action_mask"]),
    "masks in the observation": gym(2, entry_point=MaskedEnv),
    "sync": gym_vector(3, None, "sync", WALK),
    "sync, same step": gym_vector(3, "same_step", "sync", WALK),
    "sync, next step": gym_vector(3, "next_step", "sync", WALK),
    "vector": replace(gym_vector(3), id=None, entry_point=vector),
    "vector with masks in the infos": replace(gym_vector(3), id=None, entry_point=partial(vector, make=masked())),
    "tensors": replace(gym_vector(3), id=None, entry_point=TensorCountingEnv),
    "a function": python(plain),
    "a function, once": python(plain, 1),
    "a function, three times": python(plain, 3),
    "a function with masks in the infos": python(masked(), 2),
    "a vector env": python(partial(vector, 3)),
    "a vector env of two": python(partial(vector, 3), 2),
    "a vector env of one": python(partial(vector, 1)),
    "a number": python(lambda: 3),
    "a class": python(lambda: spaces.Discrete(2)),
    "a vector env with next step": python(partial(vector, 3, "NextStep"), 3),
}
TORCHRL = {
    name: python(getattr(torchrlenvs, name))
    for name in [
        *(
            "one_hot",
            "walking",
            "pushing",
            "discrete",
            "nested_dict",
            "counted",
            "primed",
            "recurrent",
            "serial",
            "goals",
        ),
        *("counted_serial", "counted_itself", "differences", "masked", "apart_with_sums", "hooked"),
        *("ManyKeys", "Players", "OneHotMasked", "TwoRewards", "Agents", "Apart", "ResetsItself", "ResetsBehind"),
        *("Spoken", "Growing", "Unequal"),
    ]
} | {
    "walking, three times": python(torchrlenvs.walking, 3),
    "serial of three, twice": python(torchrlenvs.serial, 2),
    "a grid of agents": python(partial(torchrlenvs.Agents, (2, 3))),
    "a group of agents": python(partial(torchrlenvs.Agents, (2,), (2,))),
    "agents that end apart": python(partial(torchrlenvs.Apart, (2,))),
    "agents, truncated": python(lambda: torchrlenvs.Agents().add_truncated_keys()),
    "players, one-hot": python(partial(torchrlenvs.Players, True)),
    "keys without some": python(torchrlenvs.ManyKeys, exclude_keys=["deep.double", "only_root"]),
    "keys without a group": python(torchrlenvs.ManyKeys, exclude_keys=["deep"]),
    "keys without what is not there": python(torchrlenvs.ManyKeys, exclude_keys=["single"]),
    "goals in a serial env": python(partial(torchrlenvs.serial, 2, torchrlenvs.goals)),
    "with infos": python(torchrlenvs.walking, info_keys=["speed"]),
}
# Envs that are not stepped by the env of Gymnasium below them, and why.
STEPPED = {
    "a counter twice": lambda: torchrlenvs.transformed(torchrlenvs.walking(), envs.StepCounter(), envs.StepCounter()),
    "a float twice": lambda: torchrlenvs.transformed(
        torchrlenvs.walking(), envs.DoubleToFloat(), envs.DoubleToFloat(), envs.InitTracker()
    ),
    "a counter of its own": lambda: torchrlenvs.transformed(
        torchrlenvs.walking(), envs.StepCounter(3, truncated_key="late")
    ),
    "a counter without done": lambda: torchrlenvs.transformed(
        torchrlenvs.walking(), envs.StepCounter(3, update_done=False)
    ),
    "a sum": lambda: torchrlenvs.transformed(torchrlenvs.walking(), envs.RewardSum(["reward"], ["total"])),
    "a scale": lambda: torchrlenvs.transformed(torchrlenvs.walking(), envs.RewardScaling(0, 2)),
    "a frame skip": lambda: torchrlenvs.one_hot(frame_skip=2),
    "a state": lambda: torchrlenvs.sampled(spaces.Dict(state=spaces.Box(0, 1, (2,)))),
    "a Discrete that starts at 1": lambda: torchrlenvs.sampled(spaces.Discrete(3, start=1)),
    "a Tuple": lambda: torchrlenvs.sampled(spaces.Tuple([spaces.Discrete(3)])),
    "a MultiDiscrete": lambda: torchrlenvs.sampled(spaces.MultiDiscrete([3, 2]), categorical_action_encoding=True),
    "a MultiDiscrete, one-hot": lambda: torchrlenvs.sampled(spaces.MultiDiscrete([3, 2])),
    "a nested Discrete": lambda: torchrlenvs.sampled(spaces.Dict(a=spaces.Dict(b=spaces.Discrete(3)))),
    "actions from 1": lambda: envs.GymWrapper(
        torchrlenvs.Sampled(spaces.Box(0, 1, (1,)), spaces.Discrete(3, start=1)), categorical_action_encoding=True
    ),
    "two discrete actions": lambda: envs.GymWrapper(
        torchrlenvs.Sampled(spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 2])), categorical_action_encoding=True
    ),
    "binary actions": lambda: envs.GymWrapper(torchrlenvs.Sampled(spaces.Box(0, 1, (1,)), spaces.MultiBinary(2))),
}


@pytest.mark.parametrize(("name", "table"), [("gymnasium", GYMNASIUM), ("torchrl", TORCHRL)])
def test_specs(name, table, expected):
    expected(f"specs_{name}", {key: described(cfg) for key, cfg in table.items()})


def test_how_an_env_of_torchrl_is_stepped(expected):
    def path(create):
        spec = read_spec(python(create))
        return {"path": spec.path, "observation": keys(spec.observation), "action": keys(spec.action)}

    expected("paths", {key: path(create) for key, create in STEPPED.items()})


def test_a_spec_without_an_example_keeps_a_mask_that_a_reset_returns():
    spec = read_spec(gym(2, entry_point=masked()))
    assert [leaf.key for leaf in spec.observation] == [
        ("observation",),
        ("info", "action_mask"),
        ("info", "_action_mask"),
    ]
    assert not spec.example_observation


@pytest.mark.parametrize(
    ("space", "seen", "said"),
    [
        (
            spaces.Box(-1, 1, (2,)),
            {"observation": [5.0, 0.0]},
            "the first observation of the env has values from 0 to",
        ),
        (spaces.Box(-1, 1, (2,)), {"observation": [1.0, -1.0]}, ""),
        (spaces.Dict(a=spaces.Box(0, 9, (2,)), b=spaces.Discrete(2)), {"a": [-1.0, 3.0], "b": 7}, "the first a of the"),
        (spaces.Discrete(2, start=1), {"observation": [1, 2]}, ""),
        (
            spaces.Discrete(2, start=1),
            {"observation": [0, 2]},
            "the first observation of the env has values from 0",
        ),
        (
            spaces.MultiDiscrete([2, 9]),
            {"observation": [2, 5]},
            "the first observation of the env has values from 2",
        ),
        (spaces.Box(-0.4, 0.4, (1,)), {"observation": [0.4000001]}, ""),
        (spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64), {"observation": [-(2**63)]}, ""),
        (spaces.Box(-np.inf, np.inf, (1,)), {"observation": [1e38]}, ""),
        (spaces.Box(0, 1, (2,), bool), {"observation": [True, False]}, ""),
    ],
)
def test_first_observations_outside_of_their_space_are_told(space, seen, said):
    observations = {(name,): torch.tensor([value]) for name, value in seen.items()}
    text = outside(space, observations)
    assert text.startswith(said)
    assert bool(text) == bool(said)
