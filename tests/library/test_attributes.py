"""What a collector tells of what it was told; resets of some; the end of a profile."""

from __future__ import annotations

import threading

import gymnasium
import pytest
import torch

from collectx import Collector, MultiAsyncCollector, MultiSyncCollector, ReplayBuffer

torch.set_num_threads(1)


def cartpole():
    return gymnasium.make("CartPole-v1")


def three(mode=gymnasium.vector.AutoresetMode.SAME_STEP):
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})


def test_devices_are_those_that_are_resolved():
    with Collector(cartpole, frames_per_batch=4, device="cpu", storing_device="meta") as collector:
        assert collector.device == collector.policy_device == collector.env_device == torch.device("cpu")
        assert collector.storing_device == torch.device("meta")
    with MultiSyncCollector([cartpole] * 2, frames_per_batch=4, policy_device="cpu") as collector:
        assert collector.device == collector.env_device == collector.storing_device == [None, None]
        assert collector.policy_device == [torch.device("cpu")] * 2


@pytest.mark.parametrize(("told", "each", "mean"), [(20, [12, 12], 12), ([6, 20], [6, 21], 14)])
def test_frames_of_one_worker(told, each, mean):
    with MultiSyncCollector([three] * 2, frames_per_batch=told, cat_results=-1) as collector:
        assert [collector.frames_per_batch_worker(worker_idx=index) for index in range(2)] == each
        assert collector.frames_per_batch_worker() == mean
        assert collector.num_workers == 2
        assert collector.next().numel() == sum(each) == collector.frames_per_batch
        with pytest.raises(ValueError, match="worker_idx=2: there are 2 workers"):
            collector.frames_per_batch_worker(worker_idx=2)


def test_what_the_constructor_was_told():
    def updater():
        return None

    with MultiAsyncCollector([cartpole] * 2, frames_per_batch=10, trajs_per_batch=3, weight_updater=updater) as some:
        assert (some.trajs_per_batch, some.trajs_per_write, some.traj_format) == (3, None, "padded")
        assert some.weight_updater is updater
        assert some.frames_per_batch_worker() == 10


def test_a_reset_of_some_envs():
    with Collector(three, frames_per_batch=9) as collector:
        before = collector.next()["collector", "traj_ids"][:, -1]
        collector.reset([True, False, False])
        middle = collector.next()
        collector.reset(torch.tensor([1]))
        after = collector.next()
    assert (middle["collector", "traj_ids"][:, 0] > before).tolist() == [True, False, False]
    # A reset state is close to 0, and the others go on where they were.
    assert middle["observation"][0, 0].abs().max() < 0.05
    assert (after["collector", "traj_ids"][:, 0] > middle["collector", "traj_ids"][:, -1]).tolist() == [0, 1, 0]
    assert torch.equal(after["observation"][0, 0], middle["next", "observation"][0, -1])


def test_a_reset_of_some_workers():
    with MultiSyncCollector([cartpole] * 2, frames_per_batch=6) as collector:
        before = collector.next()["collector", "traj_ids"][:, -1]
        collector.reset([False, True])
        after = collector.next()["collector", "traj_ids"][:, 0]
        assert (after > before).tolist() == [False, True]
        with pytest.raises(ValueError, match=r"reset_idx=\[True\]: one entry for each of 2 workers"):
            collector.reset([True])


def test_some_envs_that_cannot_be_reset():
    def by_themselves():
        return three(gymnasium.vector.AutoresetMode.NEXT_STEP)

    with Collector(by_themselves, frames_per_batch=6) as collector, pytest.raises(ValueError, match="by itself"):
        collector.reset([True, False, False])
    with Collector(three, frames_per_batch=6, trajs_per_batch=2) as collector:
        with pytest.raises(ValueError, match="trajs_per_batch=2: reset all"):
            collector.reset([True, False, False])
        with pytest.raises(ValueError, match="options: resets take no such arguments"):
            collector.reset(options={})
        with pytest.raises(IndexError):
            collector.reset(3)


@pytest.mark.parametrize("make", [Collector, lambda create, **told: MultiSyncCollector([create], **told)])
def test_a_profile_can_be_ended(make, tmp_path):
    with make(cartpole, frames_per_batch=4) as collector:
        collector.disable_profile()
        assert collector.profile_config is None
        collector.enable_profile(num_rollouts=50, save_path=tmp_path / "{worker_idx}.json", activities=["cpu"])
        assert collector.profile_config.num_rollouts == 50
        assert collector.profile_config.workers == [0]
        collector.next()
        collector.next()
        collector.disable_profile()
        assert collector.profile_config is None
        assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
        assert collector.next() is not None


class Held:
    """A buffer whose `extend` waits."""

    def __init__(self):
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def extend(self, batch):
        self.has_begun.set()
        self.may_go_on.wait(60)


def test_a_pause_waits_no_longer_than_it_may():
    held = Held()
    with Collector(cartpole, frames_per_batch=4, replay_buffer=held) as collector:
        collector.start()
        assert held.has_begun.wait(60)
        with pytest.raises(TimeoutError, match=r"timeout=0\.01 s"), collector.pause(0.01):
            pass
        held.may_go_on.set()
        with collector.pause(60):
            assert collector.is_running()


def test_a_pause_is_over_with_its_block():
    with (
        Collector(cartpole, frames_per_batch=4, replay_buffer=ReplayBuffer(100)) as collector,
        pytest.raises(ValueError, match="resume=False"),
        collector.pause(resume=False),
    ):
        pass
