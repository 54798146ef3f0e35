"""The same envs and policies for TorchRL's collectors and for ours, and the comparison of their batches.

Its classes are at the top of a module, so that processes find them.
"""

from __future__ import annotations

from functools import partial

import gymnasium
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import LSTMModule
from worlds import torchrlenvs

from collectx.collector.task import env_seed

# With its first env TorchRL keeps the traceback of an import that failed, and so all that was being constructed: a
# collector, for ever.
torchrlenvs.cartpole().close()

OURS_ALONE = ("collector", "policy_version")
TRAJ_IDS = ("collector", "traj_ids")
MASK = ("collector", "mask")
# Of an env without this end, TorchRL's batches have none.
_AGENTS = ("agents", "agents_in_a_row", "agents_in_a_grid")
_NOT_THEIRS = {name: {"truncated"} for name in ("stateless", "many_keys", "two_rewards", *_AGENTS)}


class Policy(torch.nn.Module):
    """Deterministic: the actions of each env's kind from a number of the observation."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, seen):
        if self.name in ("many_keys", "two_rewards"):
            turn = (seen.reshape(*seen.shape[:-3], -1)[..., 0] % 3).long()
            push = torch.stack([turn / 3.0, -turn / 2.0], -1)
            return torch.nn.functional.one_hot(turn, 3).bool(), push
        if self.name == "batched":
            return seen.sum(-1) % 5
        if self.name.startswith("agents"):
            return torch.cos(seen[..., :1] * 40)
        if self.name == "stateless":
            return torch.sin(seen)[..., None]
        if self.name in ("pendulum", "normed"):
            return 2 * seen[..., :1]
        right = (seen[..., 2] + 0.1 * seen[..., 0] > 0).long()
        return torch.nn.functional.one_hot(right, 2) if self.name == "one_hot" else right


_READS = {"normed": ("agent", "state"), "many_keys": "pixels", "batched": ("nested", "counts"), "stateless": "th"}
_READS |= {"two_rewards": "pixels"} | dict.fromkeys(_AGENTS, ("agents", "observation"))
_WRITES = {name: [("agent", "move"), ("agent", "push")] for name in ("many_keys", "two_rewards")}
_WRITES |= {name: [("agents", "action")] for name in _AGENTS}


def policy(name):
    if name == "recurrent":
        return lstm()
    return TensorDictModule(Policy(name), [_READS.get(name, "observation")], _WRITES.get(name, ["action"]))


def lstm():
    """Acts by its memory, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        memory = LSTMModule(4, 5, in_keys=["observation", "h", "c"], out_keys=["embed", ("next", "h"), ("next", "c")])
        head = TensorDictModule(torch.nn.Linear(5, 2), ["embed"], ["logits"])
    return TensorDictSequential(memory, head, TensorDictModule(partial(torch.argmax, dim=-1), ["logits"], ["action"]))


def size(name):
    """Envs of one worker."""
    several = {"agents_in_a_row": 2, "agents_in_a_grid": 6}
    return {"serial": 3, "counted_serial": 3, "batched": 3, "parallel": 2, **several}.get(name, 1)


def seeds(name, worker=0):
    """What our worker of that index seeds its envs with."""
    num = size(name)
    return [env_seed(0, worker * num + e) for e in range(num)]


def seeded(make, seeds):
    """An env as our worker seeds it: one by one, or as a whole."""

    def create():
        if make is torchrlenvs.serial:
            return torchrlenvs.SerialEnv(len(seeds), [seeded(torchrlenvs.cartpole, [seed]) for seed in seeds])
        env = make()
        env.set_seed(seeds[0])
        return env

    return create


class Again(gymnasium.Wrapper):
    """A reset with a seed is followed by one without, as TorchRL's `GymEnv` does when it is seeded."""

    def reset(self, *, seed=None, options=None):
        first = self.env.reset(seed=seed)
        return first if seed is None else self.env.reset()


class ResetTwice:
    """TorchRL resets envs when a collector is made, and with `reset_at_each_iter` again before the first batch."""

    def __init__(self, make):
        self.make = make

    def __call__(self):
        env = self.make()
        seed_as_before = env.set_seed

        def set_seed(seed, **kwargs):
            seed_as_before(seed, **kwargs)
            env.reset()

        env.set_seed = set_seed
        return env


def squared(batch):
    return batch.set("squared", batch["observation"] ** 2)


def collect(collector):
    """All batches, copied."""
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


def keys(batch):
    return {key if isinstance(key, tuple) else (key,) for key in batch.keys(True, True)}


def trajectory_ids(batch):
    """Of its frames, without what a split batch is padded with."""
    ids = batch[TRAJ_IDS].reshape(-1)
    return ids[batch[MASK].reshape(-1)] if MASK in keys(batch) else ids


def renamed(ids):
    """Trajectory ids by their first appearance."""
    names = {}
    return torch.tensor([names.setdefault(i, len(names)) for i in ids.reshape(-1).tolist()]).reshape(ids.shape)


def in_order(batch):
    """The trajectories of a split batch, in order of their first observations."""
    first = batch["observation"][:, 0].tolist()
    return batch[sorted(range(len(first)), key=first.__getitem__)]


def assert_alike(name, theirs, ours, names=True):
    """The same keys, shapes, dtypes and, if `names`, dimension names of two batches; returns the keys that they share.

    Args:
        name: of the env.
    """
    assert theirs.batch_size == ours.batch_size
    assert theirs.device == ours.device
    assert not names or theirs.names == ours.names
    surplus = {key for key in keys(ours) - keys(theirs) if key[-1] in _NOT_THEIRS.get(name, ())}
    if name in ("many_keys", "two_rewards"):
        surplus.add(("next", "only_root"))
    assert keys(ours) - surplus == keys(theirs) | {OURS_ALONE}
    for key in keys(theirs):
        assert (theirs[key].shape, theirs[key].dtype) == (ours[key].shape, ours[key].dtype), key
    return keys(theirs)


def assert_same(name, theirs, ours, names=True):
    """The same batches, entry by entry; trajectory ids are the same but for their numbers."""
    assert len(theirs) == len(ours) > 0
    for a, b in zip(theirs, ours, strict=True):
        for key in assert_alike(name, a, b, names) - {TRAJ_IDS}:
            torch.testing.assert_close(a[key], b[key], rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")
    # There a frame in which one of several agents has ended begins a trajectory.
    if TRAJ_IDS in keys(theirs[0]) and name not in _AGENTS:
        ids = [torch.cat(list(map(trajectory_ids, batches))) for batches in (theirs, ours)]
        assert torch.equal(*map(renamed, ids))
