"""Errors that are raised while a collector runs: in the language of its user, and about who is at fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collectx import BaseCollector, Collector, MultiSyncCollector, ReplayBuffer, adapt, split_trajectories
from collectx.collector.worker_record import FailurePolicy, WorkerRecord
from collectx.config.problem import setting
from collectx.errors import ConfigError, ShapeError


class _Ending(gymnasium.Wrapper):
    def __init__(self, flag: Any = False, reward: float = 1.0):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._flag, self._reward = flag, reward

    def step(self, action):
        observation, _, _, truncated, info = self.env.step(action)
        return observation, self._reward, self._flag, truncated, info


def _collect(make: Callable[[], gymnasium.Env] = _Ending, policy: Any = None, **keywords: Any) -> Any:
    with Collector(make, policy, frames_per_batch=4, total_frames=4, **keywords) as collector:
        return next(collector)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("flag", ["no", [1, 2]])
def test_the_end_of_an_episode_is_a_bool(flag, num_envs):
    with pytest.raises(ShapeError, match=r"terminated of env 0 must be a bool, but is .* \(step 0 of the batch\)\. "):
        _collect(partial(_Ending, flag), num_envs=num_envs)


@pytest.mark.parametrize("flag", [1, np.array([True]), np.True_])
def test_the_end_of_an_episode_may_be_a_number_or_an_array(flag):
    assert _collect(partial(_Ending, flag))["next", "terminated"].all()


class _Uninformed(_Ending):
    """Returns None in place of an info, from its reset or its step."""

    def __init__(self, method):
        super().__init__(True)
        self._method = method

    def reset(self, **keywords):
        observation, info = super().reset(**keywords)
        return observation, None if self._method == "reset" else info

    def step(self, action):
        *results, info = super().step(action)
        return *results, None if self._method == "step" else info


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_info_is_a_dict(method, num_envs):
    with pytest.raises(
        ShapeError, match=rf"the info of env 0 must be a dict, but is None.* Return {{}} from {method}\(\)"
    ):
        _collect(partial(_Uninformed, method), num_envs=num_envs)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_action_that_does_not_exist_is_the_fault_of_the_policy(num_envs):
    expected = (
        r"the policy returned action 7, which is not in Discrete\(2\).*\(step 0 of the batch\)\. Then the env raised"
    )
    with pytest.raises(ShapeError, match=expected):
        _collect(policy=lambda observation: np.full(observation.shape[:-1], 7), num_envs=num_envs)


def test_errors_of_python_name_keywords():
    with pytest.raises(ShapeError, match=r"allow such values with check_finite=False\.$"):
        _collect(partial(_Ending, reward=np.nan))
    assert setting("env.exclude_keys", ["a"]) == "exclude_keys=['a']"


def test_errors_name_keywords_that_the_newest_collector_lacks():
    """Errors of an earlier collector of another class, after one for evaluation was made."""
    _collect()
    assert setting("collector.worker_timeout_s", 3.0) == "worker_timeout_s=3"


def test_errors_of_a_command_name_options():
    error = RuntimeError()
    policy = FailurePolicy("restart", max_restarts=1)
    policy.decide(WorkerRecord(0), error, num_others=1, num_restarts=1)
    assert "(collector.max_restarts=1, for all workers together)" in error.__notes__[0]
    assert setting("collector.check_finite", False) == "collector.check_finite=false"


def test_the_env_of_the_calling_process_has_the_time_of_the_workers():
    with pytest.raises(TimeoutError, match=r"took more than 0\.1 s \(start_timeout_s=0\.1\)"):
        MultiSyncCollector([partial(time.sleep, 60)], frames_per_batch=4, total_frames=4, start_timeout_s=0.1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(_collect, replay_buffer=[]), ConfigError, r"replay_buffer=\[\] is not a replay buffer"),
        (partial(adapt, 3), ConfigError, "the agent must be .* but is of type int"),
        (partial(split_trajectories, np.zeros(3)), TypeError, "needs a TensorDict, but got a value of type ndarray"),
        (partial(BaseCollector, _Ending, frames_per_batch=4), TypeError, "is the base class of all collectors"),
        (lambda: ReplayBuffer(4)["a"], TypeError, "is indexed by frames"),
        (lambda: ReplayBuffer(4).update_priority([1], [2]), ValueError, "UniformSampler does not use priorities"),
    ],
)
def test_a_wrong_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
