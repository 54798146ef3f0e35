"""Training scripts as TorchRL's users write them, with TorchRL's losses, buffers, envs and modules. Only the
collectors are ours, and they learn."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from torchrl import modules
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import (
    Compose,
    GymEnv,
    InitTracker,
    ParallelEnv,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE
from user_code import torchrlenvs

from collectx import AsyncCollector, Collector, MultiAsyncCollector, MultiSyncCollector

torch.set_num_threads(1)

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::FutureWarning")]


def discrete(make=torchrlenvs.one_hot):
    return torchrlenvs.transformed(make(), RewardSum(), StepCounter())


continuous = partial(discrete, torchrlenvs.pushing)

# TorchRL keeps an exception of an import that it does on the way, and with it all frames that were running then.
discrete().close()


def learning(collector, num_batches):
    """Yields the batches of a script that learns: the mean reward rises from 0.3, as at random, to 0.8."""
    rewards = []
    try:
        for data in collector:
            rewards.append(data["next", "reward"].mean().item())
            yield data
    finally:
        collector.shutdown()
    assert len(rewards) == num_batches
    quarter = num_batches // 4
    first, last = (torch.tensor(some).mean() for some in (rewards[:quarter], rewards[-quarter:]))
    assert last > first + 0.2, rewards


def descend(losses, optimizer):
    optimizer.zero_grad()
    sum(value for name, value in losses.items() if name.startswith("loss")).backward()
    optimizer.step()


def test_torchrl_is_imported_only_by_who_uses_it():
    code = "import sys, collectx.env.torchrl.group, collectx.env.user_env; assert 'torchrl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.nightly
def test_a_parallel_env_that_is_passed_itself_travels_to_the_workers():
    env = ParallelEnv(2, torchrlenvs.walking, mp_start_method="fork")
    env = torchrlenvs.transformed(env, RewardScaling(0, 2))
    policy = TensorDictModule(lambda seen: (seen[..., 0] < 0).long(), in_keys=["observation"], out_keys=["action"])
    with MultiSyncCollector([env, env], policy, frames_per_batch=24, total_frames=24) as collector:
        batch = collector.next()
    assert batch.shape == (2, 2, 6)
    assert torch.equal(batch["action"], (batch["observation"][..., 0] < 0).long())
    assert env.is_closed


def test_a_shared_buffer_that_has_its_keys_takes_no_others():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=10, shared=True)
    buffer.extend(torchrlenvs.walking().rollout(2))
    buffer.empty()
    with AsyncCollector(torchrlenvs.walking, frames_per_batch=20, replay_buffer=buffer) as collector:
        collector.next()
        collector.next()
    frames = buffer[:]
    assert frames.shape == (40,)
    assert "collector" not in frames
    assert frames["next", "observation"][:, 2].min() > 0


class Recurrent:
    """An env whose primer is within the processes, or around them, and its policy with a nested state."""

    def __init__(self, vectorize, is_inner):
        self.vectorize, self.is_inner = vectorize, is_inner

    def network(self):
        keys = {"in_keys": ["observation", ("state", "h"), "is_init"], "out_keys": ["embed", ("next", "state", "h")]}
        return modules.GRUModule(input_size=4, hidden_size=5, **keys)

    def member(self):
        env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), StepCounter()))
        return env.append_transform(self.network().make_tensordict_primer()) if self.is_inner else env

    def __call__(self):
        env = self.vectorize(2, self.member)
        return env if self.is_inner else TransformedEnv(env, self.network().make_tensordict_primer())


@pytest.mark.parametrize(
    "is_inner", [pytest.param(True, id="inner"), pytest.param(False, id="outer", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("vectorize", [SerialEnv, pytest.param(ParallelEnv, marks=pytest.mark.nightly)])
def test_a_nested_state_of_a_recurrent_policy(vectorize, is_inner):
    make = Recurrent(vectorize, is_inner)
    torch.manual_seed(0)
    head = TensorDictModule(nn.Linear(5, 2), in_keys=["embed"], out_keys=["logits"])
    keys = {"in_keys": ["logits"], "distribution_class": modules.OneHotCategorical}
    policy = modules.ProbabilisticActor(TensorDictSequential(make.network(), head), **keys)
    with MultiSyncCollector([make], policy, frames_per_batch=100, total_frames=200) as collector:
        first, second = collector
    state, new = second["state", "h"], second["is_init"].squeeze(-1)
    assert second.shape == (1, 2, 50)
    assert new.any()
    assert state[new].abs().sum() == 0 < state[~new].abs().sum()
    follows = ~new[..., 1:]
    assert torch.equal(state[..., 1:, :, :][follows], second["next", "state", "h"][..., :-1, :, :][follows])
    assert torch.equal(
        second["state", "h"][..., 0, :, :][~new[..., 0]], first["next", "state", "h"][..., -1, :, :][~new[..., 0]]
    )


def test_ppo():
    torch.manual_seed(0)
    logits = TensorDictModule(modules.MLP(3, 2, num_cells=[32]), in_keys=["observation"], out_keys=["logits"])
    keys = {"in_keys": ["logits"], "out_keys": ["action"]}
    drawn = {"distribution_class": modules.OneHotCategorical, "return_log_prob": True}
    actor = modules.ProbabilisticActor(logits, spec=discrete().action_spec, **keys, **drawn)
    critic = modules.ValueOperator(modules.MLP(3, 1, num_cells=[32]), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), 1e-2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), sampler=SamplerWithoutReplacement(), batch_size=100)
    collector = MultiSyncCollector(
        [discrete] * 2, actor, frames_per_batch=200, total_frames=4000, update_at_each_batch=True
    )
    for data in learning(collector, 20):
        for _ in range(4):
            advantage(data)
            buffer.extend(data.reshape(-1))
            for _ in range(2):
                descend(loss_module(buffer.sample()), optimizer)


def off_policy(collector, num_batches, loss_module, steps_each, after):
    """Learns from a buffer, several times for each batch, after which `after(data)` is called."""
    loss_module.make_value_estimator(gamma=0.9)
    target = SoftUpdate(loss_module, eps=0.95)
    optimizer = torch.optim.Adam(loss_module.parameters(), 3e-3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=64)
    for data in learning(collector, num_batches):
        buffer.extend(data)
        for _ in range(steps_each):
            descend(loss_module(buffer.sample()), optimizer)
            target.step()
        after(data)


@pytest.mark.nightly
def test_dqn():
    torch.manual_seed(0)
    spec = discrete().action_spec
    actor = modules.QValueActor(modules.MLP(3, 2, num_cells=[32]), in_keys=["observation"], spec=spec)
    exploring = TensorDictSequential(actor, modules.EGreedyModule(spec, annealing_num_steps=1000, eps_end=0.05))
    frames = {"frames_per_batch": 50, "total_frames": 2000, "init_random_frames": 200}
    collector = Collector(discrete, exploring, **frames)
    loss_module = DQNLoss(actor, action_space=spec, delay_value=True)
    off_policy(collector, 40, loss_module, 4, lambda data: exploring[1].step(data.numel()))


@pytest.mark.nightly
def test_sac():
    torch.manual_seed(0)
    spec = continuous().action_spec
    layers = nn.Sequential(modules.MLP(3, 2, num_cells=[32]), modules.NormalParamExtractor())
    head = TensorDictModule(layers, in_keys=["observation"], out_keys=["loc", "scale"])
    keys = {"in_keys": ["loc", "scale"], "out_keys": ["action"], "distribution_class": modules.TanhNormal}
    limits = {"low": spec.space.low, "high": spec.space.high}
    actor = modules.ProbabilisticActor(head, spec=spec, **keys, distribution_kwargs=limits)
    value = modules.ValueOperator(modules.MLP(4, 1, num_cells=[32]), in_keys=["observation", "action"])
    loss_module = SACLoss(actor, value, action_spec=spec, alpha_init=0.1)
    collector = MultiAsyncCollector([continuous] * 2, actor, frames_per_batch=100, total_frames=2800)
    off_policy(collector, 28, loss_module, 8, lambda data: collector.update_policy_weights_())
