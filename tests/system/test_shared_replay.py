"""Trainers whose replay buffer the workers write to themselves."""

from __future__ import annotations

import pytest
import torch

from collectx import ReplayBuffer
from collectx import trainer as trainers
from collectx.cli.compose import compose
from collectx.run import RunFolder, Status, execute

FEW = ["env=counting", "env.num_envs=2", "policy=random", "trainer=meter", "collector.frames_per_batch=20"]


class Sharing:
    """Counts the batches that it is given, and has a replay buffer."""

    def __init__(self):
        self.shared_replay = ReplayBuffer(1000)
        self.given = []

    def train(self, collection):
        for batch in collection:
            self.given.append(batch is not None)
            if batch is not None:
                self.shared_replay.extend(batch)

    def state_dict(self):
        return {}


def run(tmp_path, *overrides):
    return execute(compose([*FEW, "collector.total_frames=400", *overrides]), tmp_path / "run", ["run"])


@pytest.mark.parametrize(
    ("overrides", "are_given"),
    [
        (["collector=multi_async"], False),
        (["collector=multi_async", "trainer.digest=true"], True),
        (["collector=multi_async", "launcher=inline"], True),
        (["collector=multi_sync"], True),
    ],
)
def test_async_workers_of_this_machine_write_themselves(tmp_path, monkeypatch, overrides, are_given):
    sharing = Sharing()
    monkeypatch.setattr(trainers, "build", lambda *arguments: sharing)
    result = run(tmp_path, *overrides)
    assert (result.status, result.frames) == (Status.COMPLETED, 400)
    assert sharing.given == [are_given] * 20
    frames = sharing.shared_replay.sample(1000)
    assert sharing.shared_replay.write_count == 400
    env, episode, step = frames["observation"].reshape(1000, -1)[:, :3].unbind(-1)
    # One of two async workers may have been ready so much earlier that it has filled all.
    assert len({*env.tolist()}) in (2, 4)
    ids = frames["collector", "traj_ids"]
    assert torch.equal(ids, (env + 4 * episode).long())
    assert step.max() > 0
    lines = list(RunFolder(tmp_path / "run").read_metrics())
    assert [line["frames"] for line in lines] == [*range(20, 401, 20)]
    assert all(sum(part["frames"] for part in line["workers"]) == 20 for line in lines)


def test_dqn_is_given_no_batches(tmp_path, monkeypatch):
    seen = []
    build = trainers.build

    def watched(*arguments):
        trainer = build(*arguments)
        train = trainer.train

        def watching(collection):
            class Watched:
                def __getattr__(self, name):
                    return getattr(collection, name)

                def __iter__(self):
                    for batch in collection:
                        seen.append(batch)
                        yield batch

            train(Watched())
            seen.append(trainer)

        trainer.train = watching
        return trainer

    monkeypatch.setattr(trainers, "build", watched)
    few = ["collector.num_workers=2", "collector.total_frames=2048", "trainer.warmup_frames=256"]
    result = execute(compose(["experiment=cartpole_dqn", *few]), tmp_path / "run", ["run"])
    assert result.status is Status.COMPLETED
    *batches, trainer = seen
    assert batches == [None] * 8
    buffer = trainer.shared_replay.buffer
    assert buffer.write_count >= 2048
    assert {*buffer.sample(4).keys()} == {
        *("observation", "action", "return", "discount", "next", "index", "priority_weight")
    }
    assert "loss" in list(RunFolder(tmp_path / "run").read_metrics())[-1]["scalars"]
