"""What a worker answers between two batches, from envs that are plain objects."""

import datetime
from collections import OrderedDict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.transport.base import Request
from collectx.user_objects import Hooks
from collectx.worker.batch_hooks import BatchHooks
from collectx.worker.requests import RequestHandler, is_data, reply_without_state


class Link(list):
    """A list of replies, each with its error."""

    def reply(self, value, error=None):
        self.append((value, error))


class Rollout:
    """A rollout that has a state, unless there is a `reason` why not."""

    def __init__(self, *envs, reason=None):
        self.group = SimpleNamespace(user_envs=envs, size=3)
        self.reason, self.loaded, self.restarted = reason, [], []

    def state(self):
        return {"reason": self.reason} if self.reason else {"envs": b"all of it"}

    def load(self, state):
        self.loaded.append(state)
        return state.get("reason")

    def reset_some(self, chosen):
        self.restarted.append(chosen.tolist())


class Generators(Rollout):
    def load(self, state, rollout):
        self.loaded.append((state, rollout))


def handler(*envs, reason=None, generators=None, rollout=None):
    rollout, around = rollout or Rollout(*envs, reason=reason), BatchHooks(0, Hooks(), lambda slot, steps: None)
    return RequestHandler(generators or Generators(), rollout, around, dict, False)


class Counter:
    """An env that saves `value`."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.value = state


@dataclass
class Pair:
    one: object
    other: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((each, True) for each in (1, "a", None, np.zeros(2), torch.ones(1), torch.int8, spaces.Discrete(2))),
        *((each, True) for each in ([1, (2, {"a": {3}})], deque([1]), Pair(1, "a"), datetime.date.today())),
        *((each, False) for each in (print, object(), Pair, [1, print], {"a": print}, {print: 1}, Pair(1, print))),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_as_good_as_a_copy_is_data(value, expected):
    assert is_data(value) is expected


@pytest.mark.parametrize(
    ("value", "reason", "is_saved"),
    [
        ({"at": [1.0, torch.ones(1)]}, None, True),
        (OrderedDict(at=(None, "a", True)), None, True),
        ({3: np.float32(0.1)}, None, True),
        ({3, 1}, None, False),
        # Without the envs' bytes, what is no plain data is pickled.
        ({3, 1}, "it has a lock", True),
    ],
    ids=str,
)
def test_envs_that_save_themselves_are_restored_where_they_cannot_be_pickled(value, reason, is_saved):
    made = handler(Counter(value), reason=reason)
    state = made.state()
    assert ("env_state_dict" in state) is is_saved
    assert isinstance(state.get("env_state_dict"), torch.Tensor) == (is_saved and reason is not None)
    env, generators = Counter("new"), Generators()
    assert handler(env, generators=generators).load(state) == reason
    assert (env.value == "new") is (reason is None)
    # The generators are those of an env that was restored.
    assert len(generators.loaded) == (reason is None)
    assert "env_state_dict" not in handler(SimpleNamespace(state_dict=dict), reason=reason).state()


def test_a_state_of_envs_is_a_copy_and_its_errors_are_told():
    env = Counter({"at": [1]})
    state = handler(env).state()
    env.value["at"].append(2)
    assert state["env_state_dict"] == [{"at": [1]}]

    def fails():
        raise OSError("no way")

    env.state_dict = fails
    assert "env_state_dict" not in handler(env).state()
    reason = handler(env, reason="it has a lock").state()["rollout"]["reason"]
    assert reason == "it has a lock; saving their state_dict failed too: OSError: no way"
    damaged = {"env_state_dict": torch.zeros(3, dtype=torch.uint8), "rollout": {"reason": "it has a lock"}}
    assert "the state_dict of the envs" in handler(Counter(1)).load(damaged)


def test_envs_are_restarted_and_a_worker_that_runs_a_collector_has_no_state():
    rollout, link = Rollout(), Link()
    handler(rollout=rollout).reply(link, Request("reset_some", ([True, False],)))
    assert rollout.restarted == [[True, False]]
    for name in ("ready", "state", "getattr_env"):
        reply_without_state(link, Request(name, ()))
    assert link[:3] == [(None, None)] * 3
    assert "getattr_env cannot be used, because your collector_class" in str(link[3][1])
