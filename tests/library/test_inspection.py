"""What a collector tells of itself and its workers, what is called around its batches, and its state."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time

import gymnasium
import numpy as np
import pytest
import torch
from collecting import config, counting, gym, start, worker_pids
from gymnasium import spaces
from torch import nn

from collectx import Collector, DistributedSyncCollector, MultiAsyncCollector, MultiSyncCollector
from collectx import env as envs
from collectx.collector import build
from collectx.errors import ConfigError, WorkerDied, WorkerTimeout
from collectx.given import Hooks

torch.set_num_threads(1)

WAYS = {"single": Collector, "multi_sync": MultiSyncCollector, "multi_async": MultiAsyncCollector}


def cartpole(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)


def make(kind, create=cartpole, policy=None, num_workers=2, **keywords):
    return WAYS[kind](create if kind == "single" else [create] * num_workers, policy, **keywords)


class Saved(gymnasium.Env):
    """Walks at random, by its own generator, and can be saved in the midst of an episode."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=1)
        self.steps = 0
        return self.at, {}

    def step(self, action):
        self.at = self.at + self.np_random.normal(size=1) + int(action)
        self.steps += 1
        return self.at, 1.0, self.steps >= 7, False, {}

    def state_dict(self):
        return {"at": self.at.copy(), "steps": self.steps, "random": self.np_random.bit_generator.state}

    def load_state_dict(self, state):
        self.at, self.steps = state["at"].copy(), state["steps"]
        self.np_random.bit_generator.state = state["random"]


class Coin(nn.Module):
    """Acts by chance."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return (torch.rand(observation.shape[0]) + self.bias < 0.5).long()


@pytest.mark.parametrize("kind", WAYS)
def test_an_attribute_of_the_env(kind):
    with make(kind, frames_per_batch=20) as collector:
        assert collector.getattr_env("spec").id == "CartPole-v1"
        assert collector.next() is not None
        assert collector.getattr_env("action_space") == spaces.Discrete(2)
        with pytest.raises(AttributeError, match="no_such"):
            collector.getattr_env("no_such")
        assert collector.map_fn("getattr_policy", [("__class__",)]) == [type(None)]
        assert collector.next() is not None


def test_workers_elsewhere_cannot_be_asked():
    with (
        DistributedSyncCollector([cartpole], frames_per_batch=20, launcher="mp") as collector,
        pytest.raises(NotImplementedError, match="processes of this machine"),
    ):
        collector.getattr_env("spec")


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async"])
def test_a_question_to_a_dead_worker_tells_of_its_death(kind):
    with make(kind, num_workers=1, frames_per_batch=20) as collector:
        for child in multiprocessing.active_children():
            if child.name.startswith("collectx-worker"):
                os.kill(child.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(WorkerDied, match="signal 9"):
                collector.getattr_env("spec")
        with pytest.raises(WorkerDied, match="signal 9"):
            list(collector)


@pytest.mark.ci
def test_a_long_question_to_a_worker_that_hangs_is_not_waited_for_without_end():
    """It does not fit into the socket's buffer, and the worker reads nothing."""
    with start("multi_async", env=counting(), num_workers=1, total_frames=-1, worker_timeout_s=3.0) as collector:
        next(collector)
        os.kill(worker_pids(collector)[0], signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match="worker_timeout_s=3"):
            collector.ask("load", {"rollout": bytes(4_000_000)})


def test_an_answer_that_cannot_travel_is_an_error_of_its_own():
    def create():
        env = cartpole()
        env.generator = (i for i in range(3))
        return env

    with make("multi_sync", create, frames_per_batch=20) as collector:
        with pytest.raises(TypeError, match="generator"):
            collector.getattr_env("generator")
        assert collector.next() is not None


class Odd:
    def __reduce__(self):
        return int, ("no number",)


def test_an_answer_that_the_trainer_cannot_read_is_an_error_and_the_collection_goes_on():
    def create():
        env = cartpole()
        env.odd = Odd()
        return env

    with make("multi_sync", create, frames_per_batch=10, total_frames=40) as collector:
        batches = iter(collector)
        next(batches)
        with pytest.raises(ValueError, match="no number"):
            collector.getattr_env("odd")
        assert len(list(batches)) == 3


def test_a_question_that_cannot_travel_is_not_awaited():
    with start("multi_sync", "local", counting(step_s=0.02), total_frames=-1, worker_timeout_s=2.0) as collector:
        next(collector)
        with pytest.raises(TypeError, match="pickle"):
            collector.ask("set_hook", "pre_collect_hook", threading.Lock())
        time.sleep(2.2)
        next(collector)


