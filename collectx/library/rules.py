"""Checks combinations of the constructor's keywords, before anything starts: by the rules of the configuration, in
messages that name keywords, and by rules that only Python has. `collectx.library.configuration` has checked each
keyword by itself.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any

import torch
from tensordict.nn import CudaGraphModule

from collectx.batch import Leaf
from collectx.config.check import out_of_range
from collectx.config.derived import is_device
from collectx.config.problem import PYTHON, check_all, counted, either, naming
from collectx.config.registry import field_of
from collectx.config.schema.run import RunConfig
from collectx.env.user_env import is_env
from collectx.errors import ConfigError, SpaceError
from collectx.jobs.worker_jobs import PresubmittedJobs
from collectx.library.keyword_fields import names_of
from collectx.library.keywords import (
    AsyncBatchedKeywords,
    Keywords,
    NetworkKeywords,
    RayKeywords,
    RemoteKeywords,
    RpcKeywords,
)
from collectx.library.overrides import (
    KNOWN_CLASSES,
    PER_WORKER,
    SAME_FOR_ALL,
    kind_of_class,
    kwargs_of_workers,
    policy_devices,
    user_class,
    user_collector,
)
from collectx.library.values import device_name, entries, exploration_name, kwargs_of, num_devices
from collectx.library.weights import MODELS_HINT, unknown_models
from collectx.replay.buffer import ReplayBuffer
from collectx.rules import RULES
from collectx.rules.collection import devices
from collectx.run import preflight
from collectx.user_objects import UserCollector

Messages = Iterator[str]

DEVICES = ("device", "storing_device", "policy_device", "env_device")
# All rules but `devices`: in Python, devices are those that torch knows.
CONFIG_RULES = [rule for rule in RULES if rule is not devices]

# Keywords that may be a list with an entry per worker.
LISTS = ("create_env_kwargs", "policy_factory", *DEVICES, "collector_kwargs")


def check_arguments(keywords: Keywords, cfg: RunConfig, problems: Sequence[str]) -> None:
    """Raises `ConfigError` with the earlier `problems` and all problems of the keywords and of their configuration
    `cfg`."""
    with naming(names_of(keywords)):
        messages = [*problems, *check_all(PYTHON_RULES, keywords, cfg)]
    if messages or (messages := [*_presubmitted(keywords, cfg)]):
        raise ConfigError(*dict.fromkeys(messages))


def check_keys(keywords: Keywords, leaves: Sequence[Leaf]) -> None:
    """Raises `SpaceError` if the env or the policy writes a key that `track_policy_version` adds to batches."""
    written = {leaf.key[1:] if leaf.key[0] == "next" else leaf.key for leaf in leaves}
    if keywords.track_policy_version and any(key[0] == "policy_version" for key in written):
        raise SpaceError(
            "the env or the policy writes the key policy_version, which track_policy_version=True adds to batches. "
            'Rename the key, or leave track_policy_version out: ("collector", "policy_version") contains the versions '
            "anyway."
        )


def _configuration(keywords: Keywords, cfg: RunConfig) -> Messages:
    """The rules of the configuration and of this machine, which the command line checks too."""
    return map(str, preflight.problems(cfg, CONFIG_RULES, lambda: _acting(keywords, cfg)))


def _acting(keywords: Keywords, cfg: RunConfig) -> list[str]:
    """Returns the device of each worker's policy."""
    return [device or "cpu" for device in policy_devices(keywords, cfg.collector.num_workers)]


def _lists(keywords: Keywords, cfg: RunConfig) -> Messages:
    """A list has one entry for each worker."""
    num_workers = cfg.collector.num_workers
    for name in LISTS:
        value = getattr(keywords, name, None)
        if isinstance(value, list | tuple) and len(value) != num_workers:
            count = f"{counted(len(value), 'entry', 'entries')} for {counted(num_workers, 'worker')}"
            yield f"{name} has {count}. Pass one entry per worker, or a single value for all."


