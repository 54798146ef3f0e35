"""What user code raises in a worker arrives at whoever uses the collector as it was raised, wherever the worker is."""

from __future__ import annotations

import os
import re

import gymnasium
import pytest
import torch
import ways
from collecting import faulty, start
from making import make
from torch import nn
from ways import case, over
from worlds.cartpoles import cartpole
from worlds.faulty import Unpicklable

import collectx
from collectx.errors import WorkerDied, WorkerError


class OddError(Exception):
    """Takes arguments that pickle does not know of, and is a class that workers cannot import."""

    def __init__(self, *, code: int):
        super().__init__()
        self.code = code

    def __str__(self):
        return f"code {self.code}"


def raise_it():
    raise OddError(code=7)


class Raising(gymnasium.Wrapper):
    """Raises in one of its methods, and in its constructor not in the process `spared`."""

    def __init__(self, env, where, spared):
        super().__init__(env)
        self.where = where
        if where == "init" and os.getpid() != spared:
            raise_it()

    def reset(self, **kwargs):
        return raise_it() if self.where == "reset" else super().reset(**kwargs)

    def step(self, action):
        return raise_it() if self.where == "step" else super().step(action)


class RaisingPolicy(nn.Module):
    """Raises from its third call on: the first ones, on zeros, only ask what it writes."""

    calls = 0

    def forward(self, observation):
        self.calls += 1
        return raise_it() if self.calls > 2 else torch.zeros(observation.shape[0], dtype=torch.int64)


@pytest.mark.parametrize(
    ("way", "where"),
    [
        *(case(ways.SINGLE, where) for where in ("init", "reset", "step", "policy")),
        *(case(ways.INLINE_ASYNC, where) for where in ("reset", "step", "policy")),
        case(ways.SHARED_SYNC, "init", tier="test"),
        case(ways.SHARED_SYNC, "policy"),
        case(ways.SHARED_ASYNC, "reset"),
        case(ways.GLOO_SYNC, "step"),
        case(ways.GLOO_ASYNC, "init"),
        case(ways.RPC_ASYNC, "step"),
        case(ways.RAY_SYNC, "init", tier="ci"),
    ],
)
def test_an_error_keeps_its_type_contents_and_place(way, where):
    spared = -1 if way is ways.SINGLE else os.getpid()
    policy = RaisingPolicy() if where == "policy" else None
    with (
        pytest.raises(OddError, match="code 7") as caught,
        make(way, lambda: Raising(cartpole(), where, spared), policy, frames_per_batch=20) as collector,
    ):
        next(collector)
    assert caught.value.code == 7
    place = "".join(getattr(caught.value, "__notes__", [])) + "".join(map(str, caught.traceback))
    assert "raise_it" in place
    if way.place != "inline":
        assert re.search(r"raised in worker [01]\b", place)


FAULTS = {
    "builtin": (ZeroDivisionError, "divided by zero"),
    "stop_iteration": (RuntimeError, "StopIteration"),
    "unpicklable": (Unpicklable, "holds a lock"),
    # Of the worker's process.
    "exits": (WorkerError, "SystemExit"),
    "killed": (WorkerDied, r"worker [01] \(log: .*/worker-[01].log\)"),
}


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        *(case(ways.INLINE_SYNC, fault) for fault in list(FAULTS)[:3]),
        *(case(way, fault) for way in (ways.SHARED_SYNC, ways.GLOO_ASYNC) for fault in FAULTS),
    ],
)
def test_an_env_that_fails_in_an_unusual_way_is_named(way, fault, tmp_path):
    error, message = FAULTS[fault]
    with (
        start(way.kind, way.place, faulty(fault), log_dir=tmp_path) as collector,
        pytest.raises(error, match=message),
    ):
        list(collector)


@over([ways.SHARED_SYNC, ways.GLOO_SYNC])
@pytest.mark.parametrize("is_filtered", [True, False])
def test_warnings_of_workers_are_filtered_on_request(way, is_filtered, tmp_path, monkeypatch):
    assert collectx.filter_warnings_subprocess
    monkeypatch.setattr(collectx, "filter_warnings_subprocess", is_filtered)
    with start(way.kind, way.place, faulty("warns"), frames_per_batch=20, log_dir=tmp_path) as collector:
        next(collector)
    assert ("the env warns" in (tmp_path / "worker-0.log").read_text()) is not is_filtered
