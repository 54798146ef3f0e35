"""The rollouts, lockstep and ragged: what they write where, against a scripted env."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import pytest
import torch
from collecting import counting, gym, gym_vector, mlp
from gymnasium import spaces
from worlds.faulty import telling_policy

from collectx import policy as policies
from collectx.batch import Layout, Leaf, batch_leaves
from collectx.collector.task import WorkerTask
from collectx.config import as_dict
from collectx.env import build
from collectx.env.base import EnvSpec
from collectx.env.counting import StreamChecker, frame
from collectx.given import Given
from collectx.policy import ExplorationType, make_actor
from collectx.rollout.episodes import Episodes
from collectx.rollout.ragged import RaggedRollout
from collectx.rollout.rollout import Stopped
from collectx.rollout.spec import PLAIN, RolloutSpec
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


def make(env, actor, steps, num_slots=1, stop=b"\0", spec=PLAIN):
    """A rollout over `env`, the layout of its slots and their memory, filled with sevens."""
    size = env.spec.num_envs
    rollout = rollout_of(env.spec)(env, actor, Episodes(0, size, size), range(size), memoryview(stop), spec)
    layout = Layout(batch_leaves(env.spec.observation, actor.leaves), size, steps)
    return rollout, layout, [torch.full((layout.nbytes,), 7, dtype=torch.uint8) for _ in range(num_slots)]


def collect(lengths, steps, num_batches, num_slots=2, spec=PLAIN):
    rollout, layout, memories = make(ScriptedRaggedEnv(lengths), ScriptedActor(), steps, num_slots, spec=spec)
    assert isinstance(rollout, RaggedRollout)
    prepared = [rollout.prepare(layout.slot(memory)) for memory in memories]
    for number in range(num_batches):
        stats = rollout.collect(prepared[number % num_slots], number)
        yield layout.slot(memories[number % num_slots].clone()).tensors, stats


@pytest.mark.parametrize("lengths", [[[3]], [[5], [1]], [[7], [7], [7]], [[1, 4, 2], [9], [2, 2, 11], [30]]])
@pytest.mark.parametrize("steps", [1, 4, 9])
@pytest.mark.parametrize("set_truncated", [False, True])
def test_ragged_segments_lose_repeat_and_reorder_nothing(lengths, steps, set_truncated):
    checker = StreamChecker()
    episodes = []
    for tensors, stats in collect(lengths, steps, 30, spec=RolloutSpec(set_truncated=set_truncated)):
        last = (torch.arange(steps) == steps - 1).expand(len(lengths), -1)[..., None]
        assert torch.equal(tensors["next", "truncated"], last & set_truncated)
        assert torch.equal(tensors["next", "done"], tensors["next", "terminated"] | tensors["next", "truncated"])
        # That a batch ends is no end of an episode.
        ended = {("next", "done"): tensors["next", "terminated"]}
        checker.take({key[0] if len(key) == 1 else key: value for key, value in (tensors | ended).items()})
        assert torch.equal(tensors["action",], tensors["observation",][..., 2])
        assert torch.equal(tensors["next", "reward"][..., 0], tensors["next", "observation"][..., 2].float())
        env, episode = tensors["observation",][..., 0], tensors["observation",][..., 1]
        assert torch.equal(tensors["collector", "traj_ids"], env + episode * len(lengths))
        for row in env:
            assert row.unique().numel() == 1, "a row is of one env"
        episodes += zip(*stats.episodes, strict=True)
    assert checker.frames == 30 * len(lengths) * steps
    assert {length for _, length in episodes} <= {length for each in lengths for length in each}
    assert all(total == length * (length + 1) / 2 for total, length in episodes)


def test_each_ragged_frame_tells_the_version_that_acted():
    for number, (tensors, _) in enumerate(collect([[1], [40]], 5, 20)):
        versions = tensors["collector", "policy_version"]
        assert versions.max() == number
        assert (versions[:, 1:] >= versions[:, :-1]).all()
    assert number == 19


def test_a_ragged_rollout_stops_between_two_steps():
    env = ScriptedRaggedEnv([[3], [4]])
    rollout, layout, (memory,) = make(env, ScriptedActor(), 4, stop=b"\1")
    with pytest.raises(Stopped):
        rollout.collect(rollout.prepare(layout.slot(memory)), 0)
    rollout.close()
    assert env.closed


def test_random_frames_leave_nothing_in_what_the_policy_writes_nor_the_slot_in_them():
    env = build(counting(20))
    actor = make_actor(telling_policy(4), env.spec, torch.device("cpu"), ExplorationType.RANDOM)
    rollout, layout, (memory,) = make(env, actor, 6, spec=RolloutSpec(None, 1))
    with torch.no_grad():
        actor.module.module.number.fill_(3)
    slot = layout.slot(memory)
    prepared = rollout.prepare(slot)
    for expected in ([[0, 1], [0], [0]], [[0], [3], [3]]):
        rollout.collect(prepared, 0)
        assert [slot.tensors[key,].unique().tolist() for key in ("action", "low", "high")] == expected


@pytest.mark.parametrize("cfg", [gym(3), gym_vector(3, "next_step", "sync")], ids=["lockstep", "ragged"])
def test_the_step_loop_keeps_no_object(cfg):
    env, steps = build(cfg), 50
    actor = make_actor(policies.build(mlp(), env.spec, 0), env.spec, torch.device("cpu"), ExplorationType.RANDOM)
    rollout, layout, (memory,) = make(env, actor, steps)
    prepared = rollout.prepare(layout.slot(memory))
    blocks = []
    for _ in range(3):
        for number in range(10):
            rollout.collect(prepared, number)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    # Between the last two, 500 steps of three envs.
    assert blocks[2] - blocks[1] < 100
    rollout.close()


@pytest.mark.parametrize("spec", [RolloutSpec(), RolloutSpec(3, 2, True, True)])
def test_a_task_travels_as_plain_json(spec):
    task = WorkerTask(1, 4, 2, counting(2), mlp(), "cpu", "random", 7, (), rollout=spec)
    message = json.loads(json.dumps(task.to_json()))
    assert message["rollout"] == as_dict(spec)
    assert WorkerTask.from_json(message, Given()) == task
