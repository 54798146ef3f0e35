"""What a worker answers between two batches, from envs that are plain objects."""

import datetime
from collections import OrderedDict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from collectx.errors import ShapeError
from collectx.transport.base import Request
from collectx.user_objects import Hooks
from collectx.worker import batch_hooks
from collectx.worker.batch_hooks import BatchHooks
from collectx.worker.requests import RequestHandler, is_data, load_into, reply_without_state, resolve


class Link(list):
    """The replies, each with its error."""

    def reply(self, value, error=None):
        self.append((value, error))


class Rollout:
    """Its state; `reason`: why it has none."""

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


def hooked(batch, hooks=None):
    """Returns the hooks around batches that all are this one."""
    return BatchHooks(0, hooks or Hooks(), lambda slot, steps: batch)


def handler(*envs, around=None, is_inline=False, reason=None, generators=None, rollout=None):
    rollout = rollout or Rollout(*envs, reason=reason)
    return RequestHandler(generators or Generators(), rollout, around or hooked(None), dict, is_inline)


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


def test_paths_lead_to_attributes_and_items():
    env = SimpleNamespace(shape=[3, 4], spaces={"a": SimpleNamespace(n=5), "b c": 6})
    paths = {"shape[0]": 3, "shape[-1]": 4, "spaces['a'].n": 5, 'spaces["b c"]': 6, ".shape": env.shape}
    assert {path: resolve(env, path) for path in paths} == paths
    for path in ("", "shape[", "a b", "spaces['b c']x y", "shape.[0]"):
        with pytest.raises(AttributeError):
            resolve(env, path)
    with pytest.raises(LookupError):
        resolve(env, "shape[2]")


def test_a_path_begins_in_the_outermost_layer_that_has_its_first_attribute():
    inner = SimpleNamespace(size=[1], net=nn.Linear(1, 1), depth=0)
    env = SimpleNamespace(env=inner, depth=1)
    found = [handler(env).getattr_env(path) for path in ("size[0]", ".size[0]", "depth", "env.depth")]
    assert found == [1, 1, 1, 0]
    for path in ("none.size", "[0]"):
        with pytest.raises((AttributeError, TypeError)):
            handler(env).getattr_env(path)
    new = nn.Linear(1, 1).state_dict()
    handler(env).load_weights("net", new)
    assert torch.equal(inner.net.state_dict()["weight"], new["weight"])


def test_attributes_of_one_env_of_several_and_of_a_group_without_any():
    one, other = SimpleNamespace(size=1, close=print, made=object()), SimpleNamespace(size=2, close=print, made=None)
    asked = {("size",): [1, 2], (): [one, other]}
    for arguments, values in asked.items():
        link = Link()
        for envs in ([one], [one, other]):
            handler(*envs).reply(link, Request("getattr_env" if arguments else "envs", arguments))
        assert link == [(values[0], None), (values, None)]
    assert handler().getattr_env("size") == 3
    assert handler(one, is_inline=True).getattr_env("close") is print
    for envs, path, words in (
        ([one], "close", "'close' is a method in the worker's env"),
        ([other, one], "made", "'made' is an object of type object in the worker's env"),
    ):
        link = Link()
        handler(*envs).reply(link, Request("getattr_env", (path,)))
        ((value, error),) = link
        assert (value, type(error)) == (None, TypeError)
        assert words in str(error)


def test_weights_are_copied_into_the_module_of_every_env():
    envs = [SimpleNamespace(net=nn.Linear(1, 1)) for _ in range(2)]
    new = nn.Linear(1, 1).state_dict()
    handler(*envs).load_weights("net", new)
    assert [env.net.weight.item() for env in envs] == [new["weight"].item()] * 2
    with pytest.raises(TypeError, match=r"'net\.weight' is of type Parameter, not a torch\.nn\.Module"):
        load_into(envs[0], "net.weight", new)


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


def batch():
    return TensorDict({"action": torch.zeros(2, 3), "next": {"reward": torch.zeros(2, 3, 1)}}, [2, 3])


def test_hooks_change_a_batch_and_add_to_it():
    calls, written, score = [], [], torch.full((2, 3, 4), 5.0)

    def after(seen):
        seen["action"] = torch.ones(2, 3)
        seen["next", "reward"] += 2
        seen["own", "score"] = score

    made = batch()
    hooks = Hooks(pre_collect_hook=lambda: calls.append(None), post_collect_hook=after, write_batch=written.append)
    one = hooked(made, hooks)
    one.before_batch()
    added = one.after_batch(0, 3)
    assert (len(calls), made["action"].unique().tolist(), made["next", "reward"].unique().tolist()) == (1, [1.0], [2.0])
    score.fill_(6.0)  # as a hook that uses its memory again
    assert {key: value.shape for key, value in added.items()} == {("own", "score"): (2, 3, 4)}
    assert added["own", "score"].unique().tolist() == [5.0]
    assert [*made.keys()] == ["action", "next"]
    assert written[0]["own", "score"].unique().tolist() == [5.0]
    handler(around=one).set_hook("post_collect_hook", Hooks())
    assert one.after_batch(0, 3) == {}
    assert [*written[1].keys()] == ["action", "next"]
    for change, words in (
        (lambda seen: seen.set("action", torch.zeros(2, 3, 1)), r"must keep 'action' a tensor of shape \[2, 3\]"),
        (lambda seen: seen.set("words", "text"), r"added 'words', which is of type NonTensorData"),
    ):
        with pytest.raises(ShapeError, match=words):
            hooked(batch(), Hooks(post_collect_hook=change)).after_batch(0, 3)
    assert hooked(batch()).after_batch(0, 3) == {}


def test_envs_are_restarted_and_a_worker_that_runs_a_collector_has_no_state():
    rollout, link = Rollout(), Link()
    handler(rollout=rollout).reply(link, Request("reset_some", ([True, False],)))
    assert rollout.restarted == [[True, False]]
    for name in ("ready", "state", "getattr_env"):
        reply_without_state(link, Request(name, ()))
    assert link[:3] == [(None, None)] * 3
    assert "getattr_env cannot be used, because your collector_class" in str(link[3][1])


def test_a_profile_ends_by_itself_or_early(monkeypatch):
    calls, steps = [], [True, False]

    class Profiling:
        def __init__(self, worker, config):
            calls.append((worker, config))

        def step(self):
            calls.append("step")
            return steps.pop(0)

        def end(self):
            calls.append("end")

    monkeypatch.setattr(batch_hooks, "Profiling", Profiling)
    around = hooked(batch())
    made = handler(around=around)
    made.end_profile()
    made.profile("config")
    for _ in range(3):
        around.after_batch(0, 3)
    assert calls == [(0, "config"), "step", "step"]
    made.end_profile()
    made.profile("config")
    for _ in range(2):
        made.end_profile()
    assert calls[3:] == [(0, "config"), "end"]


def test_the_first_that_is_no_data_is_named():
    envs = [SimpleNamespace(made=each) for each in (1, print, object())]
    with pytest.raises(TypeError, match="'made' is a method in the worker's env"):
        handler(*envs).getattr_env("made")
    with pytest.raises(TypeError, match="'made' is an object of type object in the worker's env"):
        handler(*reversed(envs)).getattr_env("made")
