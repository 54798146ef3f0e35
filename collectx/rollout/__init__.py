"""Rollouts step an env group with a policy, and write the frames into a slot. They run in the worker's process."""
