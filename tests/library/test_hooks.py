"""What hooks see and add, and what the policy, its versions and its factories are in each process, over every way."""

import os
import signal
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from library_collectors import make, new_episodes
from torch import nn
from user_code.cartpoles import cartpole
from ways import ASYNC, INLINE_ASYNC, INLINE_SYNC, SHARED_SYNC, SINGLE, SYNC, over

from collectx import Collector, DistributedCollector, MultiSyncCollector, ReplayBuffer
from collectx.errors import DataError


def cartpole_after(path):
    """Returns an env; in a worker, when the named pipe is opened for writing."""
    if parent_process() is not None:
        Path(path).read_text()
    return cartpole()


class InProcess(gymnasium.Wrapper):
    """CartPole that tells in which process it is, also after its state was loaded."""

    pid = property(lambda env: os.getpid())

    def __init__(self):
        super().__init__(cartpole())


FRAMES = {"frames_per_batch": 24, "total_frames": 48}


@over((SINGLE, *SYNC, *ASYNC))
def test_keys_that_a_hook_adds_and_tensors_that_it_replaces_are_delivered(way):
    def hook(batch):
        batch["steps"] = torch.arange(batch.shape[-1]).expand(batch.shape)
        batch["deep", "pair"] = torch.full((*batch.shape, 2), 7.0)
        batch["deep.pair"] = torch.ones(batch.shape)
        batch["observation"] = torch.zeros_like(batch["observation"])

    with make(way, num_envs=2, post_collect_hook=hook, **FRAMES) as collector:
        for batch in collector:
            steps = batch.shape[-1]
            assert batch["steps"].unique().tolist() == [*range(steps)]
            assert batch["deep", "pair"].shape == (*batch.shape, 2)
            assert batch["deep", "pair"].unique().tolist() == [7.0]
            assert batch["deep.pair"].shape == batch.shape
            assert not batch["observation"].any()
            assert batch["next", "observation"].any()


def add_reward(batch):
    batch["threefold"] = 3 * batch["next", "reward"]


@pytest.mark.ci
@pytest.mark.parametrize("inner", ["sync", "async"])
def test_keys_that_a_hook_adds_in_nested_collectors_are_delivered(inner):
    nested = {"collector_class": inner, "num_workers_per_collector": 2, "launcher": "mp", "sync": True}
    with DistributedCollector([cartpole] * 2, post_collect_hook=add_reward, **nested, **FRAMES) as collector:
        for batch in collector:
            assert torch.equal(batch["threefold"], 3 * batch["next", "reward"])


def test_a_replaced_worker_has_the_newest_hook():
    with make(SHARED_SYNC, InProcess, on_worker_failure="restart", frames_per_batch=24, total_frames=240) as collector:
        collector.post_collect_hook = add_reward
        next(collector)
        before = collector.get_attr("pid")
        os.kill(before[1], signal.SIGKILL)
        batches = [batch for batch in collector if "threefold" in [*batch.keys()]]
        assert len(batches) == 9
        assert [pid == old for pid, old in zip(collector.get_attr("pid"), before, strict=True)] == [True, False]


def test_a_worker_that_is_replaced_after_a_loaded_state_has_its_settings():
    def started():
        return make(SHARED_SYNC, InProcess, on_worker_failure="restart", frames_per_batch=24, total_frames=240)

    with started() as collector:
        collector.set_attr("gravity", 3.0)
        state = collector.state_dict()
    with started() as collector:
        collector.load_state_dict(state)
        os.kill(collector.get_attr("pid")[1], signal.SIGKILL)
        assert next(iter(collector))["collector", "settings_version"].unique().tolist() == [1]
        assert collector.get_attr("gravity") == (3.0, 3.0)


def test_a_worker_that_joins_later_has_the_newest_hook(tmp_path, wait_until):
    os.mkfifo(tmp_path / "go")
    late = [cartpole, partial(cartpole_after, str(tmp_path / "go"))]
    joining = {"on_worker_failure": "drop", "min_workers": 1}
    with MultiSyncCollector(late, frames_per_batch=24, total_frames=-1, **joining) as collector:
        assert collector.getattr_env("render_mode") is None  # one worker is ready
        assert len(collector.stats("per_worker")) == 3 + 2
        collector.post_collect_hook = add_reward
        (tmp_path / "go").write_text("")
        wait_until(lambda: next(collector).shape[0] == 2, what="the second worker")
        assert "threefold" in [*next(collector).keys()]


