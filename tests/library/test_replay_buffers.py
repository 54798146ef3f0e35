"""Batches that go into a replay buffer: by the trainer's process or by the workers themselves, in the background or one
by one."""

import os
import signal
import threading
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import pytest
import torch
from library_collectors import make
from tensordict import TensorDict
from user_code.cartpoles import Constant, cartpole, with_pid
from user_code.faulty import FaultyEnv
from ways import GLOO_ASYNC, INLINE, INLINE_SYNC, RPC_ASYNC, SHARED, SHARED_SYNC, SINGLE, WAYS, over
from worlds.levels import LevelEnv

from collectx import Collector, ReplayBuffer
from collectx.errors import DataError
from collectx.replay import PrioritizedSampler
from collectx.rollout.loop import RolloutStopped

VERSION = ("collector", "policy_version")
# Where workers write to a ReplayBuffer themselves.
WRITING = (*INLINE[1:], *SHARED)


class Frames:
    """A replay buffer of the user's own."""

    def __init__(self):
        self.batches = []

    @property
    def write_count(self):
        return sum(batch.numel() for batch in self.batches)

    def extend(self, batch):
        self.batches.append(batch.clone())

    add = extend


def check_physics(frames):
    """Asserts that every frame is one step of CartPole."""
    position, velocity = frames["observation"][:, 0], frames["observation"][:, 1]
    assert torch.allclose(frames["next", "observation"][:, 0], position + 0.02 * velocity, atol=1e-6)


@pytest.mark.parametrize("extend", [True, False])
@over(WAYS)
def test_items_of_a_users_buffer_are_the_parts_of_each_worker_or_frames(way, extend):
    buffer = Frames()
    keywords = {"replay_buffer": buffer, "extend_buffer": extend}
    with make(way, frames_per_batch=20, total_frames=60, **keywords) as collector:
        assert list(collector) == [None] * 3
        assert collector.replay_buffer is buffer
    each = [10 if way.is_sync else 20] if extend else []
    assert {tuple(batch.batch_size) for batch in buffer.batches} == {tuple(each)}
    assert buffer.write_count == 60


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"postproc": lambda batch: batch.set("extra", batch["action"])},
        {"track_policy_version": True},
        {"extend_buffer": False},
    ],
    ids=["plain", "postproc", "version", "frames"],
)
@over(WRITING)
def test_every_frame_is_there_once_whoever_writes_it(way, keywords):
    """Workers themselves, unless the trainer changes their batches."""
    buffer = ReplayBuffer(200)
    with make(way, frames_per_batch=20, total_frames=200, replay_buffer=buffer, **keywords) as collector:
        assert list(collector) == [None] * 10
        assert collector.next() is None
    assert buffer.write_count == 200
    frames = buffer[torch.arange(200)]
    check_physics(frames)
    assert ("extra" in frames) is ("postproc" in keywords)
    assert ("policy_version" in frames) is ("track_policy_version" in keywords)
    firsts = torch.cat([frames["observation"], frames["collector", "traj_ids"][:, None]], 1)
    assert len(firsts.unique(dim=0)) == 200


def test_with_overlap_a_buffer_has_the_delivered_batches_alone():
    """A batch that is filled while the trainer samples would come at any time."""
    buffer = ReplayBuffer(200)
    with make(SHARED_SYNC, frames_per_batch=20, total_frames=60, replay_buffer=buffer, overlap=1) as collector:
        for count in (20, 40, 60):
            assert collector.next() is None
            collector._core.wait_until_filled()
            assert buffer.write_count == count


@over(WRITING)
def test_frames_continue_the_policy_versions_of_a_loaded_state(way):
    buffer = ReplayBuffer(200)
    with make(way, policy=Constant(), frames_per_batch=20, replay_buffer=buffer) as collector:
        for _ in range(2):
            collector.update_policy_weights_()
        state = collector.state_dict()
    with make(way, policy=Constant(), frames_per_batch=20, total_frames=100, replay_buffer=buffer) as collector:
        collector.load_state_dict(state)
        list(collector)
    # Async workers had begun batches before.
    newest = torch.arange(buffer.write_count)[0 if way.is_sync else -40 :]
    assert set(buffer[newest][VERSION].tolist()) == {2}