def test_an_answer_to_an_interrupted_question_is_not_taken_for_another(monkeypatch):
    with start("multi_async", "local", counting(), total_frames=-1) as collector:
        next(collector)
        with monkeypatch.context() as patched:
            patched.setattr(collector._transport, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                collector.ask("state")
        answers = collector.ask("getattr_env", "_length")
        assert [answers[worker].tolist() for worker in range(2)] == [[7], [8]]
        next(collector)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", WAYS)
def test_hooks_are_called_where_batches_are_made(kind, tmp_path):
    def before():
        with (tmp_path / f"{os.getpid()}").open("a") as file:
            file.write("before\n")

    def after(batch):
        batch["next", "reward"].fill_(batch.shape[-1])

    with make(kind, frames_per_batch=20, total_frames=60, pre_collect_hook=before, post_collect_hook=after) as some:
        batches = list(some)
    steps = 10 if kind == "multi_sync" else 20
    assert all(torch.all(batch["next", "reward"] == steps) for batch in batches)
    pids = {int(path.name) for path in tmp_path.iterdir()}
    assert (os.getpid() in pids) is (kind == "single")
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    # An async worker may have begun one that is not wanted any more.
    assert len(lines) >= 3 if kind == "multi_async" else len(lines) == (6 if kind == "multi_sync" else 3)


@pytest.mark.ci
@pytest.mark.parametrize("num_workers", [1, 2])
def test_hooks_travel_to_workers_that_are_told_by_a_connection(num_workers):
    def after(batch):
        batch["next", "reward"].fill_(5.0)

    cfg = config("distributed_sync", "local", gym(), num_workers_per_collector=num_workers)
    own = [{"hooks": Hooks(post_collect_hook=after)}, {}]
    with build(cfg, None, envs.read_spec(cfg.env), own=own) as collector:
        first, second = next(collector)["next", "reward"]
    assert (first == 5).all()
    assert (second == 1).all()


@pytest.mark.parametrize("kind", WAYS)
def test_a_hook_can_be_replaced(kind):
    def twice(batch):
        batch["next", "reward"].fill_(2.0)

    with make(kind, num_workers=1, frames_per_batch=20) as collector:
        assert collector.next()["next", "reward"].unique().tolist() == [1.0]
        collector.set_post_collect_hook(twice)
        rewards = [1.0]
        while rewards != [2.0]:  # an async worker has batches from before
            rewards = collector.next()["next", "reward"].unique().tolist()
            assert rewards in ([1.0], [2.0])
        assert collector.post_collect_hook is twice
        collector.post_collect_hook = None
        assert collector.post_collect_hook is None
        while rewards != [1.0]:
            rewards = collector.next()["next", "reward"].unique().tolist()


def test_init_fn_is_called_before_the_env_is_made():
    def create():
        env = cartpole()
        env.told = os.environ.get("COLLECTX_TOLD")
        return env

    with make("multi_sync", create, frames_per_batch=20, init_fn=lambda: os.environ.update(COLLECTX_TOLD="1")) as some:
        assert some.getattr_env("told") == "1"
        assert "COLLECTX_TOLD" not in os.environ


def test_hooks_must_be_callable():
    with pytest.raises(ConfigError, match="init_fn=3 cannot be called"):
        make("multi_sync", init_fn=3)


def test_stats():
    with make("multi_sync", frames_per_batch=20, total_frames=40) as collector:
        collector.next()
        expected = {
            "frames": 20,
            "batches": 1,
            "completed": False,
            "requested_frames_per_batch": 20,
            "policy_version": 0,
            "workers": 2,
            "workers_alive": 2,
            "total_frames": 40,
        }
        each = {"worker_0/frames": 10, "worker_1/frames": 10}
        assert collector.stats() == expected
        assert collector.stats("per_worker") == each
        assert collector.stats("both") == expected | each
        collector.next()
        assert collector.stats()["completed"]
        with pytest.raises(ValueError, match="workers='all'"):
            collector.stats("all")


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        ("single", {}),
        ("single", {"set_truncated": True}),
        ("single", {"track_policy_version": True}),
        ("multi_sync", {}),
        ("multi_sync", {"set_truncated": True, "cat_results": -1}),
        ("multi_async", {"track_policy_version": True}),
    ],
)
def test_a_batch_of_zeros_is_as_one_that_was_collected(kind, keywords):
    def create():
        return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

    with make(kind, create, Coin(), frames_per_batch=30, **keywords) as collector:
        fake, batch = collector.fake_tensordict(), collector.next()
    assert fake.batch_size == batch.batch_size
    assert fake.names == batch.names
    theirs = {key: (value.shape, value.dtype) for key, value in batch.items(True, True)}
    assert {key: (value.shape, value.dtype) for key, value in fake.items(True, True)} == theirs
    assert bool(fake["next", "truncated"][..., -1, :].all()) is ("set_truncated" in keywords)


