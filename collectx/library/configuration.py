"""Translates the constructor's keywords into the run's configuration. Most keywords name their option
(`keyword_fields.sets`); this module sets the options that depend on several keywords or on the class.

Also parses the arguments of a constructor, and puts its keywords into its signature and docstring.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from collectx.collector.batch_info import part_shape
from collectx.config import other_names
from collectx.config.check import check_option, members, out_of_range
from collectx.config.problem import PYTHON, Names, Problem, either, naming, nearest
from collectx.config.registry import KINDS, field_of
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import default_of, incomplete
from collectx.config.schema.launcher import DevicesConfig, LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.jobs.worker_jobs import PresubmittedJobs
from collectx.library.keywords import Keywords, NetworkKeywords, RayKeywords, RemoteKeywords, RpcKeywords
from collectx.library.overrides import kind_of_class
from collectx.library.slurm import slurm_resources
from collectx.library.values import exploration_name
from collectx.random_state import drawn_seed
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
        seed=drawn_seed() if keywords.seed is None else keywords.seed,
    )


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


Parameters = ParamSpec("Parameters")
Dataclass = TypeVar("Dataclass")
# A message about a keyword of other classes names this many of them.
_MAX_OWNERS = 3
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def takes_keywords(
    keywords: Callable[Parameters, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Parameters], None]]:
    """Decorates a method whose arguments are the fields of the dataclass `keywords`: adds the fields to its signature,
    for type checkers, editors and `help`, and their texts to its docstring, before a section "Raises"."""

    def decorate(method: Any) -> Any:
        parameters = inspect.signature(keywords).parameters.values()
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        method.__signature__ = inspect.Signature([receiver, *parameters])
        documented = (inspect.getdoc(each) or "" for each in reversed(inspect.getmro(keywords)))  # type: ignore[arg-type]
        arguments = [text.partition("Args:\n")[2].partition("\n\n")[0].rstrip() for text in documented]
        text, *raises = inspect.cleandoc(method.__doc__ or "").partition("\n\nRaises:\n")
        method.__doc__ = "\n".join([text, "", "Args:", *filter(None, arguments)]) + "".join(raises)
        return method

    return decorate


def parse(
    name: str,
    keywords_class: type[Dataclass],
    arguments: tuple,
    keywords: dict[str, Any],
    by_class: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Dataclass, list[str]]:
    """Returns an object of `keywords_class` with these arguments, and messages about values of a wrong type or out of
    range, which defaults replace. Raises `TypeError`, which calls the function `name`, if an argument is missing or
    passed twice; or if one is unknown, with the messages about the others. `by_class` are the keywords of each class,
    to say which ones have the unknown one."""
    fields = {field.name: field for field in dataclasses.fields(keywords_class)}  # type: ignore[arg-type]
    unknown = _unknown(name, [*fields], [key for key in keywords if key not in fields], by_class)
    signature = inspect.signature(keywords_class)
    positional = [each.name for each in signature.parameters.values() if each.kind is not each.KEYWORD_ONLY]
    if len(arguments) > len(positional):
        raise TypeError(
            f"{name}() takes only {' and '.join(positional)} by position, but got {len(arguments)}. Pass the "
            "others by keyword."
        )
    # An unknown keyword may be a misspelled one, which is then not missing.
    bind = signature.bind_partial if unknown else signature.bind
    try:
        passed = bind(*arguments, **{key: keywords[key] for key in keywords if key in fields}).arguments
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
    values, problems = {}, list[Problem]()
    for key, value in passed.items():
        converted = check_option(key, value, _hints(keywords_class)[key], {}, PYTHON)
        if isinstance(converted, Problem):
            problem = _of_entry(key, value, _hints(keywords_class)[key]) or converted
            advice = fields[key].metadata.get("advice", "")
            problems.append(dataclasses.replace(problem, advice=advice))
        elif (rule := _violated(fields[key], converted)) is not None:
            problems.append(Problem(key, rule, value))
        else:
            values[key] = converted
    with naming(Names({})):
        messages = [*map(str, problems)]
    if unknown:
        raise TypeError("\n".join([unknown, *messages]))
    return keywords_class(**values), messages


def _of_entry(key: str, value: Any, hint: Any) -> Problem | None:
    """Returns the problem of the first entry of a wrong type, if `value` is a list that may be of this type."""
    for kind in members(hint) if isinstance(value, list | tuple) else ():
        if typing.get_origin(kind) is Sequence:
            (of_entries,) = typing.get_args(kind)
            checked = (check_option(f"{key}[{i}]", each, of_entries, {}, PYTHON) for i, each in enumerate(value))
            return next((each for each in checked if isinstance(each, Problem)), None)
    return None


def option_value(field: dataclasses.Field, value: Any) -> Any:
    """Returns the option's value for a keyword's value. Raises `ValueError` with the reason if the keyword's value is
    wrong."""
    convert = field.metadata.get("convert")
    return value if convert is None else convert[value] if isinstance(convert, dict) else convert(value)


def _violated(field: dataclasses.Field, value: Any) -> str | None:
    """Returns the rule that a keyword's value violates; None for a correct value."""
    try:
        return out_of_range(option_value(field, value), field.metadata, PYTHON)
    except ValueError as error:
        return str(error)


def _unknown(name: str, known: list[str], others: list[str], by_class: Mapping[str, Any]) -> str:
    """Returns a message about the keywords `others`; an empty text if there are none."""
    if not others:
        return ""
    unknown = [f"{key!r}{_hint(key, known, by_class)}" for key in others]
    arguments = "an unexpected keyword argument" if len(unknown) == 1 else "unexpected keyword arguments"
    listed = f"valid keywords: {', '.join(known)}" if len(known) <= 12 else f"to list all: help({name})"
    return f"{name}() got {arguments} {', '.join(unknown)}; {listed}"


def _hint(key: str, known: list[str], by_class: Mapping[str, Any]) -> str:
    """Returns what an unknown keyword may be: one of other classes, or a misspelled one."""
    owners = [owner for owner, keywords in by_class.items() if key in keywords.__dataclass_fields__]
    if owners and nearest(key, known, 0.8) is None:
        more = ["others"] if len(owners) > _MAX_OWNERS else []
        return f" (a keyword of {either(owners[:_MAX_OWNERS] + more)})"
    meant = (path.rpartition(".")[2] for path in other_names.meant(key))
    near = next((name for name in meant if name in known), None) or nearest(key, known)
    return f" (did you mean {near!r}?)" if near else ""