def test_a_state_is_saved_and_loaded_while_a_worker_starts(tmp_path, wait_until):
    def started(factory):
        joining = {"on_worker_failure": "drop", "min_workers": 1}
        return MultiSyncCollector([cartpole, factory], frames_per_batch=24, total_frames=-1, **joining)

    with started(cartpole) as collector:
        wait_until(lambda: next(collector).shape[0] == 2, what="the second worker")
        state = collector.state_dict()
        following = next(collector)
    os.mkfifo(tmp_path / "go")
    with started(partial(cartpole_after, str(tmp_path / "go"))) as collector:
        next(collector)
        collector.pre_collect_hook = None
        assert "worker1" not in collector.state_dict()  # it has no state yet
        collector.load_state_dict(state)
        kept = collector.state_dict()["worker1"]
        assert kept is not state["worker1"]
        assert not kept["is_individual"]
        assert kept["rollout"] is state["worker1"]["rollout"]
        (tmp_path / "go").write_text("")
        batches = []
        wait_until(lambda: batches.append(next(collector)) or batches[-1].shape[0] == 2, what="the second worker")
        for key in ("observation", ("collector", "traj_ids")):
            assert torch.equal(batches[-1][1][key][0], following[1][key][0])


@pytest.mark.parametrize("hook", ["postproc", "pre_collect_hook", "post_collect_hook"])
def test_a_hook_may_use_the_collector_while_it_collects_in_the_background(hook, wait_until):
    versions = []

    def use(*batch):
        collector.reset()
        collector.update_policy_weights_()
        versions.append(collector.increment_version())
        return next(iter(batch), None)

    keywords = {hook: use, "replay_buffer": ReplayBuffer(2000)}
    with Collector(cartpole, Chosen(1), frames_per_batch=24, total_frames=72, **keywords) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), what="the end")
    assert versions == [2, 4, 6]


@pytest.mark.parametrize("is_started", [False, True])
def test_a_hook_within_a_batch_cannot_shut_the_collector_down(is_started, wait_until):
    keywords = {"pre_collect_hook": lambda: collector.shutdown(), "replay_buffer": ReplayBuffer(100)}
    with Collector(cartpole, frames_per_batch=24, **keywords) as collector:
        if is_started:
            collector.start()
            wait_until(lambda: not collector.is_running(), what="the end")
        with pytest.raises(RuntimeError, match=r"shutdown\(\) was called by a hook, an env or the policy"):
            collector.shutdown() if is_started else collector.fill()
    assert collector.closed


@pytest.mark.parametrize("name", ["postproc", "post_collect_hook", "weight_updater", "replay_buffer"])
def test_a_function_that_raises_stop_iteration_does_not_end_the_loop(name):
    def function(*arguments):
        raise StopIteration

    passed = SimpleNamespace(extend=function) if name == "replay_buffer" else function
    keywords = {"update_at_each_batch": True, name: passed}
    collector = Collector(cartpole, frames_per_batch=4, total_frames=12, **keywords)
    with collector, pytest.raises(RuntimeError, match="passed to this collector raised StopIteration"):
        for _ in collector:
            pass


def test_a_function_that_raises_stop_iteration_is_an_error_of_the_background_too(wait_until):
    keywords = {"postproc": lambda batch: next(iter(())), "replay_buffer": ReplayBuffer(100)}
    with Collector(cartpole, frames_per_batch=4, total_frames=12, **keywords) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), what="the end")
        with pytest.raises(RuntimeError, match="passed to this collector raised StopIteration"):
            collector.shutdown()


def test_a_hook_after_a_batch_may_shut_the_collector_down(wait_until):
    keywords = {"postproc": lambda batch: collector.shutdown() or batch, "replay_buffer": ReplayBuffer(100)}
    with Collector(cartpole, frames_per_batch=24, **keywords) as collector:
        collector.start()
        wait_until(lambda: collector.closed, what="the shutdown")


@pytest.mark.parametrize(("num_envs", "size"), [(None, (12,)), (1, (1, 12)), (2, (2, 6))])
def test_a_hook_of_a_worker_sees_the_dimensions_of_its_envs(num_envs, size):
    seen = []

    def hook(batch):
        seen.append(batch.shape)
        batch["twice"] = 2 * batch["observation"]

    with make(INLINE_SYNC, num_envs=num_envs, post_collect_hook=hook, **FRAMES) as collector:
        for batch in collector:
            assert torch.equal(batch["twice"], 2 * batch["observation"])
    assert set(seen) == {size}


def test_in_this_process_a_hook_sees_what_postproc_has_made():
    seen = []

    def hook(batch):
        seen.append((batch.shape, "made" in [*batch.keys()]))
        batch["added"] = batch["made"] + 1

    keywords = {"postproc": lambda batch: batch.set("made", torch.ones(batch.shape)), "split_trajs": True}
    with Collector(cartpole, post_collect_hook=hook, **keywords, **FRAMES) as collector:
        batch = next(collector)
        assert seen == [(batch.shape, True)]
        assert batch["added"].unique().tolist() == [2.0]
        collector.post_collect_hook = None
        assert "added" not in [*next(collector).keys()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda batch: batch.set("text", "words"), r"post_collect_hook added 'text', which is of type NonTensorData"),
        (
            lambda batch: batch.set("action", torch.zeros(*batch.shape, 3)),
            r"must keep 'action' a tensor of shape \[24\]",
        ),
    ],
)
def test_a_hook_in_a_worker_that_adds_something_else_is_refused(change, words):
    with make(INLINE_ASYNC, post_collect_hook=change, **FRAMES) as collector, pytest.raises(DataError, match=words):
        next(collector)


