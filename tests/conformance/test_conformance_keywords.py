"""Every keyword of TorchRL's `Collector`, through its class and through ours: the same batches, entry by entry.

Where ours differs on purpose, the table in the README says so, and the tests here whose names begin with
`test_unlike_torchrl` do.
"""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import torchrl.collectors as peers
from conforming import (
    OURS_ALONE,
    Again,
    ResetTwice,
    assert_alike,
    assert_same,
    collect,
    in_order,
    keys,
    policy,
    seeded,
    seeds,
    size,
    squared,
)
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type
from torchrl.modules import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)
from worlds import torchrlenvs

import collectx
from collectx.errors import ConfigError, ShapeError

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore")

slow = partial(pytest.param, marks=pytest.mark.ci)


LIBRARIES = (peers, collectx)


def both(name, make_policy=None, **keywords):
    """All batches of TorchRL's Collector and of ours."""
    make, num = torchrlenvs.ENVS[name], size(name)
    make_policy = make_policy or partial(policy, name)
    keywords = {"frames_per_batch": 20 * num, "total_frames": 60 * num} | keywords
    collector = peers.Collector(seeded(make, seeds(name)), make_policy(), **keywords)
    seed_policy()
    return collect(collector), collect(collectx.Collector(make, make_policy(), **keywords))


def seed_policy():
    """As our first worker seeds what the policy draws."""
    torch.manual_seed(int(np.random.SeedSequence((0, 0, 1)).generate_state(1)[0]))


def first_half(batch):
    return batch[..., : batch.shape[-1] // 2].clone()


GRID = {
    "max_frames_per_traj": {"max_frames_per_traj": 5},
    "max_frames_per_traj that is none": {"max_frames_per_traj": -1, "init_random_frames": -1},
    "set_truncated": {"set_truncated": True},
    "set_truncated, max_frames_per_traj": {"set_truncated": True, "max_frames_per_traj": 6},
    "track_traj_ids": {"track_traj_ids": False},
    "return_same_td": {"return_same_td": True},
    "use_buffers": {"use_buffers": True},
    "use_buffers not": {"use_buffers": False},
    "postproc": {"postproc": squared},
    "postproc that shortens": {"postproc": first_half},
    "storing_device": {"storing_device": "cpu"},
    "policy_device, env_device": {"policy_device": "cpu", "env_device": torch.device("cpu")},
    "device": {"device": "cpu"},
    "trust_policy, no_cuda_sync": {"trust_policy": True, "no_cuda_sync": True},
    "exploration_type": {"exploration_type": ExplorationType.MODE},
    "compile_policy": {"compile_policy": {"backend": "eager"}},
    "frames_per_batch that is rounded up": {"frames_per_batch": 25, "total_frames": 75},
}


@pytest.mark.parametrize("name", ["cartpole", slow("serial"), slow("pendulum")])
@pytest.mark.parametrize("case", GRID)
def test_a_keyword_does_what_it_does_in_torchrl(case, name):
    assert_same(name, *both(name, **GRID[case]))


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("cartpole", {}),
        slow("cartpole", {"max_frames_per_traj": 6}),
        slow("counted", {}),
        ("serial", {"postproc": squared}),
        slow("serial", {"max_frames_per_traj": 6}),
    ],
    ids=str,
)
def test_trajectories_are_split_as_by_torchrl(name, keywords):
    # TorchRL names the dimensions [None, None] or [None, "time"].
    theirs, ours = ([in_order(batch) for batch in batches] for batches in both(name, split_trajs=True, **keywords))
    assert_same(name, theirs, ours, names=False)


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("cartpole", {"set_truncated": True, "max_frames_per_traj": 6}),
        slow("pendulum", {}),
        slow("normed", {"max_frames_per_traj": 6}),
        ("counted_serial", {}),
        slow("counted_serial", {"set_truncated": True}),
    ],
    ids=str,
)
def test_envs_are_reset_at_each_iteration(name, keywords):
    make, num = torchrlenvs.ENVS[name], size(name)
    keywords = {"frames_per_batch": 20 * num, "total_frames": 60 * num, "reset_at_each_iter": True, **keywords}
    theirs = collect(peers.Collector(seeded(make, seeds(name)), policy(name), **keywords))
    ours = collect(collectx.Collector(ResetTwice(make), policy(name), **keywords))
    assert_same(name, theirs, ours)


