"""The rollouts against a scripted env: what they write where, lockstep and ragged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from collecting import batches, gym_vector
from gymnasium import spaces

from collectx.batch import Layout, Leaf, batch_leaves
from collectx.env.base import EnvSpec
from collectx.env.counting import StreamChecker, frame
from collectx.rollout.episodes import Episodes
from collectx.rollout.ragged import RaggedRollout
from collectx.rollout.rollout import Stopped
from collectx.rollout.start import rollout_of

OBSERVATION = Leaf(("observation",), (4,), torch.int64)
ACTION = Leaf(("action",), (), torch.int64)


class ScriptedRaggedEnv:
    """Env e's n-th episode lasts `lengths[e][n % len]` steps; then one step of the group is its reset."""

    def __init__(self, lengths):
        self.lengths = lengths
        space = spaces.Box(-1, 1, (4,))
        self.spec = EnvSpec(len(lengths), (OBSERVATION,), (ACTION,), space, spaces.Discrete(2), ragged=True)
        self.index = np.arange(len(lengths))
        self.episode = np.zeros_like(self.index)
        self.step_of = np.zeros_like(self.index)
        self.ended = np.zeros(len(lengths), bool)
        self.closed = False

    def reset(self, seeds, out):
        out[0][:] = frame(self.index, self.episode, self.step_of, 4)

    def step(self, action, out):
        out.frame[self.ended] = False
        self.episode += self.ended
        self.step_of = np.where(self.ended, 0, self.step_of + 1)
        out.observation[0][:] = frame(self.index, self.episode, self.step_of, 4)
        out.reward[:] = np.where(self.ended, 1000, self.step_of)
        length = [each[n % len(each)] for each, n in zip(self.lengths, self.episode, strict=True)]
        # On its reset step an env may say anything; here it says that it terminated.
        out.terminated[:] = (self.step_of >= length) | self.ended
        out.truncated[:] = False
        self.ended = (self.step_of >= length) & ~self.ended
        return bool(self.ended.any())

    def restart(self, ended, out):
        raise AssertionError("a ragged env is never restarted")

    def close(self):
        self.closed = True


class ScriptedActor:
    """The action is the observed step, so that an action beside the wrong observation shows."""

    module = None
    device = torch.device("cpu")
    leaves = (ACTION,)

    def act(self, observation):
        return [observation[0][:, 2]]


def collect(lengths, steps, num_batches, num_slots=2):
    env = ScriptedRaggedEnv(lengths)
    stop = memoryview(bytearray(1))
    rollout = rollout_of(env.spec)(
        env, ScriptedActor(), Episodes(0, len(lengths), len(lengths)), [0] * len(lengths), stop
    )
    assert isinstance(rollout, RaggedRollout)
    layout = Layout(batch_leaves([OBSERVATION], [ACTION]), len(lengths), steps)
    memories = [torch.zeros(layout.nbytes, dtype=torch.uint8) for _ in range(num_slots)]
    prepared = [rollout.prepare(layout.slot(memory)) for memory in memories]
    for number in range(num_batches):
        stats = rollout.collect(prepared[number % num_slots], number)
        yield layout.slot(memories[number % num_slots].clone()).tensors, stats


@pytest.mark.parametrize("lengths", [[[3]], [[5], [1]], [[7], [7], [7]], [[1, 4, 2], [9], [2, 2, 11], [30]]])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_ragged_segments_lose_repeat_and_reorder_nothing(lengths, steps):
    checker = StreamChecker()
    episodes = []
    for tensors, stats in collect(lengths, steps, 30):
        checker.take({key[0] if len(key) == 1 else key: value for key, value in tensors.items()})
        assert torch.equal(tensors["action",], tensors["observation",][..., 2])
        assert torch.equal(tensors["next", "reward"][..., 0], tensors["next", "observation"][..., 2].float())
        assert torch.equal(tensors["next", "done"], tensors["next", "terminated"])
        env, episode = tensors["observation",][..., 0], tensors["observation",][..., 1]
        assert torch.equal(tensors["collector", "traj_ids"], env + episode * len(lengths))
        for row in env:
            assert row.unique().numel() == 1, "a row is of one env"
        episodes += zip(*stats.episodes, strict=True)
    assert checker.frames == 30 * len(lengths) * steps
    assert {length for _, length in episodes} <= {length for each in lengths for length in each}
    assert all(total == length * (length + 1) / 2 for total, length in episodes)


def test_each_ragged_frame_tells_the_version_that_acted():
    newest = -1
    for number, (tensors, _) in enumerate(collect([[1], [40]], 5, 20)):
        versions = tensors["collector", "policy_version"]
        assert versions.max() == number
        assert (versions[:, 1:] >= versions[:, :-1]).all()
        newest = max(newest, int(versions.max()))
    assert newest == 19


def test_a_ragged_rollout_stops_between_two_steps():
    env = ScriptedRaggedEnv([[3], [4]])
    rollout = rollout_of(env.spec)(env, ScriptedActor(), Episodes(0, 2, 2), [0, 0], memoryview(bytearray(b"\1")))
    layout = Layout(batch_leaves([OBSERVATION], [ACTION]), 2, 4)
    prepared = rollout.prepare(layout.slot(torch.zeros(layout.nbytes, dtype=torch.uint8)))
    with pytest.raises(Stopped):
        rollout.collect(prepared, 0)
    rollout.close()
    assert env.closed


def per_trajectory(mode, vectorization):
    """observation, next observation and flags of each trajectory, for actions that depend on nothing random."""
    found = {}
    env = gym_vector(3, mode, vectorization)
    for batch in batches("single", "inline", env, mlp_policy(), frames_per_batch=60, total_frames=1800):
        flat = batch.reshape(-1)
        for trajectory in flat["collector", "traj_ids"].unique().tolist():
            mine = flat[flat["collector", "traj_ids"] == trajectory]
            found.setdefault(trajectory, []).append(mine)
    return {trajectory: torch.cat(parts) for trajectory, parts in found.items()}


def mlp_policy():
    from collecting import custom

    return custom("worlds.faulty:leaning_policy")


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_all_reset_modes_give_the_same_frames(mode):
    wanted, found = per_trajectory("disabled", "sync"), per_trajectory(mode, "sync")
    common = sorted(set(wanted) & set(found))
    assert len(common) > 8
    for trajectory in common:
        one, other = wanted[trajectory], found[trajectory]
        shared = min(len(one), len(other))
        for key in ("observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")):
            assert torch.equal(one[key][:shared], other[key][:shared]), (trajectory, key)


def test_gymnasiums_own_cartpole_vector_env_gives_whole_transitions():
    carried = {}
    for batch in batches("multi_sync", "local", gym_vector(3), frames_per_batch=120, total_frames=1200):
        for row in batch.flatten(0, 1):
            for one in row:
                trajectory = int(one["collector", "traj_ids"])
                if trajectory in carried:
                    assert torch.equal(carried.pop(trajectory), one["observation"])
                if not one["next", "done"]:
                    carried[trajectory] = one["next", "observation"]
    assert len(carried) <= 6
