"""Gymnasium envs from the names in a configuration: ids, entry points, wrappers."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium

from collectx import progress
from collectx.config.problem import YAML
from collectx.config.schema.env import EnvConfig, GymEnvConfig, GymVectorEnvConfig
from collectx.env.env_indices import SPACES, EnvNumbers
from collectx.env.mujoco_warnings import show_once
from collectx.env.wrappers import outputs_of
from collectx.errors import ConfigError, frames_of_user
from collectx.user_objects import (
    call_with_tuples,
    extra_advice,
    named_call,
    raise_missing,
    resolve,
    tuple_advice,
    where_raised,
)


def env_factory(cfg: GymEnvConfig | GymVectorEnvConfig) -> Callable[[EnvNumbers], gymnasium.Env]:
    """Returns a function that makes a single env of `cfg`, with its wrappers."""
    entry_point = resolve_source(cfg)
    progress.one_more(progress.IMPORTS)
    show_once()
    wrappers = [wrapper(item, f"env.wrappers[{i}]") for i, item in enumerate(cfg.wrappers)]
    made_by, kwargs = entry_point or constructor(cfg), dict(cfg.kwargs)
    # The process of an async env may not have registered the id. With an id, Gymnasium would warn of old versions.
    source: Any = None if cfg.id is None else gymnasium.spec(registered(cfg))
    make: Callable[..., gymnasium.Env] = entry_point or partial(gymnasium.make, source)

    def make_one(numbers: EnvNumbers) -> gymnasium.Env:
        with numbers.explained(made_by, kwargs):
            env = call_with_tuples(make, **numbers.arguments(made_by, kwargs))
            _check_env(env, cfg)
            for wrap in wrappers:
                env = wrap(env, numbers)
        return env

    return make_one


def _check_env(env: Any, cfg: GymEnvConfig | GymVectorEnvConfig) -> None:
    """Raises `ConfigError` if an entry point returned something else than an env, such as a number. Classes that are
    no `gymnasium.Env` but have its methods are accepted."""
    if not hasattr(env, "step"):
        text = (
            repr(env)
            if env is None or isinstance(env, int | float | str)
            else f"an object of type {type(env).__name__}"
        )
        raise ConfigError(
            f"env.entry_point={cfg.entry_point} returned {text}, which is not an env. Return a gymnasium.Env."
        )


def constructor(cfg: GymEnvConfig | GymVectorEnvConfig) -> Callable[..., Any]:
    """Returns the function or class that makes an env of `cfg.id`. If it cannot be imported, returns a function without
    parameters; making the env then raises the reason."""
    with contextlib.suppress(Exception):
        return _call_of(cfg)[0]
    return lambda: None


def registered(cfg: GymEnvConfig | GymVectorEnvConfig) -> str:
    """Returns the id without the module that registers it."""
    return str(cfg.id).rpartition(":")[2]


def resolve_source(cfg: GymEnvConfig | GymVectorEnvConfig) -> Callable[..., Any] | None:
    """Returns the callable of `cfg.entry_point`, or None for `cfg.id`; registers the ids of ALE."""
    if cfg.id is None:
        return resolve(cfg.entry_point, "env.entry_point")
    if cfg.id.startswith("ALE/"):
        try:
            gymnasium.register_envs(importlib.import_module("ale_py"))
        except ImportError as error:
            raise ConfigError(f"env.id={cfg.id} needs ale-py. Install it: pip install 'collectx[atari]'") from error
    module, _, name = cfg.id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        if "mujoco" in str(gymnasium.spec(name).entry_point):
            # Imported before the first env is made. If MuJoCo is missing, making the env says what to install.
            with contextlib.suppress(ImportError):
                importlib.import_module("mujoco")
    except (SyntaxError, SystemExit) as error:
        raise ConfigError(f"env.id={cfg.id} cannot be imported: {where_raised(error)}") from error
    except (ImportError, gymnasium.error.Error) as error:
        if isinstance(error, ImportError) and frames_of_user(error):
            raise ConfigError(f"env.id={cfg.id} cannot be imported: {where_raised(error)}") from error
        advice = extra_advice(error) if isinstance(error, ImportError) else ""
        if module in sys.modules and hasattr(sys.modules[module], name):
            advice = f" It is defined in {module}, so write env.entry_point={cfg.id}."
        raise ConfigError(f"cannot create env.id={cfg.id}: {error}{advice}") from error
    return None


def common_outputs(cfg: EnvConfig, envs: Sequence[Any]) -> list[str]:
    """Returns the paths to which all envs of the run write, because their entry point does not know the number of the
    env. Omits paths that the configuration names, which are known before the run (`collectx.rules.warnings`)."""
    if not isinstance(cfg, GymEnvConfig) or cfg.entry_point is None:
        return []
    words = f"{cfg.kwargs} {cfg.wrappers}"
    named = ("{env_index", "{worker_index", "video_folder", "filename")
    if any(name in words for name in named) or SPACES.named_by(resolve(cfg.entry_point, "env.entry_point")):
        return []
    return [path for env in envs[:1] for path in outputs_of(env)]


def wrapper(item: Any, where: str) -> Callable[[gymnasium.Env, EnvNumbers], gymnasium.Env]:
    """Returns a function that wraps an env."""
    name, arguments = named_call(item)
    is_one = not isinstance(item, Mapping) or "_target_" in item or len(item) == 1
    if not is_one or not isinstance(arguments, Mapping):
        raise ConfigError(
            f"{where}={YAML.show(item)} must be a name, or a name with arguments, such as "
            "{TimeLimit:{max_episode_steps:200}}."
        )
    return partial(_wrap, resolve(name, where), arguments, where)


def _wrap(
    make: Callable[..., gymnasium.Env],
    arguments: Mapping[str, Any],
    where: str,
    env: gymnasium.Env,
    numbers: EnvNumbers,
) -> gymnasium.Env:
    """Wraps an env. If a wrapper of Gymnasium refuses the env, by errors of many types, raises `ConfigError`. Errors of
    a user's own wrapper are not changed, because a bug needs its traceback."""
    kwargs = numbers.arguments(make, arguments, where)
    args = kwargs.pop("_args_", [])
    if not str(getattr(make, "__module__", "")).startswith("gymnasium.wrappers"):
        return call_with_tuples(make, env, *args, **kwargs)
    try:
        return call_with_tuples(make, env, *args, **kwargs)
    except gymnasium.error.DependencyNotInstalled:
        raise
    except (TypeError, ValueError, AssertionError, AttributeError, gymnasium.error.Error) as error:
        name = make.__name__
        if missing := re.search(r"missing .* required positional arguments?: '(\w+)'", str(error)):
            how = f"{{{name}:{{{missing[1]}:VALUE}}}}"
            raise ConfigError(
                f"{where}={name} needs the argument {missing[1]}. Pass it, as in env.wrappers=[{how}]."
            ) from error
        how = "change its arguments" if kwargs else "use an env that it fits"
        advice = tuple_advice(kwargs) or f" Leave it out, or {how}."
        wrapped = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        why = str(error).removesuffix(".")
        raise ConfigError(f"{where}={name} cannot wrap {wrapped}: {why}.{advice}") from error