# --- Gymnasium's envs, which TorchRL has only through its GymEnv ---


def gymnasium_cartpole():
    return Again(gymnasium.make("CartPole-v1", max_episode_steps=9))


@pytest.mark.parametrize(
    "keywords",
    [{"max_frames_per_traj": 5}, *map(slow, [{}, {"set_truncated": True}, {"split_trajs": True}])],
    ids=str,
)
def test_a_gymnasium_env_gives_the_batches_of_gymenv(keywords):
    frames = {"frames_per_batch": 20, "total_frames": 60, **keywords}
    theirs = collect(peers.Collector(seeded(torchrlenvs.cartpole, seeds("cartpole")), policy("cartpole"), **frames))
    ours = collect(collectx.Collector(gymnasium_cartpole, policy("cartpole"), **frames))
    assert_same("cartpole", theirs, ours, names="split_trajs" not in keywords)


# --- exploration ---


def gaussian(distribution):
    torch.manual_seed(3)
    head = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    bounds = {} if distribution is torch.distributions.Normal else {"low": -2.0, "high": 2.0}
    sampling = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], distribution_class=distribution, distribution_kwargs=bounds, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(head, ["observation"], ["loc", "scale"]), sampling)


def categorical():
    torch.manual_seed(3)
    logits = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
    return ProbabilisticActor(
        logits, in_keys=["logits"], out_keys=["action"], distribution_class=OneHotCategorical, return_log_prob=True
    )


def epsilon_greedy():
    torch.manual_seed(3)
    spec = torchrlenvs.one_hot().action_spec
    actor = QValueActor(MLP(4, 2, num_cells=[8]), in_keys=["observation"], spec=spec)
    return TensorDictSequential(actor, EGreedyModule(spec, eps_init=0.5, annealing_num_steps=1000))


class Asks(nn.Module):
    """Acts by the exploration type that it finds in TorchRL's context."""

    def forward(self, observation):
        kinds = [None, *(ExplorationType[kind] for kind in ("RANDOM", "MODE", "MEAN", "MEDIAN", "DETERMINISTIC"))]
        return torch.full((*observation.shape[:-1], 1), kinds.index(exploration_type()) / 5)


def asking():
    return TensorDictModule(Asks(), ["observation"], ["action"])


POLICIES = {
    "normal": ("pendulum", partial(gaussian, torch.distributions.Normal)),
    "tanh normal": ("pendulum", partial(gaussian, TanhNormal)),
    "categorical": ("one_hot", categorical),
    "epsilon greedy": ("one_hot", epsilon_greedy),
    "asking module": ("pendulum", asking),
    "asking": ("pendulum", Asks),
    "none": ("pendulum", lambda: None),
}
# A distribution without a mode, and one whose mean is no action; in TorchRL as well.
WITHOUT = {("tanh normal", "MODE"): "not analytical mode", ("categorical", "MEAN"): "policy returned action of shape"}


@pytest.mark.parametrize("kind", ["RANDOM", "MODE", "MEAN", "DETERMINISTIC"])
@pytest.mark.parametrize("acting", ["normal", "asking", *map(slow, sorted(POLICIES.keys() - {"normal", "asking"}))])
def test_policies_explore_as_in_torchrl(acting, kind):
    name, make_policy = POLICIES[acting]
    if (acting, kind) in WITHOUT:
        with pytest.raises((RuntimeError, TypeError)):
            both(name, make_policy, exploration_type=ExplorationType[kind])
        with pytest.raises((RuntimeError, ShapeError), match=WITHOUT[acting, kind]):
            collectx.Collector(torchrlenvs.ENVS[name], make_policy(), exploration_type=kind)
        return
    theirs, ours = both(name, make_policy, exploration_type=ExplorationType[kind])
    assert_same(name, theirs, ours)
    if acting.startswith("asking"):
        assert len(ours[0]["action"].unique()) == 1
        assert ours[0]["action"][0] > 0


