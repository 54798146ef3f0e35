"""TorchRL's envs beyond the contract: specs, random actions, resets, seeds, refusals."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from collecting import config
from worlds import torchrlenvs

from collectx import Collector
from collectx import collector as collectors
from collectx import trainer as trainers
from collectx.cli.compose import compose
from collectx.config import TorchrlEnvConfig
from collectx.env import build, read_spec
from collectx.env.base import StepRows
from collectx.env.spaces import numpy_dtype
from collectx.env.torchrl import TorchrlEnv, split
from collectx.env.torchrl_specs import is_torchrl_env
from collectx.errors import ConfigError, ShapeError, SpaceError

torch.set_num_threads(1)


def test_only_its_envs_are_known():
    assert is_torchrl_env(torchrlenvs.ManyKeys())
    assert not is_torchrl_env(torchrlenvs.walking)
    assert not is_torchrl_env(spaces.Discrete(2))


@pytest.mark.parametrize(
    ("make", "action", "observation"),
    [
        (torchrlenvs.walking, spaces.Discrete(2), spaces.Box),
        (torchrlenvs.pushing, spaces.Box(-1.0, 1.0, (1,)), spaces.Box),
        (torchrlenvs.counted_serial, spaces.Discrete(2), spaces.Box),
    ],
)
def test_specs_are_spaces_of_one_env(make, action, observation):
    env = TorchrlEnv([make()])
    assert env.spec.action_space == action
    assert isinstance(env.spec.observation_space, observation)
    env.close()


def test_an_action_without_a_space_of_gymnasium_is_drawn_from_its_spec():
    env = TorchrlEnv([torchrlenvs.ManyKeys()])
    torch.manual_seed(3)
    draw = env.spec.draw()
    drawn = [next(draw) for _ in range(600)]
    torch.manual_seed(3)
    again = env.spec.draw()
    assert all(torch.equal(a, b) for a, b in zip(drawn[300], [next(again) for _ in range(301)][-1], strict=True))
    moves, pushes = (torch.cat(values) for values in zip(*drawn, strict=True))
    assert moves.shape == (600, 3)
    assert (moves.sum(-1) == 1).all()
    assert moves.sum(0).min() > 130
    assert pushes.min() < -0.9
    assert pushes.max() > 0.9


def test_random_actions_respect_the_mask_of_their_step():
    with Collector(torchrlenvs.masked, frames_per_batch=30, total_frames=60) as collector:
        for batch in collector:
            assert batch["action_mask"].gather(-1, batch["action"][..., None]).all()


def test_a_serial_env_is_stepped_env_by_env_and_seeded_so():
    envs = split(torchrlenvs.serial())
    assert [env.batch_size for env in envs] == [()] * 3
    group = TorchrlEnv(envs)
    first = [np.zeros((3, 3), np.float32)]
    group.reset([5, 6, 5], first)
    np.testing.assert_array_equal(first[0][0], first[0][2])
    assert not np.array_equal(first[0][0], first[0][1])
    group.close()
    started = torchrlenvs.serial()
    started.reset()
    assert split(started) == [started]
    started.close()


def test_a_batched_env_spreads_the_first_seed():
    group = TorchrlEnv([torchrlenvs.counted_serial()])
    rows = [np.zeros((3, *leaf.shape), numpy_dtype(leaf)) for leaf in group.spec.observation]
    others = [row.copy() for row in rows]
    group.reset([7, 1, 2], rows)
    group.reset([7, 3, 4], others)
    for row, other in zip(rows, others, strict=True):
        np.testing.assert_array_equal(row, other)
    assert len(np.unique(rows[0], axis=0)) == 3
    group.close()


def test_an_env_that_was_given_itself_is_left_open():
    env = torchrlenvs.walking()
    with Collector(env, frames_per_batch=20, total_frames=40) as collector:
        assert [batch.numel() for batch in collector] == [20, 20]
    assert not env.is_closed
    env.close()


@pytest.mark.parametrize("size", [(), (2,), (2, 3)])
def test_a_trajectory_goes_from_reset_to_reset_of_all_agents(size):
    num = int(np.prod(size))
    with Collector(partial(torchrlenvs.Agents, size), frames_per_batch=30 * num) as collector:
        batch = collector.next()
    assert batch.batch_size == (*size, 30)
    assert batch.names == [*[None] * len(size), "time"]
    rows = batch.reshape(-1, 30)
    done, ids = rows["next", "done"].squeeze(-1), rows["collector", "traj_ids"]
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])
    assert torch.equal(done.sum(-1), 30 // (5 + torch.arange(num)))
    assert torch.equal(rows["next", "agents", "done"].all(-2).squeeze(-1), done)
    assert torch.equal(
        rows["agents", "done"][:, 1:], rows["next", "agents", "done"][:, :-1] & ~done[:, :-1, None, None]
    )
    assert ("next", "reward") not in batch.keys(True)


def test_returns_sum_all_rewards():
    cfg = TorchrlEnvConfig("torchrl", 1, "worlds.torchrlenvs:Agents")
    with collectors.build(config("single", "inline", cfg, frames_per_batch=30), None, read_spec(cfg)) as collector:
        batch = next(collector)
    (part,) = collector.delivery.parts
    rewards = batch["next", "agents", "reward"].sum((-1, -2)).reshape(6, 5).sum(-1)
    np.testing.assert_allclose(part.returns, rewards, rtol=1e-5)


def test_a_trainer_that_learns_from_one_reward_refuses_others():
    spec = TorchrlEnv([torchrlenvs.TwoRewards()]).spec
    ppo = compose(["experiment=cartpole_ppo"]).trainer
    with pytest.raises(ConfigError, match=r"the env gives reward \[2\] torch.float64, and it learns from one reward"):
        trainers.build(ppo, None, spec, 0, torch.device("cpu"))


class NoEnd(torchrlenvs.ManyKeys):
    def _step(self, tensordict):
        return super()._step(tensordict).exclude("done")


class Shapeless(torchrlenvs.ManyKeys):
    def _step(self, tensordict):
        return super()._step(tensordict).set("pixels", torch.zeros(2, 2, dtype=torch.uint8))


class ByItself(torchrlenvs.ManyKeys):
    def step_and_maybe_reset(self, tensordict):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (torchrlenvs.Apart, SpaceError, r"the ends agents.done \[2, 1\], .*: an episode ends by done, "),
        (torchrlenvs.hooked, ConfigError, "Hooked has _post_step_mdp_hooks, by which a frame's keys below next"),
        (ByItself, ConfigError, "ByItself resets its envs by itself"),
        (lambda: 3, ConfigError, "returned a builtins.int: expected a gymnasium.Env, .* or an EnvBase of TorchRL"),
        (NoEnd, ShapeError, "writes neither done nor terminated"),
        (Shapeless, ShapeError, r"pixels: expected shape \(2, 2, 3\), dtype uint8, got shape \(2, 2\)"),
    ],
)
def test_what_a_batch_cannot_hold_is_refused(make, kind, message):
    with pytest.raises(kind, match=message), Collector(make, frames_per_batch=10) as collector:
        collector.next()


def test_as_a_choice_of_the_command():
    cfg = TorchrlEnvConfig("torchrl", 3, "worlds.torchrlenvs:counted")
    env = build(cfg)
    assert env.spec.num_envs == read_spec(cfg).num_envs == 3
    rows = [np.zeros((3, *leaf.shape), numpy_dtype(leaf)) for leaf in env.spec.observation]
    flags = [np.zeros(3, bool), np.zeros(3, bool), np.ones(3, bool)]
    env.reset([1, 2, 3], rows)
    assert not env.step([np.zeros(3, np.int64)], StepRows(rows, np.zeros(3, np.float32), *flags))
    env.close()
    with pytest.raises(ConfigError, match=r"env.num_envs=2, but .* batch size \[3\]: use env.num_envs=3"):
        build(TorchrlEnvConfig("torchrl", 2, "worlds.torchrlenvs:serial"))
    with pytest.raises(ConfigError, match="returned Discrete, expected an EnvBase"):
        build(TorchrlEnvConfig("torchrl", 2, "gymnasium.spaces:Discrete", {"n": 2}))
