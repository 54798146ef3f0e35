"""Where trajectories and batches end, and who acts first: against a model that counts, over envs, schedules, places."""

from __future__ import annotations

import json
import os
import signal

import gymnasium
import numpy as np
import pytest
import torch
from collecting import batches, counting, custom, gym, gym_vector, mlp, start, worker_pids
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worlds.faulty import telling_policy

from collectx import Collector
from collectx.batch import Layout, batch_leaves
from collectx.collector.task import WorkerTask
from collectx.config import EnvPoolEnvConfig, as_dict
from collectx.env import build
from collectx.env.counting import episode_length
from collectx.errors import ConfigError
from collectx.given import Given
from collectx.policy import ExplorationType, make_actor
from collectx.rollout.episodes import Episodes
from collectx.rollout.spec import RolloutSpec
from collectx.rollout.start import rollout_of

OPTIONS = [
    {"max_frames_per_traj": 1},
    {"max_frames_per_traj": 4},
    {"max_frames_per_traj": 7},  # as long as every third env's episodes
    {"max_frames_per_traj": 23},
    {"reset_at_each_iter": True},
    {"set_truncated": True},
    {"reset_at_each_iter": True, "set_truncated": True},
    {"max_frames_per_traj": 5, "set_truncated": True},
    {"max_frames_per_traj": 5, "reset_at_each_iter": True, "set_truncated": True},
]
SYNC = ("multi_sync", "distributed_sync")
WAYS = [("single", "inline"), ("multi_sync", "inline"), ("multi_async", "inline")]
ALL = OPTIONS[-1]


def expected(index, steps, max_frames_per_traj=None, reset_at_each_iter=False, set_truncated=False):
    """What env `index`'s row has in each of its batches: per frame episode, step, terminated, truncated; and how long
    the trajectories were that ended in that batch. Endless."""
    length = int(episode_length(np.array(index), 7))
    episode = step = 0
    while True:
        row, ended = [], []
        for t in range(steps):
            last = t == steps - 1
            terminated, cut = step + 1 == length, step + 1 == max_frames_per_traj
            row.append((episode, step, terminated, cut or (last and set_truncated)))
            step += 1
            if terminated or cut or (last and reset_at_each_iter):
                ended.append(step)
                episode, step = episode + 1, 0
        yield row, ended


def check(kind, place, num_envs, options, steps=10, num_batches=12):
    """Compares every env's rows, in the order of its batches, with the model, until each env has so many."""
    num_workers = 1 if kind == "single" else 2
    frames = steps * num_envs * (num_workers if kind in SYNC else 1)
    models = [expected(index, steps, **options) for index in range(num_envs * num_workers)]
    seen = [0] * len(models)
    with start(
        kind, place, counting(num_envs), num_workers=num_workers, frames_per_batch=frames, total_frames=-1, **options
    ) as collector:
        while min(seen) < num_batches:
            batch = next(collector)
            ended = []
            for row in batch.reshape(-1, steps):
                index = int(row["observation"][0, 0])
                wanted, lengths = next(models[index])
                ended += lengths
                seen[index] += 1
                check_row(row, index, num_envs * num_workers, wanted, "max_frames_per_traj" in options)
            delivered = [each for part in collector.delivery.parts for each in part.lengths.tolist()]
            returns = [each for part in collector.delivery.parts for each in part.returns.tolist()]
            assert sorted(delivered) == sorted(ended)
            assert returns == [each * (each + 1) / 2 for each in delivered]


def check_row(row, index, total_envs, wanted, counted):
    episodes, steps, terminated, truncated = (torch.tensor(column) for column in zip(*wanted, strict=True))
    assert row["observation"][:, :3].tolist() == [[index, *frame[:2]] for frame in wanted]
    assert row["next", "observation"][:, :3].tolist() == [[index, e, t + 1] for e, t, *_ in wanted]
    assert torch.equal(row["next", "terminated"][:, 0], terminated)
    assert torch.equal(row["next", "truncated"][:, 0], truncated)
    assert torch.equal(row["next", "done"][:, 0], terminated | truncated)
    assert not (row["done"] | row["terminated"] | row["truncated"]).any()
    assert torch.equal(row["collector", "traj_ids"], index + episodes * total_envs)
    assert ("step_count" in row) is (("next", "step_count") in row.keys(True)) is counted
    if counted:
        assert row["step_count"].dtype == row["next", "step_count"].dtype == torch.int64
        assert torch.equal(row["step_count"], steps[:, None])
        assert torch.equal(row["next", "step_count"], steps[:, None] + 1)


@pytest.mark.parametrize(("kind", "place"), WAYS)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_trajectories_end_where_the_model_says(kind, place, num_envs, options):
    check(kind, place, num_envs, options)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_batches_of_few_steps(options, steps):
    check("single", "inline", 3, options, steps=steps, num_batches=40)


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async", "distributed_sync", "distributed"])
@pytest.mark.parametrize("options", [ALL, {"max_frames_per_traj": 4}], ids=repr)
def test_the_options_reach_worker_processes(kind, options):
    check(kind, "local", 3, options)


