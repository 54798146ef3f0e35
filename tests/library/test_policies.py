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
from torch import nn
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


class Switching(nn.Module):
    """Acts with one layer for five calls, then with another one, which it puts in the place of the first: as its
    attribute, or as an item of a Sequential."""

    def __init__(self, by_item):
        super().__init__()
        self.options = [nn.Linear(4, 2), nn.Linear(4, 2)]
        for action, layer in enumerate(self.options):
            nn.init.zeros_(layer.weight)
            layer.bias.data = one_hot(torch.tensor(action), 2).float()
        self.net = nn.Sequential(nn.Identity(), self.options[0])
        self._by_item, self.actions = by_item, []

    def forward(self, observation):
        self.actions.append(len(self.actions) // 5 % 2)
        if self._by_item:
            self.net[1] = self.options[self.actions[-1]]
        else:
            self.net = nn.Sequential(self.options[self.actions[-1]])
        return self.net(observation).argmax(-1)


@pytest.mark.parametrize("by_item", [False, True])
def test_a_layer_that_a_policy_replaces_within_a_batch_acts_at_once(by_item):
    policy = Switching(by_item)
    with Collector(cartpole, policy, frames_per_batch=16) as collector:
        for _ in range(2):
            assert collector.next()["action"].tolist() == policy.actions[-16:]
