"""Whole sessions with collectors in this process: what calls return, and every number of the batches."""

import contextlib
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from configurations import through_a_file
from gymnasium.spaces import Box
from library_collectors import make
from tensordict import TensorDict
from torch import nn
from ways import INLINE_ASYNC, INLINE_SYNC, SINGLE

from collectx import Collector
from collectx.errors import CollectxError


class Count(gymnasium.Env):
    """An observation is the number of steps in the episode, a reward the action and 10 times that number. Episodes of
    env i have i + 3 steps."""

    observation_space, action_space = Box(0, 99, (1,)), Box(-99, 99, (1,))

    def __init__(self, length=3):
        self.length, self.level, self.steps = length, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.full(1, self.steps, np.float32)
        return observation, float(action[0]) + 10 * self.steps, self.steps == self.length, False, {}

    def set_level(self, level, more=0):
        self.level = level + more
        return [level, more]


class Acts(nn.Module):
    """Acts with its weight."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), weight))

    def forward(self, observation):
        return self.weight.detach().expand(observation.shape)


def text_of(value):
    if isinstance(value, TensorDict):
        if not value.keys():
            return f"{list(value.shape)} without keys"
        rows = [f"{list(value.shape)} {value.names if any(value.names) else ''}".rstrip()]
        for key, leaf in sorted(value.items(True, True), key=lambda item: str(item[0])):
            name = key if isinstance(key, str) else ".".join(key)
            if name in ("done", "terminated", "truncated"):
                assert not leaf.any()
                continue
            shape = list(leaf.shape[value.ndim :])
            numbers = leaf.reshape(*value.shape, -1).squeeze(-1) if shape == [1] or not shape else leaf
            kind = str(leaf.dtype).removeprefix("torch.")
            if leaf.dtype == torch.bool or (leaf.dtype.is_floating_point and bool((numbers == numbers.round()).all())):
                numbers = numbers.int()
            rows.append(f"    {name} {kind}{shape} {numbers.tolist()}")
        return "\n".join(rows)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return str(value.tolist()) if isinstance(value, torch.Tensor) else str(value)


class Session:
    """Evaluates expressions about `collector`, and keeps what they return or raise."""

    def __init__(self, **names):
        self.names, self.lines = names, []

    def __call__(self, *expressions):
        for expression in expressions:
            self.lines.append(f"> {expression}")
            try:
                value = eval(expression, self.names)
            except (CollectxError, TypeError, ValueError, KeyError, AttributeError, RuntimeError, IndexError) as error:
                value = f"{type(error).__name__}: {error}"
            if value is not None:
                self.lines.append(text_of(value))


KEYWORDS = {
    "plain": {},
    "several envs": {"num_envs": 2, "track_policy_version": True},
    "along time": {"cat_results": -1, "track_traj_ids": False},
    "along envs": {"cat_results": 0, "num_envs": 2},
    "split": {"split_trajs": True},
    "one TensorDict": {"return_same_td": True, "postproc": lambda batch: batch.set("more", batch["action"] + 1)},
    "cut": {"max_frames_per_traj": 2, "set_truncated": True},
    "reset": {"reset_at_each_iter": True, "compact_obs": True},
    "trajectories": {"trajs_per_batch": 2, "frames_per_batch": 6, "total_frames": 12},
    "joined trajectories": {"trajs_per_batch": 2, "frames_per_batch": 6, "total_frames": 12, "traj_format": "cat"},
    "random": {"init_random_frames": 4, "post_collect_hook": lambda batch: batch.set("seen", batch["done"])},
}


def acting(way):
    """The policy of a collector, of which each worker makes its own."""
    return {"policy": Acts()} if way is SINGLE else {"policy_factory": Acts}


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC], ids=str)
def test_whole_batches(way, expected):
    lines = []
    for name, keywords in KEYWORDS.items():
        keywords = {"frames_per_batch": 4, "total_frames": 8, "seed": 1, **acting(way)} | keywords
        lines.append(f"=== {name}")
        with make(way, Count, **keywords) as collector:
            kept = []
            for batch in collector:
                if name == "random":
                    # The numbers themselves are torch's.
                    batch["action"] = (batch["action"] == 1).float()
                    batch["next", "reward"] = (batch["next", "reward"] % 10 == 1).float()
                lines.append(text_of(batch))
                kept.append(batch)
            lines.append(f"same: {kept[0] is kept[-1]}, of zeros: {text_of(collector.fake_tensordict())}")
    expected(f"batches of {way}", "\n".join(lines))


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC, INLINE_ASYNC], ids=str)
def test_a_whole_session(way, expected):
    with make(way, Count, frames_per_batch=4, total_frames=28, seed=1, **acting(way)) as collector:
        say = Session(
            collector=collector, policy=collector.policy, torch=torch, Acts=Acts, TensorDict=TensorDict, state={}
        )
        act = "collector.next()['action'].unique().tolist()"
        version = "collector.policy_version"
        say("len(collector)", "collector.is_running()", act, "collector.stats('both')", "collector.stats('all')")
        for weights in (
            "Acts(2.0)",
            "{'weight': torch.full((1,), 3.0)}",
            "TensorDict({'weight': torch.full((1,), 4.0)}, [])",
            "{'module.weight': torch.full((1,), 5.0), 'other': 1}",
            "{'other': 1}",
            "{'weight': torch.zeros(2)}",
            "torch.nn.Linear(1, 1)",
            "3",
            "{0: {'weight': torch.full((1,), 6.0)}}",
            "{7: {'weight': torch.full((1,), 6.0)}}",
        ):
            say(f"collector.update_policy_weights_({weights})", version)
        say("policy.weight.item()", act, act, act)
        say("collector.update_policy_weights_({'weight': torch.zeros(1), 'x': 1}, strict=True)")
        say(
            "collector.update_policy_weights_(weights=Acts(7.0), worker_ids=0)",
            version,
            "collector.increment_version()",
        )
        say("collector.update_policy_weights_(policy, policy=policy)", "collector.update_policy_weights_(model_id='x')")
        say("collector.update_policy_weights_(weights_dict={'policy': Acts(8.0)})", version, "policy.weight.item()")
        say(
            "collector.update_policy_weights_(policy, worker_ids=[0, 9])", "collector.policy_weights['weight'].tolist()"
        )
        say("collector.map_fn('env.set_level', [(1,), (2,)])", "collector.map_fn('env.set_level', [(1,)])")
        say("collector.map_fn('env.set_level', [(3,), (4,)], [{}, {'more': 5}])", "collector.map_fn('env.set_level')")
        say(
            "collector.map_fn('env.set_level', None, [{'level': 6}, {'level': 7}])",
            "collector.map_fn('get_policy_version')",
        )
        say("collector.map_fn('get_model', [('policy',)])", "collector.map_fn('stats', [()], [{}, {}])")
        say(
            "collector.map_fn('get_policy_version', [(), ()])",
            "collector.map_fn('get_model', None, [{'model_id': 'x'}])",
        )
        say(
            "collector.getattr_env('level')", "collector.get_distant_attr('env.level')", "collector.getattr_env('none')"
        )
        say("collector.get_distant_attr('worker_idx')", "collector.get_distant_attr('policy_version')")
        say("collector.get_distant_attr('frames')", "collector.getattr_policy('weight').item()", "collector.fill()")
        say("collector.frames_per_batch_worker(worker_idx=0)", "collector.frames_per_batch_worker(worker_idx=-1)")
        say("collector.frames_per_batch_worker(worker_idx=2)", "collector.set_seed(-1)", "collector.set_seed(2.5)")
        say("collector.set_seed(5, static_seed=True)", "collector.set_seed(5)", "collector.reset([True])")
        say("collector.next()['observation'].flatten().tolist()", "collector.reset()")
        say(
            "collector.next()['observation'].flatten().tolist()",
            "collector.stats()",
            "collector.pause(resume=False).__enter__()",
        )
        state = collector.state_dict()
        say.names["state"] = state
        say("sorted(state)", "state['frames'], state['iter'], state['policy_version']", "sorted(state['worker0'])")
        say("collector.load_state_dict(3)", "collector.load_state_dict({})", "collector.start()", "collector.nothing")
        say("[key for key in collector.__dir__() if key.startswith('max_')]", "collector.profile_config")
    expected(f"session of {way}", "\n".join(say.lines))


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC, INLINE_ASYNC], ids=str)
def test_a_state_continues_in_another_collector(way, expected):
    """Versions, counts, weights of single workers and the envs go on; the first batch after it is that of the first."""
    lines = []
    keywords = {"frames_per_batch": 4, "total_frames": 40, "seed": 1}
    with make(way, Count, **keywords, **acting(way)) as one, make(way, Count, **keywords, **acting(way)) as other:
        one.next()
        one.update_policy_weights_(Acts(2.0))
        if way is not SINGLE:
            one.update_policy_weights_({1: Acts(3.0)})
        one.next()
        state = one.state_dict()
        other.load_state_dict(state)
        for collector in (one, other):
            lines += [f"version {collector.policy_version}, {collector.stats()}"]
            lines += [text_of(collector.next()) for _ in range(2)]
            lines.append(f"version {collector.increment_version() if way is SINGLE else collector.policy_version}")
            saved = collector.state_dict()
            rows = {name: each.get("policy_version") for name, each in saved.items() if name.startswith("worker")}
            lines.append(
                f"{saved['frames']} frames in {saved['iter']} batches, version {saved['policy_version']}, {rows}"
            )
    expected(f"continued {way}", "\n".join(lines))


@pytest.mark.parametrize(("interval", "versions"), [
    ({}, [0, 0, 0, 0, 0]),
    ({"update_at_each_batch": True}, [0, 1, 2, 3, 4]),
    ({"update_interval": 2}, [0, 0, 1, 1, 2]),
    ({"max_weight_update_interval": 3, "update_interval": -1}, [0, 0, 0, 1, 1]),
])  # fmt: skip
@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC], ids=str)
def test_weights_are_published_at_intervals(way, interval, versions):
    with make(way, Count, Acts(), frames_per_batch=4, total_frames=20, **interval) as collector:
        acted = [batch["collector", "policy_version"].unique().tolist() for batch in collector]
    assert acted == [[version] for version in versions]


@pytest.mark.parametrize("keywords", [{}, {"trajs_per_batch": 1, "trajs_per_write": 1}, {"extend_buffer": False}])
@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC, INLINE_ASYNC], ids=str)
def test_a_buffer_gets_each_part_of_a_batch(way, keywords):
    class Buffer:
        def __init__(self):
            self.written = []

        def extend(self, frames):
            self.written.append(frames["observation"].flatten().tolist())

        def add(self, frame):
            self.written.append(frame["observation"].item())

    buffer = Buffer()
    with make(way, Count, Acts(), frames_per_batch=6, total_frames=18, replay_buffer=buffer, **keywords) as collector:
        assert collector.fill() == 6
        first = len(buffer.written)
        assert collector.fill(7) == 12
        assert (collector.fill(), collector.next()) == (0, None)
    parts = {"frames": [0, 1, 2, 0, 1, 2], "parts": [[0, 1, 2]] * 6, "whole": [[0, 1, 2, 0, 1, 2]] * 3}
    if "extend_buffer" in keywords:
        assert buffer.written == parts["frames"] * 3
    else:
        assert buffer.written == parts["parts" if way is INLINE_SYNC or keywords else "whole"]
    assert first == len(buffer.written) / 3


class Full:
    """A buffer that cannot be written to."""

    def extend(self, frames):
        raise OSError("no space")


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC], ids=str)
def test_an_error_in_the_background_is_raised_once(way, wait_until):
    with make(way, Count, Acts(), frames_per_batch=4, replay_buffer=Full()) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running())
        with pytest.raises(OSError, match="no space"):
            collector.stats() and collector.set_seed(1)
        collector.set_seed(1)
        with pytest.raises(RuntimeError, match="already collects in the background"):
            collector.start()
    for raise_on_error in (True, False):
        collector = make(way, Count, Acts(), frames_per_batch=4, replay_buffer=Full())
        collector.start()
        wait_until(lambda collector=collector: not collector.is_running())
        with pytest.raises(OSError, match="no space") if raise_on_error else contextlib.nullcontext():
            collector.shutdown(raise_on_error=raise_on_error)
        assert collector.closed
        collector.shutdown()


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC], ids=str)
def test_a_reset_of_all_envs_drops_unfinished_trajectories(way):
    keywords = {"frames_per_batch": 4, "total_frames": 40, "trajs_per_batch": 2, "traj_format": "cat"}
    with make(way, Count, Acts(), **keywords) as collector:
        first = collector.next()["observation"].flatten().tolist()
        collector.reset()
        second = collector.next()
    assert first == second["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert second["collector", "traj_ids"].unique().numel() == 2


# Ways with slots that are granted before `next` needs them.
AHEAD = [(INLINE_ASYNC, {}), (INLINE_SYNC, {"overlap": 1})]


def check_whole(batches, length):
    for batch in batches:
        assert batch["observation"].flatten().tolist() == [*range(length)]


@pytest.mark.parametrize("restart", [lambda collector: collector.reset(), lambda collector: collector.set_seed(3)])
@pytest.mark.parametrize(("way", "keywords"), AHEAD, ids=str)
def test_no_tail_of_a_trajectory_follows_a_reset(way, keywords, restart):
    frames = {"frames_per_batch": 20 if way is INLINE_ASYNC else 40, "trajs_per_batch": 1, "traj_format": "cat"}
    with make(way, partial(Count, 25), policy_factory=Acts, total_frames=-1, **frames, **keywords) as collector:
        for _ in range(5):
            check_whole([collector.next()], 25)
            restart(collector)


@pytest.mark.parametrize("way", [SINGLE, INLINE_SYNC], ids=str)
def test_a_reset_before_a_load_is_forgotten(way):
    with make(way, partial(Count, 25), frames_per_batch=4, total_frames=40, **acting(way)) as collector:
        collector.next()
        state = collector.state_dict()
        collector.reset()
        collector.load_state_dict(state)
        assert 0 not in collector.next()["observation"]


@pytest.mark.parametrize(("way", "keywords"), [(SINGLE, {}), *AHEAD], ids=str)
def test_a_state_contains_the_unfinished_trajectories(way, keywords):
    """Another collector and the same one continue them."""
    frames = {"frames_per_batch": 40 if way is INLINE_SYNC else 20, "trajs_per_batch": 1, "traj_format": "cat"}
    keywords = {"total_frames": 800, "seed": 1, **frames, **acting(way), **keywords}

    def versions(collector):
        """The ids and versions of the frames of each remaining trajectory."""
        batches = [*collector]
        check_whole(batches, 25)
        return sorted(
            (int(each["collector", "traj_ids"][0]), each["collector", "policy_version"].tolist()) for each in batches
        )

    with make(way, partial(Count, 25), **keywords) as one:
        for _ in range(3):
            one.next()
            one.increment_version()
        saved = one.state_dict()
        expected = versions(one)
        one.load_state_dict(saved)
        assert versions(one) == expected
    with make(way, partial(Count, 25), **keywords) as other:
        other.increment_version()
        other.next()
        other.load_state_dict(through_a_file(saved))
        again = other.state_dict()
        other.load_state_dict(again)
        assert versions(other) == expected


def test_a_state_of_an_earlier_version_is_refused_before_anything_is_loaded():
    with make(SINGLE, Count, frames_per_batch=4, total_frames=40) as collector:
        collector.next()
        state = collector.state_dict()
        state["trajectories"] = state.pop("stream")
        collector.next()
        with pytest.raises(ValueError, match=r"an earlier version of collectx saved this state\. Load it with that"):
            collector.load_state_dict(state)
        assert collector.state_dict()["frames"] == 8


@pytest.mark.parametrize(("way", "keywords"), AHEAD, ids=str)
def test_a_state_contains_the_batches_that_are_full(way, keywords):
    """Another collector and the same one deliver them, and none that they had collected before the load."""
    frames = {"frames_per_batch": 8 if way is INLINE_SYNC else 4, "total_frames": 80, "seed": 1}
    keywords = {**frames, **acting(way), **keywords}
    with make(way, Count, **keywords) as one, make(way, Count, **keywords) as other:
        one.next()
        one.increment_version()
        state = one.state_dict()
        expected = [text_of(batch) for batch in one]
        for collector in (one, other):
            collector.load_state_dict(through_a_file(state))
            assert [text_of(batch) for batch in collector] == expected
        for _ in range(2):
            other.load_state_dict(state)
            other.next()
        assert text_of(other.next()) == expected[1]


def test_a_state_with_batches_of_another_size_is_refused_before_anything_is_loaded():
    with make(INLINE_ASYNC, Count, frames_per_batch=4, total_frames=40, **acting(INLINE_ASYNC)) as collector:
        collector.next()
        state = collector.state_dict()
    with make(INLINE_ASYNC, Count, frames_per_batch=40, total_frames=400, **acting(INLINE_ASYNC)) as collector:
        version = collector.policy_version
        with pytest.raises(ValueError, match="the state has batches of another size"):
            collector.load_state_dict(state)
        assert (collector.policy_version, collector.state_dict()["frames"]) == (version, 0)


@pytest.mark.parametrize("worker", [None, 1])
def test_weights_that_do_not_fit_leave_the_policy_as_it_was(worker):
    """Weights of a single worker are checked too."""
    policy = nn.Linear(1, 1)
    with make(INLINE_SYNC, Count, policy, frames_per_batch=4, total_frames=40) as collector:
        state = collector.state_dict()
        fitting = {name: weights + 1 for name, weights in state["policy_state_dict"].items()}
        wrong = fitting | {"bias": torch.zeros(3)}
        if worker is None:
            state["policy_state_dict"] = wrong
        else:
            state["policy_state_dict"] = fitting
            state[f"worker{worker}"] |= {"policy_state_dict": wrong, "is_individual": True}
        before, version = copy.deepcopy(policy.state_dict()), collector.policy_version
        with pytest.raises((RuntimeError, ValueError), match="bias"):
            collector.load_state_dict(state)
        assert all(torch.equal(policy.state_dict()[name], weights) for name, weights in before.items())
        assert collector.policy_version == version


def test_a_passed_env_is_closed_by_shutdown_and_not_by_a_block():
    class Closing(Count):
        num_closes = 0

        def close(self):
            self.num_closes += 1

    env = Closing()
    with Collector(env, Acts(), frames_per_batch=3) as collector:
        collector.next()
    assert (env.num_closes, collector.closed) == (0, True)
    for close_env, num_closes in ((False, 0), (True, 1)):
        collector = Collector(env, Acts(), frames_per_batch=3)
        collector.next()
        collector.shutdown(close_env=close_env)
        assert env.num_closes == num_closes


class Locked(Count):
    """An env that cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(("way", "who"), [(SINGLE, "the envs begin"), (INLINE_SYNC, "2 workers begin")], ids=str)
