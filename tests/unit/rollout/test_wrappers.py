"""The wrappers of env groups: their leaves, what they write, and what a saved group may contain."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from configurations import counting
from env_stepping import Stepper
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.env import build
from collectx.env.base import Env, EnvSpec
from collectx.errors import NotRestorableError
from collectx.policy.recurrent import StateSpec
from collectx.rollout.wrappers import RecurrentStateEnv, RolloutOptions, TimeLimitEnv, keep_options

STEP_COUNT = Leaf(("step_count",), (1,), torch.int64)
SEEN = Leaf(("observation",), (1,), torch.float32)
ACTION = Leaf(("action",), (), torch.int64)
SPEC = EnvSpec(2, (SEEN,), (ACTION,), spaces.Box(0, 1, (1,)), spaces.Discrete(2))


@pytest.mark.parametrize("limit", [None, 3])
def test_a_time_limit_adds_an_observation(limit):
    found, added = RolloutOptions(True, limit).env_spec(SPEC), (STEP_COUNT,) * (limit is not None)
    assert found == replace(SPEC, observation=(*SPEC.observation, *added))


class Group(Env):
    """Two envs, the second of which ends after two steps. In a ragged group, its next step is a reset. It observes its
    steps, and the state `h`, to which it writes 5; it tells what it wrote."""

    def __init__(self, ragged):
        observed = (SEEN, Leaf(("h",), (2,), torch.float32))
        self.spec = replace(SPEC, observation=observed, ragged=ragged, can_reset_early=not ragged)
        self.t, self.closed = np.zeros(2), False

    def reset(self, seeds, out):
        self.reset_some(np.ones(2, bool), out)

    def reset_some(self, ended, out):
        self.t[ended] = 0
        out[0][ended] = 0
        out[1][ended] = 5

    def step(self, action, out):
        assert len(out.observation) == 2
        resets = self.t >= [9, 2] if self.spec.ragged else np.zeros(2, bool)
        out.frame[:] = ~resets
        self.t = np.where(resets, 0, self.t + 1)
        out.observation[0][:, 0] = self.t
        out.observation[1][:] = 5
        out.reward[:] = self.t
        out.terminated[:] = (self.t >= [9, 2]) & ~resets
        return bool(out.terminated.any())

    def close(self):
        self.closed = True


STATES = [
    StateSpec(Leaf(("h",), (2,), torch.float32), None, True),
    StateSpec(Leaf(("c",), (2,), torch.float32), torch.tensor([1.0, 2.0]), True),
    StateSpec(Leaf(("is_init",), (1,), torch.bool), torch.ones(1, dtype=torch.bool), False),
]


@pytest.mark.parametrize("ragged", [False, True])
def test_the_states_of_a_policy_begin_anew_with_each_episode(ragged):
    group = Group(ragged)
    env = RecurrentStateEnv(group, STATES)
    assert [leaf.key[0] for leaf in env.spec.observation] == ["observation", "h", "c", "is_init"]
    assert env.group is group
    stepper, seen = Stepper(env).reset(), []
    assert [array[1].tolist() for array in stepper.observation] == [[0], [5, 5], [1, 2], [True]]
    for _ in range(5):
        # The policy writes its states below `next`, before the env steps.
        stepper.step()
        seen.append([array[1].tolist() for array in stepper.observation[1:]] + [bool(stepper.out.frame[1])])
        assert [array[0].tolist() for array in stepper.observation[1:]] == [[0, 0], [0, 0], [False]]
    during, begun = [[0, 0], [0, 0], [False], True], [[5, 5], [1, 2], [True], not ragged]
    assert seen == ([during, during, begun, during, during] if ragged else [during, begun, during, begun, during])
    env.close()
    assert group.closed


def limited(frames, count=1):
    env = build(counting(1))
    for _ in range(count):
        env = TimeLimitEnv(env, replace(env.spec, observation=(*env.spec.observation, STEP_COUNT)), frames)
    return env


def test_a_saved_group_gets_the_current_options_if_it_has_the_same_wrappers():
    loaded = limited(9)
    stepper = Stepper(loaded).reset()
    stepper.step()
    keep_options(loaded, limited(3))
    assert [bool(stepper.step().truncated[0]) for _ in range(2)] == [False, True]
    plain = build(counting(1))
    keep_options(plain, build(counting(1)))
    for saved, current in (
        (limited(3), plain),
        (plain, limited(3)),
        (limited(3), limited(3, 2)),
        (limited(3, 2), limited(3)),
    ):
        with pytest.raises(NotRestorableError, match="the saved envs had other wrappers"):
            keep_options(saved, current)
    with pytest.raises(NotRestorableError, match="other wrappers"):
        keep_options(limited(3), RecurrentStateEnv(build(counting(1)), STATES[1:]))