def _twice(keywords: Keywords, cfg: RunConfig) -> Messages:
    """Keywords with one meaning do not contradict each other."""
    intervals = {name: getattr(keywords, name) for name in ("max_weight_update_interval", "update_interval")}
    passed = {name: value for name, value in intervals.items() if value not in (None, -1)}
    at_each = ("update_at_each_batch", "update_after_each_batch")
    passed |= {name: 1 for name in at_each if getattr(keywords, name)}
    if len(set(passed.values())) > 1:
        both = " and ".join(f"{name}={getattr(keywords, name)!r}" for name in passed)
        yield f"{both} contradict each other. Pass only one of them."
    kind, mode = keywords.exploration_type, keywords.exploration_mode
    if mode is not None and exploration_name(kind) not in ("random", exploration_name(mode)):
        yield f"exploration_type={kind!r} and exploration_mode={mode!r} contradict each other. Pass only one of them."
    count = keywords.num_collectors if isinstance(keywords, RayKeywords) else None
    if count not in (None, cfg.collector.num_workers):
        counts = f"num_collectors={count} and num_workers={cfg.collector.num_workers}"
        yield f"{counts} contradict each other. Pass only one of them."


def _envs(keywords: Keywords, cfg: RunConfig) -> Messages:
    """`create_env_fn` has an env, or a function that makes one, for each worker."""
    creates = entries(keywords.create_env_fn)
    is_list = isinstance(keywords.create_env_fn, list | tuple)
    for number, one in enumerate(creates):
        index = f"[{number}]" if is_list else ""
        if isinstance(one, torch.nn.Module) and not is_env(one):
            name = type(one).__name__
            yield f"create_env_fn{index} is a module, {name}. Pass what makes the env first, then the policy."
        elif not (callable(one) or is_env(one)):
            yield (
                f"create_env_fn{index}={one!r} is neither an env nor a function. Pass a function that makes the env, "
                "such as lambda: gymnasium.make('CartPole-v1')."
            )
    num_workers = cfg.collector.num_workers
    if not creates:
        yield "create_env_fn is empty. Pass one callable for each worker."
    elif is_list and len(creates) != num_workers:
        count = counted(len(creates), "entry", "entries")
        yield f"num_workers={num_workers}, but create_env_fn has {count}. Pass one entry per worker."
    elif not is_list and callable(creates[0]) and keywords.given_count is None and keywords.has_workers:
        why = "create_env_fn is one callable, for an unknown number of workers"
        yield f"{why}. Give num_workers=N, or a list of N callables."


def _policies(keywords: Keywords, cfg: RunConfig) -> Messages:
    """There is one policy at most, an object that can be compiled and recorded as the keywords ask."""
    if isinstance(keywords.policy, type):
        yield (
            f"policy={keywords.policy.__name__} is a class. Pass an instance, such as "
            f"{keywords.policy.__name__}(), or use policy_factory={keywords.policy.__name__}."
        )
    if not keywords.has_workers and keywords.policy is not None and keywords.policy_factory is not None:
        yield (
            "policy and policy_factory cannot be used together, because this collector has no workers. Pass only "
            "one of them."
        )
    yield from _acceleration(keywords, "compile_policy", torch.compile)
    yield from _acceleration(keywords, "cudagraph_policy", CudaGraphModule)


def _acceleration(keywords: Keywords, name: str, function: Callable) -> Messages:
    value = getattr(keywords, name)
    if value is None or value is False:
        return
    if keywords.policy is None and keywords.policy_factory is None:
        yield f"{name}={value!r} has no effect, because actions are random without a policy. Leave it out."
    else:
        try:
            inspect.signature(function).bind(None, **(kwargs_of(value) or {}))
        except TypeError as error:
            yield f"{name}={value!r} cannot be passed to {function.__module__}.{function.__name__}: {error}."


