"""Warnings about configurations that can run. Called by the command line."""

from __future__ import annotations

from collectx.config.derived import NETWORK_BACKENDS, backend_of, is_async, is_stacked, surplus_note
from collectx.config.schema.run import RunConfig


def warnings_of(cfg: RunConfig) -> list[str]:
    """The backend that `backend=auto` chose, and combinations that are probably not intended. For a valid `cfg`."""
    surplus = surplus_note(cfg.collector.total_frames, cfg.collector.frames_per_batch, "collector.")
    return [*_chosen_backend(cfg), *_odd_combinations(cfg), *_random_frames(cfg), *([surplus] if surplus else [])]


def _odd_combinations(cfg: RunConfig) -> list[str]:
    if cfg.trainer.kind == "ppo" and is_async(cfg.collector):
        return [
            f"trainer=ppo collector={cfg.collector.kind}: batches are a few updates old, which PPO does not correct "
            "for; trainer=impala does, and collector=multi_sync has no lag."
        ]
    if cfg.trainer.kind == "impala" and is_stacked(cfg.collector):
        return [
            f"trainer=impala collector={cfg.collector.kind}: nothing lags, so V-trace corrects nothing; try "
            "multi_async."
        ]
    return []


def _random_frames(cfg: RunConfig) -> list[str]:
    frames, total = cfg.collector.init_random_frames, cfg.collector.total_frames
    if not frames or cfg.policy.kind == "random":
        return []
    warnings = []
    if cfg.trainer.kind in ("ppo", "impala"):
        warnings.append(
            f"trainer={cfg.trainer.kind} collector.init_random_frames={frames}: random actions have log-probability 0 "
            f"in a batch, which is not theirs, and {cfg.trainer.kind} learns from it: use null."
        )
    if 0 <= total <= frames:
        warnings.append(
            f"collector.init_random_frames={frames} is all of collector.total_frames={total}: the policy never acts."
        )
    return warnings


def _chosen_backend(cfg: RunConfig) -> list[str]:
    """The backend of `backend=auto`, if it does not follow from the launcher."""
    backend = backend_of(cfg)
    if cfg.backend.kind != "auto" or backend not in NETWORK_BACKENDS:
        return []
    if backend == "nccl":
        return ["backend=auto: nccl, as policies and stored batches are both on GPUs."]
    if backend == "rpc":
        return ["backend=auto: rpc, which pickles between trainer and workers: for private networks only."]
    if backend == "ray":
        return ["backend=auto: ray, which pickles between its processes: for private networks only."]
    anywhere = "loopback" if cfg.launcher.kind == "local" else "the network by which a worker reaches the trainer"
    return [f"backend=auto: gloo, over {cfg.backend.interface or anywhere}."]