CARTPOLES = {
    "gym": gym(3),
    "disabled": gym_vector(3, "disabled", "sync"),
    "same_step": gym_vector(3, "same_step", "sync"),
    "async": gym_vector(3, "same_step", "async"),
    "envpool": EnvPoolEnvConfig("envpool", 3, "CartPole-v1", {}, 1),
}


@pytest.mark.parametrize("name", CARTPOLES)
def test_every_kind_of_env_can_be_cut(name):
    """Trajectories of at most 15 frames over batches of 20 steps: some end by themselves, most are cut."""
    options = {"max_frames_per_traj": 15, "reset_at_each_iter": True}
    found = batches("single", "inline", CARTPOLES[name], frames_per_batch=60, total_frames=60 * 20, **options)
    ends = {"by themselves": 0, "cut": 0}
    for batch in found:
        assert (batch["step_count"][:, 0] == 0).all(), "every batch begins with new trajectories"
        done, truncated = batch["next", "done"][..., 0], batch["next", "truncated"][..., 0]
        assert torch.equal(truncated, batch["next", "step_count"][..., 0] == 15)
        goes_on = ~done[:, :-1]
        after, before = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
        assert torch.equal((after == before).all(-1), goes_on)
        ids = batch["collector", "traj_ids"]
        assert torch.equal(ids[:, 1:] == ids[:, :-1], goes_on)
        count = batch["step_count"][..., 0]
        assert torch.equal(count[:, 1:], torch.where(goes_on, count[:, :-1] + 1, 0))
        assert torch.equal(batch["next", "step_count"], batch["step_count"] + 1)
        # A first observation of CartPole is near zero.
        assert (batch["observation"][count == 0].abs() <= 0.05).all()
        ends["cut"] += int(truncated.sum())
        ends["by themselves"] += int((done & ~truncated).sum())
    assert min(ends.values()) > 0
    ids = torch.cat([batch["collector", "traj_ids"][:, [0, -1]] for batch in found], 1)
    assert (ids[:, 2::2] > ids[:, 1:-1:2]).all(), "no trajectory goes on in the next batch"


@pytest.mark.parametrize("env", [gym(2), gym_vector(3, "next_step", "sync")], ids=["lockstep", "ragged"])
def test_set_truncated_changes_marks_and_nothing_else(env):
    def run(set_truncated):
        shape = {"frames_per_batch": 30 * env.num_envs, "total_frames": 30 * env.num_envs * 20}
        with start("single", "inline", env, mlp(), set_truncated=set_truncated, **shape) as collector:
            for batch in collector:
                (part,) = collector.delivery.parts
                yield batch, part.returns.tolist(), part.lengths.tolist()

    marks = [("next", "truncated"), ("next", "done")]
    for (marked, *counts), (plain, *same_counts) in zip(run(True), run(False), strict=True):
        assert counts == same_counts
        for key in plain.keys(include_nested=True, leaves_only=True):
            if key not in marks:
                assert torch.equal(marked[key], plain[key]), key
        for key in marks:
            assert marked[key][:, -1].all()
            assert torch.equal(marked[key][:, :-1], plain[key][:, :-1])


@pytest.mark.parametrize(("kind", "place"), [*WAYS, ("distributed", "local"), ("rpc", "local")])
@pytest.mark.parametrize("env", [gym(2), gym_vector(2, "next_step", "sync")], ids=["lockstep", "ragged"])
def test_the_first_frames_are_random(kind, place, env):
    """Of every worker's parts of 20 frames, as many as its share of the first 90 frames touches; then none."""
    num_workers = 1 if kind == "single" else 2
    share = {1: 5, 2: 3}[num_workers]  # 90 / 20 = 4.5; 45 / 20 = 2.25
    seen = [0] * num_workers
    is_random: list[list] = [[] for _ in range(2 * num_workers)]
    actions = set()
    with start(
        kind,
        place,
        env,
        mlp(),
        num_workers=num_workers,
        frames_per_batch=20 * (num_workers if kind in SYNC else 1),
        total_frames=-1,
        init_random_frames=90,
    ) as collector:
        while min(seen) < share + 5:
            for row in next(collector).reshape(-1, 10):
                random = row["action_log_prob"] == 0
                is_random[int(row["collector", "traj_ids"][0]) % len(is_random)] += random.tolist()
                actions |= set(row["action"][random].tolist())
            for part in collector.delivery.parts:
                seen[part.worker] += 1
    assert actions == {0, 1}
    for worker in range(num_workers):
        counts = []
        for of_env in is_random[2 * worker : 2 * worker + 2]:
            assert of_env == sorted(of_env, reverse=True), "never again after the first that is not"
            counts.append(sum(of_env))
        # A ragged worker has up to three of its rows begun, or complete, when its share is delivered.
        assert 0 <= sum(counts) - 20 * share <= (30 if env.kind == "gym_vector" else 0)


