"""The T x E loop: steps a group of envs with a policy and writes each value once, straight into the slot.

Called by the worker (`collectx/worker/rollout_source.py`), in the worker's process. Must not know how slots travel.

    rows[t]:   observation --policy--> action --env--> next.observation, reward, terminated, truncated
    rows[t+1]: observation = next.observation, or the first observation of a new episode where one ended
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch

from collectx.batch import Slot
from collectx.env.base import Env
from collectx.errors import ShapeError
from collectx.policy.base import Actor
from collectx.rollout.episodes import Episodes
from collectx.rollout.inference import Feed, RandomFeed, RefreshingFeed, make_feed
from collectx.rollout.options import PLAIN, RolloutSpec
from collectx.rollout.slot_views import SlotRows
from collectx.transport.base import Stop

# Whether a batch is to end.
Asked = Callable[[], bool | int]


class CutShort(Exception):
    """The batch under way is to end with the frames that it has."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps


class _Until:
    """A `Stop` that asks as well, before every step but the first, whether the batch is to end."""

    def __init__(self, stop: Stop, asked: Asked):
        self._stop = stop
        self._asked = asked
        self._steps = 0

    def __getitem__(self, index: int, /) -> int:
        if self._steps and self._asked():
            raise CutShort(self._steps)
        self._steps += 1
        return self._stop[index]


class Stopped(Exception):
    """The trainer wants the worker to stop; the slot in hand is incomplete and must not be sent."""


def raise_at_step(error: ShapeError, step: int) -> NoReturn:
    """Raises `error`, its message with the step of the batch in which it arose."""
    error.args = (f"{error} (step {step} of the batch)",)
    raise error


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """Seconds spent in envs and in the policy, what `Episodes.take` gave, and the number of steps."""

    env_s: float
    policy_s: float
    episodes: tuple[np.ndarray, np.ndarray]
    steps: int


