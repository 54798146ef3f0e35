"""Checks the names of keyword arguments that a configuration passes to classes and functions of Gymnasium and of the
user, against the source code of their definitions. Imports nothing but Gymnasium, for the ids of envs. Definitions that
the source does not show (decorators, inherited constructors, `**kwargs`, names that are bound more than once, compiled
modules) are not checked.

Called when a configuration is composed.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from collectx.config.problem import did_you_mean
from collectx.config.schema.env import GymEnvConfig, GymVectorEnvConfig, TorchrlEnvConfig
from collectx.config.schema.fields import Unset
from collectx.config.schema.policy import CustomPolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import CustomTrainerConfig

_Call = tuple[str, str, Mapping[str, Any], tuple[str, ...]]
# Arguments of `gymnasium.make`.
_MAKE = ("max_episode_steps", "disable_env_checker")


def problems(cfg: RunConfig) -> list[str]:
    """One message for each argument that its target does not have."""
    messages = []
    calls: list[_Call] = []
    with contextlib.suppress(Unset):
        calls.extend(_calls(cfg))
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
    """The names of the arguments of a class or function, "package.module:Name" or "package.module.Name"; None where its
    source does not show them."""
    module, _, name = target.partition(":") if ":" in target else target.rpartition(".")
    return _parameters(module, name, set())


def _parameters(module: str, name: str, visited: set[tuple[str, str]]) -> tuple[str, ...] | None:
    if (module, name) in visited:
        return None
    visited.add((module, name))
    path = _source(module)
    try:
        tree = ast.parse(path.read_bytes()) if path is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return None
    node = _only_binding(tree, name)
    if isinstance(node, ast.FunctionDef):
        return _arguments(node, 0)
    if isinstance(node, ast.ClassDef):
        made = _only_binding(node, "__init__")
        return _arguments(made, 1) if isinstance(made, ast.FunctionDef) and not node.decorator_list else None
    if isinstance(node, ast.ImportFrom):
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        package = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
        return _parameters(resolve_name("." * node.level + (node.module or ""), package), original, visited)
    return None


def _only_binding(scope: ast.Module | ast.ClassDef, name: str) -> ast.AST | None:
    """The statement of a module or class that binds `name`; None where it is not the only one, or stands below another,
    such as an `if`."""
    bindings, rest = [], list[ast.AST](scope.body)
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        else:
            names = [node.id] if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else []
            rest += ast.iter_child_nodes(node)
        if name in names:
            bindings.append(node)
    return bindings[0] if len(bindings) == 1 and bindings[0] in scope.body else None


def _arguments(node: ast.FunctionDef, skipped: int) -> tuple[str, ...] | None:
    """The argument names without the first `skipped`; None if it accepts any."""
    if node.decorator_list or node.args.kwarg is not None:
        return None
    num_positional = max(skipped, len(node.args.posonlyargs))
    named = [*node.args.posonlyargs, *node.args.args][num_positional:]
    return tuple(each.arg for each in (*named, *node.args.kwonlyargs))


def _source(module: str) -> Path | None:
    """The file of a module. `find_spec` would import the packages that it is in."""
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
        for index in range(len(rest)):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join([first, *rest[: index + 1]]), spec.submodule_search_locations)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.has_location else None
