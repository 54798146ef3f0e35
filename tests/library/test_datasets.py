"""Offline training on a recorded data set with TorchRL's loss."""

import pytest
import torch
from commands import forked

from collectx import data


@pytest.mark.ci
def test_torchrl_trains_offline_on_what_was_recorded(tmp_path):
    pytest.importorskip("torchrl")
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    forked("run", "trainer=record", "policy=random", "collector.total_frames=4096", "hydra.run.dir=run", cwd=tmp_path)
    frames = data.load(tmp_path / "run")
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(frames)), batch_size=128)
    buffer.extend(frames)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    target, optimizer = SoftUpdate(loss, eps=0.9), torch.optim.Adam(loss.parameters(), 3e-3)
    for _ in range(500):
        value = loss(buffer.sample())["loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        target.step()
    # A step after which the pole has fallen is worth less than the others.
    last = frames["next", "terminated"].flatten()
    with torch.no_grad():
        values = network(frames["observation"]).gather(1, frames["action"][:, None])
    assert values[last].mean() < 0.8 * values[~last].mean()
