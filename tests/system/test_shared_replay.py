"""Trainers whose replay buffer the workers write to themselves."""

from __future__ import annotations

import pytest
import torch
from composing import composed

from collectx import ReplayBuffer
from collectx import trainer as trainers
from collectx.run import RunFolder, Status, execute

FEW = "env=counting env.num_envs=2 policy=random trainer=meter collector.frames_per_batch=20 collector.total_frames=400"


class Sharing:
    """A trainer with a replay buffer; what is delivered to it is None where the workers write there themselves."""

    def __init__(self):
        self.shared_replay = ReplayBuffer(1000)
        self.delivered = []

    def train(self, collection):
        for batch in collection:
            self.delivered.append(batch is not None)
            if batch is not None:
                self.shared_replay.extend(batch)


@pytest.mark.parametrize(
    ("line", "are_delivered"),
    [
        ("collector=multi_async", False),
        ("collector=multi_async trainer.digest=true", True),
        ("collector=multi_async launcher=inline", True),
        ("collector=multi_sync", True),
    ],
)
def test_async_workers_of_this_machine_write_themselves(tmp_path, monkeypatch, line, are_delivered):
    sharing = Sharing()
    monkeypatch.setattr(trainers, "build", lambda *arguments: sharing)
    result = execute(composed(f"{FEW} {line}"), tmp_path, ["run"])
    assert (result.status, result.frames) == (Status.COMPLETED, 400)
    assert sharing.delivered == [are_delivered] * 20
    assert sharing.shared_replay.write_count == 400
    frames = sharing.shared_replay.sample(1000)
    env, episode, step = frames["observation"].reshape(1000, -1)[:, :3].unbind(-1)
    # One of two async workers may have been ready so much earlier that it has filled all.
    assert len({*env.tolist()}) in (2, 4)
    assert torch.equal(frames["collector", "traj_ids"], (env + 4 * episode).long())
    assert step.max() > 0
    lines = list(RunFolder(tmp_path).read_metrics())
    assert [line["frames"] for line in lines] == [*range(20, 401, 20)]
    assert all(sum(part["frames"] for part in line["workers"]) == 20 for line in lines)


def test_workers_write_to_the_buffer_of_dqn(tmp_path, monkeypatch):
    made = []
    build = trainers.build
    monkeypatch.setattr(trainers, "build", lambda *arguments: made.append(build(*arguments)) or made[0])
    # A batch that was delivered would be written by the trainer.
    monkeypatch.setattr(ReplayBuffer, "extend", None)
    few = "collector.num_workers=2 collector.total_frames=2048 trainer.warmup_frames=256"
    result = execute(composed(f"experiment=cartpole_dqn {few}"), tmp_path, ["run"])
    assert result.status is Status.COMPLETED, result.failures
    buffer = made[0].shared_replay.buffer
    assert buffer.write_count >= 2048
    keys = {"observation", "action", "return", "discount", "next", "index", "priority_weight"}
    assert {*buffer.sample(4).keys()} == keys
    assert "loss" in list(RunFolder(tmp_path).read_metrics())[-1]["scalars"]
