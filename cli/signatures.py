"""Checks the names of keyword arguments that a configuration passes to classes and functions of Gymnasium and of the
user. It imports them, as the run is about to, so the run's code must be trusted. What cannot be imported is reported by
the run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator

from collectx.config.problem import did_you_mean
from collectx.config.schema.env import EnvConfig, GymnasiumConfig
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.place import place_of
from collectx.run.folder.sources import Target, targets
from collectx.user_objects import HYDRA_KEYS, resolve

# A target, and the names of arguments that are valid besides its own.
_Call = tuple[Target, tuple[str, ...]]
# Arguments of `gymnasium.make`.
_MAKE = ("max_episode_steps", "disable_env_checker")


def problems(cfg: RunConfig) -> list[str]:
    """Returns a message for each argument that its target does not take; none for a job, whose nodes may use other
    packages than this machine."""
    messages: list[str] = []
    calls: list[_Call] = []
    with contextlib.suppress(Unset):
        if not place_of(cfg).is_job:
            calls += [(target, ()) for target in targets(cfg)]
            calls += _made_by_id(cfg.env)
    for target, extra in calls:
        if target.key.endswith("._target_"):
            try:
                resolve(target.name, target.key)
            except ConfigError as error:
                messages += error.problems
                continue
        names = parameters(target.name) if target.kwargs else None
        for key in target.kwargs:
            if names is not None and key not in (*names, *extra, *HYDRA_KEYS):
                hint = did_you_mean(str(key), [*names, *extra], prefix=f"{target.kwargs_key}.")
                messages.append(f"{target.kwargs_key}.{key} is not an argument of {target.name}{hint}")
    return messages


def _made_by_id(env: EnvConfig) -> Iterator[_Call]:
    """Yields the callable that makes the envs of `env.id`, if Gymnasium knows it without an import."""
    if not isinstance(env, GymnasiumConfig) or not env.kwargs or env.id is None or re.match("ALE/|.*:", env.id):
        return
    import gymnasium

    try:
        spec = gymnasium.spec(env.id)
    except gymnasium.error.Error:
        return
    by_vector = getattr(env, "vectorization_mode", None) == "vector_entry_point"
    target: object = (by_vector and spec.vector_entry_point) or spec.entry_point
    if isinstance(target, str):
        yield Target("env.id", target, "env.kwargs", env.kwargs), () if by_vector else _MAKE


@functools.cache
def parameters(target: str) -> tuple[str, ...] | None:
    """Returns the names of the arguments that a class or function takes; None if it takes any, or cannot be imported.
    `target` is "package.module:Name" or "package.module.Name"."""
    try:
        arguments = inspect.signature(resolve(target, "")).parameters.values()
    except Exception:  # any error of the imported module: the run reports it
        return None
    if any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return tuple(each.name for each in arguments if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
