"""A replay buffer in shared memory, which several processes may write and sample, and its samplers."""

from collectx.replay.buffer import ReplayBuffer
from collectx.replay.sampler import PrioritizedSampler, Sampler, SliceSampler, UniformSampler

__all__ = ["PrioritizedSampler", "ReplayBuffer", "Sampler", "SliceSampler", "UniformSampler"]
