"""Batches whose parts have different numbers of frames (set worker by worker, cut short by others or on demand), and
batches by trajectory; those of whole ones have a model in `contract/test_transition_contract.py`."""

import contextlib
from functools import partial
from itertools import count
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from library_collectors import make
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from user_code.cartpoles import cartpole, cartpoles
from user_code.clocks import Clock, slow_clock
from user_code.spaceenv import SpaceEnv, read
from ways import INLINE, INLINE_ASYNC, INLINE_SYNC, SHARED, SHARED_ASYNC, SHARED_SYNC, SINGLE, over

from collectx import Collector, ReplayBuffer, SliceSampler, split_trajectories
from collectx.trajectories import add_mask

SYNC = (INLINE_SYNC, SHARED_SYNC)


def clocks(mode=AutoresetMode.SAME_STEP):
    return gymnasium.vector.SyncVectorEnv([Clock] * 2, autoreset_mode=mode)


def collect(*args, **keywords):
    with make(*args, **keywords) as collector:
        return list(collector)


def check_goes_on(rows, env, num_envs):
    """Asserts that no frame of this env is lost or repeated, and that each episode has an id of its own."""
    steps = torch.arange(len(rows), dtype=torch.float64)
    assert torch.equal(rows["observation"][:, 0], steps)
    assert torch.equal(rows["next", "observation"][:, 0], steps + 1)
    assert torch.equal(rows["next", "done"][:, 0], (steps + 1) % 7 == 0)
    assert torch.equal(rows["collector", "traj_ids"], env + num_envs * (steps // 7).long())


@pytest.mark.filterwarnings("ignore:frames_per_batch=.* was rounded up")
def test_of_several_envs_rounded_up_and_with_random_frames_first():
    policy = TensorDictModule(lambda seen: torch.full(seen.shape[:-1], 1), ["observation"], ["action"])
    frames = {"frames_per_batch": [5, 10], "total_frames": 30, "init_random_frames": 15}
    first, second = collect(INLINE_SYNC, clocks, policy, cat_results=-1, **frames)
    assert (first.shape, first.names) == ((2, 8), [None, "time"])
    assert first["action"].min() == 0
    assert second["action"].min() == 1
    both = torch.cat([first, second], -1)
    for index, env in enumerate(both.unbind(0)):
        check_goes_on(torch.cat([env[:3], env[8:11]]), index, 4)
        check_goes_on(torch.cat([env[3:8], env[11:]]), 2 + index, 4)


def test_of_envs_that_spend_steps_on_resets():
    create = partial(clocks, mode=AutoresetMode.NEXT_STEP)
    (batch,) = collect(INLINE_SYNC, create, cat_results=-1, frames_per_batch=[4, 8], total_frames=12)
    assert batch.shape == (2, 6)


@pytest.mark.parametrize("frames", [3, 12])
def test_a_reset_of_such_envs_delivers_no_frame_from_before_it(frames):
    """The fast env has stepped ahead of what was delivered; a reset must drop these frames."""
    lengths = (5, 1, 9)
    envs = [partial(SpaceEnv, Box(0, 9), Discrete(2), length) for length in lengths]
    create = partial(gymnasium.vector.SyncVectorEnv, envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    with make(SINGLE, create, frames_per_batch=frames) as collector:
        seen = set()
        for _ in range(3):
            rewards = [int(each) for _ in range(4) for each in collector.next()["next", "reward"].flatten()]
            assert not seen & set(rewards)
            firsts = {env: step for env, _, step in map(read, reversed(rewards))}
            assert set(firsts.values()) == {1}
            seen.update(rewards)
            collector.reset()


@over((INLINE_ASYNC, SHARED_ASYNC))
def test_an_async_batch_has_the_sum_of_them(way):
    assert [batch.shape for batch in collect(way, Clock, frames_per_batch=[5, 9], total_frames=42)] == [(14,)] * 3


def stops(*at):
    """Makes an interruptor that rings after the steps of these numbers, counted over all batches. It is not asked
    after a batch's last step."""
    asked = count(1)
    return SimpleNamespace(collection_stopped=lambda: next(asked) in at)


@pytest.mark.difference("a batch ended by `interruptor`")
def test_an_interruptor_ends_a_batch_and_the_next_one_goes_on():
    batches = collect(SINGLE, Clock, frames_per_batch=8, total_frames=24, interruptor=stops(1, 4, 12))
    assert [len(batch) for batch in batches] == [1, 3, 8, 1, 8, 8]
    check_goes_on(torch.cat(batches), 0, 1)


def test_an_interrupted_batch_of_several_envs_ends_as_any():
    keywords = {"set_truncated": True, "reset_at_each_iter": True}
    batches = collect(SINGLE, clocks, frames_per_batch=12, total_frames=24, interruptor=stops(2), **keywords)
    assert [batch.shape for batch in batches] == [(2, 2), (2, 6), (2, 6)]
    for batch in batches:
        assert batch["next", "truncated"][:, -1].all()
        assert not batch["next", "truncated"][:, :-1].any()
    ids = torch.cat([batch["collector", "traj_ids"][0, :1] for batch in batches])
    assert len(ids.unique()) == 3


FASTER = {"frames_per_batch": 80, "total_frames": 160, "preemptive_threshold": 0.5}


def one_is_slow(way):
    """Returns a factory of envs for each worker. Inline, the first worker is ready before the second begins."""
    return [Clock, Clock if way is INLINE_SYNC else slow_clock]


@pytest.mark.parametrize("dim", ["stack", -1])
@over(SYNC)
def test_the_faster_workers_do_not_wait(way, dim):
    batches = collect(way, one_is_slow(way), cat_results=dim, **FASTER)
    every = torch.cat([batch.reshape(-1) for batch in batches])
    ids = every["collector", "traj_ids"]
    fast, slow = (every[(ids >= 0) & (ids % 2 == worker)] for worker in range(2))
    assert len(fast) == 40 * len(batches)
    assert len(batches) <= len(slow) < 40 * len(batches)
    assert len(fast) + len(slow) >= 160
    check_goes_on(fast, 0, 2)
    check_goes_on(slow, 1, 2)
    if dim == -1:
        assert all(41 <= len(batch) < 80 for batch in batches)


@pytest.mark.difference("parts cut short by `preemptive_threshold`")
def test_what_a_part_does_not_fill_is_zeros():
    ones = torch.ones(2, 3, dtype=torch.int64)
    batch = TensorDict({"seen": ones, "collector": {"traj_ids": ones.clone()}}, [2, 3])
    add_mask(batch, [3, 1])
    assert batch["seen"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["collector", "mask"].tolist() == [[True, True, True], [True, False, False]]
    assert batch["collector", "traj_ids"].tolist() == [[1, 1, 1], [1, -1, -1]]


@over((INLINE_SYNC, SHARED_SYNC))
def test_the_gaps_of_a_batch_are_in_no_trajectory(way):
    """Neither after `split_trajectories`, nor with `split_trajs`, nor in a replay buffer that the script fills."""
    faster = FASTER | {"total_frames": 80}
    batch, *_ = collect(way, one_is_slow(way), **faster)
    mask = batch["collector", "mask"]
    assert 41 <= mask.sum() < 80
    split, buffer = split_trajectories(batch), ReplayBuffer(1000, sampler=SliceSampler(2))
    assert torch.equal(split["collector", "traj_ids"][:, 0], batch["collector", "traj_ids"][mask].unique())
    assert split["collector", "mask"].sum() == mask.sum()
    assert (split_trajectories(split) == split).all()
    for padded in (batch, split):
        assert len(buffer.extend(padded)) == mask.sum()
    assert buffer[:]["collector", "mask"].all()
    assert (buffer.sample(400)["collector", "traj_ids"] >= 0).all()
    split, *_ = collect(way, one_is_slow(way), split_trajs=True, **faster)
    assert (split["collector", "traj_ids"] >= 0).all()
    assert 41 <= split["collector", "mask"].sum() < 80


@pytest.mark.parametrize("keywords", [{}, {"postproc": lambda batch: batch}], ids=["by workers", "by the trainer"])
@pytest.mark.parametrize("dim", ["stack", -1])
@over(SYNC)
def test_a_replay_buffer_gets_the_frames_that_there_are(way, keywords, dim):
    buffer = ReplayBuffer(10_000)
    with make(way, one_is_slow(way), replay_buffer=buffer, cat_results=dim, **FASTER, **keywords) as collector:
        list(collector)
        assert 160 <= len(buffer) == buffer.write_count == collector.stats()["frames"] < 240
    stored = buffer[torch.arange(len(buffer))]
    ids = stored["collector", "traj_ids"]
    for worker in range(2):
        check_goes_on(stored[ids % 2 == worker], worker, 2)


# --- by trajectory ---

# Episodes of 8 frames.
short = partial(cartpole, max_episode_steps=8)
shorts = partial(cartpoles, 3, "NEXT_STEP", max_episode_steps=8)


def rows_of(frames):
    """Trajectories that lie one after another."""
    ends = frames["next", "done"].flatten().nonzero().flatten() + 1
    return frames.split(ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist())


def check_whole(rows):
    """Asserts that each row is one trajectory, from its first frame to its last."""
    for frames in rows:
        assert len(frames["collector", "traj_ids"].unique()) == 1
        assert torch.equal(frames["next", "observation"][:-1], frames["observation"][1:])
        assert frames["observation"][0].abs().max() < 0.05  # as CartPole begins
        assert frames["next", "done"].flatten().tolist() == [False] * (len(frames) - 1) + [True]


@over((*INLINE, *SHARED))
def test_whole_trajectories_go_into_a_replay_buffer(way):
    buffer = ReplayBuffer(1000)
    keywords = {"frames_per_batch": 30, "total_frames": 240, "trajs_per_batch": 4, "trajs_per_write": 2}
    with make(way, shorts, replay_buffer=buffer, **keywords) as collector:
        assert list(collector) == [None] * 8
    rows = rows_of(buffer[torch.arange(buffer.write_count)])
    assert rows
    check_whole(rows)


@pytest.mark.parametrize(
    ("way", "keywords"),
    [
        *((way, keywords) for way in (SINGLE, INLINE_SYNC) for keywords in ({"reset_at_each_iter": True}, {})),
        (INLINE_SYNC, {"preemptive_threshold": 0.5}),
    ],
    ids=str,
)
def test_trajectories_that_are_broken_off_are_dropped(way, keywords):
    with make(way, short, frames_per_batch=80, total_frames=400, trajs_per_batch=2, **keywords) as collector:
        for batch in collector:
            check_whole(row[row["collector", "mask"]] for row in batch.unbind(0))
            if not keywords:
                collector.reset()
        assert collector.stats()["batches"] >= 5
        with pytest.raises(TypeError, match="this collector has no length, because trajs_per_batch="):
            len(collector)


@pytest.mark.parametrize("autoreset", ["SAME_STEP", "NEXT_STEP"])
@over((*INLINE, *SHARED))
def test_compact_batches_have_no_observation_below_next(way, autoreset):
    batches = []
    for compact in (False, True):
        create = partial(cartpoles, mode=autoreset)
        with make(way, create, frames_per_batch=60, total_frames=60, compact_obs=compact) as collector:
            batches.append(collector.next())
            assert set(collector.fake_tensordict().keys(True, True)) == set(batches[-1].keys(True, True))
    full, less = batches
    assert set(full.keys(True, True)) - set(less.keys(True, True)) == {("next", "observation")}
    if way.is_sync or way is SINGLE:
        assert all(torch.equal(less[key], full[key]) for key in less.keys(True, True))


@pytest.mark.parametrize(("limit", "longest"), [(5, 5), (8, 8), (None, 20)])
def test_a_loaded_state_keeps_the_time_limit_of_the_collector(limit, longest):
    def collector(limit):
        keywords = {"frames_per_batch": 20, "total_frames": -1, "max_frames_per_traj": limit}
        return Collector(lambda: gymnasium.make("Pendulum-v1"), **keywords)

    with collector(5) as saved:
        next(saved)
        state = saved.state_dict()
    with collector(limit) as loaded:
        with contextlib.nullcontext() if limit else pytest.warns(UserWarning, match="the envs begin new episodes"):
            loaded.load_state_dict(state)
        batch = next(loaded)
    assert batch["collector", "traj_ids"].unique(return_counts=True)[1].max() == longest
