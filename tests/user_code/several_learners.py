"""Trainers for several learners, and an env that fails in one of them."""

import gymnasium
import torch
from torch.nn.parallel import DistributedDataParallel


class Parallel:
    """Learns with torch's DistributedDataParallel; with `is_apart`, each learner alone. The number of updates is the
    same for all learners, but their batches differ."""

    def __init__(self, policy, is_apart: bool = False):
        self._policy, self._is_apart = policy, is_apart
        self._optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)

    def train(self, collection):
        assert collection.learners.num_learners == torch.distributed.get_world_size() == 2
        assert collection.learners.rank == torch.distributed.get_rank()
        policy = self._policy if self._is_apart else DistributedDataParallel(self._policy)
        for batch in collection:
            self._optimizer.zero_grad()
            (policy(batch["observation"])[0] * batch["next", "reward"]).mean().backward()
            self._optimizer.step()
            collection.publish(self._policy)


class TooEarly:
    """Returns after a batch on learner 1, and after two batches on learner 0."""

    def __init__(self):
        pass

    def train(self, collection):
        for _ in range(2 - collection.learners.rank):
            next(collection)


class Publishing:
    """Publishes the policy as it is."""

    def __init__(self, policy):
        self._policy = policy

    def train(self, collection):
        for _ in collection:
            collection.publish(self._policy)


class FailsInOne(gymnasium.Wrapper):
    """Fails in its step 20, in the worker of this index in the run."""

    def __init__(self, env, worker_index: int, fails_in: int):
        super().__init__(env)
        self._left = 20 if worker_index == fails_in else -1

    def step(self, action):
        self._left -= 1
        if self._left == 0:
            raise ArithmeticError("the env lost its balance")
        return super().step(action)


def cartpole(worker_index: int, fails_in: int = -1):
    return FailsInOne(gymnasium.make("CartPole-v1"), worker_index, fails_in)