def _devices(keywords: Keywords, cfg: RunConfig) -> Messages:
    """Devices of this machine's workers exist, all batches are stored on one, and CUDA graphs are of GPUs."""
    here = {} if cfg.collector.needs_network else {name: entries(getattr(keywords, name)) for name in DEVICES}
    if isinstance(keywords, RpcKeywords) and not keywords.has_jobs:
        here["visible_devices"] = cfg.backend.visible_devices or []  # type: ignore[attr-defined]
    for name, chosen in here.items():
        names = {device_name(each) or "cpu" for each in chosen}
        reasons = set(map(preflight.missing_device, filter(is_device, names)))
        yield from (f"{name}={getattr(keywords, name)!r} cannot be used: {reason}" for reason in reasons if reason)
    if num_devices(keywords.storing_device) > 1:
        yield (
            f"storing_device={keywords.storing_device!r} names several devices, but all batches are stored on one. "
            "Pass one device."
        )
    others = sorted({device for device in _acting(keywords, cfg) if not device.startswith("cuda")})
    if keywords.cudagraph_policy and others:
        yield (
            f"cudagraph_policy={keywords.cudagraph_policy!r} needs a GPU, but the policy acts on {', '.join(others)}. "
            "Pass policy_device='cuda', or leave cudagraph_policy out."
        )


def _batches(keywords: Keywords, cfg: RunConfig) -> Messages:
    """The keywords of delivery and of the replay buffer fit each other."""
    cat_results, buffer = keywords.cat_results, keywords.replay_buffer
    if cat_results not in (None, "stack") and not isinstance(cat_results, int):
        yield f"cat_results={cat_results!r} must be 'stack' or a dimension, such as 0 or -1."
    if keywords.split_trajs and not keywords.track_traj_ids:
        yield "split_trajs=True needs track_traj_ids=True, because it splits batches by trajectory ids."
    if isinstance(buffer, MutableSequence):
        yield f"replay_buffer={buffer!r:.60} is not a replay buffer. Pass a ReplayBuffer, or None."
    elif buffer is not None and not hasattr(buffer, "extend"):
        got = type(buffer).__name__
        yield f"replay_buffer must be a ReplayBuffer, or another object with the method extend(), but is of type {got}."
    elif not keywords.extend_buffer and not hasattr(buffer, "add"):
        got = "there is none" if buffer is None else f"{type(buffer).__name__} has none"
        yield (
            f"extend_buffer=False needs a replay buffer with the method add(), but {got}. Pass one, or leave "
            "extend_buffer out."
        )
    if keywords.split_trajs and (isinstance(buffer, ReplayBuffer) or not keywords.extend_buffer):
        yield (
            "split_trajs=True cannot be used with a replay buffer, which would store the padding as frames. Leave "
            "split_trajs out, and use SliceSampler to sample within trajectories."
        )


def _frames_per_worker(keywords: Keywords, cfg: RunConfig) -> Messages:
    """`frames_per_batch` may be a list."""
    frames, num_workers = keywords.frames_per_worker, cfg.collector.num_workers
    if frames is None:
        return
    if not keywords.has_workers or isinstance(keywords, RemoteKeywords):
        which = "only MultiSyncCollector and MultiAsyncCollector take a list"
        yield f"frames_per_batch={frames} must be a single number, because {which}."
        return
    if len(frames) != num_workers:
        count = f"{counted(len(frames), 'entry', 'entries')} for {counted(num_workers, 'worker')}"
        yield f"frames_per_batch={frames} has {count}. Pass one entry per worker, or a single number."
    if cfg.collector.schedule == "sync" and not keywords.is_concatenated:
        rule = "the workers' frames differ in number, so they cannot be stacked"
        yield f"frames_per_batch={frames} cannot be used: {rule}. Add cat_results=-1, or pass a single number."


