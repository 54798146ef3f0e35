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
            f"trainer=ppo collector={collector.kind}: batches are a few updates old, and PPO does not correct for "
            "that. Use trainer=impala, which does, or collector=multi_sync, which has no lag."
        )
    if trainer == "impala" and collector.schedule == "sync":
        notes.append(
            f"trainer=impala collector={collector.kind}: no batch lags, so V-trace corrects nothing. Try multi_async."
        )
    if collector.min_workers is not None and collector.on_worker_failure != "drop":
        notes.append(
            f"collector.min_workers={collector.min_workers} collector.on_worker_failure={collector.on_worker_failure}: "
            "the run needs all workers. min_workers only has an effect with on_worker_failure=drop."
        )
    frames, total = collector.init_random_frames, collector.total_frames
    if frames and cfg.policy.kind != "random":
        if trainer in ("ppo", "impala"):
            notes.append(
                f"trainer={trainer} collector.init_random_frames={frames}: random actions are stored with "
                f"log-probability 0, which is wrong, and {trainer} learns from it. Use null."
            )
        if 0 <= total <= frames:
            notes.append(
                f"collector.init_random_frames={frames} is all of collector.total_frames={total}: the policy never "
                "acts."
            )
    if surplus := surplus_note(total, collector.frames_per_batch, "collector."):
        notes.append(surplus)
    return notes
