"""The fields of each worker's `WorkerSpec` that differ from the configuration: env, device, policy, hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from collectx.errors import ConfigError
from collectx.library.keywords.coerce import exploration_name, for_each, kwargs_of, positive
from collectx.library.keywords.collector_class import call_problems, user_class
from collectx.library.keywords.remote import kwargs_problems
from collectx.library.request import CollectorRequest
from collectx.policy.exploration import ExplorationType
from collectx.user_objects import Hooks, UserCollector, UserEnvConfig


def worker_overrides(request: CollectorRequest) -> list[dict[str, Any]]:
    """For each worker the fields of its `collectx.worker.spec.WorkerSpec`. For a request without problems."""
    num_workers = request.num_workers
    envs, devices = request.env_and_policy.envs(num_workers), request.policy_devices
    per_worker = for_each(request.remote.collector_kwargs, num_workers)
    overrides = [
        _base(env, device, kwargs or {}) for env, device, kwargs in zip(envs, devices, per_worker, strict=True)
    ]
    policies = request.env_and_policy.policies(num_workers)
    collectors = user_collectors(request)
    for index, fields in enumerate(overrides):
        if request.env_and_policy.has_individual_policies:
            fields |= {"policy": policies[index], "keeps_weights": True}
        hooks = request.hooks
        if (buffer := request.output.shared_buffer) is not None and request.workers_write:
            hooks = dataclasses.replace(hooks, write_batch=buffer.extend)
        if hooks != Hooks():
            fields["hooks"] = hooks
        if collectors:
            fields["user_collector"] = collectors[index]
    if request.early.should_end is not None:
        overrides[0]["should_end"] = request.early.should_end
    return overrides


def added_worker_overrides(
    request: CollectorRequest, create: Callable[..., Any], kwargs: dict[str, Any] | None
) -> dict[str, Any]:
    """The fields of a worker that is added to a running collector; it uses the first worker's device.

    Raises:
        ConfigError: what is wrong with `kwargs`.
    """
    collector = _user_collector(request, 0, kwargs or {})
    problems = kwargs_problems(kwargs or {}, collector is None) + (
        [] if collector is None else call_problems(collector)
    )
    if problems:
        raise ConfigError(problems)
    fields = _base(request.env_and_policy.env(create), request.policy_devices[0], kwargs)
    if request.hooks != Hooks():
        fields["hooks"] = request.hooks
    if collector is not None:
        fields["user_collector"] = collector
    return fields


def _base(env: UserEnvConfig, device: str, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    kwargs = kwargs or {}
    env = dataclasses.replace(env, kwargs=env.kwargs | (kwargs.get("create_env_kwargs") or {}))
    fields: dict[str, Any] = {"env": env, "policy_device": device}
    if "exploration_type" in kwargs:
        fields["exploration_type"] = exploration_name(kwargs["exploration_type"])
    return fields


def user_collectors(request: CollectorRequest) -> list[UserCollector]:
    """Each worker's collector; empty if `collector_class` is no user's class."""
    per_worker = enumerate(for_each(request.remote.collector_kwargs, request.num_workers))
    collectors = [_user_collector(request, worker, kwargs or {}) for worker, kwargs in per_worker]
    return [collector for collector in collectors if collector is not None]


def _user_collector(request: CollectorRequest, worker: int, kwargs: Mapping[str, Any]) -> UserCollector | None:
    remote = request.remote
    create = user_class(remote.collector_class)
    if create is None:
        return None
    num_workers = None if remote.inner == "single" else remote.num_workers_per_collector
    merged = _collector_keywords(request, worker) | dict(kwargs)
    # They are passed to `create_env_fn`.
    merged.pop("create_env_kwargs", None)
    return UserCollector(create, merged, num_workers)


def _collector_keywords(request: CollectorRequest, worker: int) -> dict[str, Any]:
    """The keywords that the collector passes on to a user's class, those that have a value."""
    frames, actor, num_workers = request.frames, request.env_and_policy, request.num_workers
    random_frames = positive(frames.init_random_frames)
    keywords: dict[str, Any] = {
        "max_frames_per_traj": positive(frames.max_frames_per_traj),
        "init_random_frames": None if random_frames is None else -(-random_frames // num_workers),
        "reset_at_each_iter": frames.reset_at_each_iter or None,
        "set_truncated": frames.set_truncated or None,
        "exploration_type": None if actor.exploration == ExplorationType.RANDOM.value else actor.exploration_type,
        "compile_policy": kwargs_of(actor.compile_policy),
        "cudagraph_policy": kwargs_of(actor.cudagraph_policy),
    }
    for name in ("device", "policy_device", "env_device"):
        keywords[name] = for_each(getattr(request.devices, name), num_workers)[worker]
    return {name: value for name, value in keywords.items() if value is not None}
