"""What user code raises in a worker arrives at whoever uses a collector as it was raised, wherever that was."""

from __future__ import annotations

import os

import gymnasium
import pytest
import torch
from collecting import WAYS, faulty, start
from torch import nn

import collectx

torch.set_num_threads(1)

PLACES = ["init", "reset", "step", "policy"]


class OddError(Exception):
    """Takes arguments that pickle does not know of."""

    def __init__(self, *, code: int):
        super().__init__()
        self.code = code

    def __str__(self):
        return f"code {self.code}"


def raise_it():
    raise OddError(code=7)


class Raising(gymnasium.Wrapper):
    """Raises in one of its methods, but not in the process `spared`."""

    def __init__(self, env, where, spared):
        super().__init__(env)
        self.where = where
        if where == "init" and os.getpid() != spared:
            raise_it()

    def reset(self, **kwargs):
        if self.where == "reset":
            raise_it()
        return super().reset(**kwargs)

    def step(self, action):
        if self.where == "step":
            raise_it()
        return super().step(action)


class RaisingPolicy(nn.Module):
    """Raises from its second call on: the first, on zeros, only asks what it writes."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, observation):
        self.calls += 1
        if self.calls > 2:
            raise_it()
        return torch.zeros(observation.shape[0], dtype=torch.int64)


# Every place in this process and in another, every way from one.
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((kind, where) for kind in ("single", "multi_sync") for where in PLACES),
        ("multi_async", "step"),
        ("distributed", "init"),
        ("distributed", "policy"),
        ("distributed_sync", "reset"),
        ("rpc", "step"),
        ("rpc_sync", "policy"),
    ],
)
def test_an_error_keeps_its_type_contents_and_place(kind, where):
    spared = -1 if kind == "single" else os.getpid()

    def create():
        return Raising(gymnasium.make("CartPole-v1"), where, spared)

    policy = RaisingPolicy() if where == "policy" else None
    keywords = {"launcher": "mp"} if kind.startswith(("distributed", "rpc")) else {}
    create = [create] if kind.startswith("multi") else create
    with (
        pytest.raises(OddError, match="code 7") as caught,
        WAYS[kind](create, policy, frames_per_batch=10, **keywords) as collector,
    ):
        collector.next()
    assert caught.value.code == 7
    told = "".join(getattr(caught.value, "__notes__", [])) + "".join(map(str, caught.traceback))
    assert "raise_it" in told
    if kind != "single":
        assert "raised in worker 0" in told


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async"])
def test_a_class_that_only_the_trainer_has_keeps_its_type(kind):
    class Local(Exception):
        pass

    class Failing(gymnasium.Wrapper):
        def step(self, action):
            raise Local("here")

    with (
        WAYS[kind]([lambda: Failing(gymnasium.make("CartPole-v1"))], frames_per_batch=10) as collector,
        pytest.raises(Local, match="here"),
    ):
        collector.next()


@pytest.mark.parametrize(
    ("kind", "is_filtered"), [("multi_sync", True), ("multi_sync", False), ("distributed_sync", True)]
)
def test_warnings_of_workers_are_filtered_unless_they_are_wanted(kind, is_filtered, tmp_path, monkeypatch):
    assert collectx.filter_warnings_subprocess
    monkeypatch.setattr(collectx, "filter_warnings_subprocess", is_filtered)
    with start(kind, "local", faulty("warn"), frames_per_batch=20, log_dir=tmp_path) as collector:
        next(collector)
    assert ("the env warns" in (tmp_path / "worker-0.log").read_text()) is not is_filtered