@pytest.mark.parametrize("kind", [Frames, partial(ReplayBuffer, 2000)], ids=["users", "shared"])
@over((*INLINE, *SHARED, GLOO_ASYNC, RPC_ASYNC))
def test_a_started_collector_fills_its_buffer_in_the_background(way, kind, wait_until):
    buffer, policy = kind(), Constant()
    with make(way, policy=policy, frames_per_batch=20, replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 60, what="frames")
        with pytest.raises(RuntimeError, match="in the background"):
            collector.next()
        newest = (lambda: buffer.batches[-1]) if kind is Frames else (lambda: buffer.sample(500))
        for version in (1, 2):
            policy.action.data.fill_(version % 2)
            assert collector.increment_version() == version
            wait_until(lambda version=version: version in newest()[VERSION], what="frames of new weights")
            sample = newest()
            assert (sample["action"][sample[VERSION] == version] == version % 2).all()
            check_physics(sample)
        assert collector.is_running()
        collector.async_shutdown()
        assert not collector.is_running()


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [Frames, partial(ReplayBuffer, 2000)], ids=["users", "shared"])
@over((*INLINE, *SHARED, GLOO_ASYNC))
def test_a_pause_holds_as_long_as_its_block(way, kind, wait_until):
    """The pause lasts as long as another collector, which is not paused, takes for many batches."""
    buffer, others = kind(), kind()
    with (
        make(way, frames_per_batch=20, replay_buffer=buffer) as collector,
        Collector(cartpole, frames_per_batch=20, replay_buffer=others) as other,
    ):
        collector.start()
        other.start()
        wait_until(lambda: buffer.write_count > 0, what="frames")
        with collector.pause():
            count, end = buffer.write_count, others.write_count + 5000
            wait_until(lambda: others.write_count > end, what="frames of the other collector")
            assert buffer.write_count == count
        wait_until(lambda: buffer.write_count > count, what="more frames")


@over(WRITING)
def test_all_frames_come_though_there_were_pauses(way):
    buffer = ReplayBuffer(2000)
    with make(way, frames_per_batch=20, total_frames=2000, replay_buffer=buffer) as collector:
        collector.start()
        while collector.is_running():
            with collector.pause():
                pass
    assert buffer.write_count == 2000


def test_a_pause_begins_after_the_batch_under_way_and_waits_for_it_no_longer_than_its_timeout():
    has_begun, may_go_on = threading.Event(), threading.Event()

    def extend(batch):
        has_begun.set()
        assert may_go_on.wait(60)

    with Collector(cartpole, frames_per_batch=4, replay_buffer=SimpleNamespace(extend=extend)) as collector:
        collector.start()
        assert has_begun.wait(60)
        with pytest.raises(TimeoutError, match=r"\(timeout=0\.01\)"), collector.pause(0.01):
            pass
        may_go_on.set()
        with collector.pause(60):
            assert collector.is_running()
        with pytest.raises(ValueError, match="resume=False"), collector.pause(resume=False):
            pass


@over([SHARED[0], GLOO_ASYNC], smoke=True)
def test_a_shutdown_gives_up_a_batch_that_hangs_before_it_closes_what_its_thread_uses(way):
    keywords = {"on_worker_failure": "restart", "close_timeout_s": 0.5}
    create = partial(FaultyEnv, "sleeps", 5)
    with make(way, create, frames_per_batch=20, replay_buffer=Frames(), **keywords) as collector:
        collector.start()
        with pytest.raises(TimeoutError, match=r"\(timeout=0\.01\)"):
            collector.shutdown(0.01)
        assert "collectx-background" not in [thread.name for thread in threading.enumerate()]


def test_a_batch_that_another_thread_is_waiting_for_is_an_error_that_says_so():
    has_begun, may_go_on = threading.Event(), threading.Event()

    def begin():
        has_begun.set()
        assert may_go_on.wait(60)

    with Collector(cartpole, frames_per_batch=4, pre_collect_hook=begin) as collector:
        other = threading.Thread(target=collector.next)
        other.start()
        assert has_begun.wait(60)
        with pytest.raises(RuntimeError, match="in use: by another thread"):
            collector.next()
        may_go_on.set()
        other.join(60)
        assert collector.next().numel() == 4


