"""What a user's policy is called with, and what it may return."""

from functools import partial

import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from library_collectors import make
from user_code.cartpoles import cartpole
from ways import INLINE_SYNC, SINGLE, over

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from gymnasium import spaces
from torch.nn.functional import one_hot
from torchrl.envs import GymWrapper, SerialEnv
from user_code.torchrlenvs import Sampled

from collectx import Collector

SEEN = spaces.Box(-1, 1, (2,))


@pytest.mark.sample(8)
@over((SINGLE, INLINE_SYNC))
@pytest.mark.parametrize(
    ("keywords", "device"),
    [({}, None), ({"device": "cpu"}, "cpu"), ({"policy_device": "cpu"}, "cpu"), ({"storing_device": "cpu"}, None)],
)
@pytest.mark.parametrize("create", [cartpole, lambda: GymWrapper(cartpole(), device="cpu")])
def test_the_tensordict_of_a_policy_has_one_device(way, create, keywords, device):
    devices = []

    def policy(td):
        devices.append(td.device)
        action = torch.zeros((), dtype=torch.int64)
        return td.set("action", action if create is cartpole else one_hot(action, 2))

    with make(way, create, policy, frames_per_batch=8, **keywords) as collector:
        collector.next()
    assert len(devices) > 8
    assert {each and each.type for each in devices} == {device}


def acting(width):
    return Sampled(SEEN, spaces.Box(-1, 1, width))


@pytest.mark.sample(12)
@pytest.mark.parametrize("width", [(), (1,), (1, 1)])
@pytest.mark.parametrize("num_ones", [0, 1, 2])
@pytest.mark.parametrize(
    "create",
    [
        acting,
        lambda width: SyncVectorEnv([partial(acting, width)] * 3, autoreset_mode="SameStep"),
        lambda width: GymWrapper(acting(width)),
        lambda width: SerialEnv(3, lambda: GymWrapper(acting(width))),
    ],
)
@pytest.mark.difference("an action without the last dimensions of size 1 of its spec, or with more")
def test_an_action_may_lack_last_dimensions_of_size_1(create, width, num_ones):
    def policy(observation):
        mean = observation.mean(-1)
        return mean.reshape(mean.shape + (1,) * num_ones)

    with Collector(partial(create, width), policy, frames_per_batch=12) as collector:
        batch = collector.next()
    action = batch["action"]
    assert action.flatten().tolist() == batch["observation"].mean(-1).flatten().tolist()
    assert action.shape[batch.ndim :] in (width, width or (1,))
