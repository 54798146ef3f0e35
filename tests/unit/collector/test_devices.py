"""Which GPUs workers see. There is none here: what counts is what their processes are told."""

from __future__ import annotations

import os
import re

import pytest
import torch
from worlds.seeing import NONE, Seeing, seen_by

from collectx import RPCCollector
from collectx.cli.compose import compose
from collectx.collector.remote import _see
from collectx.errors import ConfigError, RendezvousError


def rpc(visible, **keywords):
    keywords = {"frames_per_batch": 20, "sync": True, "launcher": "mp"} | keywords
    return RPCCollector([Seeing] * 2, visible_devices=visible, **keywords)


@pytest.mark.ci
@pytest.mark.parametrize("inner", [1, 2])
def test_a_worker_sees_the_gpu_that_is_its_own(inner, monkeypatch):
    # The trainer believes that it has some.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    keywords = {"num_workers_per_collector": inner, "frames_per_batch": 40}
    assert seen_by(rpc(["cuda:1", 0], **keywords)) == [[1.0], [0.0]]
    assert seen_by(rpc(["cpu", "cuda:2"], **keywords)) == [[NONE], [2.0]]


def test_gpus_are_counted_among_those_that_its_host_gives_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    _see({"visible_device": None})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,3"
    with pytest.raises(RendezvousError, match=r"is to see cuda:2, and its host gives it CUDA_VISIBLE_DEVICES=5,3"):
        _see({"visible_device": "cuda:2"})
    _see({"visible_device": "cuda:1"})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


WRONG = {
    "another number": ({"visible": ["cpu"]}, r"^visible_devices has 1 entries for 2 workers: one for each"),
    "not here": ({"visible": ["cpu", "cuda:7"]}, r"^visible_devices=.*no such device here"),
    "no device": ({"visible": ["cpu", "gpu"]}, r"^visible_devices=.*gpu"),
    "acts on none": (
        {"visible": ["cpu", "cpu"], "policy_device": "cuda"},
        r"policy of worker 0 acts on cuda, and cpu is",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_told_before_anything_starts(case):
    keywords, told = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        rpc(**keywords)
    assert any(re.search(told, problem) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("backend.visible_devices=[cuda:0,gpu]", r"^backend\.visible_devices=.*must be a list"),
        ("backend.visible_devices=[cuda:0]", r"^backend\.visible_devices has 1 entries for 2 workers"),
        (
            "backend.visible_devices=[cuda:0,cuda:1] devices.policy_device=cuda:0",
            r"worker 1 acts on cuda:0, and cuda:1",
        ),
    ],
)
def test_in_yaml(line, told):
    with pytest.raises(ConfigError) as caught:
        compose(["collector=rpc", "backend=rpc", *line.split()])
    assert any(re.search(told, problem) for problem in caught.value.problems), caught.value.problems
    compose(["collector=rpc", "backend=rpc", "backend.visible_devices=[cuda:0,cuda:1]", "devices.policy_device=cuda"])