def test_what_lay_in_a_slot_does_not_show_in_random_frames():
    env = build(counting(2))
    actor = make_actor(telling_policy(4), env.spec, torch.device("cpu"), ExplorationType.RANDOM)
    rollout = rollout_of(env.spec)(
        env, actor, Episodes(0, 2, 2), [0, 0], memoryview(bytearray(1)), RolloutSpec(None, 1)
    )
    layout = Layout(batch_leaves(env.spec.observation, actor.leaves), 2, 6)
    slot = layout.slot(torch.full((layout.nbytes,), 7, dtype=torch.uint8))
    rollout.collect(rollout.prepare(slot), 0)
    assert [slot.tensors[key,].unique().tolist() for key in ("action", "low", "high")] == [[0, 1], [0], [0]]


def test_random_frames_are_the_same_everywhere():
    shape = {"frames_per_batch": 40, "total_frames": 160, "init_random_frames": 80, "seed": 4}
    inline = batches("multi_sync", "inline", gym(2), mlp(), **shape)
    local = batches("multi_sync", "local", gym(2), mlp(), **shape)
    assert all((one == other).all() for one, other in zip(inline, local, strict=True))


def test_a_policy_acts_as_it_would_have_after_random_frames():
    """The random part leaves nothing of itself in what the policy writes."""
    policy = custom("worlds.faulty:telling_policy", size=10)
    first, second = batches(
        "single", "inline", gym(2), policy, frames_per_batch=40, total_frames=80, init_random_frames=1
    )
    assert set(first["action"].flatten().tolist()) == {0, 1}
    assert not second["action"].any(), "this policy knows but one action"


def test_a_worker_that_was_started_again_takes_no_random_frames():
    with start(
        "multi_sync",
        "local",
        counting(2),
        mlp(),
        frames_per_batch=40,
        total_frames=-1,
        init_random_frames=10**9,
        on_worker_failure="restart",
    ) as collector:
        for _ in range(3):
            assert (next(collector)["action_log_prob"] == 0).all()
        os.kill(worker_pids(collector)[1], signal.SIGKILL)
        for batch in collector:
            log_prob = batch["action_log_prob"]
            assert (log_prob[0] == 0).all()
            if batch["observation"][1, 0, 0, 1] >= 2**32:  # its second life
                assert (log_prob[1] < 0).all()
                break
            assert (log_prob[1] == 0).all()


def test_a_policy_may_read_the_step_count():
    policy = custom("worlds.faulty:step_counting_policy")
    for batch in batches(
        "multi_sync", "local", counting(3), policy, frames_per_batch=60, total_frames=600, max_frames_per_traj=5
    ):
        assert torch.equal(batch["action"], batch["step_count"][..., 0] % 2)


def test_the_built_in_policy_does_not_read_it():
    shape = {"frames_per_batch": 40, "total_frames": 40}
    (counted,) = batches("single", "inline", counting(2), mlp(), max_frames_per_traj=100, **shape)
    (plain,) = batches("single", "inline", counting(2), mlp(), **shape)
    for key in plain.keys(include_nested=True, leaves_only=True):
        assert torch.equal(counted[key], plain[key]), key


@pytest.mark.parametrize("kind", ["single", "multi_sync"])
def test_envs_that_reset_by_themselves_are_refused_before_anything_starts(kind):
    with pytest.raises(ConfigError) as raised:
        start(kind, "local", gym_vector(3), frames_per_batch=60, **ALL)
    starts = [problem.split(":")[0] for problem in raised.value.problems]
    assert starts == ["collector.max_frames_per_traj=5", "collector.reset_at_each_iter=true"]
    assert all("autoreset_mode=disabled or same_step" in problem for problem in raised.value.problems)


def test_the_keywords_of_the_python_classes():
    def create(mode):
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=mode)

    with pytest.raises(ConfigError, match="max_frames_per_traj=5: this vector env resets its envs by itself"):
        Collector(create, create_env_kwargs={"mode": AutoresetMode.NEXT_STEP}, max_frames_per_traj=5)
    with Collector(
        create,
        create_env_kwargs={"mode": AutoresetMode.SAME_STEP},
        frames_per_batch=20,
        total_frames=20,
        max_frames_per_traj=5,
        set_truncated=True,
        init_random_frames=10,
        reset_at_each_iter=True,
    ) as collector:
        assert collector.next()["next", "truncated"][..., 0].nonzero()[:, 1].tolist() == [4, 9, 4, 9]


@pytest.mark.parametrize("spec", [RolloutSpec(), RolloutSpec(3, 2, True, True)])
def test_a_task_travels_as_plain_json(spec):
    env, policy = counting(2), mlp()
    task = WorkerTask(1, 4, 2, env, policy, "cpu", "random", 7, (), rollout=spec)
    told = json.loads(json.dumps(task.to_json()))
    assert told["rollout"] == as_dict(spec)
    assert WorkerTask.from_json(told, Given()) == task