def test_envs_that_could_not_be_saved_begin_new_episodes_with_a_warning(way, who):
    with make(way, Locked, frames_per_batch=4, total_frames=40) as collector:
        collector.next()
        state = collector.state_dict()
        expected = rf"^{who} new episodes after load_state_dict\(\): .*cannot pickle '_thread\.lock'"
        with pytest.warns(UserWarning, match=expected) as warned:
            collector.load_state_dict(state)
    assert [warning.filename for warning in warned] == [__file__]


def test_a_state_without_a_count_of_batches_begins_at_none():
    """A script may have written such a state, with weights and frames alone."""
    with make(SINGLE, Count, frames_per_batch=4, total_frames=40) as collector:
        with pytest.warns(UserWarning, match="the envs begin new episodes .*: the state of the envs was not saved"):
            collector.load_state_dict({"policy_state_dict": {}, "frames": 8})
        saved = collector.state_dict()
        assert (saved["frames"], saved["iter"]) == (8, 0)
        collector.next()
        assert collector.state_dict()["iter"] == 1


def test_a_state_of_more_workers_is_refused_before_anything_is_loaded():
    with make(INLINE_SYNC, Count, num_workers=3, frames_per_batch=6, total_frames=36) as collector:
        collector.next()
        state = collector.state_dict()
    with make(INLINE_SYNC, Count, num_workers=2, frames_per_batch=6, total_frames=36) as collector:
        version = collector.policy_version
        with pytest.raises(ValueError, match="the state dict has 3 workers, but this collector has 2"):
            collector.load_state_dict(state)
        assert (collector.policy_version, collector.state_dict()["frames"]) == (version, 0)
        assert collector.next() is not None


def test_a_collector_is_used_by_one_thread_at_a_time():
    is_stepping, may_end = threading.Event(), threading.Event()

    class Slow(Count):
        def step(self, action):
            is_stepping.set()
            assert may_end.wait(60)
            return super().step(action)

    with make(SINGLE, Slow, Acts(), frames_per_batch=2) as collector, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(collector.next)
        assert is_stepping.wait(60)
        with pytest.raises(RuntimeError, match="this collector is already in use: by another thread"):
            collector.next()
        may_end.set()
        assert batch.result(60).numel() == 2