@pytest.mark.difference("`track_traj_ids=False`")
@over((SINGLE, INLINE_SYNC, SHARED_SYNC))
def test_without_track_traj_ids_a_batch_keeps_the_policy_version(way):
    with make(way, track_traj_ids=False, **FRAMES) as collector:
        assert [*next(collector)["collector"].keys()] == ["policy_version"]


class Chosen(nn.Module):
    def __init__(self, action):
        super().__init__()
        self.action = nn.Parameter(torch.tensor([float(action)]))

    def forward(self, observation):
        return torch.full(observation.shape[:-1], int(self.action.detach()))


@new_episodes
@over((SINGLE, *SYNC))
def test_a_state_restores_the_version_of_the_weights_in_this_process_and_in_all_workers(way):
    with make(way, policy=Chosen(0), track_policy_version=True, **FRAMES) as collector:
        collector.update_policy_weights_()
        collector.update_policy_weights_({"action": torch.ones(1)})
        state = collector.state_dict()
        assert state["policy_version"] == collector.policy_version == 2
        if way.place in ("inline", "local") and way.transport in ("inline", "shared_memory"):
            assert state["worker0"]["policy_state_dict"]["action"].item() == 1.0
    with make(way, policy=Chosen(0), track_policy_version=True, **FRAMES) as collector:
        collector.load_state_dict(state)
        assert collector.policy_version == 2
        # Collectors over a network publish the weights after each batch.
        batch = next(collector)
        assert batch["policy_version"].unique().tolist() == [2]
        assert batch["collector", "policy_version"].unique().tolist() == [2]
        assert batch["action"].unique().tolist() == [1]
        before = collector.policy_version
        collector.update_policy_weights_()
        assert collector.policy_version == before + 1 >= 3


@over((INLINE_SYNC, SHARED_SYNC))
def test_a_factory_beside_a_policy_is_called_in_the_workers_alone(way):
    trainers, called = Chosen(0), []

    def factory():
        called.append(os.getpid())
        return Chosen(1)

    with make(way, policy=trainers, policy_factory=factory, **FRAMES) as collector:
        assert collector.policy is trainers
        assert next(collector)["action"].unique().tolist() == [1]
        # Workers of other processes append to lists of their own.
        assert len(called) == (way.num_workers if way.place == "inline" else 0)
        collector.update_policy_weights_()
        assert next(collector)["action"].unique().tolist() == [0]


@pytest.mark.difference("`policy_factory` without `policy`")
@over((INLINE_SYNC, SHARED_SYNC))
def test_a_factory_without_a_policy_is_called_in_this_process_too(way):
    called = []

    def factory():
        called.append(os.getpid())
        return Chosen(1)

    with make(way, policy_factory=factory, **FRAMES) as collector:
        assert collector.policy.action == 1
        assert next(collector)["action"].unique().tolist() == [1]
        assert len(called) == 1 + (way.num_workers if way.place == "inline" else 0)


@pytest.mark.parametrize("per_write", [None, 2])
def test_trajectories_that_have_ended_are_written_at_once(per_write):
    class Counting:
        def __init__(self):
            self.writes = []

        def extend(self, frames):
            self.writes.append(int(frames["next", "done"].sum()))

    buffer = Counting()
    keywords = {"max_frames_per_traj": 10, "frames_per_batch": 100, "total_frames": 100, "seed": 1}
    with Collector(
        cartpole, Chosen(1), replay_buffer=buffer, trajs_per_batch=3, trajs_per_write=per_write, **keywords
    ) as collector:
        assert next(collector) is None
    assert sum(buffer.writes) >= 10
    assert len(buffer.writes) == (1 if per_write is None else -(-sum(buffer.writes) // per_write))


def test_individual_weights_are_saved_and_loaded_while_their_worker_starts(tmp_path, wait_until):
    def started(factory):
        joining = {"on_worker_failure": "drop", "min_workers": 1}
        return MultiSyncCollector([cartpole, factory], Chosen(0), frames_per_batch=24, total_frames=-1, **joining)

    with started(cartpole) as collector:
        wait_until(lambda: next(collector).shape[0] == 2, what="the second worker")
        collector.update_policy_weights_({"action": torch.ones(1)}, worker_ids=1)
        state = collector.state_dict()
    os.mkfifo(tmp_path / "go")
    with started(partial(cartpole_after, str(tmp_path / "go"))) as collector:
        next(collector)
        collector.load_state_dict(state)
        saved = collector.state_dict()["worker1"]
        assert (saved["is_individual"], saved["policy_state_dict"]["action"].item()) == (True, 1.0)
        (tmp_path / "go").write_text("")
        wait_until(lambda: next(collector).shape[0] == 2, what="the second worker")
        assert [part["action"].unique().tolist() for part in next(collector)] == [[0], [1]]
