"""A collector that continues another one delivers the batches that the other one would have delivered."""

from __future__ import annotations

import itertools
from unittest.mock import Mock

import pytest
import torch
from configurations import through_a_file

from collectx import env as envs
from collectx import policy as policies
from collectx.cli.compose import compose
from collectx.collector import RecordedBatch, start_collector

_SYNC = ["collector=multi_sync", "launcher=inline"]
_ASYNC = ["collector=multi_async", "launcher=inline", "env=counting", "policy=random"]


class Runs:
    """Collectors of one configuration; all of them are closed at the end."""

    def __init__(self, options):
        self.cfg = compose(["trainer=meter", "collector.frames_per_batch=64", "collector.total_frames=640", *options])
        self.spec = envs.read_spec(self.cfg.env, policies.is_user_policy(self.cfg.policy))
        self.policy = policies.build(self.cfg.policy, self.spec, self.cfg.seed)

    def start(self, resume=None, recorded=None):
        collector = start_collector(self.cfg, self.policy, self.spec, resume=resume, recorded=recorded)
        reasons = {} if resume is None else collector.load(resume, self.cfg.seed)
        return collector, reasons


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [_SYNC, ["collector=single"]], ids=["sync", "single"])
def test_sync_batches_are_those_of_the_uncut_run(options):
    runs = Runs(options)
    uncut, _ = runs.start()
    with uncut:
        for _ in range(4):
            next(uncut)
        with torch.no_grad():
            for parameter in runs.policy.parameters():
                parameter.add_(0.1)
        assert uncut.publish(runs.policy) == 1
        next(uncut)
        state = through_a_file(uncut.state())
        with torch.no_grad():  # what was not published is not restored
            for parameter in runs.policy.parameters():
                parameter.add_(9)
        expected = list(uncut)
    resumed, reasons = runs.start(state)
    with resumed:
        assert reasons == {}
        assert (resumed.num_batches, resumed.num_frames, resumed.policy_version) == (5, 320, 1)
        batches = list(resumed)
    assert len(batches) == len(expected) == 5
    for batch, other in zip(batches, expected, strict=True):
        for key in batch.keys(include_nested=True, leaves_only=True):
            assert torch.equal(batch[key], other[key]), key
    assert resumed.frames_by_worker == uncut.frames_by_worker


# Batches of worker 1 arrive before their turn.
_ORDER = [RecordedBatch(worker, 0, 0) for worker in (0, 0, 1, 1, 1, 0, 1, 0, 0, 1)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("recorded", [None, _ORDER], ids=["free", "recorded"])
@pytest.mark.parametrize("cut", [1, 4, 7])
def test_async_delivers_every_frame_once(cut, recorded):
    """Frames that were in flight at the cut are delivered too. The observation of the counting env is the index of the
    env, the episode and the step."""
    runs = Runs(_ASYNC)
    frames = []
    first, _ = runs.start(recorded=recorded)
    with first:
        for _ in range(cut):
            frames.append(next(first)["observation"][..., :3].clone())
        state = through_a_file(first.state())
    second, reasons = runs.start(state, recorded and recorded[cut:])
    with second:
        assert reasons == {}
        num_left, second.transport.grant = 10 - len(frames), Mock(wraps=second.transport.grant)
        workers = []
        for batch in second:
            frames.append(batch["observation"][..., :3].clone())
            workers.append(second.last_batch_info.parts[0].worker)
    assert recorded is None or workers == [each.worker for each in recorded[cut:]]
    # The end does not wait for a worker that has never delivered.
    assert second.transport.grant.call_count <= num_left - len(state["undelivered"]) + 1
    assert len(frames) == 10
    seen = torch.cat([frame.reshape(-1, 3) for frame in frames])
    assert len(seen.unique(dim=0)) == len(seen) == 640
    for env in seen[:, 0].unique().tolist():
        rows = seen[seen[:, 0] == env][:, 1:].tolist()
        assert rows == sorted(rows)
        assert rows[0] == [0, 0]
        for (episode, step), following in itertools.pairwise(rows):
            assert following in ([episode, step + 1], [episode + 1, 0])


@pytest.mark.ci
def test_workers_that_are_collectors_begin_new_lives():
    nested = ["collector.num_workers=1", "collector.num_workers_per_collector=2", "env=counting", "policy=random"]
    runs = Runs(["collector=distributed_sync", *nested])
    first, _ = runs.start()
    with first:
        ids = {*next(first)["collector", "traj_ids"].flatten().tolist()}
        state = through_a_file(first.state())
    second, reasons = runs.start(state)
    with second:
        assert reasons == {0: "the state of the envs was not saved"}
        assert second.pool.records[0].history.incarnation == 1
        assert not ids & {*next(second)["collector", "traj_ids"].flatten().tolist()}


@pytest.mark.ci
def test_workers_whose_envs_cannot_be_saved_begin_new_trajectories():
    runs = Runs([*_SYNC, "env=envpool", "env.id=CartPole-v1", "env.num_envs=2"])
    first, _ = runs.start()
    with first:
        ids = {id for _ in range(3) for id in next(first)["collector", "traj_ids"].flatten().tolist()}
        state = through_a_file(first.state())
    second, reasons = runs.start(state)
    with second:
        assert all("EnvPool does not expose" in reason for reason in reasons.values())
        assert sorted(reasons) == [0, 1]
        assert [worker.history.incarnation for worker in second.pool.records] == [0, 0]
        assert not ids & set(next(second)["collector", "traj_ids"].flatten().tolist())
