"""Trains on given batches with one learner or several, in double precision."""

import torch
from composed_overrides import composed
from torch import distributed as dist

from collectx import env, policy, trainer
from collectx.batch import TRAJ_IDS, to_tensordict
from collectx.trainer.learners import ALONE, Learners

ROWS, STEPS, SEED = 8, 32, 3


def batches(num_batches):
    """Yields batches `[ROWS, STEPS]` with random values in double precision; a tenth of the frames end an episode."""
    torch.manual_seed(0)
    for number in range(num_batches):
        action = torch.randint(2, (ROWS, STEPS))
        terminated, truncated = (torch.rand(ROWS, STEPS, 1) < 0.05 for _ in range(2))
        done = terminated | truncated
        tensors = {
            ("observation",): 3.0 + 2.0 * torch.randn(ROWS, STEPS, 4),
            ("action",): action,
            ("action_log_prob",): torch.rand(ROWS, STEPS).log(),
            ("next", "observation"): torch.randn(ROWS, STEPS, 4),
            ("next", "reward"): torch.randn(ROWS, STEPS, 1),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
            ("next", "done"): done,
            TRAJ_IDS: (done.cumsum(1) - done.int())[..., 0] + 1000 * torch.arange(ROWS)[:, None] + 10**6 * number,
        }
        yield to_tensordict(tensors, (ROWS, STEPS))


class Collection:
    """A `BatchCollection` of the rows of one learner."""

    frames, num_episodes, mean_return, total_frames = 0, 0, float("nan"), -1

    def __init__(self, learners, sizes):
        self.learners, self.scalars = learners, []
        first = sum(sizes[: learners.rank])
        self._rows = slice(first, first + sizes[learners.rank])

    def __iter__(self):
        for batch in batches(3):
            self.frames += batch.numel()
            yield batch[self._rows]

    def publish(self, module):
        return 0

    def log(self, **scalars):
        self.scalars.append(scalars)


def train(line, store, rank, sizes, num_learners=None):
    """Trains on three batches as the learner `rank` of those that have so many rows each.

    Args:
        line: options of policy and trainer.
        num_learners: the one learner takes the minibatches of so many.

    Returns:
        All weights and statistics, flat float64, and the logged scalars.
    """
    torch.set_num_threads(1)
    learners = ALONE
    if len(sizes) > 1:
        dist.init_process_group("gloo", store=dist.FileStore(store, len(sizes)), rank=rank, world_size=len(sizes))
        learners = Learners(rank, len(sizes), dist.group.WORLD)
    cfg = composed(f"env=cartpole {line}")
    spec = env.read_spec(cfg.env)
    module = policy.build(cfg.policy, spec, SEED)
    learner = trainer.build(cfg.trainer, module, spec, SEED, torch.device("cpu"))
    learner.policy.double()
    learner.critic.double()
    torch.set_default_dtype(torch.float64)
    if num_learners is not None:
        learner.order = lambda frames: _order_of(frames, num_learners, learner.generator, frames // num_learners // 2)
    collection = Collection(learners, sizes)
    learner.train(collection)
    state = {**learner.policy.state_dict(), **{f"critic.{k}": v for k, v in learner.critic.state_dict().items()}}
    flat = torch.cat([value.double().flatten() for value in state.values()])
    return flat.tolist(), collection.scalars


def _order_of(frames, num_learners, generator, size):
    """Returns an order whose minibatches have the frames that the minibatches of the learners have together."""
    share = frames // num_learners
    parts = torch.randperm(share, generator=generator).split(size)
    return torch.cat([part + share * rank for part in parts for rank in range(num_learners)])
