"""Chooses the rollout for an env: lockstep, or ragged where an env's resets take steps of their own."""

from __future__ import annotations

from collectx.env.base import EnvSpec
from collectx.rollout.loop import Rollout
from collectx.rollout.segments import RaggedRollout


def rollout_of(spec: EnvSpec) -> type[Rollout]:
    """The class to make of a group's env, its actor and so on."""
    return RaggedRollout if spec.ragged else Rollout