class Rollout:
    """A group of envs, a policy, and where they are in their episodes.

    Args:
        env: the group; reset here.
        actor: acts for all envs of the group at once.
        episodes: trajectory ids of the group.
        seeds: one per env of the group.
        stop: one byte; nonzero ends the loop between two steps.
        want: how batches begin and end; the env cuts trajectories (`collectx.rollout.time_limit.with_ends`).
        refresh: takes newer weights, if there are any, and returns their version; called before every step where `want`
            says so.
        asked: called after every step but the last; a batch ends early where it says so. Not of a ragged group.
    """

    def __init__(
        self,
        env: Env,
        actor: Actor,
        episodes: Episodes,
        seeds: Sequence[int],
        stop: Stop,
        want: RolloutSpec = PLAIN,
        refresh: Callable[[], int] | None = None,
        asked: Asked | None = None,
    ):
        self._env = env
        self._actor = actor
        self._acting = make_feed(actor, env.spec)
        self._random = RandomFeed(env.spec, actor.leaves) if want.num_random_batches else None
        self._num_random = want.num_random_batches
        self._episodes = episodes
        self._stop = stop
        self._want = want
        self._refresh = refresh if want.refresh_each_step else None
        self._asked = asked
        # The observations with which the next batch begins: the last slot is no longer ours by then.
        self._carry = tuple(
            torch.zeros((env.spec.num_envs, *leaf.shape), dtype=leaf.dtype).numpy() for leaf in env.spec.observation
        )
        env.reset(seeds, self._carry)

    def prepare(self, slot: Slot) -> SlotRows:
        """What `collect` takes for `slot`; to be kept, one per slot."""
        return SlotRows(slot, self._env.spec, self._actor.leaves)

    def collect(self, rows: SlotRows, policy_version: int) -> RolloutStats:
        """Fills the slot with the next `T x E` frames, or with fewer. Blocks until that is done.

        Args:
            policy_version: of the weights that are there.

        Raises:
            Stopped: `stop` became nonzero.
            ShapeError: an env or the policy returned what its spec does not allow; names the step.
        """
        feed, env = self._next_feed(), self._env
        stop = self._stop if self._asked is None else _Until(self._stop, self._asked)
        num_actions = len(env.spec.action)
        rows.policy_version[:] = policy_version
        if self._refresh is not None:
            feed = RefreshingFeed(feed, self._refresh, rows.policy_version)
        rows.terminated[:] = False
        rows.truncated[:] = False
        for row, carry in zip(rows.observation, self._carry, strict=True):
            row[0] = carry
        observations = list(zip(*rows.observation, strict=True))
        observations.append(self._carry)
        env_s = policy_s = 0.0
        num_steps = rows.steps
        steps = zip(rows.seen(), zip(*rows.actor, strict=True), rows.step_rows(), observations[1:], strict=True)
        try:
            with torch.inference_mode():
                for seen, written, out, following in steps:
                    if stop[0]:
                        raise Stopped
                    started = perf_counter()
                    feed(seen, written)
                    acted = perf_counter()
                    any_ended = env.step(written[:num_actions], out)
                    for row, final in zip(following, out.observation, strict=True):
                        row[...] = final
                    if any_ended:
                        env.restart(out.terminated | out.truncated, following)
                    env_s += perf_counter() - acted
                    policy_s += acted - started
        except ShapeError as error:
            # The steps that are left tell which one it was, so that the loop need not count.
            raise_at_step(error, num_steps - 1 - sum(1 for _ in steps))
        except CutShort as cut:
            num_steps = cut.steps
            for carry, row in zip(self._carry, observations[num_steps], strict=True):
                carry[...] = row
        terminated, truncated, done = (flag[:num_steps] for flag in (rows.terminated, rows.truncated, rows.done))
        np.logical_or(terminated, truncated, out=done)
        started = perf_counter()
        ends = self._end_batch(truncated, done)
        env_s += perf_counter() - started
        self._episodes.record(slice(None), rows.reward[:num_steps], ends, rows.traj_ids[:num_steps])
        return RolloutStats(env_s, policy_s, self._episodes.take(), num_steps)

    def reset(self, seeds: Sequence[int] | None) -> None:
        """Begins new trajectories in all envs, with a seed for each, or with the envs' own random state."""
        self._actor.forget()
        if self._random is not None:
            self._random.forget()
        self._env.reset(seeds, self._carry)
        self._episodes.abandon()

    def restart(self, chosen: np.ndarray) -> None:
        """Begins new trajectories in some envs, `[E]` bool, of a group that is cuttable."""
        self._env.restart(chosen, self._carry)
        self._episodes.abandon(chosen)

    def state(self) -> dict[str, Any]:
        """What `load` takes; copied. Without that of the envs."""
        carry = [torch.from_numpy(array.copy()) for array in self._carry]
        return {"episodes": self._episodes.state(), "carry": carry, "num_random_batches": self._num_random}

    def load(self, state: dict[str, Any], goes_on: bool) -> None:
        """Takes over what `state` gave.

        Args:
            goes_on: whether the envs stand where they stood then; otherwise only trajectory ids go on, and `reset` has
                to be called.
        """
        self._episodes.load(state["episodes"])
        self._num_random = min(self._num_random, state["num_random_batches"])
        if goes_on:
            for own, array in zip(self._carry, state["carry"], strict=True):
                own[...] = array.numpy()

    def _next_feed(self) -> Feed:
        """What acts in the next batch."""
        if self._num_random and self._random is not None:
            self._num_random -= 1
            return self._random
        return self._acting

    def _end_batch(self, truncated: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Does what is wanted at the end of rows `[T, E]`, whose flags it may change; returns where trajectories end,
        which is not where `done` is marked if that is only for the batch's sake."""
        want = self._want
        if not (want.reset_at_each_iter or want.set_truncated):
            return done
        ends = done.copy()
        if want.reset_at_each_iter:
            unfinished = ~done[-1]
            if unfinished.any():
                self._env.restart(unfinished, self._carry)
            ends[-1] = True
        if want.set_truncated:
            truncated[-1] = done[-1] = True
        return ends

    def close(self) -> None:
        """Closes the envs."""
        self._env.close()
