"""Rollouts: step a group of envs with a policy and write the frames into a slot, in the worker's process."""
