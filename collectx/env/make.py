"""From the names in a config to Gymnasium envs: ids, entry points, wrappers.

Called by the Gymnasium adapters' constructors. Must not know how envs are stepped.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType
from typing import Any

import gymnasium
from omegaconf import MISSING

from collectx.config import GymEnvConfig, GymVectorEnvConfig
from collectx.errors import ConfigError


def given(value: Any) -> Any:
    """`value`, or None where it was left out of a config built in Python."""
    return None if value == MISSING else value


def env_factory(cfg: GymEnvConfig) -> Callable[[], gymnasium.Env]:
    """A function that makes one env of `cfg`, wrapped.

    Raises:
        ConfigError: neither or both of `id` and `entry_point`, or a name that cannot be imported.
    """
    entry_point = resolve_source(cfg)
    wrappers = [wrapper(item, f"env.wrappers[{i}]") for i, item in enumerate(cfg.wrappers)]
    make: Callable[..., gymnasium.Env] = entry_point or partial(gymnasium.make, str(cfg.id))
    kwargs = dict(cfg.kwargs)

    def make_one() -> gymnasium.Env:
        env = make(**kwargs)
        for wrap in wrappers:
            env = wrap(env)
        return env

    return make_one


def resolve_source(cfg: GymEnvConfig | GymVectorEnvConfig) -> Callable[..., Any] | None:
    """The callable of `cfg.entry_point`, or None where `cfg.id` is to be made; registers the ids of ALE."""
    env_id, entry_point = given(cfg.id), given(cfg.entry_point)
    if (env_id is None) == (entry_point is None):
        raise ConfigError([f"env.id={env_id} and env.entry_point={entry_point}: give exactly one of the two"])
    if entry_point is not None:
        return resolve(entry_point, "env.entry_point")
    if env_id.startswith("ALE/"):
        _register_ale(env_id)
    _check_registered(env_id)
    return None


def wrapper(item: Any, where: str) -> Callable[[gymnasium.Env], gymnasium.Env]:
    """A function of an env: from a name, from `{name: {argument: value}}` or `{_target_: name, argument: value}`, or
    from a callable. A name without a dot or colon is one of gymnasium.wrappers."""
    if not isinstance(item, Mapping):
        return resolve(_wrapper_name(item), where)
    if "_target_" in item:
        name, arguments = item["_target_"], {key: value for key, value in item.items() if key != "_target_"}
    elif len(item) == 1 and isinstance(next(iter(item.values())), Mapping | NoneType):
        name, arguments = next(iter(item.items()))
    else:
        raise ConfigError([f"{where}={dict(item)}: expected a name, or {{name: {{argument: value}}}}"])
    target = resolve(_wrapper_name(name), where)
    kwargs = {str(key): value for key, value in (arguments or {}).items()}
    return lambda env: target(env, **kwargs)


def _wrapper_name(name: Any) -> Any:
    bare = isinstance(name, str) and name.isidentifier()
    return f"gymnasium.wrappers:{name}" if bare else name


def resolve(name: Any, where: str) -> Callable[..., Any]:
    """The object called `name` ("package.module:object" or with dots only); a callable is returned as it is."""
    if callable(name):
        return name
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError([f"{where}={name}: cannot be imported: {error}"]) from error
    if not callable(found):
        raise ConfigError([f"{where}={name}: is {type(found).__name__}, expected something to call"])
    return found


def _check_registered(env_id: str) -> None:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (ImportError, gymnasium.error.Error) as error:
        raise ConfigError([f"env.id={env_id}: {error}"]) from error


def _register_ale(env_id: str) -> None:
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as error:
        raise ConfigError([f"env.id={env_id}: needs ale-py: pip install 'collectx[atari]'"]) from error
    gymnasium.register_envs(ale_py)