@contextlib.contextmanager
def explain_errors(cfg: GymEnvConfig | GymVectorEnvConfig) -> Iterator[None]:
    """Raises `ConfigError` if the block, which makes envs, fails because a package (the message names the extra to
    install) or an argument of the env's constructor is missing or unknown."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        text, commands = str(error), re.findall("`(pip install [^`]+)`", str(error))
        if extra_advice(error):  # without Gymnasium's advice, which names an extra of Gymnasium
            text = text.partition(", run ")[0]
        elif commands:
            text = f"{text.partition(',')[0].rstrip('.')}. Install it: {' && '.join(commands)}"
        source = f"env.id={cfg.id}" if cfg.id is not None else f"env.entry_point={cfg.entry_point}"
        raise ConfigError(f"cannot create {source}: {text}{extra_advice(error)}") from error
    except TypeError as error:
        made_by, passed = _call_of(cfg)
        raise_missing(error, made_by, passed, "env.kwargs")
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected and unexpected[1] in cfg.kwargs:
            name = cfg.id or cfg.entry_point
            raise ConfigError(f"env.kwargs.{unexpected[1]} is not an argument of {name}. Leave it out.") from error
        if unexpected and unexpected[1] == "num_envs" and isinstance(cfg, GymVectorEnvConfig) and cfg.id is None:
            raise ConfigError(
                f"env.entry_point={cfg.entry_point} has no parameter num_envs, but env=gym_vector calls it once to "
                "create all envs of a worker. If it creates a single env, use env=gym, or register the env and use "
                "env.id."
            ) from error
        raise


def _call_of(cfg: GymEnvConfig | GymVectorEnvConfig) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Returns the function or the class that makes the envs, and its arguments."""
    if cfg.id is None:
        return resolve(cfg.entry_point, "env.entry_point"), {"num_envs": cfg.num_envs, **cfg.kwargs}
    spec = gymnasium.spec(registered(cfg))
    by_vector = getattr(cfg, "vectorization_mode", None) == "vector_entry_point"
    made_by: Any = spec.vector_entry_point if by_vector else spec.entry_point
    made_by = made_by if callable(made_by) else pkgutil.resolve_name(str(made_by))
    return made_by, {"num_envs": cfg.num_envs, **spec.kwargs, **cfg.kwargs}
