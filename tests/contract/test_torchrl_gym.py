"""TorchRL's envs are stepped by the Gymnasium env below them: the frames are those of their own `_step`, bit by bit."""

import multiprocessing
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl import envs
from user_code import torchrlenvs

from collectx.env.base import StepArrays
from collectx.env.spaces import numpy_dtype
from collectx.env.torchrl import gym_stepper
from collectx.env.torchrl.conversion import Conversion, Unrecognised
from collectx.env.torchrl.group import TorchrlEnv

BASES = {
    "one-hot": torchrlenvs.one_hot,
    "categorical": torchrlenvs.walking,
    "box": torchrlenvs.pushing,
    "skipping": partial(torchrlenvs.one_hot, frame_skip=4),
    "device": partial(torchrlenvs.one_hot, device="cpu", from_pixels=False),
    "discrete": torchrlenvs.discrete,
    "dict": torchrlenvs.nested_dict,
    "categorical dict": partial(torchrlenvs.nested_dict, categorical_action_encoding=True),
}
TRANSFORMS = {
    "StepCounter": envs.StepCounter,
    "StepCounter(4)": lambda: envs.StepCounter(4),
    "RewardSum": envs.RewardSum,
    "a name": lambda: envs.RewardSum(in_keys=["reward"], out_keys=["total"]),
    "InitTracker": envs.InitTracker,
    "DoubleToFloat": envs.DoubleToFloat,
}


def _transformed(env, names):
    parts = envs.Compose(*(TRANSFORMS[name]() for name in names))
    return envs.TransformedEnv(env, parts, auto_unwrap=False) if names else env


def _one(base, inner):
    return _transformed(BASES[base](), inner)


def _make(base, layout, inner, outer):
    one = partial(_one, base, inner)
    if layout == "serial":
        return [_transformed(envs.SerialEnv(3, one), outer)]
    if layout == "parallel":
        return [_transformed(envs.ParallelEnv(2, one, mp_start_method="fork"), outer)]
    return [_transformed(one(), outer) for _ in range(layout)]


def _frames(group, num_steps):
    """The arrays of each reset and step, with random actions."""
    spec, size = group.spec, group.spec.num_envs
    out = [np.full((size, *leaf.shape), 7, numpy_dtype(leaf)) for leaf in spec.observation]
    torch.manual_seed(0)
    frames, draw = [], spec.draw()
    group.reset(range(5, 5 + size), out)
    for _ in range(num_steps):
        frames += [array.copy() for array in out]
        ends = np.zeros((2, size), bool)
        reward = np.zeros(size, np.float32)
        group.step([values.numpy() for values in next(draw)], StepArrays(out, reward, *ends, np.ones(size, bool)))
        frames += [array.copy() for array in (*out, reward, *ends)]
        if (ended := ends.any(0)).any():
            group.reset_some(ended, out)
    group.close()
    return frames


TRANSFORM_LISTS = st.lists(
    st.sampled_from([*TRANSFORMS]), unique_by=lambda name: TRANSFORMS[name]().__class__, max_size=4
)


