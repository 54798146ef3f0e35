"""The steps of TorchRL's envs: those of their own `_step` are those of `rollout`, and those of the env of Gymnasium
below are those of their own `_step`."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

torchrlenvs = pytest.importorskip("user_code.torchrlenvs", reason="needs the torchrl extra")
from torchrl import data, envs  # noqa: E402
from torchrl.data import Categorical, Composite, Unbounded  # noqa: E402

from collectx.batch import Leaf, as_array  # noqa: E402
from collectx.env.base import StepArrays  # noqa: E402
from collectx.env.spaces import numpy_dtype  # noqa: E402
from collectx.env.torchrl.conversion import Conversion, Unrecognised  # noqa: E402
from collectx.env.torchrl.group import TorchrlEnv  # noqa: E402
from collectx.env.torchrl.specs import RandomActions  # noqa: E402
from collectx.errors import DataError  # noqa: E402


class Numbers(torchrlenvs.Toy):
    """Observes squares."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Categorical(4)

    def _values(self):
        return {"observation": torch.full((1,), float(self._step_number**2))}


ENVS = {
    "many keys": torchrlenvs.ManyKeys,
    "two rewards": torchrlenvs.TwoRewards,
    "agents": torchrlenvs.Agents,
    "agents, batched": partial(torchrlenvs.Agents, (3,)),
    "agents, a grid": partial(torchrlenvs.Agents, (2, 3), (2,)),
    "agents that end apart": torchrlenvs.Apart,
    "agents that end apart, batched": partial(torchrlenvs.Apart, (2,)),
    "sums": torchrlenvs.apart_with_sums,
    "masks": torchrlenvs.masked,
    "counted": lambda: torchrlenvs.transformed(torchrlenvs.Masked(), envs.StepCounter(3), envs.InitTracker()),
    "differences": lambda: envs.TransformedEnv(
        Numbers(), envs.transforms.NextObservationDelta(delta_dtype=torch.float32)
    ),
    "a serial env": lambda: torchrlenvs.transformed(torchrlenvs.serial(2, torchrlenvs.masked), envs.StepCounter(4)),
}


def action_of(spec, number):
    """Returns the action of step `number`, which differs from step to step, in a TensorDict like `spec`."""
    action = spec.zero()
    for key in action.keys(True, True):
        value, count = action[key], number % 4
        if value.dtype is torch.bool:
            value[..., number % value.shape[-1]] = True
        elif value.is_floating_point():
            value += torch.arange(value.shape[-1]) / 8 + count / 16
        else:
            value += count % (2 if getattr(spec[key], "n", 4) == 2 else 4)
    return action


def theirs(make, steps):
    """Returns the frames of TorchRL's `rollout`, `[envs, steps]`."""
    env, numbers = make(), iter(range(steps))
    batch = env.rollout(
        steps, lambda td: td.update(action_of(env.full_action_spec, next(numbers))), break_when_any_done=False
    )
    env.close()
    return batch.reshape(-1, steps)


def flattened(value, dims):
    array = as_array(value)
    return array.reshape(-1, *array.shape[dims:])


class Ours:
    """The frames of a group, by key, in lists of `[envs, *shape]`."""

    def __init__(self, env):
        self.group, self.dims = (
            TorchrlEnv([env]),
            len(env.batch_size),
        )
        spec = self.spec = self.group.spec
        self.action_spec = env.full_action_spec
        self.seen, self.after, self.extra = (
            [np.full((spec.num_envs, *leaf.shape), 7).astype(numpy_dtype(leaf)) for leaf in leaves]
            for leaves in (spec.observation, spec.observation, spec.next_only_leaves)
        )
        self.frames, self.rewards = {}, []

    def keep(self, prefix, leaves, arrays):
        for leaf, array in zip(leaves, arrays, strict=True):
            self.frames.setdefault((*prefix, *leaf.key), []).append(array.copy())

    def step(self, number, cut=False):
        """Returns which envs ended."""
        spec = self.spec
        action = action_of(self.action_spec, number)
        self.keep((), spec.observation, self.seen)
        ends = np.zeros((2, spec.num_envs), bool)
        out = StepArrays(self.after, np.zeros(spec.num_envs, np.float32), *ends, np.ones(spec.num_envs, bool))
        out.next_only = self.extra if spec.next_only_leaves != spec.rewards[:1] or spec.rewards[0].shape != (1,) else ()
        any_ended = self.group.step([flattened(action[leaf.key], self.dims) for leaf in spec.action], out)
        ended = ends.any(0)
        assert any_ended == ended.any()
        self.keep(("next",), spec.observation, self.after)
        if out.next_only:
            self.keep(("next",), spec.next_only_leaves, self.extra)
        self.rewards.append(out.reward.copy())
        for name, flag in (("terminated", ends[0]), ("truncated", ends[1]), ("done", ended)):
            self.frames.setdefault(("next", name), []).append(flag[:, None].copy())
        for seen, after in zip(self.seen, self.after, strict=True):
            seen[...] = after
        if (restart := ended | cut).any():
            self.group.reset_some(restart, self.seen)
        return ended


