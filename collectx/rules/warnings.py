"""Warnings about configurations that can run."""

from __future__ import annotations

from collectx.config.derived import surplus_note
from collectx.config.schema.run import RunConfig
from collectx.place import place_of


def warnings_of(cfg: RunConfig) -> list[str]:
    """The backend that `backend=auto` chose, and combinations that are probably not intended. For a valid `cfg`."""
    collector, trainer = cfg.collector, cfg.trainer.kind
    notes = place_of(cfg).notes()
    if trainer == "ppo" and collector.schedule == "async":
        notes.append(
            f"trainer=ppo collector={collector.kind}: batches are a few updates old, which PPO does not correct "
            "for; trainer=impala does, and collector=multi_sync has no lag."
        )
    if trainer == "impala" and collector.schedule == "sync":
        notes.append(
            f"trainer=impala collector={collector.kind}: nothing lags, so V-trace corrects nothing; try multi_async."
        )
    if collector.min_workers is not None and collector.on_worker_failure != "drop":
        notes.append(
            f"collector.min_workers={collector.min_workers} collector.on_worker_failure={collector.on_worker_failure}: "
            "the run needs all workers; min_workers has an effect with on_worker_failure=drop only."
        )
    frames, total = collector.init_random_frames, collector.total_frames
    if frames and cfg.policy.kind != "random":
        if trainer in ("ppo", "impala"):
            notes.append(
                f"trainer={trainer} collector.init_random_frames={frames}: random actions have log-probability 0 in a "
                f"batch, which is not theirs, and {trainer} learns from it: use null."
            )
        if 0 <= total <= frames:
            notes.append(
                f"collector.init_random_frames={frames} is all of collector.total_frames={total}: the policy never "
                "acts."
            )
    if surplus := surplus_note(total, collector.frames_per_batch, "collector."):
        notes.append(surplus)
    return notes
