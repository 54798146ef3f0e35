"""The rollouts, lockstep and ragged: what they write where."""

import gc
import itertools
import sys
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from configurations import config, counting, gym, gym_vector, mlp
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from user_code.faulty import telling_policy
from user_code.spaceenv import SpaceEnv, read
from user_code.tensorenv import TensorCountingEnv

from collectx import policy as policies
from collectx import progress
from collectx.batch import Layout, batch_leaves
from collectx.env import build, read_spec
from collectx.errors import DataError
from collectx.policy import ExplorationType, make_actor
from collectx.progress import STEPS
from collectx.rollout import loop
from collectx.rollout.episodes import Episodes
from collectx.rollout.loop import OneEnvRollout, Rollout, RolloutStopped
from collectx.rollout.segments import RaggedRollout
from collectx.rollout.wrappers import RolloutOptions, wrapped
from collectx.worker.rollout_source import rollout_class

PLAIN = RolloutOptions(check_finite=False)


def make(cfg, policy, steps, stop=b"\0\1", spec=PLAIN, refresh=None, kind=None, ends_early=None):
    """Makes a rollout, a slot that is filled with sevens, and the slot's rows as `collect` takes them."""
    env = wrapped(build(cfg), spec)
    size = env.spec.num_envs
    actor = make_actor(policy, env.spec, torch.device("cpu"), ExplorationType.RANDOM)
    kind, episodes = kind or rollout_class(env.spec, actor), Episodes(0, size, size, device=env.spec.device)
    rollout = kind(env, actor, episodes, range(size), memoryview(stop), spec, refresh, ends_early)
    layout = Layout(batch_leaves(env.spec.observation, actor.leaves), size, steps)
    slot = layout.slot(torch.full((layout.nbytes,), 7, dtype=torch.uint8))
    return rollout, slot, rollout.prepare(slot, 0)


RAGGED = gym_vector(3, "next_step", "sync")
TENSORS = replace(gym_vector(3), id=None, entry_point=partial(TensorCountingEnv, length=3))


@pytest.mark.parametrize("lengths", [(3,), (5, 1), (7, 7, 7), (1, 9, 4, 19)])
@pytest.mark.parametrize("steps", [1, 4, 9])
@pytest.mark.parametrize("set_truncated", [False, True])
def test_a_ragged_row_is_of_one_env_and_no_frame_is_lost_or_repeated(lengths, steps, set_truncated):
    size = len(lengths)
    envs = [partial(SpaceEnv, spaces.Discrete(9), spaces.Discrete(2), length) for length in lengths]
    entry_point = lambda num_envs: SyncVectorEnv(envs, autoreset_mode=AutoresetMode.NEXT_STEP)  # noqa: E731
    cfg = replace(gym_vector(size), id=None, entry_point=entry_point)
    rollout, slot, rows = make(cfg, None, steps, spec=RolloutOptions(False, set_truncated=set_truncated))
    assert isinstance(rollout, RaggedRollout)
    expected, lengths_told = [(1, 1)] * size, []
    for number in range(8):
        stats = rollout.collect(rows, number)
        lengths_told += stats.lengths.tolist()
        for row in range(size):
            tensors = {key: tensor[row] for key, tensor in slot.tensors.items()}
            frames = [read(reward) for reward in tensors["next", "reward"]]
            (env,) = {env for env, _, _ in frames}
            for _, episode, step in frames:
                assert (episode, step) == expected[env]
                expected[env] = (episode + 1, 1) if step == lengths[env] else (episode, step + 1)
            assert tensors["collector", "traj_ids"].tolist() == [env + (each - 1) * size for _, each, _ in frames]
            over = torch.tensor([[step == lengths[env]] for _, _, step in frames])
            is_odd = torch.tensor([[episode % 2 == 1] for _, episode, _ in frames])
            last = (torch.arange(steps) == steps - 1)[:, None] & set_truncated
            assert torch.equal(tensors["next", "terminated"], over & is_odd)
            assert torch.equal(tensors["next", "truncated"], (over & ~is_odd) | last)
            assert torch.equal(tensors["next", "done"], over | last)
            versions = tensors["collector", "policy_version"]
            assert versions.max() <= number
            assert (versions.diff() >= 0).all()
    ended = [length for length, (episode, _) in zip(lengths, expected, strict=True) for _ in range(episode - 1)]
    assert sorted(lengths_told) == sorted(ended)


