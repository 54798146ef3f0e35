"""Dict observations of Gymnasium: the same policies and the same code with TorchRL's wrapper and without."""

from functools import partial

import gymnasium
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from tensordict.nn import TensorDictModule

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl.envs import GymWrapper, SerialEnv, StepCounter, TransformedEnv
from user_code.cartpoles import cartpole, cartpoles
from user_code.torchrlenvs import Goals, goals, walking

from collectx import Collector
from collectx.config.schema.env import GymEnvConfig, TorchrlEnvConfig
from collectx.config.schema.policy import MlpPolicyConfig
from collectx.env import read_spec
from collectx.errors import SpaceError
from collectx.policy import build

FRAMES = {"frames_per_batch": 40, "seed": 3}


def towards(observation, desired_goal):
    return (desired_goal[..., 0] > 4 * observation[..., 0]).long()


def by_tensordict(td):
    return td.set("action", towards(td["observation"], td["desired_goal"]))


def swapped(desired_goal, observation):
    return towards(observation, desired_goal)


def by_parts(seen):
    return towards(seen["observation"], seen["desired_goal"] + seen["more"]["both"][..., 0, :] * 0)


def relabelled(batch):
    """Puts the last goal that was reached in the place of the goal, as hindsight experience replay does."""
    reached = batch["next", "achieved_goal"][..., -1:, :].expand_as(batch["desired_goal"])
    distance = (batch["next", "achieved_goal"] - reached).abs().sum(-1, keepdim=True)
    return batch.clone().update({"desired_goal": reached, "next": {"desired_goal": reached, "reward": -distance}})


def first_batch(create, policy):
    with Collector(create, policy, **FRAMES) as collector:
        return collector.next()


POLICIES = {
    "keys": TensorDictModule(towards, ["observation", "desired_goal"], ["action"]),
    "TensorDict": by_tensordict,
    "names": swapped,
    "parts": by_parts,
}


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
@pytest.mark.parametrize("name", POLICIES)
def test_the_wrapper_makes_no_difference(name):
    policy = POLICIES[name]
    for plain, wrapped in [
        (Goals, goals),
        (partial(SyncVectorEnv, [Goals] * 2, autoreset_mode="SameStep"), partial(SerialEnv, 2, goals)),
    ]:
        batches = [relabelled(first_batch(create, policy)) for create in (plain, wrapped)]
        assert (batches[0] == batches[1]).all()
        assert batches[0]["next", "reward"].unique().numel() > 3
        assert {"observation", "achieved_goal", "desired_goal", "more"} < {*batches[0].keys()}


def counted():
    return TransformedEnv(goals(), StepCounter())


def test_a_built_in_policy_reads_all_parts():
    cfg = MlpPolicyConfig(kind="mlp", hidden_sizes=[4], activation="tanh")
    envs = [
        GymEnvConfig(kind="gym", num_envs=2, id=None, entry_point="user_code.torchrlenvs:Goals"),
        TorchrlEnvConfig(kind="torchrl", num_envs=2, target="user_code.torchrlenvs:goals"),
        TorchrlEnvConfig(kind="torchrl", num_envs=2, target=f"{__name__}:counted"),
    ]
    policies = [build(cfg, read_spec(env), seed=1) for env in envs]
    for policy in policies:
        assert policy.encode.num_outputs == 2 + 2 + 2 + 3 + 4
        assert set(policy.observation_keys) == set(policies[0].observation_keys)


class Named(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def __init__(self, *names):
        box = spaces.Box(-1, 1, (2,))
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {"info": 1.0}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {"info": 1.0}


@pytest.mark.parametrize("name", ["done", "terminated", "truncated", "reward", "action", "next", "collector"])
def test_a_part_with_the_name_of_another_key_is_refused(name):
    create = partial(Named, "camera", name)
    with pytest.raises(
        SpaceError,
        match=rf"named '{name}', because batches reserve this name. .*TransformObservation.*exclude_keys=\['{name}'",
    ):
        Collector(create, frames_per_batch=4)
    with Collector(create, frames_per_batch=4, exclude_keys=[name]) as collector:
        assert collector.next()["camera"].shape == (4, 2)


def with_version(td):
    td["policy_version"] = td["camera"]
    return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))


