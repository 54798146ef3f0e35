"""A replay buffer that any number of processes write and read: frames in a ring, and how they are drawn from it."""

from collectx.replay.buffer import ReplayBuffer
from collectx.replay.prioritized import PrioritizedSampler
from collectx.replay.sampler import Sampler, UniformSampler
from collectx.replay.slices import SliceSampler

__all__ = ["PrioritizedSampler", "ReplayBuffer", "Sampler", "SliceSampler", "UniformSampler"]
