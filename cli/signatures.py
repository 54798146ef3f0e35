"""Checks the names of keyword arguments that a configuration passes to classes and functions of Gymnasium and of the
user. It imports them, as the run is about to, so the run's code must be trusted. What cannot be imported is reported by
the run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from collectx.config.problem import did_you_mean
from collectx.config.schema.env import GymEnvConfig, GymVectorEnvConfig, TorchrlEnvConfig
from collectx.config.schema.fields import Unset
from collectx.config.schema.policy import CustomPolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import CustomTrainerConfig
from collectx.place import place_of

_Call = tuple[str, str, Mapping[str, Any], tuple[str, ...]]
# Arguments of `gymnasium.make`.
_MAKE = ("max_episode_steps", "disable_env_checker")


def problems(cfg: RunConfig) -> list[str]:
    """One message for each argument that its target does not have; none for a job, whose nodes may have other packages
    than this machine."""
    messages = []
    calls: list[_Call] = []
    with contextlib.suppress(Unset):
        calls.extend(_calls(cfg) if not place_of(cfg).is_job else ())
    for path, target, kwargs, extra in calls:
        names = parameters(target)
        for key in kwargs:
            if names is not None and key not in (*names, *extra):
                hint = did_you_mean(str(key), [*names, *extra], prefix=f"{path}.")
                messages.append(f"{path}.{key}: {target} has no such argument{hint}")
    return messages


def _calls(cfg: RunConfig) -> Iterator[_Call]:
    """Yields path of the keyword arguments, import path of the callable, the arguments, and additional valid names."""
    env = cfg.env
    if isinstance(env, GymEnvConfig | GymVectorEnvConfig):
        by_make = isinstance(env, GymEnvConfig) or env.vectorization_mode in ("sync", "async")
        extra = _MAKE if by_make and env.entry_point is None else ()
        if isinstance(env.kwargs, dict) and env.kwargs and (target := _env_target(env)):
            yield "env.kwargs", target, env.kwargs, extra
        for index, item in enumerate(env.wrappers if isinstance(env.wrappers, list) else []):
            if isinstance(item, Mapping):
                yield from _wrapper(f"env.wrappers[{index}]", item)
    elif isinstance(env, TorchrlEnvConfig):
        yield "env.kwargs", env.target, env.kwargs, ()
    if isinstance(cfg.policy, CustomPolicyConfig):
        yield "policy.kwargs", cfg.policy.target, cfg.policy.kwargs, ()
    if isinstance(cfg.trainer, CustomTrainerConfig):
        yield "trainer.kwargs", cfg.trainer.target, cfg.trainer.kwargs, ()
    if (custom := cfg.logger.custom) is not None:
        yield "logger.custom.kwargs", custom.target, custom.kwargs, ()


def _env_target(env: GymEnvConfig | GymVectorEnvConfig) -> str | None:
    """The callable that gets `env.kwargs`; None if only an import shows it."""
    if env.id is None:
        return env.entry_point
    if ":" in env.id or env.id.startswith("ALE/"):
        return None
    import gymnasium

    try:
        spec = gymnasium.spec(env.id)
    except gymnasium.error.Error:
        return None
    target: object = spec.entry_point
    if isinstance(env, GymVectorEnvConfig) and env.vectorization_mode == "vector_entry_point":
        target = spec.vector_entry_point or target
    return target if isinstance(target, str) else None


def _wrapper(path: str, item: Mapping[Any, Any]) -> Iterator[_Call]:
    """The two forms of a wrapper with arguments; see `collectx/env/gym_factory.py`."""
    name, arguments = next(iter(item.items()), ("", None))
    if "_target_" in item:
        name, arguments = item["_target_"], {key: value for key, value in item.items() if key != "_target_"}
    if isinstance(name, str) and isinstance(arguments, Mapping):
        yield path, f"gymnasium.wrappers:{name}" if name.isidentifier() else name, arguments, ()


@functools.cache
def parameters(target: str) -> tuple[str, ...] | None:
    """The names of the arguments of a class or function, "package.module:Name" or "package.module.Name"; None if it
    takes any, or cannot be imported."""
    from collectx.user_objects import resolve

    try:
        arguments = inspect.signature(resolve(target, "")).parameters.values()
    except Exception:  # any error of the imported module: the run reports it
        return None
    if any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return tuple(each.name for each in arguments if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
