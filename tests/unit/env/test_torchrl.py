"""TorchRL's envs beyond the contract: specs, random actions, resets, seeds, refusals."""

import math
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from configurations import config
from tensordict.nn import TensorDictModule
from torchrl.envs import GymWrapper, RewardScaling, SerialEnv, TransformedEnv
from user_code import torchrlenvs

from collectx import Collector
from collectx import collector as collectors
from collectx.cli.compose import compose
from collectx.config.schema.env import TorchrlEnvConfig
from collectx.env import read_spec
from collectx.env.base import first_observations
from collectx.env.torchrl.group import TorchrlEnv, split_serial_env
from collectx.errors import ConfigError, DataError, SpaceError
from collectx.rules import fits
from collectx.trajectories import split_trajectories

torch.set_num_threads(1)


def test_each_env_of_a_serial_env_is_made_with_its_own_keywords():
    def make(scale=1.0):
        return TransformedEnv(torchrlenvs.walking(), RewardScaling(0.0, scale))

    envs = split_serial_env(SerialEnv(2, make, create_env_kwargs=[{"scale": 3.0}, {}]))
    assert [env.transform.scale.item() for env in envs] == [3.0, 1.0]
    for env in envs:
        env.close()


def test_an_action_without_a_space_of_gymnasium_is_drawn_from_its_spec():
    draw = TorchrlEnv([torchrlenvs.ManyKeys()]).spec.draw()
    moves, pushes = (torch.cat(values) for values in zip(*islice(draw, 600), strict=True))
    assert moves.shape == (600, 3)
    assert (moves.sum(-1) == 1).all()
    assert moves.sum(0).min() > 130
    assert pushes.min() < -0.9
    assert pushes.max() > 0.9


def test_random_actions_respect_the_mask_of_their_step():
    with Collector(torchrlenvs.masked, frames_per_batch=30, total_frames=60) as collector:
        for batch in collector:
            assert batch["action_mask"].gather(-1, batch["action"][..., None]).all()


def test_a_serial_env_is_taken_apart_unless_it_is_at_work():
    env = torchrlenvs.serial()
    assert [each.batch_size for each in split_serial_env(env)] == [()] * 3
    env.reset()
    assert split_serial_env(env) == [env]
    env.close()


def test_an_env_that_was_given_itself_is_closed_by_shutdown_alone():
    env = torchrlenvs.walking()
    with Collector(env, frames_per_batch=20, total_frames=40) as collector:
        assert [batch.numel() for batch in collector] == [20, 20]
    assert not env.is_closed
    collector = Collector(env, frames_per_batch=20)
    collector.shutdown(close_env=False)
    assert not env.is_closed
    collector.shutdown()
    assert env.is_closed
    collector.shutdown()


def test_a_batched_env_that_had_not_started_is_closed_again():
    env = torchrlenvs.serial()
    group = TorchrlEnv([torchrlenvs.transformed(env, RewardScaling(0, 2))], owned=False)
    assert group.spec.path.startswith("torchrl: ")
    first_observations(group, [0] * 3)
    assert not env.is_closed
    group.close()
    assert env.is_closed


@pytest.mark.difference("the seed of an env, by `env.set_seed` before it is passed")
def test_the_seed_that_an_env_has_does_not_count():
    starts = []
    for seed in (1, 2):
        env = torchrlenvs.walking()
        env.set_seed(seed)
        with Collector(env, frames_per_batch=20, seed=0) as collector:
            starts.append(collector.next()["observation"])
        env.close()
    assert torch.equal(*starts)


@pytest.mark.parametrize("size", [(), (1,), (2, 1)])
def test_a_policy_sees_the_batch_size_of_its_env(size):
    env = torchrlenvs.Agents(size)

    def act(td):
        return td.set("seen", torch.full(td.shape, td.ndim)).update(env.full_action_spec.rand())

    for policy in (act, env.rand_action):
        with Collector(env, policy, frames_per_batch=4 * math.prod(size)) as collector:
            batch = collector.next()
        assert batch["agents", "action"].unique().numel() == batch["agents", "action"].numel()
        assert policy is not act or batch["seen"].unique().tolist() == [len(size)]