@pytest.mark.parametrize("cfg", [gym(1), gym(3), RAGGED, TENSORS], ids=["one env", "lockstep", "ragged", "tensors"])
def test_a_rollout_stops_between_two_steps(cfg):
    rollout, _, rows = make(cfg, None, 4, stop=b"\1\0")
    with pytest.raises(RolloutStopped):
        rollout.collect(rows, 0)
    rollout.close()


@pytest.mark.parametrize(
    ("cfg", "kind"),
    [
        (gym(1), OneEnvRollout),
        (gym(3), Rollout),
        (RAGGED, RaggedRollout),
        (replace(gym_vector(3), id=None, entry_point=TensorCountingEnv), Rollout),
    ],
    ids=["one env", "lockstep", "ragged", "tensors"],
)
def test_a_report_tells_how_long_env_and_policy_took(cfg, kind, monkeypatch):
    """The clock: a step of the env takes 10, a call of the policy 1."""
    now = [50_000.0]

    def taking(seconds, call):
        def called(*arguments):
            now[0] += seconds
            return call(*arguments)

        return called

    monkeypatch.setattr(loop, "perf_counter", lambda: now[0])
    rollout, _, rows = make(cfg, taking(1, lambda observation: observation[..., 0].long() % 2), 4)
    assert type(rollout) is kind
    monkeypatch.setattr(rollout.group, "step", taking(10, rollout.group.step))
    for _ in range(2):
        before_s = now[0]
        report = rollout.collect(rows, 0)
        num_steps = (now[0] - before_s) / 11
        assert num_steps >= 4
        assert (report.env_s, report.policy_s) == (10 * num_steps, num_steps)
    rollout.close()


@pytest.mark.parametrize("cfg", [gym(1), gym(3), RAGGED], ids=["one env", "lockstep", "ragged"])
def test_a_value_that_does_not_fit_is_refused_with_its_step(cfg, monkeypatch):
    rollout, _, rows = make(cfg, None, 9)
    steps = iter([rollout.group.step] * 2)
    misfit = lambda *_: (_ for _ in ()).throw(DataError("observation: a misfit"))  # noqa: E731
    monkeypatch.setattr(rollout.group, "step", lambda *given: next(steps, misfit)(*given))
    with pytest.raises(DataError, match=r"^in step 2 of the batch, observation: a misfit$"):
        rollout.collect(rows, 0)
    rollout.close()


OBSERVED = spaces.Dict({"pose": spaces.Box(-1, 1, (2, 3)), "room": spaces.Discrete(5)})
ACTED = spaces.Dict({"force": spaces.Box(-1, 1, (3,)), "gear": spaces.Discrete(4)})


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("cfg", "acts"),
    [
        (gym(1), True),
        (gym(1, "Pendulum-v1"), True),
        (gym_vector(1, "same_step", "sync"), True),
        (replace(gym(1), id=None, entry_point=partial(SpaceEnv, OBSERVED, ACTED, 7)), False),
    ],
    ids=["CartPole", "Pendulum", "vector", "dict"],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"max_frames_per_traj": 14}, {"reset_at_each_iter": True, "set_truncated": True}, {"num_random_batches": 2}],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("length", [29, 4])
def test_one_env_gives_the_same_batches_as_the_loop_for_several(cfg, acts, options, length):
    """Batches end after `length` of 29 steps."""
    batches, statistics, options = [], [], RolloutOptions(True, **options)
    for kind in (None, Rollout):
        torch.manual_seed(0)
        ends = itertools.cycle([False] * (length - 1) + [True] * (length < 29))
        policy = policies.build(mlp(), read_spec(cfg), 0) if acts else None
        rollout, slot, rows = make(cfg, policy, 29, spec=options, kind=kind, ends_early=ends.__next__)
        assert type(rollout) is (kind or OneEnvRollout)
        for number in range(8):
            report = rollout.collect(rows, number)
            assert report.frames == length
            statistics.append([report.returns.tolist(), report.lengths.tolist()])
            batches.append({key: tensor[:, :length].clone() for key, tensor in slot.tensors.items()})
        rollout.close()
    assert statistics[:8] == statistics[8:]
    for one, several in zip(batches[:8], batches[8:], strict=True):
        assert one.keys() == several.keys()
        for key, tensor in one.items():
            assert torch.equal(tensor, several[key]), key


