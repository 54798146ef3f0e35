"""Policies that carry a state through `next`: from frame to frame, over the borders of batches, not into the next
episode."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from collectx import Collector, DistributedCollector, DistributedSyncCollector, MultiAsyncCollector, MultiSyncCollector
from collectx.errors import ConfigError

torch.set_num_threads(1)

WAYS = {
    "single": Collector,
    "multi_sync": MultiSyncCollector,
    "multi_async": MultiAsyncCollector,
    "distributed": partial(DistributedCollector, launcher="mp"),
    "distributed_sync": partial(DistributedSyncCollector, launcher="mp"),
}


class Cell(nn.Module):
    """No more than torch: an LSTM cell, and an action from its state."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, observation, h, c):
        h, c = self.cell(observation, (h, c))
        return self.head(h).argmax(-1), h, c


def recurrent():
    torch.manual_seed(0)
    return TensorDictModule(Cell(), ["observation", "h", "c"], ["action", ("next", "h"), ("next", "c")])


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=5)


def vector(mode):
    return gymnasium.vector.SyncVectorEnv([cartpole] * 3, autoreset_mode=mode)


def collect(collector):
    with collector:
        return list(collector)


def rows_of(batches, stacked):
    """For each env, its frames in order. A batch is `[time]`, or has a dimension of envs before, or one of workers."""
    if not stacked:
        workers = {}
        for batch in batches:
            workers.setdefault(int(batch["collector", "traj_ids"].reshape(-1)[0]) % 2, []).append(batch)
        parts = [torch.cat(own, -1) for own in workers.values()]
    else:
        parts = [torch.cat(batches, -1)]
    return [row for part in parts for row in (part.reshape(-1, part.shape[-1]) if part.ndim > 1 else [part])]


def check(rows, policy, first=0.0):
    num_ends = 0
    for row in rows:
        ended = row["next", "done"][:-1, 0]
        num_ends += int(ended.sum())
        for key in ("h", "c"):
            carried = torch.where(ended[:, None], torch.full_like(row[key][1:], first), row["next", key][:-1])
            assert torch.equal(row[key][1:], carried)
            assert (row[key][0] == first).all()
        with torch.no_grad():
            action, h, c = policy.module(row["observation"], row["h"], row["c"])
        assert torch.equal(action, row["action"])
        torch.testing.assert_close(h, row["next", "h"])
        torch.testing.assert_close(c, row["next", "c"])
        assert h.abs().min() > 0
    assert num_ends > 2 * len(rows)


@pytest.mark.parametrize("kind", WAYS)
def test_a_state_is_carried_and_begins_anew_with_an_episode(kind):
    policy = recurrent()
    creates = cartpole if kind == "single" else [cartpole] * 2
    stacked = kind in ("multi_sync", "distributed_sync")
    frames = 12 * (2 if stacked else 1)
    batches = collect(WAYS[kind](creates, policy, frames_per_batch=frames, total_frames=4 * frames))
    assert len(batches) == 4
    check(rows_of(batches, stacked or kind == "single"), policy)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_of_a_vector_env_of_each_autoreset_mode(mode):
    policy = recurrent()
    frames = {"frames_per_batch": 24, "total_frames": 96}
    batches = collect(Collector(partial(vector, mode), policy, **frames))
    if mode is not AutoresetMode.NEXT_STEP:
        check(rows_of(batches, True), policy)
        return
    # Rows are segments, of any env: known by the trajectories in them.
    frames = torch.cat([batch.reshape(-1) for batch in batches])
    ids = frames["collector", "traj_ids"]
    rows = [frames[ids % 3 == env] for env in range(3)]
    check([row[row["collector", "traj_ids"].argsort(stable=True)] for row in rows], policy)


def test_a_trajectory_that_is_cut_begins_anew():
    policy = recurrent()
    frames = {"frames_per_batch": 10, "total_frames": 40}
    batches = collect(Collector(lambda: gymnasium.make("CartPole-v1"), policy, max_frames_per_traj=3, **frames))
    row = torch.cat(batches)
    first = torch.arange(40) % 3 == 0
    assert (row["step_count"][:, 0] == torch.arange(40) % 3).all()
    assert (row["h"][first] == 0).all()
    assert (row["h"][~first] != 0).all()


def test_the_policy_may_say_how_a_state_begins():
    policy = recurrent()
    policy.module.initial_state = {"h": torch.full((6,), 0.5), "c": torch.full((6,), 0.5)}
    batches = collect(Collector(cartpole, policy, frames_per_batch=12, total_frames=48))
    check(rows_of(batches, True), policy, first=0.5)


class Adding(nn.Module):
    """Its state is no recurrent layer's."""

    def forward(self, observation, sums):
        assert sums.shape[1:] == (2, 2)
        return observation[:, 0].gt(0).long(), sums + observation.reshape(-1, 2, 2)


