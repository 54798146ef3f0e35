"""The batches that a trainer is given where YAML asks for other ones than all frames of all workers."""

from __future__ import annotations

import json

import gymnasium
import pytest
import torch

from collectx import Collector, MultiSyncCollector
from collectx import trainer as trainers
from collectx.cli.compose import compose
from collectx.run import RunFolder, Status, execute

CARTPOLE = [
    "env=cartpole",
    "env.num_envs=1",
    "policy=random",
    "trainer=meter",
    "launcher=inline",
    "collector.num_workers=2",
    "collector.frames_per_batch=40",
    "collector.total_frames=400",
    "seed=0",
]


def cartpole():
    return gymnasium.make("CartPole-v1")


class Keeping:
    def __init__(self):
        self.batches = []

    def train(self, collection):
        for batch in collection:
            self.batches.append(batch)
            collection.log(frames=batch.numel())

    def state_dict(self):
        return {}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs what YAML says, with these overrides; the batches."""

    def started(*overrides):
        keeping = Keeping()
        monkeypatch.setattr(trainers, "build", lambda *arguments: keeping)
        cfg = compose([*CARTPOLE, *overrides])
        assert execute(cfg, tmp_path / "run", ["run"]).status is Status.COMPLETED
        return keeping.batches

    return started


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.names == other.names
        assert (mine == other).all()
        assert {*mine.keys(True, True)} == {*other.keys(True, True)}


@pytest.mark.parametrize("traj_format", ["padded", "cat"])
def test_whole_trajectories(run, tmp_path, traj_format):
    batches = run("collector.trajs_per_batch=3", f"collector.traj_format={traj_format}")
    told = {"frames_per_batch": 40, "total_frames": 400, "trajs_per_batch": 3, "traj_format": traj_format}
    with MultiSyncCollector([cartpole] * 2, **told) as collector:
        assert_same(batches, list(collector))
    lines = list(RunFolder(tmp_path / "run").read_metrics())
    assert [line["frames"] for line in lines] == [*range(40, 401, 40)]
    assert sum("scalars" in line for line in lines) <= len(batches)


def test_without_the_observation_below_next(run):
    batches = run("collector=single", "collector.num_workers=1", "collector.compact_obs=true")
    with Collector(cartpole, frames_per_batch=40, total_frames=400, compact_obs=True) as collector:
        assert_same(batches, list(collector))
    assert ("next", "observation") not in batches[0].keys(True)


def test_parts_are_cut_short(run, tmp_path):
    """In one process, the second worker steps after the first has all its frames."""
    batches = run("collector.preemptive_threshold=0.5", "trainer.digest=true")
    for batch in batches:
        mask = batch["collector", "mask"]
        assert mask.sum(-1).tolist() == [20, 1]
        assert torch.equal(batch["collector", "traj_ids"] < 0, ~mask)
        assert not batch["observation"][~mask].any()
        assert batch["observation"][mask].abs().sum(-1).all()
    assert sum(batch["collector", "mask"].sum() for batch in batches) >= 400
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["batch_frames"] for line in lines] == [21] * len(batches)


def test_cut_parts_make_whole_trajectories_that_can_be_learnt_from(run):
    batches = run("collector.preemptive_threshold=0.5", "collector.trajs_per_batch=2", "collector.traj_format=cat")
    for batch in batches:
        assert batch["collector", "traj_ids"].unique().numel() == 2
        assert batch["collector", "traj_ids"].min() >= 0
        assert batch["next", "done"].sum() == 2
        assert batch["next", "done"][-1]


@pytest.mark.ci
def test_ppo_learns_from_whole_trajectories(tmp_path):
    cfg = compose(
        [
            "experiment=cartpole_ppo",
            "collector.trajs_per_batch=20",
            "collector.traj_format=cat",
            "launcher=inline",
            "collector.total_frames=81920",
            "trainer.target_return=150",
        ]
    )
    result = execute(cfg, tmp_path / "run", ["run"])
    assert result.status is Status.COMPLETED
    assert result.mean_return >= 150
