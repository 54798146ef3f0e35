"""The rollout of a worker for which the inference server calls the policy. Two groups of envs take turns: one steps
while the server acts for the other.

    group 0   step | wait | step | wait | step         wait: its actions are computed
    group 1   wait | step | wait | step | wait

docs/explanation/central-inference.md compares the speed of this loop with that of local policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from collectx import progress
from collectx.batch import Leaf, Slot
from collectx.env.base import Env
from collectx.errors import DataError
from collectx.policy.base import Actor
from collectx.policy.recurrent import StateSpec
from collectx.progress import STEPS
from collectx.random_state import HeldGenerators
from collectx.rollout.loop import Rollout, RolloutStopped, SlotViews, raise_at_step
from collectx.transport.base import SlotReport, Stop
from collectx.transport.inference_channel import NO_STEP, InferenceClient


def split(num_envs: int, num_groups: int) -> list[slice]:
    """Returns the slot rows of each group."""
    bounds = [num_envs * group // num_groups for group in range(num_groups + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


@dataclass
class ServedActor(Actor):
    """Describes the outputs of the server's policy for a worker, which only steps envs. The server computes
    the actions."""

    leaves: tuple[Leaf, ...]
    states: tuple[StateSpec, ...]
    module: nn.Module | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class ServedRollout:
    """Several env groups of a worker, with the methods of `Rollout` that a worker calls.

    Args:
        groups: the rollout of each group, with a `ServedActor`, and the slot rows of the group.
        stop: see `Rollout`.
        pointer: returns the pointer to the granted weights; see `ActionRequest`.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Rollout, slice]],
        stop: Stop,
        client: InferenceClient,
        pointer: Callable[[], int],
    ):
        self._rollouts = [rollout for rollout, _ in groups]
        self._rows = [rows for _, rows in groups]
        self._stop = stop
        self._client = client
        self._pointer = pointer

    def prepare(self, slot: Slot, index: int) -> tuple[int, list[SlotViews]]:
        parts = [slot.narrow(rows.start, rows.stop - rows.start) for rows in self._rows]
        return index, [rollout.prepare(part, index) for rollout, part in zip(self._rollouts, parts, strict=True)]

    def collect(self, prepared: Any, policy_version: int) -> SlotReport:
        """See `Rollout.collect`. The server writes the policy versions; `policy_version` is used only for random
        actions, which this process draws."""
        slot, views = prepared
        pointer, self._client.wait_s = self._pointer(), 0.0
        parts = [*zip(self._rollouts, views, strict=True)]
        if self._rollouts[0].acts_randomly:
            reports = [rollout.collect(part, policy_version) for rollout, part in parts]
        else:
            reports = self._step(slot, parts, pointer)
        for group in range(len(reports)):
            self._client.post(group, slot, NO_STEP, pointer)
        return SlotReport(
            min(report.policy_version for report in reports),
            sum(report.frames for report in reports),
            sum(report.env_s for report in reports),
            self._client.wait_s,
            np.concatenate([report.returns for report in reports]),
            np.concatenate([report.lengths for report in reports]),
        )

    def _step(self, slot: int, parts: Sequence[tuple[Rollout, SlotViews]], pointer: int) -> list[SlotReport]:
        client, step, env_s, reports = self._client, 0, 0.0, list[SlotReport]()
        steps = [rollout.steps(views) for rollout, views in parts]
        try:
            with torch.inference_mode():
                for step in range(parts[0][1].steps + 1):
                    progress.counts[STEPS] = step
                    for group, (rollout, views) in enumerate(parts):
                        if self._stop[0] or not client.wait(group):
                            raise RolloutStopped
                        began = perf_counter()
                        has_observed = next(steps[group], None) is not None
                        env_s += perf_counter() - began
                        if has_observed:
                            client.post(group, slot, step, pointer)
                        else:
                            reports.append(rollout.report(views, int(views.policy_version[0, 0]), step, env_s, 0.0))
                            env_s = 0.0
        except DataError as error:
            raise_at_step(error, step - 1)
        return reports

    def reset(self, seeds: Sequence[int] | None) -> None:
        for rollout, rows in zip(self._rollouts, self._rows, strict=True):
            rollout.reset(None if seeds is None else seeds[rows])

    def hold(self, held: HeldGenerators) -> None:
        """See `Rollout.hold`; the groups of a process share these generators."""
        for rollout in self._rollouts:
            rollout.hold(held)

    def reset_some(self, chosen: np.ndarray) -> None:
        for rollout, rows in zip(self._rollouts, self._rows, strict=True):
            rollout.reset_some(chosen[rows])

    def take_metrics(self) -> np.ndarray:
        return sum(rollout.take_metrics() for rollout in self._rollouts)  # type: ignore[return-value]

    @property
    def group(self) -> Env:
        """See `Rollout.group`; a user's envs form a single group."""
        return self._rollouts[0].group

    @property
    def groups(self) -> list[Env]:
        return [rollout.group for rollout in self._rollouts]

    def state(self) -> dict[str, Any]:
        states = [rollout.state() for rollout in self._rollouts]
        reasons = [state["reason"] for state in states if "reason" in state]
        return {"groups": states} | ({"reason": reasons[0]} if reasons else {})

    def load(self, state: dict[str, Any]) -> str | None:
        reasons = [rollout.load(part) for rollout, part in zip(self._rollouts, state["groups"], strict=True)]
        return next((reason for reason in reasons if reason is not None), None)

    def close(self) -> None:
        for rollout in self._rollouts:
            rollout.close()
