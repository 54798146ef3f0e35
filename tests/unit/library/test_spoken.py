"""Errors that are raised while a collector runs: in the language of its user, and about who is at fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from collectx import (
    BaseCollector,
    Collector,
    DistributedSyncCollector,
    MultiSyncCollector,
    ReplayBuffer,
    adapt,
    split_trajectories,
)
from collectx.cli.compose import compose
from collectx.collector.worker_record import FailurePolicy, WorkerRecord
from collectx.config.problem import naming, opt, use
from collectx.errors import ConfigError, DataError, TrainingDivergedError
from collectx.library.keyword_fields import names_of
from collectx.library.keywords import DistributedKeywords, SingleKeywords


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
@pytest.mark.parametrize("flag", ["no", [1, 2], 2, 0.5, 1.0, np.float32([1])])
def test_the_end_of_an_episode_is_a_bool(flag, num_envs):
    with pytest.raises(DataError, match=r"in step 0 of the batch, terminated of env 0 must be a bool, but is .*\. "):
        _collect(partial(_Ending, flag), num_envs=num_envs)


def test_a_reward_in_place_of_the_end_of_an_episode_is_found_in_a_vector_env():
    make = partial(gymnasium.vector.SyncVectorEnv, [partial(_Ending, 0.5)] * 2)
    with pytest.raises(DataError, match=r"terminated of env 0 must be a bool, but is 0\.5\. .* in this order"):
        _collect(make)


class _Exchanged(gymnasium.vector.VectorEnv):
    """Returns rewards and ends of episodes in each other's place."""

    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 3), np.float32), np.zeros(2, bool), np.float32([0, 0.5]), np.zeros(2, bool), {}


def test_a_vector_env_that_exchanges_rewards_and_ends_is_refused():
    with pytest.raises(DataError, match=r"terminated of env 0 must be a bool, but is (np\.float32\()?0\.0"):
        _collect(_Exchanged)


@pytest.mark.parametrize("flag", [1, np.array([True]), np.int8([[1]]), np.True_, torch.tensor(True)])
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
        DataError, match=rf"the info of env 0 must be a dict, but is None.* Return {{}} from {method}\(\)"
    ):
        _collect(partial(_Uninformed, method), num_envs=num_envs)


@pytest.mark.parametrize(
    ("make", "keywords"),
    [
        (_Ending, {"num_envs": 1}),
        (_Ending, {"num_envs": 2}),
        (partial(gymnasium.vector.SyncVectorEnv, [_Ending] * 2), {}),
    ],
)
def test_an_action_that_does_not_exist_is_the_fault_of_the_policy(make, keywords):
    expected = (
        r"^in step 0 of the batch, the policy returned action 7, which is not in Discrete\(2\).*Then the env raised .*"
        r"\. Return an action from 0 to 1\.$"
    )
    with pytest.raises(DataError, match=expected):
        _collect(make, lambda observation: np.full(observation.shape[:-1], 7), **keywords)


def test_errors_of_python_name_keywords():
    with pytest.raises(DataError, match=r"allow such values with check_finite=False\.$"):
        _collect(partial(_Ending, reward=np.nan))


@pytest.mark.parametrize(
    "make_collector",
    [MultiSyncCollector, pytest.param(partial(DistributedSyncCollector, launcher="mp"), marks=pytest.mark.ci)],
    ids=["shared memory", "network"],
)
def test_errors_of_a_worker_process_name_keywords_in_message_and_traceback(make_collector):
    make = partial(_Ending, reward=np.nan)
    with (
        make_collector([make], frames_per_batch=4, total_frames=4) as collector,
        pytest.raises(DataError) as caught,
    ):
        next(collector)
    for text in (str(caught.value), caught.value.__notes__[-1]):
        assert "allow such values with check_finite=False." in text
        assert "collector.check_finite=false" not in text


class _Greedy(nn.Linear):
    """Returns the action with the highest value."""

    def forward(self, observation):
        return super().forward(observation).argmax(-1)


def test_errors_of_a_publish_name_keywords():
    policy = _Greedy(4, 2)
    with Collector(_Ending, policy, frames_per_batch=4, total_frames=4) as collector:
        nn.init.constant_(policy.bias, np.inf)
        with pytest.raises(TrainingDivergedError, match=r"such weights only with check_finite=False\.$"):
            collector.update_policy_weights_()


def _named(word: str, keywords: Any = SingleKeywords) -> str:
    """Returns an option as the messages of a collector with these keywords name it."""
    with naming(names_of(keywords)):
        return opt(word)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("env.exclude_keys=[a,b]", "exclude_keys=['a', 'b']"),
        ("env.info_keys=[{a: [float32, 3]}]", "info_keys=[{'a': ['float32', 3]}]"),
        ("collector.check_finite=false", "check_finite=False"),
        ("collector.max_policy_lag=null", "max_policy_lag=None"),
        ("collector.worker_timeout_s=3", "worker_timeout_s=3"),  # `Collector` has no such keyword
        ("env.wrappers=[ClipAction]", "ClipAction"),
        ("env.autoreset_mode=disabled", "autoreset_mode=AutoresetMode.DISABLED"),
        ("collector=single", "Collector"),
    ],
)
def test_an_option_has_pythons_words(word, expected):
    assert _named(word) == expected


def test_an_option_has_the_keyword_of_the_class():
    words = ("backend.port=1", "launcher=local", "launcher.sbatch.gres")
    assert [_named(word, DistributedKeywords) for word in words] == ["tcp_port=1", "launcher='mp'", "slurm_kwargs.gres"]


def test_remedies_without_a_keyword_are_left_out():
    with naming(names_of(SingleKeywords)):
        assert use("collector.overlap=0", "collector.reset_at_each_iter=false") == "use reset_at_each_iter=False."
        assert use("collector.overlap=0", "inference=none") == "leave it out."
    assert use("collector.overlap=0", "a=1", "b=2") == "use collector.overlap=0, a=1, or b=2."


def test_errors_of_a_command_name_options():
    """A command may run in a process that has collectors of the library."""
    with pytest.raises(DataError):
        _collect(partial(_Ending, reward=np.nan))
    error = RuntimeError()
    policy = FailurePolicy("restart", max_restarts=1)
    policy.decide(WorkerRecord(0), error, num_others=1, num_restarts=1)
    assert "(collector.max_restarts=1, for all workers together)" in error.__notes__[0]


def test_an_env_that_composes_a_configuration_reads_the_names_of_options():
    with pytest.raises(ConfigError, match=r"^collector\.num_workers=0 must be at least 1\. For no workers, use "):
        _collect(lambda: compose(["collector.num_workers=0"]))


def test_a_value_with_spaces_is_quoted_for_the_shell():
    assert opt("env.info_keys=[{a: int64}]") == "'env.info_keys=[{a: int64}]'"


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
