"""What a collector says about itself and its workers, what is called around its batches, and its state."""

import inspect
import json
import math
import os
import re
import signal
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from library_collectors import by_worker, make, new_episodes
from torch import nn
from torch.profiler import ProfilerActivity
from user_code.cartpoles import Constant, cartpole, cartpoles, with_pid
from user_code.faulty import FaultyEnv
from ways import (
    GLOO_ASYNC,
    GLOO_SYNC,
    INLINE,
    INLINE_SYNC,
    RAY_SYNC,
    SHARED,
    SHARED_ASYNC,
    SHARED_SYNC,
    SINGLE,
    WAYS,
    case,
    over,
)

from collectx import ProfileConfig, ReplayBuffer
from collectx.errors import ConfigError, WorkerDied

ASKED = (*INLINE, *SHARED)


class Saved(gymnasium.Wrapper):
    """CartPole that can be saved in the midst of an episode."""

    def __init__(self):
        super().__init__(CartPoleEnv())

    def state_dict(self):
        return {"at": [float(each) for each in self.unwrapped.state], "random": self.np_random.bit_generator.state}

    def load_state_dict(self, state):
        self.unwrapped.state, self.unwrapped.steps_beyond_terminated = state["at"], None
        self.np_random.bit_generator.state = state["random"]


def unsaved():
    """Makes an env whose state cannot be saved."""
    env = cartpole()
    env.unwrapped.handle = threading.Lock()
    return env


class Coin(nn.Module):
    """Acts by chance."""

    def __init__(self, bias=0.0):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, observation):
        return (torch.rand(observation.shape[:-1]) + self.bias < 0.5).long()


@over((SINGLE, SHARED_SYNC))
def test_keywords_are_attributes(way):
    with make(way, frames_per_batch=20, total_frames=40, split_trajs=True, set_truncated=True) as collector:
        assert (collector.split_trajs, collector.set_truncated, collector.return_same_td) == (True, True, False)
        assert (collector.max_frames_per_traj, collector.init_random_frames, collector.n_env) == (0, 0, 1)
        assert (collector.postproc, collector.closed, collector.compiled_policy) == (None, False, False)
        assert "reset_at_each_iter" in dir(collector)
        with pytest.raises(AttributeError, match=r"procs.*getattr_env"):
            collector.procs  # noqa: B018
    assert collector.closed


@pytest.mark.difference("an assignment to an attribute, such as `collector.exploration_type`")
@over((SINGLE, SHARED_SYNC))
def test_an_assignment_to_an_attribute_acts_or_raises(way):
    """`postproc` and `split_trajs` act from the next batch on, as in TorchRL."""
    with make(way, frames_per_batch=40) as collector:
        collector.next()
        collector.split_trajs = True
        assert collector.next()["collector", "mask"].any(-1).all()
        collector.split_trajs, collector.postproc = False, lambda batch: batch["action"]
        assert isinstance(collector.next(), torch.Tensor)
        acts = {"postproc", "split_trajs", "worker_idx", "pre_collect_hook", "post_collect_hook"}
        for name in {*dir(collector)} - acts:
            if not name.startswith("_") and not inspect.isfunction(getattr(type(collector), name, None)):
                with pytest.raises(AttributeError, match=f"{name}.* (cannot be changed|has no setter)"):
                    setattr(collector, name, getattr(collector, name))
        with pytest.raises(AttributeError, match=r"Collector\.policy cannot be changed\. .* update_policy_weights_"):
            collector.policy = Coin()
        for name in ("postproc", "pre_collect_hook", "post_collect_hook"):
            with pytest.raises(ConfigError, match=f"^{name}=5 must be a callable, or None"):
                setattr(collector, name, 5)
        collector.notes = "of the user"
    with make(way, replay_buffer=ReplayBuffer(100), frames_per_batch=40) as collector:
        with pytest.raises(ConfigError, match=r"^split_trajs=True cannot be used with a replay buffer"):
            collector.split_trajs = True
        if way is not SINGLE:
            with pytest.raises(ConfigError, match=r"^postproc cannot be changed, because the workers write"):
                collector.postproc = lambda batch: batch["action"]


