"""From a request to the configuration of a run, and what differs from it in each worker: env, device, policy, hooks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from collectx.collector.batch_info import part_shape
from collectx.config.derived import is_stacked
from collectx.config.registry import packaged_values
from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.launcher.slurm.array import slurm_resources
from collectx.library.keywords.batches import Interruptor
from collectx.library.keywords.coerce import exploration_name, for_each, kwargs_of, positive, round_up
from collectx.library.keywords.nested import call_problems, kwargs_problems, user_class
from collectx.library.keywords.remote import RayRemote, Remote
from collectx.library.request import CollectorRequest
from collectx.policy.exploration import ExplorationType
from collectx.run.submitted_workers import PresubmittedJobs
from collectx.user_objects import Hooks, UserCollector, UserEnvConfig
from collectx.worker.spec import WorkerOverrides


def to_config(request: CollectorRequest) -> tuple[RunConfig, list[WorkerOverrides]]:
    """Returns the configuration, and what differs from it in each worker. For a request without problems."""
    overrides = _worker_overrides(request)
    env = overrides[0].env
    assert env is not None
    cfg = RunConfig(
        env=env,
        policy=request.trainers_policy(),
        collector=_collector(request),
        backend=_backend(request),
        launcher=_launcher(request),
        devices=request.devices_config(),
        trainer=TrainerConfig(kind="meter", digest=False),
        seed=torch.initial_seed() % 2**61 if request.seed is None else request.seed,
    )
    return cfg, overrides


def _collector(request: CollectorRequest) -> CollectorConfig:
    """The group `collector`: the keywords that are called like an option, and the options that follow from others."""
    is_either = request.kind in ("rpc", "ray")
    config = EitherCollectorConfig if is_either else CollectorConfig
    names = {field.name for field in dataclasses.fields(config)}
    options = packaged_values("collector", "multi_sync")
    options |= {name: value for name, value in vars(request).items() if name in names}
    options |= {
        "kind": request.kind,
        "num_workers": request.worker_count,
        "frames_per_batch": request.requested_frames,
        "total_frames": -1 if request.total_frames is None else request.total_frames,
        "exploration_type": request.exploration,
        "inner": request.remote.inner,
        "max_frames_per_traj": positive(request.max_frames_per_traj),
        "init_random_frames": positive(request.init_random_frames),
        "refresh": "step" if request.update_weights_between_steps else "batch",
        "preemptive_threshold": request.threshold,
        "traj_format": request.traj_format or "padded",
    }
    return config(**options)


def _backend(request: CollectorRequest) -> BackendConfig:
    backend = request.remote.backend_config()
    if isinstance(request, Remote) and request.launcher == "submitit_delayed" and backend.port is None:
        jobs = PresubmittedJobs.from_environment()
        backend.port = None if jobs is None else jobs.tcp_port
    return backend


def _launcher(request: CollectorRequest) -> LauncherConfig:
    num_threads = request.workers.num_sub_threads
    if isinstance(request, RayRemote):
        return request.launcher_config(num_threads)
    if isinstance(request, Remote) and request.launcher != "mp":
        is_submitted = request.launcher == "submitit_delayed"
        return slurm_resources({} if is_submitted else request.slurm_kwargs or {}, num_threads)
    return LauncherConfig(kind="local", num_threads=num_threads, pin_cores=False)


def fit_frames(request: CollectorRequest, cfg: RunConfig, overrides: list[WorkerOverrides], spec: EnvSpec) -> int:
    """Rounds the frames of a batch up to whole steps of all envs, as TorchRL does, in `cfg` and `overrides`; returns
    the frames of a batch.

    Args:
        spec: the envs of one worker's process.

    Raises:
        ConfigError: `cat_results` is no dimension of a worker's part, or parts of different lengths are concatenated
            along another dimension than time.
    """
    collector, per_worker = cfg.collector, request.frames_per_worker
    stacked, num_envs = is_stacked(collector), spec.num_envs
    if stacked:
        _check_dimension(request, cfg, spec)
    unit = math.prod(part_shape(spec, collector)) * (collector.num_workers if stacked else 1)
    if per_worker is None or not stacked:
        collector.frames_per_batch = round_up(request.requested_frames, unit)
        return collector.frames_per_batch
    steps = [-(-frames // num_envs) for frames in per_worker]
    for fields, count in zip(overrides, steps, strict=True):
        fields.steps = count
    # Every slot has room for the longest part.
    collector.frames_per_batch = max(steps) * unit
    frames = sum(steps) * num_envs
    if collector.init_random_frames is not None:
        collector.init_random_frames = -(-collector.init_random_frames // frames) * collector.frames_per_batch
    return frames


def _check_dimension(request: CollectorRequest, cfg: RunConfig, spec: EnvSpec) -> None:
    """Checks `cat_results` against the dimensions of a worker's part."""
    dim = request.cat_results
    if not isinstance(dim, int):
        return
    num_dims = len(part_shape(spec, cfg.collector))
    part = [*["envs"] * num_dims, "time"]
    if not -len(part) <= dim < len(part):
        rule = (
            f"a worker's part is [{', '.join(part)}], so it must be from {-len(part)} to {len(part) - 1}, or 'stack'."
        )
        raise ConfigError([f"cat_results={dim}: {rule}"])
    is_uneven = request.frames_per_worker is not None or request.threshold is not None
    if is_uneven and dim not in (-1, num_dims):
        rule = "parts of different lengths, [envs, time] or [time], fit together along time only"
        raise ConfigError([f"cat_results={dim}: {rule}: use cat_results=-1."])