@pytest.mark.parametrize(
    ("create", "policy"),
    [
        (partial(Named, "camera", "policy_version"), None),
        (partial(GymWrapper, Named("camera", "policy_version")), None),
        (partial(Named, "camera"), with_version),
    ],
    ids=["gymnasium", "torchrl", "policy"],
)
def test_a_key_named_policy_version_is_refused_where_batches_have_another_one(create, policy):
    with pytest.raises(
        SpaceError, match=r"writes the key policy_version, which track_policy_version=True adds.*Rename the key"
    ):
        Collector(create, policy, frames_per_batch=4, track_policy_version=True)
    with Collector(create, policy, frames_per_batch=4) as collector:
        assert collector.next()["policy_version"].shape == (4, 2)


def test_a_part_named_info_is_refused_beside_kept_infos_only():
    with pytest.raises(SpaceError, match="a part named 'info', because batches reserve this name"):
        Collector(partial(Named, "camera", "info"), frames_per_batch=4, info_keys=["info"])
    assert first_batch(partial(Named, "camera", "info"), None)["info"].shape == (40, 2)


def test_a_part_named_state_is_the_observation_where_there_is_no_other():
    assert first_batch(partial(Named, "state", "camera"), None)["observation"].shape == (40, 2)
    assert {"state", "observation"} < {*first_batch(partial(Named, "state", "observation"), None).keys()}


class Pairs(Named):
    def __init__(self):
        self.observation_space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("create", "name", "options"),
    [
        (cartpole, "observation", {}),
        (cartpole, "observation", {"max_frames_per_traj": 5}),
        (cartpole, "observation", {"max_frames_per_traj": 5, "trajs_per_batch": 3}),
        (cartpoles, "observation", {}),
        (partial(cartpoles, mode="NEXT_STEP"), "observation", {}),
        (partial(Named, "camera"), "camera", {}),
        (Pairs, "observation", {}),
        (walking, "observation", {}),
    ],
    ids=["one", "limited", "trajectories", "same_step", "next_step", "dict", "tuple", "torchrl"],
)
def test_the_only_observation_can_be_left_out(create, name, options):
    def collect(**keywords):
        with Collector(create, frames_per_batch=24, total_frames=48, seed=3, **options, **keywords) as collector:
            return list(collector)

    expected = [batch.exclude(name, ("next", name)) for batch in collect()]
    batches = collect(exclude_keys=[name])
    assert len(batches) == len(expected) > 0
    assert not any({name} & {*batch.keys()} for batch in batches)
    assert all((batch == other).all() for batch, other in zip(batches, expected, strict=True))


@pytest.mark.parametrize(
    "policy",
    [
        lambda: 1,
        lambda td: td.set("action", torch.ones(td.batch_size, dtype=torch.int64)),
        TensorDictModule(lambda: torch.ones((), dtype=torch.int64), [], ["action"]),
    ],
    ids=["tensors", "tensordict", "module"],
)
@pytest.mark.parametrize("options", [{}, {"max_frames_per_traj": 4}], ids=str)
def test_a_policy_acts_without_an_observation(policy, options):
    with Collector(cartpole, policy, frames_per_batch=8, exclude_keys=["observation"], **options) as collector:
        assert collector.next()["action"].tolist() == [1] * 8


@pytest.mark.difference("a Tuple observation whose parts are not equal")
def test_unequal_tuples():
    class Pair(Named):
        observation_space = property(lambda self: self.space, lambda self, _: None)
        space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])

    batch = first_batch(Pair, lambda first, second: second.gt(0).long())
    assert batch["observation", "0"].shape == (40, 2)
    assert batch["observation", "1"].dtype is torch.int64
    assert torch.equal(batch["action"], batch["observation", "1"].gt(0).long())
