"""Policies for envs of TorchRL: an actor that plans several steps, and other forms of one-hot actions. Other policies
are in `conformance/`."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl.data import OneHot
from torchrl.envs import InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import GRUModule, MultiStepActorWrapper
from user_code import torchrlenvs

from collectx import Collector
from collectx.errors import DataError


class Plan(torch.nn.Module):
    """A network that returns four actions at a time, of the same observation."""

    def forward(self, observation):
        return observation[..., None, :1] + torch.arange(4).reshape(4, 1) / 4


def test_an_actor_of_several_steps_goes_on_with_its_plan():
    # The wrapper needs an env with a batch dimension.
    def create():
        return TransformedEnv(SerialEnv(1, torchrlenvs.pushing), InitTracker())

    policy = MultiStepActorWrapper(TensorDictModule(Plan(), ["observation"], ["action"]), n_steps=4)
    with Collector(create, policy, frames_per_batch=40, total_frames=40, max_frames_per_traj=6) as collector:
        batch = collector.next()[0]
    number = batch["step_count"][:, 0]  # of the frame in its trajectory
    assert number.max() >= 4
    planned = batch["observation"][torch.arange(40) - number % 4, 0] + number % 4 / 4
    torch.testing.assert_close(batch["action"][:, 0], planned)


# An env, and two unbatched envs as a group; each in one-hot actions.
ONE_HOT = {"env": torchrlenvs.one_hot, "envs": partial(SerialEnv, 2, torchrlenvs.one_hot)}


def is_up(observation):
    return observation[..., 0] < 0


def collect_one_hot(create, choose):
    policy = TensorDictModule(choose, ["observation"], ["action"])
    with Collector(create, policy, frames_per_batch=40, total_frames=40, init_random_frames=0) as collector:
        return collector.next()


# TorchRL's envs take action 0 for an index, and the scores rounded to 0.
@pytest.mark.difference("a policy that returns the index of a one-hot action, or a score for each action")
@pytest.mark.parametrize("create", ONE_HOT.values(), ids=ONE_HOT)
@pytest.mark.parametrize(
    "choose",
    [
        lambda seen: is_up(seen).long(),
        lambda seen: is_up(seen).int()[..., None],
        lambda seen: torch.stack([0.1 - seen[..., 0], 0.1 - 2 * seen[..., 0]], -1),
    ],
    ids=["index", "index [1]", "scores"],
)
def test_an_index_or_scores_stand_for_a_one_hot_action(create, choose):
    batch = collect_one_hot(create, choose)
    up = is_up(batch["observation"])
    assert batch["action"].dtype == torch.int64
    assert torch.equal(batch["action"], torch.stack([~up, up], -1).long())
    moved = batch["next", "observation"][..., 0] - batch["observation"][..., 0]
    assert torch.equal(moved > 0, up)


def test_scores_of_the_dtype_of_a_one_hot_action_are_converted():
    env = torchrlenvs.one_hot()
    env.action_spec = OneHot(2, dtype=torch.float32)
    batch = collect_one_hot(env, lambda seen: torch.stack([0.1 - seen[..., 0], 0.1 - 2 * seen[..., 0]], -1))
    up = is_up(batch["observation"])
    assert torch.equal(batch["action"], torch.stack([~up, up], -1).float())


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (
            lambda seen: torch.full(seen.shape[:-1], 2),
            r"returned \[2\] as 'action', but the 2 actions are numbered from 0 to 1",
        ),
        (
            lambda seen: torch.full(seen.shape[:-1], -1),
            r"returned \[-1\] as 'action', but the 2 actions are numbered from 0 to 1",
        ),
        (
            lambda seen: torch.full((*seen.shape[:-1], 2), torch.nan),
            "returned NaN as 'action', among the scores of the 2 actions",
        ),
        (
            lambda seen: torch.zeros(*seen.shape[:-1], 3),
            r"'action' with shape \[3\], but the action space requires shape \[2\]",
        ),
    ],
)
def test_an_index_or_scores_of_no_action_are_refused(choose, message):
    with pytest.raises(DataError, match=message):
        collect_one_hot(torchrlenvs.one_hot, choose)


@pytest.mark.parametrize("num_envs", [0, 2])
@pytest.mark.parametrize("is_instance", [False, True])
def test_the_env_gets_the_transforms_of_a_recurrent_policy(is_instance, num_envs):
    gru = GRUModule(3, 3, in_keys=["observation", "state", "is_init"], out_keys=["features", ("next", "state")])
    act = TensorDictModule(lambda features: features[..., :2].argmax(-1), ["features"], ["action"])
    create = partial(SerialEnv, num_envs, torchrlenvs.walking) if num_envs else torchrlenvs.walking
    keywords = {"frames_per_batch": 20, "total_frames": 20, "auto_register_policy_transforms": True}
    with Collector(create() if is_instance else create, TensorDictSequential(gru, act), **keywords) as collector:
        batch = next(collector)
        if not num_envs:
            assert {"is_init", "state"} <= set(collector.env.observation_spec.keys())
    assert batch["state"].shape == (*batch.shape, 1, 3)
    assert torch.equal(batch["is_init"][..., 1:, :], batch["next", "done"][..., :-1, :])