@pytest.mark.difference("`collector.frames_per_batch` of batched envs")
def test_the_lengths_of_batches_and_of_the_collector():
    with pytest.warns(UserWarning, match="rounded|multiple") as warned:
        short = make(SINGLE, num_envs=3, frames_per_batch=100, total_frames=64)
    with short:
        assert (short.frames_per_batch, short.requested_frames_per_batch, short.total_frames) == (102, 100, 64)
    assert [str(each.message) for each in warned] == [
        "frames_per_batch=100 was rounded up to 102, whole steps of 3 envs, as in TorchRL.",
        "total_frames=64 is not a multiple of frames_per_batch=100, so 1 batch (102 frames) is collected.",
    ]
    for endless in (-1, None, math.inf):
        with make(SINGLE, frames_per_batch=20, total_frames=endless) as collector:
            assert collector.total_frames == math.inf
            assert "total_frames" not in collector.stats()
            assert "0 frames delivered" in repr(collector)
    with pytest.raises(ConfigError, match=r"^total_frames=2\.5 must be a whole number, or infinity\.$"):
        make(SINGLE, total_frames=2.5)


def test_a_loop_after_the_last_batch_is_warned_of():
    with make(INLINE_SYNC, frames_per_batch=20, total_frames=40) as collector:
        state = collector.state_dict()
        assert repr(collector) == (
            "<MultiSyncCollector: 2 workers, 1 env each, random actions, 20 frames per batch, 0 of 40 frames delivered>"
        )
        assert len([*collector]) == 2
        with pytest.warns(UserWarning, match="^there are no more batches: total_frames=40 is reached"):
            assert [*collector] == []
        collector.load_state_dict(state)
        assert len([*collector]) == 2
    assert repr(collector).endswith("40 of 40 frames delivered, closed>")


def test_the_env_of_a_collector_in_this_process():
    with make(SINGLE, cartpole, frames_per_batch=20) as collector:
        assert collector.env.spec.id == "CartPole-v1"
        assert collector.env_path == ""


@over(ASKED)
def test_an_attribute_of_the_env(way):
    with make(way, frames_per_batch=20) as collector:
        assert collector.getattr_env("spec").id == "CartPole-v1"
        assert collector.next() is not None
        assert collector.getattr_env("action_space") == spaces.Discrete(2)
        with pytest.raises(AttributeError, match="no_such"):
            collector.getattr_env("no_such")
        assert collector.map_fn("getattr_policy", [("__class__",)]) == [type(collector.policy)]
        assert collector.next() is not None


@over(ASKED)
def test_a_path_in_the_envs_of_all_workers(way):
    with make(way, frames_per_batch=20) as collector:
        found = collector.get_distant_attr("env.spec.id")
        assert found == "CartPole-v1" if way == SINGLE else found == ["CartPole-v1"] * collector.num_workers
        assert collector.getattr_env("observation_space.shape[0]") == 4
        assert collector.getattr_env("metadata['render_modes'][-1]") == "rgb_array"
        for path in ("", "shape[", "a b", "__import__('os')"):
            with pytest.raises(AttributeError):
                collector.getattr_env(path)
        if way != SINGLE:
            with pytest.raises(AttributeError, match="cannot be read from the workers"):
                collector.get_distant_attr("policy.weight")


@over((SINGLE, SHARED_SYNC))
def test_an_attribute_below_the_wrappers_of_an_env(way):
    with make(way, cartpole, frames_per_batch=20) as collector:
        assert collector.getattr_env("gravity") == collector.getattr_env("unwrapped.gravity") == 9.8
        assert collector.get_attr("gravity") == (9.8,) * way.num_workers
        distant = collector.get_distant_attr("env.gravity")
        assert distant == 9.8 if way == SINGLE else distant == [9.8] * way.num_workers
        with pytest.raises(AttributeError, match="no attribute 'no_such'"):
            collector.getattr_env("no_such")