def _overlap(keywords: Keywords, cfg: RunConfig) -> Messages:
    """With overlap, a grant names one version for all workers."""
    if cfg.collector.overlap and keywords.has_individual_policies:
        yield "overlap=1 needs the same weights in all workers, but each has its own policy_factory. Use overlap=0."


def _early_ends(keywords: Keywords, cfg: RunConfig) -> Messages:
    """Batches that end early fit the other keywords."""
    interruptor, share = getattr(keywords, "interruptor", None), cfg.collector.preemptive_threshold
    if interruptor is not None and not callable(getattr(interruptor, "collection_stopped", None)):
        yield f"interruptor={interruptor!r} must be an object with the method collection_stopped()."
    if interruptor is not None and keywords.return_same_td:
        yield (
            "return_same_td=True cannot be used with an interruptor, because its batches vary in length. Leave one of "
            "the two out."
        )
    if share is None:
        return
    if keywords.is_concatenated and keywords.return_same_td:
        yield (
            f"return_same_td=True needs batches of equal length, but they vary with preemptive_threshold={share} and "
            f"cat_results={keywords.cat_results}. Use cat_results='stack'."
        )


def _trajectories(keywords: Keywords, cfg: RunConfig) -> Messages:
    """Batches of complete trajectories vary in length."""
    trajectories = keywords.trajs_per_batch
    if trajectories is None:
        for name in ("trajs_per_write", "traj_format", "post_traj"):
            if (value := getattr(keywords, name)) is not None:
                yield (
                    f"{name}={value!r} has no effect without trajs_per_batch. Pass trajs_per_batch too, or leave "
                    f"{name} out."
                )
        return
    required = {
        "return_same_td": (False, "trajectories differ in length"),
        "track_traj_ids": (True, "trajectories are assembled by their ids"),
        "split_trajs": (False, "its batches are already split into trajectories"),
        "extend_buffer": (True, "trajectories differ in length"),
    }
    for name, (value, reason) in required.items():
        if bool(getattr(keywords, name)) is not value:
            yield (
                f"{name}={not value} cannot be used with trajs_per_batch={trajectories}: {reason}. Leave {name} out."
            )


def _models(keywords: Keywords, cfg: RunConfig) -> Messages:
    for name in ("weight_sync_schemes", "weight_recv_schemes"):
        if unknown := unknown_models(getattr(keywords, name) or ()):
            models = "model" if len(unknown) == 1 else "models"
            yield f"{name} names the unknown {models} {' and '.join(map(repr, unknown))}. {MODELS_HINT}."


def _collector_class(keywords: Keywords, cfg: RunConfig) -> Messages:
    """`collector_class` can run in a worker, with the passed `collector_kwargs`."""
    cls, num_workers = getattr(keywords, "collector_class", None), cfg.collector.num_workers
    if cls is None or user_class(cls) is not None:
        pass
    elif not isinstance(keywords, RemoteKeywords):
        if kind_of_class(cls) != "single":
            rule = "each worker on this machine runs a Collector"
            yield (
                f"collector_class={cls!r} cannot be used: {rule}. Leave collector_class out, or pass a class of "
                "your own."
            )
    elif kind_of_class(cls) is None:
        yield (
            f"collector_class={cls!r} is unknown. Valid names: 'single', 'sync', 'async'. You can also pass a class: "
            f"your own, or {either(KNOWN_CLASSES)}."
        )
    if user_class(cls) is not None:
        if keywords.update_weights_between_steps:
            rule = "your collector_class only loads weights between its batches"
            yield f"update_weights_between_steps=True cannot be used: {rule}. Leave it out."
        for name in ("num_envs", "info_keys", "exclude_keys"):
            if value := getattr(keywords, name):
                yield (
                    f"{name}={value!r} has no effect, because your collector_class makes its envs itself. Leave it out."
                )
    for worker, kwargs in enumerate(kwargs_of_workers(keywords, num_workers)):
        yield from worker_problems(keywords, cfg, worker, kwargs)


