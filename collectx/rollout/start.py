"""Chooses the rollout for an env: lockstep, or ragged where an env's resets take steps of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collectx.env.base import Env
from collectx.policy.base import Actor
from collectx.rollout.episodes import Episodes
from collectx.rollout.ragged import RaggedRollout
from collectx.rollout.rollout import Asked, Rollout
from collectx.rollout.spec import PLAIN, RolloutSpec
from collectx.transport.base import Stop


def make_rollout(
    env: Env,
    actor: Actor,
    episodes: Episodes,
    seeds: Sequence[int],
    stop: Stop,
    want: RolloutSpec = PLAIN,
    refresh: Callable[[], int] | None = None,
    asked: Asked | None = None,
) -> Rollout:
    """See `Rollout` for the arguments."""
    kind = RaggedRollout if env.spec.ragged else Rollout
    return kind(env, actor, episodes, seeds, stop, want, refresh, asked)