def test_a_question_waits_for_min_workers():
    keywords = {"on_worker_failure": "restart", "min_workers": 2, "frames_per_batch": 20}
    with make(SHARED_SYNC, with_pid, num_workers=2, **keywords) as collector:
        for ask in (lambda: collector.getattr_env("gravity"), lambda: collector.call("reset") and 9.8):
            pids = collector.get_attr("pid")
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert ask() == 9.8
            assert len({*collector.get_attr("pid"), *pids}) == 4


@pytest.mark.parametrize(
    "keywords",
    [
        {"on_worker_failure": "restart"},
        {"on_worker_failure": "drop"},
        {"on_worker_failure": "restart", "min_workers": 2},
    ],
    ids=["restart", "drop", "restart of min_workers"],
)
def test_a_state_is_saved_although_a_worker_was_lost(keywords):
    """As `next` replaces or drops the worker."""
    with make(SHARED_SYNC, with_pid, frames_per_batch=20, **keywords) as collector:
        collector.next()
        pids = collector.get_attr("pid")
        os.kill(pids[0], signal.SIGKILL)
        state = collector.state_dict()
        left = [name for name in state if name.startswith("worker")]
        assert left == ["worker1"] if keywords["on_worker_failure"] == "drop" else ["worker0", "worker1"]
        assert len(collector.get_attr("pid")) == len(left)
        os.kill(pids[1], signal.SIGKILL)
        if len(left) == 2:
            assert collector.getattr_env("gravity") == 9.8
            collector.load_state_dict(state)
            assert collector.next().shape == (2, 10)


class Deadly(CartPoleEnv):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_call_that_kills_each_worker_is_named():
    """Its replacement applies it too, and is killed by it: once is enough."""
    with make(SHARED_SYNC, Deadly, frames_per_batch=20, on_worker_failure="restart", max_restarts=50) as collector:
        collector.set_attr("gravity", 9.0)
        assert collector.call("end") == (None, None)
        with pytest.raises(WorkerDied, match="SIGKILL") as caught:
            collector.next()
        assert "settings that every new process gets: set_attr('gravity', ...) and call('end', ...)" in "".join(
            caught.value.__notes__
        )
        assert collector.stats()["workers"] == 2


class Mapped(FaultyEnv):
    """Takes longer for a batch than the limit for a step, and keeps a map."""

    def __init__(self):
        super().__init__("sleeps", 10**6, step_s=0.05)

    def set_map(self, values):
        self.size = float(values.sum())
        return values


@over([SHARED_ASYNC, GLOO_ASYNC], smoke=True)
def test_long_messages_wait_neither_for_a_batch_nor_for_each_other(way):
    def hook(batch):
        batch["features"] = torch.zeros(*batch.shape, 40_000)

    with make(way, Mapped, frames_per_batch=25, worker_timeout_s=1.0, post_collect_hook=hook) as collector:
        collector.next()
        for size in (2_000_000, 3_000_000):
            assert [len(each) for each in collector.call("set_map", torch.ones(size))] == [size] * 2
            assert collector.next()["features"].shape[-1] == 40_000
        assert collector.get_attr("size") == (3e6, 3e6)


@over([GLOO_SYNC])
def test_workers_on_other_hosts_cannot_be_asked(way):
    words = "is not possible with workers over a network"
    with make(way, frames_per_batch=20) as collector:
        with pytest.raises(NotImplementedError, match=f"getattr_env {words}"):
            collector.getattr_env("spec")
        with pytest.raises(NotImplementedError, match=f"replacing a hook {words}"):
            collector.pre_collect_hook = print
        with pytest.raises(NotImplementedError, match=f"enable_profile {words}"):
            collector.enable_profile()


@over(SHARED)
def test_what_cannot_travel_is_an_error_and_the_collection_goes_on(way):
    lock = threading.Lock()

    def create():
        env = cartpole()
        env.generator = (number for number in range(3))
        return env

    with make(way, create, frames_per_batch=10, total_frames=40) as collector:
        collector.next()
        with pytest.raises(TypeError, match="generator"):
            collector.getattr_env("generator")
        with pytest.raises(ConfigError, match=r"pre_collect_hook=.* cannot be pickled"):
            collector.pre_collect_hook = lambda: lock.locked()
        assert len(list(collector)) == 3