@pytest.mark.parametrize("size", [(), (1,), (2, 3)])
@pytest.mark.parametrize("by_modules", [False, True])
def test_a_nested_tensordict_keeps_its_own_batch_size(size, by_modules):
    seen = []

    def act(td):
        seen.append(td["agents"].batch_size)
        return td.set(("agents", "action"), torch.zeros(*td.shape, 2, 1))

    def pair(observation):
        return observation[..., :1], observation.sum((-2, -1))[..., None]

    # The second output is of all agents together, so that the nested TensorDict of that batch cannot have their number.
    module = TensorDictModule(pair, [("agents", "observation")], [("agents", "action"), ("agents", "sum")])
    create, frames = partial(torchrlenvs.Agents, size, (2,)), 6 * math.prod(size)
    policy, group = (module, ()) if by_modules else (act, (2,))
    with Collector(create, policy, frames_per_batch=frames, total_frames=2 * frames) as collector:
        for batch in collector:
            for part in (batch["agents"], batch["next", "agents"]):
                assert part.batch_size == (*batch.shape, *(group if part is batch["agents"] else (2,)))
            assert batch["agents"].names == [*batch.names, *[None] * len(group)]
            assert split_trajectories(batch)["next", "agents"].batch_size[2:] == (2,)
    assert set(seen) == (set() if by_modules else {(*size, 2)})


@pytest.mark.difference("`traj_ids` if agents end separately, and the env as a whole at its own `done`")
@pytest.mark.parametrize("size", [(), (2,), (2, 3)])
def test_a_trajectory_goes_from_reset_to_reset_of_all_agents(size):
    with Collector(partial(torchrlenvs.Agents, size), frames_per_batch=30 * math.prod(size)) as collector:
        rows = collector.next().reshape(-1, 30)
    done, ids = rows["next", "done"].squeeze(-1), rows["collector", "traj_ids"]
    assert torch.equal(done.sum(-1), 30 // (5 + torch.arange(len(rows))))
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])


@pytest.mark.parametrize("size", [(), (2,)])
def test_a_trajectory_that_is_cut_is_one_of_all_agents_though_each_ends_by_itself(size):
    frames = 8 * math.prod(size)
    with Collector(partial(torchrlenvs.Apart, size), frames_per_batch=frames, max_frames_per_traj=2) as collector:
        rows = collector.next().reshape(-1, 8)
    counts = (rows["next", "agents", "observation"][..., 0] / torch.tensor([0.1, 0.01])).round()
    assert torch.equal(counts, torch.tensor([1.0, 2.0])[:, None].expand(2, 2).repeat(len(rows), 4, 1))
    assert torch.equal(rows["next", "truncated"].squeeze(-1), torch.tensor([False, True]).repeat(len(rows), 4))
    assert torch.equal(rows["next", "agents", "done"].squeeze(-1).all(-1), rows["next", "done"].squeeze(-1))


@pytest.mark.parametrize("make", [torchrlenvs.Agents, torchrlenvs.Apart])
@pytest.mark.parametrize("size", [(), (2,)])
@pytest.mark.parametrize("keywords", [{"max_frames_per_traj": 2}, {"set_truncated": True}])
def test_a_cut_trajectory_is_truncated_for_each_group_of_agents(make, size, keywords):
    def create():
        return make(size).add_truncated_keys()

    with Collector(create, frames_per_batch=2 * math.prod(size), **keywords) as collector:
        batch, fake = collector.next().reshape(-1, 2), collector.fake_tensordict().reshape(-1, 2)
    for name, expected in (("truncated", [False, True]), ("done", [False, True]), ("terminated", [False, False])):
        everywhere = torch.tensor(expected)[:, None, None].expand(len(batch), 2, 2, 1)
        assert torch.equal(batch["next", "agents", name], everywhere)
        assert torch.equal(batch["next", name], everywhere[:, :, 0])
        assert not batch["agents", name].any()
        assert "set_truncated" not in keywords or torch.equal(fake["next", "agents", name], everywhere)


