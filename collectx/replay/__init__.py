"""A replay buffer in shared memory, which several processes may write and sample, and its samplers."""

from collectx.replay.buffer import ReplayBuffer
from collectx.replay.prioritized import PrioritizedSampler
from collectx.replay.sampler import Sampler, UniformSampler
from collectx.replay.slices import SliceSampler

__all__ = ["PrioritizedSampler", "ReplayBuffer", "Sampler", "SliceSampler", "UniformSampler"]