@over(SHARED)
def test_a_question_to_a_dead_worker_is_answered_by_its_death(way):
    with make(way, with_pid, num_workers=1, frames_per_batch=20) as collector:
        os.kill(collector.getattr_env("pid"), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(WorkerDied, match="signal 9"):
                collector.getattr_env("spec")
        with pytest.raises(WorkerDied, match="signal 9"):
            list(collector)


@pytest.mark.parametrize(("way", "inner"), [*(case(way, 1) for way in (SINGLE, *SHARED)), case(RAY_SYNC, 2)])
def test_hooks_are_called_where_batches_are_made(way, inner):
    """The second one writes how often the first was called in its process."""
    calls, seen = [], {}

    def after(batch):
        batch["next", "reward"].fill_(len(calls))

    hooks = {"pre_collect_hook": lambda: calls.append(None), "post_collect_hook": after}
    nested = {"num_workers_per_collector": inner} if inner > 1 else {}
    with make(way, frames_per_batch=20, total_frames=60, **hooks, **nested) as collector:
        for batch in collector:
            for worker, part in by_worker(way, batch):
                seen.setdefault(worker, []).extend(part["next", "reward"].unique().tolist())
    assert all(counts == list(range(1, 1 + len(counts))) for counts in seen.values())
    assert len(calls) == (3 if way is SINGLE else 0)


@over((SINGLE, INLINE_SYNC, SHARED_SYNC))
def test_a_hook_can_be_replaced(way):
    calls = []

    def twice(batch):
        batch["next", "reward"] *= 2

    with make(way, frames_per_batch=20) as collector:
        collector.set_post_collect_hook(twice)
        assert collector.post_collect_hook is twice
        assert collector.next()["next", "reward"].unique().tolist() == [2.0]
        collector.post_collect_hook = None
        collector.pre_collect_hook = before = lambda: calls.append(None)
        assert (collector.pre_collect_hook, collector.post_collect_hook) == (before, None)
        assert collector.next()["next", "reward"].unique().tolist() == [1.0]
    assert len(calls) == (0 if way is SHARED_SYNC else way.num_workers)


@over(SHARED)
def test_init_fn_is_called_in_the_worker_before_the_env_is_made(way):
    def create():
        env = cartpole()
        env.variable = os.environ.get("COLLECTX_TEST_INIT_FN")
        return env

    with make(way, create, init_fn=lambda: os.environ.update(COLLECTX_TEST_INIT_FN="1")) as collector:
        assert collector.getattr_env("variable") == "1"
        assert "COLLECTX_TEST_INIT_FN" not in os.environ


def test_stats_count_parts_that_ended_early():
    rings = iter([True] * 5)
    bell = SimpleNamespace(collection_stopped=lambda: next(rings, False))
    with make(SINGLE, frames_per_batch=20, interruptor=bell) as collector:
        for _ in range(6):
            collector.next()
        told = collector.stats("per_worker")
    assert (told["worker_0/frames"], told["worker_0/batches"]) == (25, 6)


@over(SHARED, smoke=True)
def test_every_worker_has_counters_before_it_has_delivered_a_batch(way):
    with make(way, frames_per_batch=8) as collector:
        before = collector.stats(workers="both")
        assert [before[f"worker_{index}/{name}"] for index in range(2) for name in ("frames", "batches")] == [0] * 4


def test_the_configuration_of_a_profile():
    config = ProfileConfig([0, 2], 5, save_path="trace_{worker_idx}.json", activities=["cpu"])
    assert config.get_save_path(2) == Path("trace_2.json")
    assert ProfileConfig(save_path="{run}.json").get_save_path(0) == Path("{run}.json")
    assert ProfileConfig().get_save_path(1) == Path("collector_profile_1.json")
    assert config.get_activities() == [ProfilerActivity.CPU]
    assert [config.should_profile_worker(index) for index in range(3)] == [True, False, True]
    default = ProfileConfig()
    assert default.should_profile_worker(0)
    assert (default.num_rollouts, default.warmup_rollouts) == (3, 1)
    flags = (default.record_shapes, default.profile_memory, default.with_stack, default.with_flops)
    assert flags == (True, False, True, False)


def test_workers_and_activities_that_do_not_exist_have_no_profile():
    with make(SINGLE, frames_per_batch=4) as collector, pytest.raises(ValueError, match="workers=") as caught:
        collector.enable_profile(workers=[5, 3], activities=["gpu", "disk"])
    assert str(caught.value) == (
        "workers=[5, 3] names worker 3, which does not exist. Valid indices: 0. "
        "activities=['gpu', 'disk'] contains 'disk', which is unknown. Valid names: 'cpu', 'cuda'."
    )


@pytest.mark.parametrize("keywords", [{"num_rollouts": 1}, {"warmup_rollouts": -1}], ids=str)
def test_a_profile_of_no_batch_is_refused_when_it_is_configured(keywords):
    with pytest.raises(ValueError, match="so that at least one batch is recorded"):
        ProfileConfig(**keywords)


def test_devices_are_those_that_the_keywords_resolve_to():
    cpu = torch.device("cpu")
    with make(SINGLE, frames_per_batch=4, device="cpu", storing_device="meta") as collector:
        assert collector.device == collector.policy_device == collector.env_device == cpu
        assert collector.storing_device == torch.device("meta")
    with make(INLINE_SYNC, policy=Coin(), frames_per_batch=4, policy_device=["cpu", None]) as collector:
        assert collector.device == collector.env_device == collector.storing_device == (None, None)
        assert collector.policy_device == (cpu, None)
        assert collector.next().device is None
    with make(INLINE_SYNC, frames_per_batch=4, storing_device=["cpu", "cpu:0"]) as collector:
        assert collector.next().device == cpu


@pytest.mark.difference("torch's threads in the trainer's process, without `num_threads`")
@over((INLINE_SYNC, SHARED_SYNC))
def test_this_process_keeps_its_number_of_torch_threads_unless_num_threads_sets_it(way):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        for keywords, expected in (({}, before + 1), ({"num_threads": before + 2}, before + 2)):
            with make(way, frames_per_batch=20, **keywords) as collector:
                collector.next()
                assert torch.get_num_threads() == collector.num_threads == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("frames", "each", "mean"), [(20, [12, 12], 12), ([6, 20], [6, 21], 14)])
