"""Training scripts as TorchRL's users write them, with TorchRL's losses, buffers, envs and modules. The collectors come
from here or from there: nothing else differs."""

from __future__ import annotations

import importlib

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

torch.set_num_threads(1)

libraries = pytest.mark.parametrize("library", ["collectx", pytest.param("torchrl.collectors", marks=pytest.mark.ci)])


def cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), RewardSum())


def pendulum():
    return TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(100))


# TorchRL keeps an exception of an import that it does on the way, and with it all frames that were running then.
cartpole().close()


@pytest.mark.ci
@libraries
def test_ppo(library):
    collectors = importlib.import_module(library)
    torch.manual_seed(0)
    env = cartpole()
    logits = TensorDictModule(MLP(4, 2, num_cells=[32]), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits,
        spec=env.action_spec,
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(4, 1, num_cells=[32]), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), 3e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(500), sampler=SamplerWithoutReplacement(), batch_size=100)
    collector = collectors.MultiSyncCollector(
        [cartpole] * 2, actor, frames_per_batch=500, total_frames=10_000, update_at_each_batch=True
    )
    returns = []
    for data in collector:
        for _ in range(4):
            advantage(data)
            buffer.extend(data.reshape(-1))
            for _ in range(5):
                losses = loss_module(buffer.sample())
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        done = data["next", "done"]
        returns.append(data["next", "episode_reward"][done].mean().item())
    collector.shutdown()
    assert len(returns) == 20
    # No episode may have ended in a batch of a good policy.
    first, last = (torch.tensor(some).nanmean() for some in (returns[:5], returns[-5:]))
    assert last > 1.5 * first


@pytest.mark.filterwarnings("ignore::FutureWarning")
@libraries
def test_dqn(library):
    collectors = importlib.import_module(library)
    torch.manual_seed(0)
    env = cartpole()
    actor = QValueActor(MLP(4, 2, num_cells=[32]), in_keys=["observation"], spec=env.action_spec)
    exploring = TensorDictSequential(actor, EGreedyModule(env.action_spec, annealing_num_steps=2000, eps_end=0.05))
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_module, eps=0.99)
    optimizer = torch.optim.Adam(loss_module.parameters(), 1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=64)
    collector = collectors.Collector(
        cartpole, exploring, frames_per_batch=50, total_frames=2000, init_random_frames=200
    )
    for count, data in enumerate(collector, 1):  # noqa: B007
        exploring[1].step(data.numel())
        buffer.extend(data)
        for _ in range(4):
            loss = loss_module(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.step()
    collector.shutdown()
    assert count == 40
    assert torch.isfinite(loss)


@pytest.mark.ci
@libraries
def test_sac(library):
    collectors = importlib.import_module(library)
    torch.manual_seed(0)
    env = pendulum()
    head = nn.Sequential(MLP(3, 2, num_cells=[32]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(head, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
    )
    value = ValueOperator(MLP(4, 1, num_cells=[32]), in_keys=["observation", "action"])
    loss_module = SACLoss(actor, value, action_spec=env.action_spec)
    loss_module.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_module, eps=0.995)
    optimizer = torch.optim.Adam(loss_module.parameters(), 1e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=64)
    collector = collectors.MultiAsyncCollector([pendulum] * 2, actor, frames_per_batch=100, total_frames=2000)
    for count, data in enumerate(collector, 1):  # noqa: B007
        buffer.extend(data)
        for _ in range(4):
            losses = loss_module(buffer.sample())
            loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.step()
        collector.update_policy_weights_()
    collector.shutdown()
    assert count == 20
    assert torch.isfinite(loss)
    assert data["next", "step_count"].max() <= 100