@pytest.mark.parametrize("make", [torchrlenvs.Agents, torchrlenvs.Apart])
def test_compact_batches_have_the_ends_of_agents(make):
    with Collector(make, frames_per_batch=30, compact_obs=True) as collector:
        after = collector.next()["next"]
    assert ("agents", "observation") not in after.keys(True)
    assert torch.equal(after["agents", "done"].squeeze(-1).any(0), torch.tensor([True, True]))


@pytest.mark.difference("an env of TorchRL with a NonTensor spec")
@pytest.mark.difference(
    "`done`, `terminated`, `truncated` at the root, of an env that writes ends only for groups of agents"
)
def test_the_ends_at_the_root_are_those_of_any_agent():
    with Collector(torchrlenvs.Apart, frames_per_batch=30) as collector:
        after = collector.next()["next"]
    ends = after["agents", "done"].any(-2)
    assert torch.equal(ends.squeeze(-1), ((torch.arange(30) + 1) % 3 == 0) | ((torch.arange(30) + 1) % 5 == 0))
    assert torch.equal(after["done"], ends)
    assert torch.equal(after["terminated"] | after["truncated"], ends)


def test_a_key_that_is_no_tensor_is_left_out():
    with Collector(torchrlenvs.Spoken, frames_per_batch=20, exclude_keys=["mission"]) as collector:
        batch = collector.next()
    assert batch["next", "observation"].flatten().tolist() == [1 + step % 7 for step in range(20)]
    assert "mission" not in batch.keys(True)


@pytest.mark.difference(
    "an env of TorchRL with a leaf of no fixed size: agents that observe or act in different shapes, or a size that "
    "changes in an episode"
)
@pytest.mark.parametrize(
    ("create", "key", "size"), [(torchrlenvs.Growing, "rows", "-1, 2"), (torchrlenvs.Unequal, "agents.rows", "2, -1")]
)
def test_an_observation_without_a_fixed_size_is_refused_or_left_out(create, key, size):
    with pytest.raises(SpaceError, match=rf"^'{key}' of .* has shape \({size}\), .*exclude_keys=\['{key}'\]"):
        Collector(create, frames_per_batch=20)
    with Collector(create, frames_per_batch=20, exclude_keys=[key]) as collector:
        batch = collector.next()
    assert batch["next", "number"].flatten().tolist() == [1 + step % 7 for step in range(20)]
    assert not {"rows", "agents"} & {*batch.keys()}


def test_several_plain_envs_are_those_of_a_serial_env():
    each = []
    for create, keywords in ((torchrlenvs.serial, {}), (torchrlenvs.walking, {"num_envs": 3})):
        with Collector(create, frames_per_batch=30, **keywords) as collector:
            collector.set_seed(0)
            each.append(collector.next())
    assert (each[0] == each[1]).all()


class Paying(torchrlenvs.Sampled):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.reward, *rest


@pytest.mark.parametrize("reward", [np.array([0.5]), np.ones(2)], ids=repr)
def test_a_reward_of_a_gymnasium_env_has_one_element(reward):
    env = Paying(spaces.Discrete(4), spaces.Discrete(2))
    env.reward = reward
    with Collector(lambda: GymWrapper(env), frames_per_batch=4) as collector:
        if reward.size == 1:
            assert (collector.next()["next", "reward"] == 0.5).all()
        else:
            with pytest.raises(
                DataError,
                match=r"^in step 0 of the batch, the reward of env 0 must be a single number, but is .* shape \(2,\)",
            ):
                collector.next()


def test_returns_sum_all_rewards():
    cfg = TorchrlEnvConfig(kind="torchrl", num_envs=1, target="user_code.torchrlenvs:Agents")
    with collectors.start_collector(
        config("single", "inline", cfg, frames_per_batch=30), None, read_spec(cfg)
    ) as collector:
        batch = next(collector)
    (part,) = collector.last_batch_info.parts
    rewards = batch["next", "agents", "reward"].sum((-1, -2)).reshape(6, 5).sum(-1)
    np.testing.assert_allclose(part.report.returns, rewards, rtol=1e-5)