def test_frames_of_one_worker(frames, each, mean):
    with pytest.warns(UserWarning, match=rf"={re.escape(str(frames))} was rounded up to {sum(each)}, "):
        made = make(INLINE_SYNC, cartpoles, frames_per_batch=frames, cat_results=-1)
    with made as collector:
        assert [collector.frames_per_batch_worker(worker_idx=index) for index in range(2)] == each
        assert collector.frames_per_batch_worker() == mean
        assert collector.num_workers == 2
        assert collector.next().numel() == sum(each) == collector.frames_per_batch
        with pytest.raises(ValueError, match="worker_idx=2 does not exist: there are 2 workers"):
            collector.frames_per_batch_worker(worker_idx=2)


def test_a_reset_of_some_envs():
    with make(SINGLE, cartpoles, frames_per_batch=9) as collector:
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


@over((INLINE_SYNC, SHARED_SYNC))
def test_a_reset_of_some_workers(way):
    with make(way, frames_per_batch=6) as collector:
        before = collector.next()["collector", "traj_ids"][:, -1]
        collector.reset([False, True])
        after = collector.next()["collector", "traj_ids"][:, 0]
        assert (after > before).tolist() == [False, True]
        with pytest.raises(ValueError, match=r"reset_idx=\[True\] has 1 entry, but there are 2 workers"):
            collector.reset([True])