@pytest.mark.parametrize("name", ENVS)
def test_frames_are_those_of_rollout(name):
    steps = 20
    expected = theirs(ENVS[name], steps)
    ours = Ours(ENVS[name]())
    ours.group.reset(None, ours.seen)
    for number in range(steps):
        ours.step(number)
    ours.group.close()
    observed = [key for key in ours.frames if expected.get(key, None) is not None]
    assert len(observed) >= 4
    for key in observed:
        found, wanted = np.stack(ours.frames[key], 1), as_array(expected[key])
        np.testing.assert_array_equal(found, wanted, err_msg=f"{key}")
    rewards = sum(
        as_array(expected["next", *leaf.key]).reshape(ours.spec.num_envs, steps, -1).sum(-1)
        for leaf in ours.spec.rewards
    )
    np.testing.assert_allclose(np.stack(ours.rewards, 1), rewards, rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["agents that end apart", "agents that end apart, batched", "agents, batched", "many keys"]
)
def test_an_early_reset_is_of_all_agents_of_the_chosen_envs(name):
    ours = Ours(ENVS[name]())
    ours.group.reset(None, ours.seen)
    first = [array.copy() for array in ours.seen]
    for number in range(2):
        ours.step(number)
    before = [array.copy() for array in ours.seen]
    chosen = np.arange(ours.spec.num_envs) == ours.spec.num_envs - 1
    ours.group.reset_some(chosen, ours.seen)
    for array, begun, went_on in zip(ours.seen, first, before, strict=True):
        np.testing.assert_array_equal(array[chosen], begun[chosen])
        np.testing.assert_array_equal(array[~chosen], went_on[~chosen])
    ours.group.close()


def wrapped(create, *transforms):
    return lambda: torchrlenvs.transformed(create(), *(make() for make in transforms)) if transforms else create()


DOUBLE = spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float64), n=spaces.Discrete(3), pair=spaces.MultiDiscrete([2, 3]))
ALL = envs.StepCounter, envs.RewardSum, envs.InitTracker
GYMNASIUM = {
    "plain": torchrlenvs.walking,
    "one-hot": torchrlenvs.one_hot,
    "continuous": torchrlenvs.pushing,
    "frames of three steps": wrapped(
        partial(torchrlenvs.one_hot, frame_skip=3), partial(envs.StepCounter, 2), *ALL[1:]
    ),
    "a counter": wrapped(torchrlenvs.walking, partial(envs.StepCounter, 4)),
    "a counter of one": wrapped(torchrlenvs.discrete, partial(envs.StepCounter, 1), envs.RewardSum),
    "a counter without a limit": wrapped(torchrlenvs.discrete, *ALL),
    "a sum": wrapped(torchrlenvs.nested_dict, partial(envs.RewardSum, ["reward"], ["total"])),
    "a first frame": wrapped(torchrlenvs.nested_dict, envs.InitTracker, envs.DoubleToFloat),
    "doubles": wrapped(
        partial(torchrlenvs.sampled, DOUBLE, categorical_action_encoding=True), *ALL, envs.DoubleToFloat
    ),
}


