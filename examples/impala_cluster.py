r"""IMPALA: async workers on one or many hosts, and V-trace for weights that are old.

On this machine, with two worker processes over torch.distributed (gloo):

    python examples/impala_cluster.py --frames 204800 --workers 2 --seed 0

On SLURM, from the folder of this file, the same trainer, policy and env as one job of
16 workers on 4 nodes:

    collectx run trainer=custom trainer.target=impala_cluster:Impala \
        policy=custom policy.target=impala_cluster:Actor \
        env=gym env.entry_point=impala_cluster:make_env \
        env.num_envs=8 env.info_keys=[episode] \
        collector=distributed collector.num_workers=16 \
        collector.frames_per_batch=512 collector.total_frames=5000000 \
        launcher=slurm launcher.nodes=4 launcher.partition=NAME

Stops at a mean return of 250, after 100,000 to 200,000 frames: about half a minute on
two cores. To adapt it, change `make_env` and the networks of `Actor`.
"""

import argparse
from collections import deque

import gymnasium
import torch
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type
from torch import nn
from torch.distributions import Categorical

from collectx import DistributedCollector

FRAMES_PER_BATCH, ENVS_PER_WORKER = 512, 8
GAMMA, CLIP_RHO, CLIP_C, ENTROPY, LEARNING_RATE = 0.98, 1.0, 1.0, 0.01, 2e-3
TARGET = 250.0  # mean return of 100 episodes at which `main` stops


def make_env():
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(4, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )


class Actor(TensorDictModuleBase):
    """Reads `observation` [..., 4]; writes `action` [...] and its log-probability
    `log_prob` [...]."""

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["observation"], ["action", "log_prob"]
        self.net = mlp(2)

    def forward(self, tensordict):
        distribution = Categorical(logits=self.net(tensordict["observation"]))
        action = (
            distribution.sample()
            if interaction_type() is InteractionType.RANDOM
            else distribution.mode
        )
        return tensordict.update(
            {"action": action, "log_prob": distribution.log_prob(action)}
        )


def vtrace(log_ratio, reward, value, next_value, terminated, done):
    """Targets of the critic and advantages of the actor, [rows, time] as all arguments
    (Espeholt et al. 2018, 4.1).

    `log_ratio` is the log-probability of the action by the learner's weights less that
    by the worker's, which may be several versions old.
    """
    rho, c = log_ratio.exp().clamp(max=CLIP_RHO), log_ratio.exp().clamp(max=CLIP_C)
    next_value = next_value * ~terminated
    delta = rho * (reward + GAMMA * next_value - value)
    correction, total = torch.zeros_like(delta), torch.zeros(len(delta))  # v - V
    advantage = torch.zeros_like(delta)
    for t in reversed(range(delta.shape[1])):
        total = total * ~done[:, t]
        advantage[:, t] = rho[:, t] * (
            reward[:, t] + GAMMA * (next_value[:, t] + total) - value[:, t]
        )
        total = correction[:, t] = delta[:, t] + GAMMA * c[:, t] * total
    return value + correction, advantage


class Impala:
    """The learner. `collectx run` builds it with the policy, and calls `train`; `main`
    below calls `learn` alone."""

    def __init__(self, policy):
        self.policy, self.critic = policy, mlp(1)
        # A large eps: after long runs of small gradients, the first large one must not
        # move the weights far.
        self.optimizer = torch.optim.Adam(
            [*policy.parameters(), *self.critic.parameters()], LEARNING_RATE, eps=1e-3
        )

    def train(self, collection):
        for batch in collection:
            loss = self.learn(batch)
            collection.publish(self.policy)
            collection.log(loss=loss)

    def learn(self, batch):
        """Takes one gradient step on a batch [..., time] of one worker; returns the
        loss."""
        rows = batch.reshape(-1, batch.shape[-1])
        following = rows["next"]
        distribution = Categorical(logits=self.policy.net(rows["observation"]))
        log_prob = distribution.log_prob(rows["action"])
        value = self.critic(rows["observation"]).squeeze(-1)
        with torch.no_grad():
            next_value = self.critic(following["observation"]).squeeze(-1)
            reward, terminated, done = (
                following[key].squeeze(-1) for key in ("reward", "terminated", "done")
            )
            log_ratio = log_prob - rows["log_prob"]
            target, advantage = vtrace(
                log_ratio, reward, value, next_value, terminated, done
            )
        loss = -(log_prob * advantage).mean() + 0.5 * (value - target).square().mean()
        loss = loss - ENTROPY * distribution.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], 0.5)
        self.optimizer.step()
        return loss.item()

    # With these, `collectx resume` continues a run of `collectx run`.
    def state_dict(self):
        parts = {
            "policy": self.policy,
            "critic": self.critic,
            "optimizer": self.optimizer,
        }
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state):
        for name in state:
            getattr(self, name).load_state_dict(state[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=204_800)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    learner = Impala(Actor())
    collector = DistributedCollector(
        [make_env] * args.workers,
        learner.policy,
        # "submitit" submits a SLURM job for every worker, with `slurm_kwargs={...}`.
        launcher="mp",
        num_envs=ENVS_PER_WORKER,
        num_threads=1,  # of torch here: more do not help networks of this size
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        info_keys=["episode"],
        seed=args.seed,
    )
    returns, frames = deque(maxlen=100), 0
    with collector:
        for number, batch in enumerate(collector):  # from whichever worker is ready
            frames += batch.numel()
            loss = learner.learn(batch)
            collector.update_policy_weights_()
            ended = batch["next", "done"].squeeze(-1)
            returns.extend(batch["next", "info", "episode", "r"][ended].tolist())
            mean = sum(returns) / max(1, len(returns))
            if len(returns) == 100 and mean >= TARGET:
                break
            if number % 20 == 0:
                print(f"{frames:8} frames  return {mean:6.1f}  loss {loss:8.3f}")
    mean = sum(returns) / len(returns)
    print(
        f"{frames} frames, mean return of the last {len(returns)} episodes: {mean:.1f}"
    )


if __name__ == "__main__":
    main()
