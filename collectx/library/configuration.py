"""From a request to the configuration of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from collectx.config.derived import is_stacked, rows_per_env
from collectx.config.registry import packaged_values
from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig
from collectx.config.schema.launcher import LauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.library.keywords.coerce import positive, round_up
from collectx.library.overrides import worker_overrides
from collectx.library.request import CollectorRequest


def to_config(request: CollectorRequest) -> tuple[RunConfig, list[dict[str, Any]]]:
    """Returns the configuration, with workers on this machine, and the `worker_overrides`. For a request without
    problems."""
    overrides = worker_overrides(request)
    devices, _ = request.devices.resolve(request.num_workers)
    cfg = RunConfig(
        env=overrides[0]["env"],
        policy=request.env_and_policy.policies(request.num_workers)[0],
        collector=_collector(request),
        backend=request.remote.backend_config(),
        launcher=LauncherConfig(
            kind="local", hydra_mode=None, num_threads=request.workers.num_sub_threads, pin_cores=False
        ),
        devices=devices,
        trainer=TrainerConfig(kind="meter", digest=False),
        seed=request.env_and_policy.seed,
    )
    return cfg, overrides


def _collector(request: CollectorRequest) -> CollectorConfig:
    """The group `collector`: the keywords that are called like an option, and the options that follow from others."""
    frames, remote, assembly = request.frames, request.remote, request.assembly
    names = {field.name for field in dataclasses.fields(CollectorConfig)}
    specs = (frames, request.workers, request.output, remote, assembly)
    options = {name: value for spec in specs for name, value in vars(spec).items() if name in names}
    options = packaged_values("collector", "multi_sync") | options
    options |= {
        "kind": request.kind,
        "num_workers": request.num_workers,
        "frames_per_batch": frames.requested_frames,
        "total_frames": -1 if frames.total_frames is None else frames.total_frames,
        "exploration_type": request.env_and_policy.exploration,
        "inner": remote.inner,
        "max_frames_per_traj": positive(frames.max_frames_per_traj),
        "init_random_frames": positive(frames.init_random_frames),
        "refresh": "step" if request.weights.update_weights_between_steps else "batch",
        "preemptive_threshold": request.early.threshold,
        "traj_format": assembly.traj_format or "padded",
    }
    if request.sync is None:
        return CollectorConfig(**options)
    return EitherCollectorConfig(sync=request.sync, **options)


def fit_frames(request: CollectorRequest, cfg: RunConfig, overrides: list[dict[str, Any]], spec: EnvSpec) -> int:
    """Rounds the frames of a batch up to whole steps of all envs, as TorchRL does, in `cfg` and `overrides`; returns
    the frames of a batch.

    Args:
        spec: the envs of one worker's process.

    Raises:
        ConfigError: `cat_results` is no dimension of a worker's part, or parts of different lengths are concatenated
            along another dimension than time.
    """
    collector, per_worker = cfg.collector, request.frames.per_worker
    stacked, num_envs = is_stacked(collector), spec.num_envs
    if stacked:
        _check_dimension(request, cfg, spec)
    unit = num_envs * rows_per_env(collector) * (collector.num_workers if stacked else 1)
    if per_worker is None or not stacked:
        collector.frames_per_batch = round_up(request.frames.requested_frames, unit)
        return collector.frames_per_batch
    steps = [-(-frames // num_envs) for frames in per_worker]
    for fields, count in zip(overrides, steps, strict=True):
        fields["steps"] = count
    # Every slot has room for the longest part.
    collector.frames_per_batch = max(steps) * unit
    frames = sum(steps) * num_envs
    if collector.init_random_frames is not None:
        collector.init_random_frames = -(-collector.init_random_frames // frames) * collector.frames_per_batch
    return frames


def _check_dimension(request: CollectorRequest, cfg: RunConfig, spec: EnvSpec) -> None:
    """Checks `cat_results` against the dimensions of a worker's part."""
    dim = request.output.cat_results
    if not isinstance(dim, int):
        return
    num_dims = 1 if rows_per_env(cfg.collector) > 1 else len(spec.batch_shape) or int(spec.num_envs > 1)
    part = [*["envs"] * num_dims, "time"]
    if not -len(part) <= dim < len(part):
        rule = (
            f"a worker's part is [{', '.join(part)}], so it must be from {-len(part)} to {len(part) - 1}, or 'stack'."
        )
        raise ConfigError([f"cat_results={dim}: {rule}"])
    is_uneven = request.frames.per_worker is not None or request.early.threshold is not None
    if is_uneven and dim not in (-1, num_dims):
        rule = "parts of different lengths, [envs, time] or [time], fit together along time only"
        raise ConfigError([f"cat_results={dim}: {rule}: use cat_results=-1."])