@pytest.mark.difference("frames of `init_random_frames`")
def test_random_frames_leave_nothing_in_what_the_policy_writes_nor_the_slot_in_them():
    policy = telling_policy(4)
    with torch.no_grad():
        policy.module.number.fill_(3)
    rollout, slot, rows = make(counting(20), policy, 6, spec=RolloutOptions(False, num_random_batches=1))
    for expected in ([[0, 1], [0], [0]], [[0], [3], [3]]):
        rollout.collect(rows, 0)
        assert [slot.tensors[key,].unique().tolist() for key in ("action", "low", "high")] == expected
    # By default there are none.
    rollout, slot, rows = make(counting(20), policy, 6)
    rollout.collect(rows, 0)
    assert slot.tensors["high",].unique().tolist() == [3]


@pytest.mark.parametrize("cfg", [counting(1), counting(3), RAGGED], ids=["one env", "lockstep", "ragged"])
def test_an_interrupted_batch_of_random_actions_is_collected_anew_with_random_actions(cfg, monkeypatch):
    policy = telling_policy(4)
    with torch.no_grad():
        policy.module.number.fill_(3)
    rollout, slot, rows = make(cfg, policy, 6, spec=RolloutOptions(False, num_random_batches=1))
    with monkeypatch.context() as patch:
        patch.setattr(rollout.group, "step", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rollout.collect(rows, 0)
    rollout.reset(None)
    for low in (0, 3):
        rollout.collect(rows, 0)
        assert slot.tensors["low",].unique().tolist() == [low]
    rollout.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("cfg", [gym(1), gym(3), RAGGED], ids=["one env", "lockstep", "ragged"])
def test_the_step_loop_keeps_no_object(cfg):
    rollout, _, rows = make(cfg, policies.build(mlp(), read_spec(cfg), 0), 50)
    gc.collect()
    gc.freeze()  # what tests before have imported: each collection would take a second
    blocks = []
    for _ in range(3):
        for number in range(10):
            rollout.collect(rows, number)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    # Between the last two, 500 steps of three envs.
    assert blocks[2] - blocks[1] < 100
    rollout.close()


@pytest.mark.parametrize("cfg", [counting(1), counting(3), RAGGED], ids=["one env", "lockstep", "ragged"])
def test_each_frame_has_the_version_of_the_weights_that_acted_in_it(cfg):
    """Newer weights come before some of the steps."""
    policy, versions = telling_policy(4), iter([0, 1, 1, 2, 2, 2, *range(5, 1000)])

    def refresh():
        version = next(versions)
        with torch.no_grad():
            policy.module.number.fill_(version)
        return version

    options = RolloutOptions(False, refresh_each_step=True)
    rollout, slot, rows = make(cfg, policy, 6, spec=options, refresh=refresh)
    for expected in ([0, 1, 1, 2, 2, 2], [5, 6, 7, 8, 9, 10]):
        rollout.collect(rows, 99)
        version = slot.tensors["collector", "policy_version"]
        assert torch.equal(slot.tensors["low",], version.float())
        if cfg is RAGGED:  # which has no frame of some steps
            assert (version.diff() >= 0).all()
        else:
            assert version.tolist() == [expected] * cfg.num_envs
    rollout.close()


@pytest.mark.parametrize(
    ("frames", "kind", "incarnation", "num_batches"),
    [
        *((None, "multi_sync", 0, 0), (1, "multi_sync", 0, 1), (24, "multi_sync", 0, 2), (25, "multi_sync", 0, 3)),
        *((25, "multi_sync", 1, 0), (25, "multi_async", 0, 2)),
    ],
)
def test_workers_share_the_random_frames_and_a_replacement_has_none(frames, kind, incarnation, num_batches):
    """There are two workers. Sync and async batches have 12 frames; an async batch is of one worker."""
    options = RolloutOptions.of(config(init_random_frames=frames, kind=kind).collector, incarnation)
    assert options.num_random_batches == num_batches


@pytest.mark.parametrize("size", [1, 3])
def test_a_step_is_progress_before_the_resets_that_follow(monkeypatch, size):
    """Otherwise the trainer waits for a step and a reset together. Over a network, it is told."""
    told = []
    rollout, _, rows = make(replace(counting(size), episode_length=2), None, 4)
    monkeypatch.setattr(rollout.group, "reset_some", lambda *_: told.append("reset"))
    progress.report_to(progress.counts, lambda: told.append(progress.counts[STEPS]))
    try:
        rollout.collect(rows, 0)
    finally:
        progress.report_to(progress.counts)
    assert told[:2] == [2, "reset"]