@pytest.mark.parametrize("acting", ["normal", "epsilon greedy"])
def test_the_keyword_counts_and_not_the_context_around(acting):
    name, make_policy = POLICIES[acting]
    with set_exploration_type(ExplorationType.MODE):
        theirs, ours = both(name, make_policy)
    assert_same(name, theirs, ours)
    assert_same(name, both(name, make_policy)[0], ours)


# --- random frames at first ---


@pytest.mark.parametrize(("name", "frames"), [("one_hot", 20), slow("pendulum", 30)])
def test_random_frames_come_first(name, frames):
    assert_same(name, *both(name, init_random_frames=frames))


def test_random_frames_have_zeros_for_what_the_policy_writes():
    theirs, ours = both("one_hot", categorical, init_random_frames=20)
    for a, b in zip(theirs, ours, strict=True):
        assert_alike("one_hot", a, b)
    assert not ours[0]["logits"].any()
    assert ours[1]["logits"].all()


def test_noise_goes_on_from_frame_to_frame_as_in_torchrl():
    def noisy():
        noise = OrnsteinUhlenbeckProcessModule(spec=torchrlenvs.pendulum().action_spec, annealing_num_steps=100)
        return TensorDictSequential(policy("pendulum"), noise)

    assert_same("pendulum", *both("pendulum", noisy))


# --- replay buffers ---


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize(("name", "ndim"), [("cartpole", 1), slow("serial", 1), ("serial", 2)])
def test_a_replay_buffer_of_torchrl_is_filled_as_by_torchrl(name, ndim, extend):
    buffers = [ReplayBuffer(storage=LazyTensorStorage(300, ndim=ndim)) for _ in range(2)]
    frames = {"frames_per_batch": 30, "total_frames": 60, "extend_buffer": extend}
    make = torchrlenvs.ENVS[name]
    creates = seeded(make, seeds(name)), make
    for library, create, buffer in zip(LIBRARIES, creates, buffers, strict=True):
        collector = library.Collector(create, policy(name), replay_buffer=buffer, **frames)
        try:
            assert list(collector) == [None, None]
        finally:
            collector.shutdown()
    theirs, ours = (buffer[:] for buffer in buffers)
    assert_same(name, [theirs], [ours], names=False)


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize("name", ["cartpole", "serial"])
def test_our_replay_buffer_holds_what_torchrl_collects(name, extend):
    make = torchrlenvs.ENVS[name]
    frames = {"frames_per_batch": 30, "total_frames": 60}
    theirs = collect(peers.Collector(seeded(make, seeds(name)), policy(name), **frames))
    if not extend:
        theirs = [batch.transpose(0, -1) for batch in theirs]
    buffer = collectx.ReplayBuffer(100)
    with collectx.Collector(make, policy(name), replay_buffer=buffer, extend_buffer=extend, **frames) as collector:
        assert list(collector) == [None, None]
    ours = buffer[torch.arange(60)]
    assert_same(name, [torch.cat([batch.reshape(-1) for batch in theirs])], [ours], names=False)


# --- weights and seeds ---


def test_the_weights_of_a_state_act_as_in_torchrl():
    frames = {"frames_per_batch": 20, "total_frames": 60, "exploration_type": ExplorationType.MODE}
    make_policy = partial(gaussian, torch.distributions.Normal)
    creates = seeded(torchrlenvs.pendulum, seeds("pendulum")), torchrlenvs.pendulum
    found = []
    for library, create in zip(LIBRARIES, creates, strict=True):
        learnt, fresh = make_policy(), make_policy()
        with torch.no_grad():
            learnt[0].module[0].bias.add_(0.5)
        first = library.Collector(create, learnt, **frames)
        state = first.state_dict()
        first.shutdown()
        second = library.Collector(create, fresh, **frames)
        second.load_state_dict(state)
        found.append(collect(second))
        for batch in found[-1]:
            mean = learnt[0](batch.clone())["loc"]
            torch.testing.assert_close(batch["action"], mean)
    for a, b in zip(*found, strict=True):
        assert_alike("pendulum", a, b)


