"""Imported once by the fork server, so that every worker is forked with the heavy imports done."""

import collectx.env.gym
import collectx.policy.mlp
import collectx.worker.rollout_source  # noqa: F401