@pytest.mark.parametrize("name", GYMNASIUM)
def test_frames_of_the_env_below_are_those_of_the_envs_own_step(name, monkeypatch):
    both = []
    for is_direct in (True, False):
        if not is_direct:
            monkeypatch.setattr(TorchrlEnv, "_gym_steppers", Mock(side_effect=Unrecognised("not here")))
        ours = Ours(GYMNASIUM[name]())
        assert ours.spec.path == ("gymnasium" if is_direct else "torchrl: not here")
        size = ours.spec.num_envs
        ours.group.reset(range(5, 5 + size), ours.seen)
        for number in range(25):
            ours.step(number // 4, cut=number % 9 == 7)
            if number == 15:
                ours.group.reset(range(8, 8 + size), ours.seen)
        ours.group.close()
        both.append({**ours.frames, "reward": ours.rewards})
    assert both[0].keys() == both[1].keys()
    for key, frames in both[0].items():
        np.testing.assert_array_equal(frames, both[1][key], err_msg=f"{key}")
        assert [np.signbit(each).tolist() for each in frames] == [np.signbit(each).tolist() for each in both[1][key]]


def of_module(module, base=gymnasium.Env, **fields):
    return type("Made", (base,), {"__module__": module, "__init__": lambda self: None, "render_mode": None, **fields})()


def within_wrapper(module, env):
    return of_module(module, gymnasium.Wrapper, env=env)


CLASSIC, TOY = (of_module(f"gymnasium.envs.{name}.x") for name in ("classic_control", "toy_text"))
LIGHT = [
    (CLASSIC, True),
    (TOY, True),
    (of_module("gymnasium.envs.classic_control.x", render_mode="rgb_array"), False),
    (of_module("gymnasium.envs.mujoco.x"), False),
    (of_module("mine"), False),
    (within_wrapper("gymnasium.wrappers.common", CLASSIC), True),
    (within_wrapper("gymnasium.wrappers.x", within_wrapper("gymnasium.wrappers.y", TOY)), True),
    (within_wrapper("gymnasium.wrappers.common", of_module("mine")), False),
    (within_wrapper("mine", CLASSIC), False),
    (within_wrapper("gymnasium.wrappers.common", within_wrapper("mine", CLASSIC)), False),
]


@pytest.mark.parametrize(("env", "is_light"), LIGHT)
def test_which_envs_need_no_process(env, is_light):
    assert Conversion(env, {}, 1, None, None, None, None, int).is_light is is_light


def test_a_mask_of_one_action_makes_all_be_drawn_in_each_step():
    masked = data.Categorical(3)
    masked.update_mask(torch.tensor([False, True, False]))
    leaves = [Leaf(("a",), (), torch.int64), Leaf(("b",), (2,), torch.float32)]
    env = SimpleNamespace(full_action_spec=data.Composite(a=masked, b=data.Bounded(-1, 1, (2,))))
    drawn = RandomActions([env, env], leaves)
    for _ in range(5):
        a, b = next(drawn)
        assert (a.tolist(), b.shape) == ([1, 1], (2, 2))


class Told(Numbers):
    """An env whose steps write what they are told."""

    def __init__(self, *results):
        super().__init__()
        self.results = iter(results)

    def _step(self, tensordict):
        return TensorDict(next(self.results), [])


def flag(value):
    return torch.tensor([value])


ENDS = [
    # what a step writes, and whether the episode is then terminated and truncated
    ({"done": False}, False, False),
    ({"done": True}, True, False),
    ({"done": True, "terminated": False}, False, True),
    ({"done": True, "terminated": True}, True, False),
    ({"done": True, "terminated": False, "truncated": True}, False, True),
    ({"done": True, "terminated": True, "truncated": True}, True, True),
    ({"done": False, "terminated": True}, False, False),
    ({"terminated": True}, True, False),
    ({"terminated": False}, False, False),
    ({"terminated": False, "truncated": True}, False, True),
]


@pytest.mark.parametrize(("written", "terminated", "truncated"), ENDS)
def test_the_ends_that_a_step_writes(written, terminated, truncated):
    ends = {name: flag(value) for name, value in written.items()}
    ours = Ours(Told({"observation": torch.ones(1), "reward": torch.full((1,), 2.5), **ends}))
    ours.group.reset(None, ours.seen)
    assert ours.step(0).tolist() == [terminated or truncated]
    assert [ours.frames["next", name][0][0, 0] for name in ("terminated", "truncated")] == [terminated, truncated]
    assert ours.rewards[0].tolist() == [2.5]
    # After an end, of a new episode; otherwise that of the step.
    assert ours.seen[0].tolist() == [[0.0 if terminated or truncated else 1.0]]


MISSING = [
    ([{}], r"^step writes neither done nor terminated, so no episode would ever end\. Write"),
    (
        [{"done": flag(False), "reward": torch.zeros(2)}],
        r"^the env returned 2 rewards, but must return 1, one per env$",
    ),
    ([{"done": flag(False), "reward": None}], r"^the env returned 0 rewards, but must return 1, one per env$"),
    (
        [{"done": flag(False), "observation": torch.zeros(2)}],
        r"^env 0 returned a value of shape \(2,\) and dtype float32 as 'observation', but its space has shape \(1,\)",
    ),
    (
        [{"done": flag(False)}, {"done": flag(False), "observation": None}],
        r"^the env wrote 'observation' in its first step, but not in this one\. Write",
    ),
]


@pytest.mark.parametrize(("results", "message"), MISSING)
def test_what_a_step_must_write(results, message):
    full = {"observation": torch.ones(1), "reward": torch.zeros(1)}
    written = [{key: value for key, value in {**full, **each}.items() if value is not None} for each in results]
    ours = Ours(Told(*written))
    ours.group.reset(None, ours.seen)
    for number in range(len(written) - 1):
        ours.step(number)
    with pytest.raises(DataError, match=message):
        ours.step(1)