def test_unlike_torchrl_a_seed_begins_new_trajectories():
    frames = {"frames_per_batch": 18, "total_frames": 36}
    theirs, ours = (library.Collector(torchrlenvs.pendulum, policy("pendulum"), **frames) for library in LIBRARIES)
    try:
        for collector in (theirs, ours):
            assert collector.set_seed(7, static_seed=True) == 7
        # TorchRL's envs first finish what they have begun without a seed, an episode of 9 steps.
        second, first = theirs.next()["observation"][9:], ours.next()["observation"][:9]
        assert torch.equal(second, first)
        ours.set_seed(7, static_seed=True)
        assert torch.equal(ours.next()["observation"][:9], first)
    finally:
        for collector in (theirs, ours):
            collector.shutdown()


# --- what cannot be, in both ---


@pytest.mark.parametrize("library", LIBRARIES, ids=["torchrl", "collectx"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"reset_when_done": False}, "reset_when_done"),
        ({"max_frames_per_traj": 5}, "step_count"),
    ],
)
def test_both_refuse(library, keywords, message):
    with pytest.raises((ValueError, TypeError, ConfigError), match=message):
        library.Collector(torchrlenvs.counted, policy("counted"), **{"frames_per_batch": 20, **keywords})


# --- on purpose otherwise; see the table in the README ---


def test_unlike_torchrl_total_frames_must_divide():
    frames = {"frames_per_batch": 20, "total_frames": 50}
    theirs = collect(peers.Collector(torchrlenvs.cartpole, policy("cartpole"), **frames))
    assert sum(batch.numel() for batch in theirs) == 60
    with pytest.raises(ConfigError, match="total_frames=50 is not a multiple"):
        collectx.Collector(torchrlenvs.cartpole, policy("cartpole"), **frames)


def test_unlike_torchrl_split_batches_name_their_time():
    theirs, ours = both("cartpole", split_trajs=True)
    assert theirs[0].names == [None, None]
    assert ours[0].names == [None, "time"]


def test_unlike_torchrl_batches_always_have_the_version_of_the_weights():
    theirs, ours = both("cartpole")
    assert OURS_ALONE not in keys(theirs[0])
    assert ours[0][OURS_ALONE].tolist() == [0] * 20
    theirs, ours = both("cartpole", track_policy_version=True)
    for batch in (theirs[0], ours[0]):
        assert batch["policy_version"].tolist() == [0] * 20
    assert_same("cartpole", theirs, ours)


def test_unlike_torchrl_a_batched_env_may_track_the_version():
    with pytest.raises(RuntimeError, match="not supported for policy version tracking"):
        peers.Collector(torchrlenvs.serial, policy("serial"), frames_per_batch=60, track_policy_version=True)
    frames = {"frames_per_batch": 60, "total_frames": 60, "track_policy_version": True}
    assert collect(collectx.Collector(torchrlenvs.serial, policy("serial"), **frames))[0]["policy_version"].sum() == 0


class StopsAfter:
    """Stops each batch after so many steps."""

    def __init__(self, steps):
        self.steps = steps
        self.asked = 0

    def collection_stopped(self):
        self.asked += 1
        return self.asked % self.steps == 0


def test_unlike_torchrl_an_interrupted_batch_has_the_frames_that_there_are():
    (theirs, *_), (ours, *others) = (
        collect(library.Collector(create, policy("cartpole"), interruptor=StopsAfter(7), **frames))
        for library, create, frames in (
            (peers, seeded(torchrlenvs.cartpole, seeds("cartpole")), {"frames_per_batch": 20, "total_frames": 20}),
            (collectx, torchrlenvs.cartpole, {"frames_per_batch": 20, "total_frames": 20}),
        )
    )
    assert (theirs.shape, ours.shape) == ((20,), (7,))
    assert theirs["collector", "traj_ids"].tolist() == [0] * 7 + [-1] * 13
    assert_same("cartpole", [theirs[:7]], [ours])
    assert [batch.numel() for batch in others] == [7, 7]
