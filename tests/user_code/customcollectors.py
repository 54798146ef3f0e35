"""Collectors of a user's own. Imported by worker processes."""

import torch
from tensordict import TensorDict

from collectx import Collector


class Doubling(Collector):
    """One of ours, that changes its batches."""

    def __next__(self):
        batch = super().__next__()
        batch["next", "reward"] *= 2
        return batch


class Handmade:
    """Nothing of ours: steps one Gymnasium env, and yields no more keys than it must."""

    def __init__(self, create_env_fn, policy, frames_per_batch, total_frames, drop=(), shape=None, add=(), last=-1):
        self.env, self.policy, self.frames = create_env_fn(), policy, frames_per_batch
        self.drop, self.shape, self.add, self.last = drop, shape, add, last
        self.seen = self.env.reset()[0]

    def __iter__(self):
        while self.last != 0:
            self.last -= 1
            batch = torch.stack([self.step() for _ in range(self.frames)])
            batch = batch.exclude(*self.drop).update({name: torch.zeros(self.frames) for name in self.add})
            yield batch if self.shape is None else batch.reshape(self.shape)

    def step(self):
        before = torch.from_numpy(self.seen)
        action = self.policy(before) if self.policy else torch.tensor(int(self.env.action_space.sample()))
        self.seen, reward, terminated, truncated, _ = self.env.step(int(action))
        after = torch.from_numpy(self.seen)
        if terminated or truncated:
            self.seen = self.env.reset()[0]
        ends = {"terminated": torch.tensor([terminated]), "truncated": torch.tensor([truncated])}
        reward = torch.tensor([reward], dtype=torch.float32)
        return TensorDict(
            {"observation": before, "action": action, "next": {"observation": after, "reward": reward, **ends}}, []
        )


def refuse(create_env_fn, policy, frames_per_batch, total_frames):
    raise ZeroDivisionError("no collector today")
