"""Stand-ins for a collector, so that the run's own arithmetic and files are tested without envs or processes."""

from __future__ import annotations

from dataclasses import replace

import collecting
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from collectx import trainer as trainers
from collectx.collector.delivery import Delivery, Part, Timings
from collectx.config import MeterTrainerConfig
from collectx.run import RunFolder


def make_part(worker=0, policy_version=0, frames=10, returns=(), timings=(1.0, 2.0, 3.0, 4.0)):
    lengths = np.full(len(returns), 5)
    return Part(worker, policy_version, frames, Timings(*timings), np.array(returns, float), lengths)


def make_delivery(index=0, parts=(), version=0, waited_s=0.25):
    return Delivery(index, sum(each.frames for each in parts), tuple(parts), version, waited_s)


class FakeCollector:
    """Delivers these deliveries, each with a batch whose observation is its index."""

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
    """One worker in this process: 5 batches of 20 frames, which are digested."""
    size = {"num_workers": 1, "frames_per_batch": 20, "total_frames": 100, "device": "cpu"}
    made = collecting.config("single", "inline", collecting.counting(2, 5, 3), seed=3, **size)
    return replace(made, trainer=MeterTrainerConfig("meter", digest=True))


@pytest.fixture
def clock():
    """Goes on by one second whenever it is read."""
    return iter(range(100, 200)).__next__


class Meter:
    """A trainer that counts, and has a state."""

    def __init__(self):
        self.frames = 0
        self.batches = []

    def train(self, collection):
        for batch in collection:
            self.batches.append(batch)
            self.frames += batch.numel()
            collection.log(frames=self.frames)

    def state_dict(self):
        return {"frames": self.frames, "weight": torch.ones(2)}


@pytest.fixture
def train_with(monkeypatch):
    """`train_with(train)` makes runs use a `Meter` whose `train(collection)` is that function; its own by default."""

    def use(train=None):
        trainer = Meter()
        if train is not None:
            trainer.train = train
        monkeypatch.setattr(trainers, "build", lambda *arguments: trainer)
        return trainer

    return use
