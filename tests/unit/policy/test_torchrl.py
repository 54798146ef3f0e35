"""An actor of TorchRL that plans several steps. Other policies of TorchRL are in `conformance/`."""

import pytest
import torch
from tensordict.nn import TensorDictModule

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl.envs import InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import MultiStepActorWrapper
from worlds import torchrlenvs

from collectx import Collector


class Plan(torch.nn.Module):
    """Four actions at a time, of the same observation."""

    def forward(self, observation):
        return observation[..., None, :1] + torch.arange(4).reshape(4, 1) / 4


def test_an_actor_of_several_steps_goes_on_with_its_plan():
    # The wrapper needs an env with a batch dimension.
    def create():
        return TransformedEnv(SerialEnv(1, torchrlenvs.pushing), InitTracker())

    policy = MultiStepActorWrapper(TensorDictModule(Plan(), ["observation"], ["action"]), n_steps=4)
    with Collector(create, policy, frames_per_batch=40, total_frames=40, max_frames_per_traj=6) as collector:
        batch = collector.next()
    number = batch["step_count"][:, 0]  # of the frame in its trajectory
    assert number.max() >= 4
    planned = batch["observation"][torch.arange(40) - number % 4, 0] + number % 4 / 4
    torch.testing.assert_close(batch["action"][:, 0], planned)