def many(cases):
    return pytest.param(cases, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("cases", [3, many(1000)])
def test_frames_are_those_of_the_envs_own_step(cases):
    @settings(max_examples=cases)
    @given(st.sampled_from([*BASES]), st.sampled_from([1, 2, "serial"]), TRANSFORM_LISTS, st.integers(0, 4))
    def compare(base, layout, transforms, num_inner):
        _compare(base, layout, transforms[:num_inner], transforms[num_inner:])

    compare()


# The processes of TorchRL's side take seconds.
@pytest.mark.parametrize("cases", [pytest.param(2, marks=pytest.mark.ci), many(100)])
def test_frames_of_processes_are_those_of_the_envs_own_step(cases):
    @settings(max_examples=cases)
    @given(st.sampled_from([*BASES]), TRANSFORM_LISTS, st.integers(0, 4))
    def compare(base, transforms, num_inner):
        _compare(base, "parallel", transforms[:num_inner], transforms[num_inner:])

    compare()
    assert not multiprocessing.active_children()


class _InThisProcess(SyncVectorEnv):
    """What Gymnasium's AsyncVectorEnv does, without its processes."""

    def __init__(self, makers, context, **options):
        super().__init__(makers, **options)

    def close(self, timeout):
        super().close()


@pytest.mark.parametrize("base", ["categorical", "box", "dict"])
def test_frames_of_processes_are_those_of_one_process(base, monkeypatch):
    """The rows of bytes between processes, which are left out here."""
    monkeypatch.setattr(gym_stepper, "AsyncVectorEnv", _InThisProcess)
    monkeypatch.setattr(Conversion, "is_light", False)
    both = []
    for vectorize in (envs.ParallelEnv, envs.SerialEnv):
        group = TorchrlEnv([_transformed(vectorize(2, partial(_one, base, ["StepCounter(4)"])), ["RewardSum"])])
        both.append((group.spec.path, _frames(group, 15)))
    (path, frames), (other, expected) = both
    assert (path, other) == ("gymnasium, in a process for each env", "gymnasium")
    for ours, theirs in zip(frames, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def _compare(base, layout, *parts):
    group = TorchrlEnv(_make(base, layout, *parts))
    assert group.spec.path == ("gymnasium, in a process for each env" if layout == "parallel" else "gymnasium")
    frames = _frames(group, 15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conversion, "of", _refuse)
        expected = _frames(TorchrlEnv(_make(base, layout, *parts)), 15)
    assert len(frames) == len(expected)
    for ours, theirs in zip(frames, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def _refuse(*_):
    raise Unrecognised("for comparison")


class Subclass(envs.GymEnv):
    pass


class Doubled(envs.RewardSum):
    pass


def _patched():
    env = torchrlenvs.walking()
    env.read_action = lambda action: 0
    return env


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Subclass("CartPole-v1"), "Subclass is not a TorchRL GymEnv"),
        (lambda: envs.TransformedEnv(torchrlenvs.walking(), Doubled()), "the transform Doubled is not one of"),
        (lambda: torchrlenvs.transformed(torchrlenvs.pushing(), envs.RewardScaling(0, 2)), "RewardScaling"),
        (lambda: _transformed(torchrlenvs.counted(), ["StepCounter"]), "two StepCounter"),
        (lambda: torchrlenvs.walking().set_info_dict_reader(lambda info, data: data), "it reads infos"),
        (lambda: torchrlenvs.sampled(MultiDiscrete([2, 3])), f"its observation space is {MultiDiscrete([2, 3])}"),
        (lambda: envs.ParallelEnv(2, [torchrlenvs.one_hot, partial(_one, "one-hot", [])]), "by different functions"),
        (torchrlenvs.ManyKeys, "ManyKeys is not a TorchRL GymEnv"),
        (_patched, "its method read_action was replaced"),
    ],
)
def test_other_envs_are_stepped_by_themselves(make, reason):
    group = TorchrlEnv([make()])
    assert group.spec.path.startswith("torchrl: ")
    assert reason in group.spec.path
    group.close()


def test_a_batched_env_that_has_started_is_stepped_by_itself():
    env = torchrlenvs.serial()
    assert TorchrlEnv([env], owned=False).spec.path == "gymnasium"
    env.reset()
    group = TorchrlEnv([env], owned=False)
    assert group.spec.path == "torchrl: the SerialEnv has already started. Pass a function that makes it"
    env.close()


def test_small_envs_of_a_parallel_env_need_no_processes():
    group = TorchrlEnv([envs.ParallelEnv(2, partial(envs.GymEnv, "CartPole-v1"))])
    assert group.spec.path.startswith("gymnasium, without processes")
    assert not multiprocessing.active_children()
    group.close()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_an_error_of_an_env_in_its_process_is_raised():
    def failing():
        env = torchrlenvs.walking()
        env._env.unwrapped.step = None
        return env

    group = TorchrlEnv([envs.ParallelEnv(2, failing, mp_start_method="fork")])
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        _frames(group, 1)
    group.close()
    assert not multiprocessing.active_children()
