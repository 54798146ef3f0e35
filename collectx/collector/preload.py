"""Imported once by the fork server, so that every worker starts with it done: all that a worker imports."""

import collectx.collector.worker
import collectx.env.gym
import collectx.policy.mlp  # noqa: F401
