"""Workers that write to a shared replay buffer themselves, while the trainer samples."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from collectx import MultiAsyncCollector, MultiSyncCollector, ReplayBuffer
from collectx.errors import ShapeError, WorkerDied
from collectx.replay import PrioritizedSampler
from collectx.transport.shared_memory import SharedMemoryTransport

torch.set_num_threads(1)

WAYS = {"multi_sync": MultiSyncCollector, "multi_async": MultiAsyncCollector}
PATIENCE_S = 60


def cartpole():
    return gymnasium.make("CartPole-v1")


class Telling(nn.Module):
    """Acts by its weight, 0 or 1."""

    def __init__(self):
        super().__init__()
        self.action = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return self.action.long().expand(observation.shape[0])


@pytest.fixture(params=WAYS)
def make(request, monkeypatch):
    """Makes a collector whose batches cannot be read by the trainer."""

    def refuse(self, parts, own):
        raise AssertionError("the trainer has read a batch")

    monkeypatch.setattr(SharedMemoryTransport, "gather", refuse)
    return lambda *args, **keywords: WAYS[request.param]([cartpole] * 2, *args, frames_per_batch=20, **keywords)


def check_whole(frames):
    """Every frame is one step of CartPole's physics, in the order of time within an env."""
    position, velocity = frames["observation"][:, 0], frames["observation"][:, 1]
    assert torch.allclose(frames["next", "observation"][:, 0], position + 0.02 * velocity, atol=1e-6)


def test_batches_go_into_the_buffer_without_the_trainer(make):
    buffer = ReplayBuffer(200)
    with make(total_frames=200, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 10
        assert collector.next() is None
    assert buffer.write_count == 200
    frames = buffer[torch.arange(200)]
    check_whole(frames)
    firsts = torch.cat([frames["observation"], frames["collector", "traj_ids"][:, None]], 1)
    assert len(firsts.unique(dim=0)) == 200


def test_the_trainer_samples_while_workers_write(make, wait_until):
    buffer, policy = ReplayBuffer(2000), Telling()
    with make(policy, replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 100, PATIENCE_S, "frames")
        for version in (1, 2):
            with torch.no_grad():
                policy.action.fill_(version % 2)
            collector.update_policy_weights_()
            before = buffer.write_count
            wait_until(
                lambda version=version: version in buffer.sample(500)["collector", "policy_version"],
                PATIENCE_S,
                "frames of the new weights",
            )
            assert buffer.write_count > before
        sample = buffer.sample(500)
        check_whole(sample)
        assert torch.equal(sample["action"], sample["collector", "policy_version"] % 2)
        assert collector.is_running()
        collector.async_shutdown()
        assert not collector.is_running()


def test_nothing_is_written_during_a_pause(make, wait_until):
    buffer = ReplayBuffer(10_000)
    with make(replay_buffer=buffer) as collector:
        collector.start()
        for _ in range(3):
            before = buffer.write_count
            wait_until(lambda before=before: buffer.write_count > before, PATIENCE_S, "frames")
            with collector.pause():
                count = buffer.write_count
                time.sleep(0.05)
                assert buffer.write_count == count


def test_all_frames_come_though_there_were_pauses(make, wait_until):
    buffer = ReplayBuffer(2000)
    with make(total_frames=2000, replay_buffer=buffer) as collector:
        collector.start()
        while collector.is_running():
            with collector.pause():
                pass
        wait_until(lambda: not collector.is_running(), PATIENCE_S, "the end")
    assert buffer.write_count == 2000


def test_new_frames_have_the_largest_priority(make, wait_until):
    buffer = ReplayBuffer(200_000, sampler=PrioritizedSampler(alpha=1.0))
    with make(replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 0, PATIENCE_S, "frames")
        with collector.pause():
            count = buffer.write_count
            buffer.update_priority(torch.arange(count), torch.full((count,), 1000.0))
            buffer.update_priority(torch.arange(count), torch.zeros(count))
        wait_until(lambda: buffer.write_count > count, PATIENCE_S, "more frames")
        with collector.pause():
            assert buffer.sample(200)["index"].min() >= count


def test_what_a_worker_has_not_filled_is_not_written():
    def slow():
        env = cartpole()
        step = env.step
        env.step = lambda action: time.sleep(0.005) or step(action)
        return env

    buffer = ReplayBuffer(1000)
    keywords = {"preemptive_threshold": 0.5, "cat_results": -1, "replay_buffer": buffer}
    with MultiSyncCollector([cartpole, slow], frames_per_batch=100, **keywords) as collector:
        for _ in range(3):
            collector.next()
        assert buffer.write_count == collector.stats()["frames"] < 300
    check_whole(buffer[torch.arange(buffer.write_count)])


def workers():
    return [child for child in multiprocessing.active_children() if child.name.startswith("collectx-worker")]


def test_a_killed_worker_is_told_of(make, wait_until):
    buffer = ReplayBuffer(1000)
    with make(Telling(), replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 0, PATIENCE_S, "frames")
        os.kill(workers()[0].pid, signal.SIGKILL)
        wait_until(lambda: not collector.is_running(), PATIENCE_S, "the end")
        with pytest.raises(WorkerDied, match="signal 9"):
            collector.update_policy_weights_()
        check_whole(buffer.sample(500))


def test_another_takes_the_place_of_a_killed_worker(make, wait_until):
    buffer = ReplayBuffer(1000)
    with make(replay_buffer=buffer, on_worker_failure="restart") as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 0, PATIENCE_S, "frames")
        os.kill(workers()[0].pid, signal.SIGKILL)
        # Ids of a second life begin at 2**32 times the number of envs.
        wait_until(
            lambda: buffer.sample(500)["collector", "traj_ids"].max() >= 2**33, PATIENCE_S, "frames of the new worker"
        )
        with collector.pause():
            check_whole(buffer.sample(500))


def test_what_a_worker_cannot_write_is_told(make):
    buffer = ReplayBuffer(100)
    buffer.extend(TensorDict({"observation": torch.zeros(20, 3)}, [20]))
    with make(replay_buffer=buffer) as collector, pytest.raises(ShapeError, match="not like those in the buffer"):
        collector.next()


@pytest.mark.parametrize(
    "keywords", [{"postproc": lambda batch: batch}, {"track_policy_version": True}, {"extend_buffer": False}]
)
def test_batches_that_are_to_be_changed_go_through_the_trainer(keywords):
    buffer = ReplayBuffer(100)
    with MultiSyncCollector(
        [cartpole] * 2, frames_per_batch=20, total_frames=40, replay_buffer=buffer, **keywords
    ) as collector:
        assert list(collector) == [None] * 2
    assert buffer.write_count == 40