@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_a_profile_of_a_worker_is_written(kind, tmp_path):
    with make(kind, policy=Coin(), frames_per_batch=20) as collector:
        collector.enable_profile(num_rollouts=2, save_path=tmp_path / "worker-{worker_idx}.json", activities=["cpu"])
        for _ in range(3):
            collector.next()
        with pytest.raises(ValueError, match="at least one batch"):
            collector.enable_profile(num_rollouts=1)
    (written,) = tmp_path.iterdir()
    assert written.name == "worker-0.json"
    assert "aten::rand" in {event.get("name") for event in json.loads(written.read_text())["traceEvents"]}


def same(one, other):
    return all(
        torch.equal(one[key], other[key]) for key in one.keys(True, True) if key != ("collector", "policy_version")
    )


@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_envs_that_can_be_saved_go_on_where_they_were(kind):
    with make(kind, Saved, Coin(), frames_per_batch=20, total_frames=100) as collector:
        for _ in range(2):
            collector.next()
        state = collector.state_dict()
        expected = list(collector)
    with make(kind, Saved, Coin(), frames_per_batch=20, total_frames=100) as collector:
        collector.load_state_dict(state)
        assert collector.stats()["frames"] == 40
        batches = list(collector)
    assert len(batches) == len(expected) == 3
    assert all(map(same, batches, expected))


@pytest.mark.parametrize("kind", WAYS)
def test_a_resumed_collector_repeats_nothing_and_ends_in_time(kind):
    with make(kind, policy=Coin(), frames_per_batch=20, total_frames=100) as collector:
        before = [collector.next() for _ in range(2)]
        state = collector.state_dict()
    assert state["frames"] == 40

    def resumed():
        with make(kind, policy=Coin(), frames_per_batch=20, total_frames=100) as collector:
            collector.load_state_dict(state)
            return list(collector)

    one, other = resumed(), resumed()
    assert len(one) == len(other) == 3
    if kind != "multi_async":
        assert all(map(same, one, other))
    old, new = (torch.cat([batch.reshape(-1) for batch in batches]) for batches in (before, one))
    assert not set(old["collector", "traj_ids"].tolist()) & set(new["collector", "traj_ids"].tolist())
    assert len(torch.cat([old["observation"], new["observation"]]).unique(dim=0)) == 100


@pytest.mark.parametrize("num_batches", [1, 2])
@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_random_frames_are_not_collected_again_after_a_state(kind, num_batches):
    def ones(observation):
        return torch.ones(observation.shape[0], dtype=torch.int64)

    keywords = {"frames_per_batch": 40, "init_random_frames": 80}
    with make(kind, policy=ones, **keywords) as collector:
        for _ in range(num_batches):
            assert 0 in collector.next()["action"]
        state = collector.state_dict()
    with make(kind, policy=ones, **keywords) as collector:
        collector.load_state_dict(state)
        acted_at_random = [0 in collector.next()["action"] for _ in range(2)]
    assert acted_at_random == [num_batches < 2, False]


def test_a_state_can_be_saved_without_pickled_objects(tmp_path):
    with make("multi_sync", policy=Coin(), frames_per_batch=20) as collector:
        collector.next()
        torch.save(collector.state_dict(), tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        collector.load_state_dict(state)
        assert collector.next()["collector", "traj_ids"].min() >= 2


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_the_state_of_torchrls_transforms_is_saved(kind):
    envs = pytest.importorskip("torchrl.envs")

    def create():
        return envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.VecNormV2(in_keys=["observation"]))

    with make(kind, create, frames_per_batch=20) as collector:
        collector.next()
        state = collector.state_dict()
    with make(kind, create, frames_per_batch=20) as collector:
        collector.load_state_dict(state)
        loaded = collector.state_dict()
        assert collector.next() is not None
    (own,), (theirs,) = (each["worker0"]["env_state_dict"] for each in (state, loaded))
    numbers = [key for key, value in own.items() if isinstance(value, torch.Tensor)]
    assert numbers
    assert all(torch.equal(own[key], theirs[key]) for key in numbers)