def test_resets_that_are_refused():
    with (
        make(SINGLE, partial(cartpoles, mode="NEXT_STEP"), frames_per_batch=6) as collector,
        pytest.raises(ValueError, match="only resets an env when"),
    ):
        collector.reset([True, False, False])
    with make(SINGLE, cartpoles, frames_per_batch=6, trajs_per_batch=2) as collector:
        with pytest.raises(ValueError, match="trajs_per_batch=2, because all envs are reset together"):
            collector.reset([True, False, False])
        with pytest.raises(ValueError, match=r"reset\(\) has no argument 'options'"):
            collector.reset(options={})
        with pytest.raises(IndexError, match=r"index=3 does not exist: this collector has 3 envs \(0 to 2\)"):
            collector.reset(3)
        for index in (1.5, "a", [0.0], [None]):
            with pytest.raises(TypeError, match="is neither a mask nor indices nor a slice"):
                collector.reset(index)
    with make(SINGLE) as collector, pytest.raises(ValueError, match="seed=-1 must be an int from 0 to "):
        collector.set_seed(-1)


@pytest.mark.difference("`fake_tensordict` of several workers")
@pytest.mark.parametrize("keywords", [{}, {"set_truncated": True}, {"track_policy_version": True}], ids=str)
@over(INLINE)
def test_a_batch_of_zeros_is_as_one_that_was_collected(way, keywords):
    with make(way, cartpoles, Coin(), frames_per_batch=30, **keywords) as collector:
        fake, batch = collector.fake_tensordict(), collector.next()
    assert (fake.batch_size, fake.names) == (batch.batch_size, batch.names)
    theirs = {key: (value.shape, value.dtype) for key, value in batch.items(True, True)}
    assert {key: (value.shape, value.dtype) for key, value in fake.items(True, True)} == theirs
    assert bool(fake["next", "truncated"][..., -1, :].all()) is ("set_truncated" in keywords)


@over(INLINE)
def test_a_batch_of_zeros_has_a_settings_version_after_a_setting(way):
    with make(way, frames_per_batch=30) as collector:
        collector.set_attr("gravity", 1.0)
        fake, batch = collector.fake_tensordict(), collector.next()
    found, expected = (each["collector", "settings_version"] for each in (fake, batch))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    "keywords",
    [{}, {"cat_results": -1}, {"preemptive_threshold": 0.5}, {"frames_per_batch": [8, 12], "cat_results": -1}],
    ids=str,
)
def test_a_batch_of_zeros_has_no_part_of_a_dropped_worker(keywords):
    creates = [partial(FaultyEnv, "raises", 5), partial(FaultyEnv, "raises", 1000)]
    keywords = {"frames_per_batch": 20, "on_worker_failure": "drop"} | keywords
    with make(INLINE_SYNC, creates, **keywords) as collector:
        batch = collector.next()
        assert collector.stats()["workers_alive"] == 1
        assert collector.fake_tensordict().shape == batch.shape


@pytest.mark.sample(1)
@pytest.mark.parametrize("batches", [2, 50])
@over((SINGLE, INLINE_SYNC, SHARED_SYNC))
def test_a_profile_of_the_first_worker_is_written(way, batches, tmp_path):
    """The profile is written after the requested number of batches, or when profiling is disabled."""
    with make(way, policy=Coin(), frames_per_batch=20) as collector:
        collector.enable_profile(num_rollouts=batches, save_path=tmp_path / "{worker_idx}.json", activities=["cpu"])
        assert (collector.profile_config.num_rollouts, collector.profile_config.workers) == (batches, [0])
        for _ in range(3):
            collector.next()
        if batches == 50:
            collector.disable_profile()
            assert collector.profile_config is None
            assert collector.next() is not None
    (written,) = tmp_path.iterdir()
    assert written.name == "0.json"
    assert "aten::rand" in {event.get("name") for event in json.loads(written.read_text())["traceEvents"]}


def test_a_profile_is_passed_to_a_function_instead_of_being_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profiles = []
    with make(SINGLE, frames_per_batch=4) as collector:
        collector.enable_profile(num_rollouts=2, on_trace_ready=profiles.append)
        for _ in range(4):
            collector.next()
    assert len(profiles) == 1
    assert [*tmp_path.iterdir()] == []


