"""The collector options about frames and trajectories, as plain data."""

from __future__ import annotations

import dataclasses

import torch

from collectx.batch import STEP_COUNT, Leaf
from collectx.config.derived import frames_per_part, num_workers_of
from collectx.config.problem import Problem, Refusal
from collectx.config.schema.collector import CollectorConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError

# The leaf of TorchRL's StepCounter.
_STEP_COUNT = Leaf(STEP_COUNT, (1,), torch.int64)


@dataclasses.dataclass(frozen=True)
class RolloutOptions:
    """How batches and trajectories begin and end.

    Attributes:
        check_finite: whether NaN and infinities raise an error (`collectx/rollout/finite.py`).
        max_frames_per_traj: number of frames after which a trajectory is truncated; None: never.
        num_random_batches: number of batches at the beginning whose actions are random.
        reset_at_each_iter: whether every batch begins with new trajectories in all envs.
        set_truncated: whether the last frame of every row of a batch is marked truncated and done, in all agent groups.
        refresh_each_step: whether newer weights are loaded before every step, not only between batches.
        may_end_early: whether a batch may contain fewer frames than its slot.
    """

    check_finite: bool
    max_frames_per_traj: int | None = None
    num_random_batches: int = 0
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    refresh_each_step: bool = False
    may_end_early: bool = False

    @classmethod
    def of(cls, options: CollectorConfig, incarnation: int = 0, has_interruptor: bool = False) -> RolloutOptions:
        """Returns the options of a worker process. Only incarnation 0 takes `init_random_frames`, so replacements take
        no random actions."""
        frames = num_workers_of(options) * frames_per_part(options)
        num_random_batches = -(-(options.init_random_frames or 0) // frames)
        return cls(
            check_finite=options.check_finite,
            max_frames_per_traj=options.max_frames_per_traj,
            num_random_batches=0 if incarnation else num_random_batches,
            reset_at_each_iter=options.reset_at_each_iter,
            set_truncated=options.set_truncated,
            refresh_each_step=options.refresh == "step",
            may_end_early=has_interruptor or options.preemptive_threshold is not None,
        )

    def env_spec(self, spec: EnvSpec) -> EnvSpec:
        """Returns the spec of the rollout's env, from the `spec` of the group without wrappers. With
        `max_frames_per_traj`, the last observation leaf is `("step_count",)`, `[1]` int64. Raises `ConfigError` if the
        envs cannot end trajectories or batches early, or already observe a `step_count`."""
        if self.may_end_early and spec.ragged:
            raise ConfigError(
                "interruptor cannot be used with this vector env: it spends steps on resets, so ending a batch early "
                "would leave its envs with different numbers of frames. Make the env with the autoreset_mode disabled "
                "or same_step."
            )
        if not spec.can_reset_early:
            rule = "this vector env resets its envs by itself, so no env can be reset before its episode ends"
            advice = (
                "use Gymnasium's own vector env (vectorization_mode=sync) with the autoreset_mode disabled or "
                "same_step, or single envs."
            )
            problems = [
                Problem(f"collector.{name}", rule, value, advice)
                for name in ("max_frames_per_traj", "reset_at_each_iter")
                if (value := getattr(self, name))
            ]
            if problems:
                raise Refusal(*problems)
        if self.max_frames_per_traj is None:
            return spec
        if any(leaf.key == STEP_COUNT for leaf in spec.observation):
            rule = "the env already observes step_count"
            advice = "remove it, or let the env itself truncate its trajectories, as TorchRL's StepCounter does."
            raise Refusal(Problem("collector.max_frames_per_traj", rule, self.max_frames_per_traj, advice))
        return dataclasses.replace(spec, observation=(*spec.observation, _STEP_COUNT))