def test_a_trainer_that_learns_from_one_reward_refuses_others():
    spec = TorchrlEnv([torchrlenvs.TwoRewards()]).spec
    cfg = compose(["experiment=cartpole_ppo"])
    with pytest.raises(ConfigError, match=r"learns from one reward .*, but the env returns reward \[2\] torch.float64"):
        fits.check(cfg, spec)


def test_an_env_with_native_auto_reset_gives_the_batches_of_torchrl():
    """The final observations are NaN and zero there. What is compared is all that both have."""
    from torchrl.collectors import Collector as Theirs

    policy = TensorDictModule(lambda count: count[..., 0] % 2, in_keys=["count"], out_keys=["action"])
    options = {"frames_per_batch": 24, "total_frames": 72, "auto_register_policy_transforms": False}
    with Collector(torchrlenvs.counted_itself, policy, check_finite=False, **options) as collector:
        ours = list(collector)
        with pytest.raises(DataError, match=r"nan in next.observation \(step 2 .*check_finite=False"):
            next(Collector(torchrlenvs.ResetsItself, policy, **options))
        with pytest.raises(ConfigError, match="resets its envs by itself"):
            Collector(torchrlenvs.ResetsItself, policy, max_frames_per_traj=2, **options)
    for our, their in zip(ours, Theirs(torchrlenvs.counted_itself, policy, **options), strict=True):
        their = their.exclude(("collector", "traj_ids"))
        assert our["next", "done"].any()
        assert our["next", "observation"].isnan().any()
        for key in their.keys(True, True):
            torch.testing.assert_close(our[key], their[key], rtol=0, atol=0, equal_nan=True, msg=f"{key}")


def test_an_env_that_resets_itself_may_keep_its_final_observations():
    policy = TensorDictModule(lambda count: count[..., 0] % 2, in_keys=["count"], out_keys=["action"])
    with Collector(torchrlenvs.ResetsBehind, policy, frames_per_batch=60) as collector:
        batch = next(collector)
    assert torch.equal(batch["next", "count"], batch["count"] + 1)
    ends = batch["next", "done"][:, :-1]
    assert torch.equal(batch["count"][:, 1:], torch.where(ends, 0, batch["next", "count"][:, :-1]))


class NoEnd(torchrlenvs.ManyKeys):
    def _step(self, tensordict):
        return super()._step(tensordict).exclude("done")


class Misfit(torchrlenvs.ManyKeys):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return after.set("pixels", self.value) if self._step_number == 3 else after


@pytest.mark.difference(
    "an env of TorchRL with a NonTensor spec",
    "a user's transform with `_post_step_mdp_hooks`",
)
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (torchrlenvs.hooked, ConfigError, "Hooked cannot be used: its _post_step_mdp_hooks changes"),
        (
            partial(torchrlenvs.differences, delta_dtype=torch.bfloat16),
            SpaceError,
            "'delta.observation' cannot be stored, because NumPy has no torch.bfloat16",
        ),
        (lambda: 3, ConfigError, "returned 3, which is not an env. Return a gymnasium.Env, .* a TorchRL EnvBase"),
        (
            torchrlenvs.Spoken,
            SpaceError,
            r"^'mission' of Spoken .*: its NonTensor spec has no dtype, .*exclude_keys=\['mission'\]",
        ),
        (NoEnd, DataError, "writes neither done nor terminated"),
        (
            partial(Misfit, torch.ones(1)),
            DataError,
            r"step 2 of the batch, .* of shape \(1,\) .* as 'pixels', .* shape \(2, 2, 3\) ",
        ),
        (
            partial(Misfit, torch.full((2, 2, 3), 300)),
            DataError,
            r"returned the value 300 as 'pixels', but its space has dtype uint8, which only holds 0 to 255",
        ),
    ],
)
def test_what_a_batch_cannot_hold_is_refused(make, kind, message):
    with pytest.raises(kind, match=message), Collector(make, frames_per_batch=10) as collector:
        collector.next()
