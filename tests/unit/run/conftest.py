"""Stand-ins for a collector, so that the run's own arithmetic and files are tested without envs or processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from collectx.collector.delivery import Delivery, Part, Timings
from collectx.config import (
    BackendConfig,
    CollectorConfig,
    CountingEnvConfig,
    DevicesConfig,
    LauncherConfig,
    MeterTrainerConfig,
    RandomPolicyConfig,
    RunConfig,
)
from collectx.run import RunFolder


def make_part(worker=0, policy_version=0, frames=10, returns=(), timings=(1.0, 2.0, 3.0, 4.0)):
    lengths = np.full(len(returns), 5)
    return Part(worker, policy_version, frames, Timings(*timings), np.array(returns, float), lengths)


def make_delivery(index=0, parts=(), version=0, waited_s=0.25):
    return Delivery(index, sum(each.frames for each in parts), tuple(parts), version, waited_s)


class FakeCollector:
    """Delivers the given deliveries, each with a batch whose observation is its index."""

    def __init__(self, deliveries, total_frames=-1):
        self.deliveries = list(deliveries)
        self.total_frames = total_frames
        self.published = 0

    def __iter__(self):
        for each in self.deliveries:
            self.delivery = each
            yield TensorDict({"observation": torch.full((each.frames, 3), each.index)}, batch_size=[each.frames])

    def publish(self, policy):
        self.published += 1
        return self.published


@pytest.fixture
def part():
    return make_part


@pytest.fixture
def delivery():
    return make_delivery


@pytest.fixture
def fake_collector():
    return FakeCollector


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.begin()
    return made


@pytest.fixture
def cfg():
    return RunConfig(
        env=CountingEnvConfig("counting", 2, 5, 3, 0.0),
        policy=RandomPolicyConfig("random"),
        collector=CollectorConfig(
            *("single", 1, 20, 100, "random", 2, False, "raise", 10, 60.0, 60.0, 10.0, 1, "sync", None, None, False),
            *(False, "batch", None, None, "padded", False, None),
        ),
        backend=BackendConfig("auto"),
        launcher=LauncherConfig("inline", None, 1, False),
        devices=DevicesConfig("cpu", None, None, None),
        trainer=MeterTrainerConfig("meter", True),
        seed=3,
    )
