"""PPO on CartPole-v1 with TorchRL's env, loss and advantages, and the collector of collectx or TorchRL's."""

import importlib

SIDES = {"collectx": "collectx", "torchrl": "torchrl.collectors"}
FRAMES_PER_BATCH, TOTAL_FRAMES = 1000, 25_000
EPOCHS, MINIBATCH = 4, 100


def train(side: str, seed: int) -> list[float]:
    """Returns the mean return of the episodes that ended in each batch."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    Collector = importlib.import_module(SIDES[side]).Collector
    torch.set_num_threads(1)
    torch.manual_seed(seed)

    def network(num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))

    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
    env.set_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        spec=env.action_spec,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    collector = Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=TOTAL_FRAMES)
    collector.set_seed(seed)
    returns = []
    for data in collector:
        for _ in range(EPOCHS):
            advantage(data)
            buffer.extend(data.reshape(-1))
            for _ in range(FRAMES_PER_BATCH // MINIBATCH):
                losses = loss(buffer.sample())
                optimizer.zero_grad()
                sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        ended = data["next", "done"]
        returns.append(data["next", "episode_reward"][ended].mean().item())
    collector.shutdown()
    return returns