def _worker_overrides(request: CollectorRequest) -> list[WorkerOverrides]:
    policies, collectors = request.policies(), user_collectors(request)
    overrides = [
        _overrides(request, *each)
        for each in zip(request.envs(), request.chosen_policy_devices, request.kwargs_of_workers, strict=True)
    ]
    for index, fields in enumerate(overrides):
        if request.has_individual_policies or request.has_both_policies:
            fields.policy, fields.keeps_weights = policies[index], True
        if collectors:
            fields.user_collector = collectors[index]
        if (buffer := request.shared_buffer) is not None and request.workers_write:
            fields.hooks = dataclasses.replace(request.hooks, write_batch=buffer.extend)
    if isinstance(request, Interruptor) and request.interruptor is not None:
        overrides[0].should_end = request.interruptor.collection_stopped
    return overrides


def added_worker_overrides(
    request: CollectorRequest, create: Callable[..., Any], kwargs: dict[str, Any] | None
) -> WorkerOverrides:
    """The overrides for a worker that is added to a running collector; it uses the first worker's device.

    Raises:
        ConfigError: what is wrong with `kwargs`.
    """
    kwargs = kwargs or {}
    collector = _user_collector(request, 0, kwargs)
    problems = kwargs_problems(kwargs, collector is None) + ([] if collector is None else call_problems(collector))
    if problems:
        raise ConfigError(problems)
    fields = _overrides(request, request.env(create), request.chosen_policy_devices[0], kwargs)
    fields.user_collector = collector
    return fields


def _overrides(
    request: CollectorRequest, env: UserEnvConfig, device: str | None, kwargs: Mapping[str, Any]
) -> WorkerOverrides:
    env = dataclasses.replace(env, kwargs=env.kwargs | (kwargs.get("create_env_kwargs") or {}))
    return WorkerOverrides(
        env=env,
        devices=DevicesConfig(device=None, storing_device=None, policy_device=device, env_device=None),
        exploration_type=exploration_name(kwargs["exploration_type"]) if "exploration_type" in kwargs else None,
        hooks=hooks_of_workers(request),
    )


def hooks_of_workers(request: CollectorRequest) -> Hooks:
    """The hooks that workers call; in this process `post_collect_hook` is called with the delivered batch."""
    return dataclasses.replace(request.hooks, post_collect_hook=None) if request.kind == "single" else request.hooks


def user_collectors(request: CollectorRequest) -> list[UserCollector]:
    """Each worker's collector; empty if `collector_class` is no user's class."""
    per_worker = enumerate(request.kwargs_of_workers)
    collectors = [_user_collector(request, worker, kwargs) for worker, kwargs in per_worker]
    return [collector for collector in collectors if collector is not None]


def _user_collector(request: CollectorRequest, worker: int, kwargs: Mapping[str, Any]) -> UserCollector | None:
    """The user's class, with the keywords that the collector passes on to it: those that have a value."""
    create = user_class(request.remote.collector_class)
    if create is None:
        return None
    random_frames = positive(request.init_random_frames)
    is_random = request.exploration == ExplorationType.RANDOM.value
    keywords: dict[str, Any] = {
        "max_frames_per_traj": positive(request.max_frames_per_traj),
        "init_random_frames": None if random_frames is None else -(-random_frames // request.worker_count),
        "reset_at_each_iter": request.reset_at_each_iter or None,
        "set_truncated": request.set_truncated or None,
        "exploration_type": None if is_random else request.exploration_type,
        "compile_policy": kwargs_of(request.compile_policy),
        "cudagraph_policy": kwargs_of(request.cudagraph_policy),
    }
    for name in ("device", "policy_device", "env_device"):
        keywords[name] = for_each(getattr(request, name), request.worker_count)[worker]
    merged = {name: value for name, value in keywords.items() if value is not None} | dict(kwargs)
    # They are passed to `create_env_fn`.
    merged.pop("create_env_kwargs", None)
    num_workers = None if request.remote.inner == "single" else request.remote.num_workers_per_collector
    return UserCollector(create, merged, num_workers)
