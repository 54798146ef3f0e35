"""Stand-ins for what a collector delivers and for trainers: the run's own arithmetic and files, without processes."""

from dataclasses import replace

import configurations
import numpy as np
import pytest
import torch

from collectx import trainer as trainers
from collectx.collector.batch_info import BatchInfo
from collectx.config.schema.trainer import TrainerConfig
from collectx.run import RunFolder
from collectx.transport.base import Arrival, SlotReport


def _part(worker=0, policy_version=0, frames=10, returns=(), timings=(1.0, 2.0, 3.0, 4.0)):
    episodes = np.array(returns, float), np.full(len(returns), 5)
    return Arrival(worker, 0, SlotReport(policy_version, frames, *timings[:2], *episodes, *timings[2:]))


@pytest.fixture
def batch_info():
    """`batch_info(index, {"worker": 1, "frames": 20}, ...)`; what a part lacks has a default."""

    def make(index, *parts, version=0):
        parts = [_part(**part) for part in parts or [{}]]
        return BatchInfo(index, sum(part.report.frames for part in parts), tuple(parts), version, waited_s=0.25)

    return make


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.begin()
    return made


@pytest.fixture
def cfg():
    """One worker in this process: 5 batches of 20 frames, which are digested."""
    size = {"num_workers": 1, "frames_per_batch": 20, "total_frames": 100, "device": "cpu"}
    made = configurations.config("single", "inline", configurations.counting(2, 15, 3), seed=3, **size)
    return replace(made, trainer=TrainerConfig(kind="meter", digest=True))


class Meter:
    """A trainer that counts, and has a state."""

    def __init__(self):
        self.batches = []

    def train(self, collection):
        for batch in collection:
            self.batches.append(batch)
            collection.log(frames=collection.frames)

    def state_dict(self):
        return {"batches": len(self.batches), "weight": torch.ones(2)}


@pytest.fixture
def train_with(monkeypatch):
    """`train_with(train)` makes runs use a `Meter` whose `train(collection)` is that function; its own by default."""

    def use(train=None):
        trainer = Meter()
        trainer.train = train or trainer.train
        monkeypatch.setattr(trainers, "build", lambda *arguments: trainer)
        return trainer

    return use