def test_what_begins_nobody_knows_is_asked_for():
    policy = TensorDictModule(Adding(), ["observation", "sums"], ["action", ("next", "sums")])
    with pytest.raises(ConfigError, match=r"carries sums through `next`.*initial_state = \{'sums': torch.zeros"):
        Collector(cartpole, policy, frames_per_batch=12)
    policy.initial_state = {"sums": torch.zeros(2, 2)}
    (batch,) = collect(Collector(cartpole, policy, frames_per_batch=12, total_frames=12))
    totals = batch["observation"][:5].cumsum(0).reshape(5, 2, 2)
    torch.testing.assert_close(batch["next", "sums"][:5], totals)


def test_two_layers_of_different_sizes():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.GRUCell(4, 6), nn.GRUCell(6, 3)

        def forward(self, observation, a, b):
            a = self.first(observation, a)
            b = self.second(a, b)
            return b[:, 0].gt(0).long(), a, b

    policy = TensorDictModule(Two(), ["observation", "a", "b"], ["action", ("next", "a"), ("next", "b")])
    (batch,) = collect(Collector(cartpole, policy, frames_per_batch=12, total_frames=12))
    assert (batch["a"].shape, batch["b"].shape) == ((12, 6), (12, 3))


def test_newer_weights_act_on_the_state_there_is():
    policy = recurrent()
    creates = [cartpole] * 2
    with MultiSyncCollector(creates, policy, frames_per_batch=6, total_frames=12) as collector:
        before = collector.next()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(-0.5)
        collector.update_policy_weights_()
        after = collector.next()
    assert torch.equal(after["h"][:, 0], before["next", "h"][:, -1])
    with torch.no_grad():
        _, h, _ = policy.module(*(after[key].reshape(6, -1) for key in ("observation", "h", "c")))
    torch.testing.assert_close(h.reshape(2, 3, 6), after["next", "h"])


def lstm(modules):
    torch.manual_seed(0)
    keys = {"in_keys": ["observation", "h", "c"], "out_keys": ["embed", ("next", "h"), ("next", "c")]}
    head = TensorDictModule(nn.Linear(5, 2), ["embed"], ["logits"])
    choice = TensorDictModule(partial(torch.argmax, dim=-1), ["logits"], ["action"])
    return TensorDictSequential(modules.LSTMModule(4, 5, **keys), head, choice)


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
@pytest.mark.parametrize("given", [(), ("init",), ("primer",), ("init", "primer")], ids="-".join)
def test_torchrls_lstm_with_and_without_transforms(kind, given):
    modules = pytest.importorskip("torchrl.modules", reason="needs the torchrl extra")
    envs = pytest.importorskip("torchrl.envs")
    policy = lstm(modules)
    primer = policy[0].make_tensordict_primer

    def make():
        env = envs.GymEnv("CartPole-v1", max_episode_steps=5, categorical_action_encoding=True)
        transforms = [envs.InitTracker()] * ("init" in given) + [primer()] * ("primer" in given)
        return envs.TransformedEnv(env, envs.Compose(*transforms)) if transforms else env

    creates = make if kind is Collector else [make] * 2
    batches = collect(kind(creates, policy, frames_per_batch=24, total_frames=48))
    for row in rows_of(batches, True):
        first = torch.cat([torch.ones(1, dtype=torch.bool), row["next", "done"][:-1, 0]])
        assert torch.equal(row["is_init"][:, 0], first)
        assert not row["next", "is_init"].any()
        assert (row["h"][first] == 0).all()
        assert torch.equal(row["h"][1:][~first[1:]], row["next", "h"][:-1][~first[1:]])
        # What a learner does with it: the same again, as one sequence.
        with torch.no_grad(), modules.set_recurrent_mode(True):
            again = policy(row.select("observation", "h", "c", "is_init").unsqueeze(0))
        torch.testing.assert_close(again["embed"][0], row["embed"])


def test_torchrls_gru_on_a_gymnasium_env():
    modules = pytest.importorskip("torchrl.modules", reason="needs the torchrl extra")
    gru = modules.GRUModule(4, 5, in_keys=["observation", "h"], out_keys=["embed", ("next", "h")])
    choice = TensorDictModule(lambda embed: embed[..., 0].gt(0).long(), ["embed"], ["action"])
    frames = {"frames_per_batch": 24, "total_frames": 24}
    (batch,) = collect(Collector(partial(vector, AutoresetMode.SAME_STEP), TensorDictSequential(gru, choice), **frames))
    assert batch["h"].shape == (3, 8, 1, 5)
    assert torch.equal((batch["h"] == 0).all(-1)[..., 0], batch["is_init"][..., 0])