def test_another_profile_ends_the_first_which_is_written(tmp_path):
    with make(SINGLE, frames_per_batch=4) as collector:
        for name in ("first", "second"):
            collector.enable_profile(num_rollouts=9, save_path=tmp_path / name, activities=["cpu"])
            for _ in range(2):
                collector.next()
        assert [each.name for each in tmp_path.iterdir()] == ["first"]
        collector.disable_profile()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["first", "second"]


def same(one, other):
    return all(
        torch.equal(one[key], other[key]) for key in one.keys(True, True) if key != ("collector", "policy_version")
    )


@pytest.mark.difference("resuming from `state_dict`")
@over((SINGLE, INLINE_SYNC, SHARED_SYNC, GLOO_SYNC))
def test_envs_that_can_be_saved_go_on_where_they_were_with_the_weights_that_were_saved(way, tmp_path):
    with make(way, Saved, Coin(), frames_per_batch=20, total_frames=100) as collector:
        for _ in range(2):
            collector.next()
        torch.save(collector.state_dict(), tmp_path / "state.pt")
        expected = list(collector)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    with make(way, Saved, Coin(9.0), frames_per_batch=20, total_frames=100) as collector:
        collector.load_state_dict(state)
        assert collector.stats()["frames"] == 40
        batches = list(collector.iterator())
    assert len(batches) == len(expected) == 3
    assert all(map(same, batches, expected))


@new_episodes
@pytest.mark.difference("resuming from `state_dict`")
@over(WAYS)
def test_a_resumed_collector_repeats_nothing_and_ends_in_time(way):
    def collector():
        return make(way, unsaved, Coin(), frames_per_batch=20, total_frames=100)

    with collector() as first:
        before = [first.next() for _ in range(2)]
        state = first.state_dict()
    assert state["frames"] == 40
    resumed = []
    for _ in range(2):
        with collector() as other:
            other.load_state_dict(state)
            resumed.append(list(other))
        assert len(resumed[-1]) == 3
    if way.is_sync or way is SINGLE:
        assert all(map(same, *resumed))
    old, new = (torch.cat([batch.reshape(-1) for batch in batches]) for batches in (before, resumed[0]))
    assert len(torch.cat([old["observation"], new["observation"]]).unique(dim=0)) == 100
    # Batches that were full continue trajectories; and over a network, the state has no trajectory ids.
    if way in ASKED and (way.is_sync or way is SINGLE):
        assert not set(old["collector", "traj_ids"].tolist()) & set(new["collector", "traj_ids"].tolist())


@pytest.mark.parametrize("num_batches", [1, 2])
@over((SINGLE, INLINE_SYNC))
def test_random_frames_are_not_collected_once_more_after_a_state(way, num_batches):
    keywords = {"policy": Constant(1.0), "frames_per_batch": 40, "init_random_frames": 80}
    with make(way, **keywords) as collector:
        for _ in range(num_batches):
            assert 0 in collector.next()["action"]
        state = collector.state_dict()
    with make(way, **keywords) as collector:
        collector.load_state_dict(state)
        assert [0 in collector.next()["action"] for _ in range(2)] == [num_batches < 2, False]


@pytest.mark.ci
@over((SINGLE, INLINE_SYNC))
def test_the_state_of_torchrls_transforms_is_saved(way):
    torchrl = pytest.importorskip("torchrl.envs")

    def create():
        return torchrl.TransformedEnv(torchrl.GymEnv("CartPole-v1"), torchrl.VecNormV2(in_keys=["observation"]))

    with make(way, create, frames_per_batch=20) as collector, make(way, create, frames_per_batch=20) as other:
        collector.next()
        other.load_state_dict(collector.state_dict())
        (own,), (theirs,) = (each.state_dict()["worker0"]["env_state_dict"] for each in (collector, other))
        assert other.next() is not None
    assert own
    torch.testing.assert_close(theirs, own)
