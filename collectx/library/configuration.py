"""Translates the constructor's keywords into the run's configuration, and the problems of a configuration into messages
about keywords. Most keywords name their option (`keyword_fields.sets`); this module sets the options that depend on
several keywords or on the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from collectx.collector.batch_info import part_shape
from collectx.config.problem import ABSENT, Problem, Refusal
from collectx.config.registry import KINDS, field_of
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import default_of, incomplete
from collectx.config.schema.launcher import DevicesConfig, LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.jobs.presubmitted import PresubmittedJobs
from collectx.library.keyword_fields import language_of
from collectx.library.keywords import Keywords, NetworkKeywords, RayKeywords, RemoteKeywords, RpcKeywords
from collectx.library.nested import kind_of_class
from collectx.library.parse import option_value
from collectx.library.values import exploration_name
from collectx.place.slurm.submitit import slurm_resources
from collectx.worker.spec import ConfigOverrides


def to_config(keywords: Keywords, problems: list[str]) -> RunConfig:
    """Returns the configuration; appends the problems of `slurm_kwargs` to `problems`. `collectx.library.overrides`
    fills the groups `env` and `policy` later."""
    options: dict[str, dict[str, Any]] = defaultdict(dict)
    for field in dataclasses.fields(keywords):
        if "path" in field.metadata:
            group, _, name = field.metadata["path"].rpartition(".")
            options[group][name] = option_value(field, getattr(keywords, field.name))
    options["collector"] |= {
        "num_workers": keywords.worker_count,
        "frames_per_batch": keywords.requested_frames,
        "exploration_type": exploration_name(keywords.chosen_exploration),
        "inner": "single",
    }
    if isinstance(keywords, RemoteKeywords):
        default = "sync" if keywords.num_workers_per_collector > 1 else "single"
        options["collector"]["inner"] = kind_of_class(keywords.collector_class) or default
    backend = "auto"
    if isinstance(keywords, NetworkKeywords):
        backend = "rpc" if isinstance(keywords, RpcKeywords) else keywords.backend
        jobs = PresubmittedJobs.from_environment() if keywords.has_submitted_jobs else None
        if keywords.tcp_port is None and jobs is not None:
            options["backend"]["port"] = jobs.tcp_port
    return RunConfig(
        env=incomplete(EnvConfig),
        policy=incomplete(PolicyConfig),
        collector=_group("collector", keywords.kind, options),
        backend=_group("backend", backend, options),
        launcher=_launcher(keywords, options, problems),
        inference=_group("inference", keywords.inference, options),
        devices=DevicesConfig(**options["devices"]),
        trainer=_group("trainer", "meter", {}),
        seed=_drawn_seed() if keywords.seed is None else keywords.seed,
    )


def _drawn_seed() -> int:
    """Draws a seed from torch's global generator, as a DataLoader does."""
    return int(torch.randint(2**61, (), device="cpu"))


def as_message(problem: Problem, keywords: Keywords) -> str:
    """Returns the message of a problem, with keywords and their values in place of options."""
    language = language_of(keywords)
    if problem.value is not ABSENT:
        problem = dataclasses.replace(
            problem, value=getattr(keywords, language.name(problem.path) or "", problem.value)
        )
    return problem.text(language)


@contextlib.contextmanager
def named_in_python(keywords: Keywords) -> Iterator[None]:
    """Turns a `Refusal` of the block into a `ConfigError`, with keywords in place of options."""
    try:
        yield
    except Refusal as error:
        raise ConfigError(*(as_message(problem, keywords) for problem in error.parts)) from None


def _group(group: str, kind: str, options: dict[str, dict[str, Any]]) -> Any:
    """Returns the configuration of a group, with defaults for options that no keyword sets."""
    return KINDS[group][kind].schema(**{"kind": kind} | options.get(group, {}))


def _launcher(keywords: Keywords, options: dict[str, dict[str, Any]], problems: list[str]) -> LauncherConfig:
    if isinstance(keywords, NetworkKeywords) and keywords.has_jobs:
        slurm_kwargs = {} if keywords.has_submitted_jobs else keywords.slurm_kwargs or {}
        try:
            return slurm_resources(slurm_kwargs, keywords.num_sub_threads)
        except ConfigError as error:
            problems += error.problems
            return slurm_resources({}, keywords.num_sub_threads)
    if not isinstance(keywords, RayKeywords):
        return _group("launcher", "local", options)
    configs, packaged = keywords.remote_configs, default_of(field_of("launcher.remote_configs"))
    per_worker = configs if isinstance(configs, list | tuple) else [configs] * keywords.worker_count
    options["launcher"]["remote_configs"] = [one or packaged for one in per_worker]
    return _group("launcher", "ray", options)


def fit_frames(keywords: Keywords, cfg: RunConfig, overrides: list[ConfigOverrides], spec: EnvSpec) -> int:
    """Rounds `frames_per_batch` in `cfg` and `overrides` up to whole steps of all envs, as TorchRL does; returns the
    frames of a batch. Raises `ConfigError` if `cat_results` does not fit the parts of the workers, whose envs are
    `spec`."""
    collector, per_worker = cfg.collector, keywords.frames_per_worker
    stacked, num_envs = collector.schedule == "sync", spec.num_envs
    shape = part_shape(spec, collector)
    if stacked and isinstance(keywords.cat_results, int):
        is_uneven = per_worker is not None or collector.preemptive_threshold is not None
        _check_dimension(keywords.cat_results, [*["envs"] * len(shape), "time"], is_uneven)
    unit = math.prod(shape) * (collector.num_workers if stacked else 1)
    if per_worker is None or not stacked:
        collector.frames_per_batch = -(-collector.frames_per_batch // unit) * unit
        return collector.frames_per_batch
    steps = [-(-frames // num_envs) for frames in per_worker]
    for fields, count in zip(overrides, steps, strict=True):
        fields.steps = count
    # All slots are of equal size, that of the longest part.
    collector.frames_per_batch = max(steps) * unit
    frames = sum(steps) * num_envs
    if collector.init_random_frames is not None:
        collector.init_random_frames = -(-collector.init_random_frames // frames) * collector.frames_per_batch
    return frames


def _check_dimension(dim: int, part: Sequence[str], is_uneven: bool) -> None:
    """Checks `cat_results` against the dimensions of a worker's part, which may have another length than the others."""
    first, last = -len(part), len(part) - 1
    if not first <= dim <= last:
        dims = f"the dimensions of a worker's frames are [{', '.join(part)}]"
        raise ConfigError(f"cat_results={dim} must be 'stack', or from {first} to {last}, because {dims}.")
    if is_uneven and dim not in (-1, last):
        rule = "the workers' frames differ in number, so they can only be concatenated along time"
        raise ConfigError(f"cat_results={dim} cannot be used: {rule}. Use cat_results=-1.")