def test_a_shutdown_stops_another_thread_that_steps_an_env_which_closes_it():
    has_begun, may_go_on, closed = threading.Event(), threading.Event(), []

    class Closing(gymnasium.Wrapper):
        def close(self):
            closed.append(threading.current_thread().name)
            super().close()

    def begin():
        has_begun.set()
        assert may_go_on.wait(60)

    def collect():
        with pytest.raises(RolloutStopped):
            collector.next()

    collector = Collector(lambda: Closing(cartpole()), frames_per_batch=4, pre_collect_hook=begin)
    closed.clear()  # the constructor has made one and closed it
    other = threading.Thread(target=collect, name="collectx-other")
    other.start()
    assert has_begun.wait(60)
    collector.shutdown()
    assert closed == []
    may_go_on.set()
    other.join(60)
    assert closed == ["collectx-other"]


@pytest.mark.parametrize("keywords", [{}, {"trajs_per_batch": 1}], ids=str)
def test_batches_are_on_the_device_of_the_storage(keywords):
    class Buffer:
        storage = SimpleNamespace(device=torch.device("meta"))
        devices: ClassVar = set()

        def extend(self, batch):
            self.devices |= {batch.device, *(leaf.device for leaf in batch.values(True, True))}

    with Collector(cartpole, frames_per_batch=100, replay_buffer=Buffer(), **keywords) as collector:
        collector.next()
    assert Buffer.devices == {torch.device("meta")}


@over(SHARED)
def test_new_frames_have_the_largest_priority(way, wait_until):
    buffer = ReplayBuffer(200_000, sampler=PrioritizedSampler(alpha=1.0))
    with make(way, frames_per_batch=20, replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: buffer.write_count > 0, what="frames")
        with collector.pause():
            count = buffer.write_count
            buffer.update_priority(torch.arange(count), torch.full((count,), 1000.0))
            buffer.update_priority(torch.arange(count), torch.zeros(count))
        wait_until(lambda: buffer.write_count > count, what="more frames")
        with collector.pause():
            assert buffer.sample(200)["index"].min() >= count


@over(SHARED)
def test_a_buffer_has_no_torn_frame_of_a_killed_worker(way, wait_until):
    buffer = ReplayBuffer(1000)
    keywords = {"replay_buffer": buffer, "on_worker_failure": "restart"}
    with make(way, with_pid, frames_per_batch=20, **keywords) as collector:
        pid = collector.getattr_env("pid")
        collector.start()
        wait_until(lambda: buffer.write_count > 0, what="frames")
        os.kill(pid, signal.SIGKILL)
        # Ids of a second incarnation begin at 2**32 times the number of envs.
        wait_until(lambda: buffer.sample(500)["collector", "traj_ids"].max() >= 2**33, what="frames of the new worker")
        with collector.pause():
            check_physics(buffer.sample(500))


@over(WRITING)
def test_frames_unlike_those_in_the_buffer_are_an_error(way):
    buffer = ReplayBuffer(100)
    buffer.extend(TensorDict({"observation": torch.zeros(20, 3)}, [20]))
    with (
        make(way, frames_per_batch=20, replay_buffer=buffer) as collector,
        pytest.raises(DataError, match="do not match those in the buffer"),
    ):
        collector.next()


@over((SINGLE, INLINE_SYNC))
@pytest.mark.parametrize("keywords", [{}, {"trajs_per_batch": 1}, {"extend_buffer": False}], ids=str)
def test_a_setting_adds_no_key_to_frames_of_a_buffer(way, keywords):
    buffer = ReplayBuffer(100)
    options = {"max_frames_per_traj": 2, "postproc": lambda batch: batch} | keywords
    with make(way, LevelEnv, frames_per_batch=8, replay_buffer=buffer, **options) as collector:
        collector.fill()
        collector.call("set_level", 3)
        collector.fill()
    assert len(buffer) == 16
    assert ("collector", "settings_version") not in buffer[:].keys(include_nested=True)


@over((SINGLE, INLINE_SYNC))
def test_trajectories_from_before_a_setting_have_the_version_zero(way):
    with make(way, LevelEnv, frames_per_batch=6, max_frames_per_traj=4, trajs_per_batch=1) as collector:
        assert ("collector", "settings_version") not in next(collector).keys(include_nested=True)
        collector.call("set_level", 3)
        # Trajectories that had ended before have none.
        later = [next(collector)["collector"].get("settings_version", torch.zeros(1)) for _ in range(8)]
    versions = [each.unique().tolist() for each in later]
    assert versions[0][0] == 0
    assert versions[-1] == [1]