def worker_problems(keywords: Keywords, cfg: RunConfig, worker: int, kwargs: Mapping[str, Any]) -> Messages:
    """Yields the problems of one worker's `collector_kwargs`."""
    collector = user_collector(keywords, cfg, worker, kwargs)
    for name in ("device", "policy_device"):
        try:
            device_name(kwargs.get(name))
        except ValueError as error:
            yield f"collector_kwargs[{name!r}]={kwargs[name]!r} {error}"
    if collector is not None:
        yield from _call_problems(collector)
        return
    if unknown := sorted(kwargs.keys() - set(PER_WORKER)):
        yield (
            f"collector_kwargs cannot contain {' and '.join(map(repr, unknown))}. Valid names: "
            f"{', '.join(PER_WORKER + SAME_FOR_ALL)}."
        )
    exploration = exploration_name(kwargs.get("exploration_type"))
    if violated := out_of_range(exploration, field_of("collector.exploration_type").metadata, PYTHON):
        yield f"collector_kwargs['exploration_type']={exploration!r} {violated}"


def _call_problems(collector: UserCollector) -> Messages:
    """Yields a message if the class does not accept the arguments of a worker."""
    with contextlib.suppress(ValueError):  # a class in C may have no signature
        try:
            inspect.signature(collector.create).bind(
                None, None, frames_per_batch=1, total_frames=-1, **collector.kwargs
            )
        except TypeError as error:
            kwargs = "".join(f", {name}={value!r}" for name, value in collector.kwargs.items())
            yield (
                f"collector_class={collector.name} cannot be called as {collector.name}(create_env_fn, policy, "
                f"frames_per_batch=..., total_frames=-1{kwargs}): {error}. Let its constructor accept these arguments."
            )


def _presubmitted(keywords: Keywords, cfg: RunConfig) -> Messages:
    """The keywords match the submitted jobs."""
    if not isinstance(keywords, NetworkKeywords) or not keywords.has_submitted_jobs:
        return
    jobs, num_workers, backend = PresubmittedJobs.from_environment(), cfg.collector.num_workers, cfg.backend.kind
    if jobs is None:
        yield (
            "launcher='submitit_delayed' needs workers whose jobs were submitted ahead. Decorate the main function "
            "with collectx.submitit_delayed_launcher, or use launcher='submitit'."
        )
        return
    if jobs.num_workers != num_workers:
        yield (
            f"the collector has {counted(num_workers, 'worker')}, but submitit_delayed_launcher has "
            f"num_jobs={jobs.num_workers}. Pass the same number to both."
        )
    if jobs.backend != backend:
        yield (
            f"the collector has backend={backend!r}, but submitit_delayed_launcher has backend={jobs.backend!r}. Pass "
            "the same backend to both."
        )
    if keywords.on_worker_failure == "restart":
        yield (
            "on_worker_failure='restart' cannot be used with launcher='submitit_delayed', which cannot replace a lost "
            "job. Use on_worker_failure='raise' or 'drop'."
        )


def _inference_server(keywords: Keywords, cfg: RunConfig) -> Messages:
    """With central inference, one policy acts for all workers."""
    if not isinstance(keywords, AsyncBatchedKeywords):
        return
    has_both = keywords.policy is not None and keywords.policy_factory is not None
    if has_both or keywords.has_individual_policies:
        yield (
            "policy_factory must be a single callable, and cannot be used together with policy, because one policy "
            "acts for all workers."
        )
    if len(set(policy_devices(keywords, cfg.collector.num_workers))) > 1:
        yield "policy_device must be a single device, because one policy acts for all workers."


PYTHON_RULES: tuple[Callable[[Keywords, RunConfig], Messages], ...] = (
    _lists,
    _twice,
    _envs,
    _policies,
    _devices,
    _configuration,
    _batches,
    _frames_per_worker,
    _early_ends,
    _overlap,
    _trajectories,
    _models,
    _collector_class,
    _inference_server,
)
