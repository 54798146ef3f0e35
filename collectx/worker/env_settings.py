"""Makes settings in the envs of a worker, and reads their attributes; see `collectx.collector.worker_record`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import gymnasium

from collectx.config.problem import nearest
from collectx.env.base import Env
from collectx.env.wrappers import layers
from collectx.rollout.loop import Rollout
from collectx.transport.messages import packed, unpacked
from collectx.worker.inference.rollout import ServedRollout

# One step of a path: an attribute, a position, or a key.
_STEP = re.compile(r"""\.?(\w+)|\[(-?\d+)\]|\[(['"])(.*?)\3\]""")


def contents_of_each(values: Sequence[Any], rows: int) -> list[tuple[bool, list[Any]]]:
    """Returns the content for each worker of a setting that gives every env its own value; each worker has `rows`
    envs."""
    return [(True, [*values[first : first + rows]]) for first in range(0, len(values), rows)]


def change(rollout: Rollout | ServedRollout, kind: str, name: str, content: Any) -> list[Any]:
    """Makes a setting in all envs of this worker; returns a result per env for a call, otherwise an empty list. For
    `kind`, `name` and `content`, see `collectx.collector.worker_record.Setting`."""
    # A copy, because an inline worker gets the content that the trainer keeps, and envs may change it.
    return _CHANGES[kind](rollout.groups, name, unpacked(deepcopy(content)))


def get_attr(rollout: Rollout | ServedRollout, name: str) -> list[Any]:
    """Returns the attribute `name` of each env. Raises `AttributeError` if an env lacks it."""
    return [value for group in rollout.groups for value in _get(group, name)]


def packed_or_none(result: Any) -> Any:
    """Returns a result as plain data; None if it is something else, as many methods that set something return an
    object."""
    try:
        return packed(result)
    except TypeError:
        return None


def _call_all(groups: Sequence[Env], name: str, content: Any) -> list[Any]:
    args, kwargs = content
    return [result for group in groups for result in _call(group, name, args, kwargs)]


def _set_all(groups: Sequence[Env], name: str, content: Any) -> list[Any]:
    is_each, values = content
    for group in groups:
        size = group.spec.num_envs
        _set(group, name, is_each, values[:size] if is_each else values)
        values = values[size:] if is_each else values
    return []


def _set_options(groups: Sequence[Env], name: str, content: Any) -> list[Any]:
    for group in groups:
        group.set_reset_options(content)
    return []


_CHANGES = {"call": _call_all, "set_attr": _set_all, "reset_options": _set_options}


def _call(group: Env, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    env = _vector(group, "call")
    name, _, path = name.partition(".")
    if env is not None and not path:
        return list(env.call(name, *args, **kwargs))
    found = [getattr(holder, name) for holder in _holders(group, name)]
    found = [resolve(value, path) for value in found] if path else found
    calls = [value(*deepcopy(args), **deepcopy(kwargs)) if callable(value) else value for value in found]
    return _for_each(group, calls)


def _get(group: Env, name: str) -> list[Any]:
    env = _vector(group, "get_attr")
    if env is not None:
        return list(env.get_attr(name))
    return _for_each(group, [getattr(holder, name) for holder in _holders(group, name)])


def _set(group: Env, name: str, is_each: bool, values: Any) -> None:
    env = _vector(group, "set_attr")
    if env is not None:
        env.get_attr(name)  # raises where Gymnasium would make an attribute of this name
        env.set_attr(name, values if is_each else _copies(values, group.spec.num_envs))
        return
    holders = list(_holders(group, name))
    if is_each and len(holders) != group.spec.num_envs:
        raise NotImplementedError(
            f"set_attr({name!r}) needs a single value instead of a list, because the {group.spec.num_envs} envs of "
            f"{type(holders[0]).__name__} share their attributes"
        )
    for holder, value in zip(holders, values if is_each else _copies(values, len(holders)), strict=True):
        setattr(holder, name, value)


def _copies(value: Any, count: int) -> list[Any]:
    """Returns a copy for each env: an env may change its own in place."""
    return [deepcopy(value) for _ in range(count)]


def _for_each(group: Env, values: list[Any]) -> list[Any]:
    """Returns a value per env; the value of an object that steps all envs counts for each."""
    return values if len(values) == group.spec.num_envs else values * group.spec.num_envs


def _vector(group: Env, name: str) -> Any:
    """Returns the group's Gymnasium vector env, if that defines the method `name` to ask its envs."""
    envs = group.user_envs
    is_vector = len(envs) == 1 and isinstance(envs[0], gymnasium.vector.VectorEnv)
    return envs[0] if is_vector and hasattr(envs[0], name) else None


def _holders(group: Env, name: str) -> Iterator[Any]:
    """Yields, for each env object, its outermost wrapper with the attribute, or the env itself. Raises `AttributeError`
    if neither the env nor one of its wrappers has this attribute."""
    for env in group.user_envs or [group]:
        # An object that itself has the attribute, so does not forward it to an inner env.
        holders = [each for each in layers(env) if name in getattr(each, "__dict__", ()) or hasattr(type(each), name)]
        if not holders:
            inner = [*layers(env)][-1]
            near = nearest(name, (each for each in dir(inner) if not each.startswith("_")))
            question = f". Did you mean {near!r}?" if near else ""
            raise AttributeError(
                f"neither the env {type(inner).__name__} nor its wrappers have an attribute {name!r}{question}"
            )
        yield holders[0]


def holder_of(env: Any, path: str) -> Any:
    """Returns the object in which a path into an env begins: its outermost wrapper with the first attribute of the
    path, or the env itself; `env` if none has it."""
    match = _STEP.match(path)
    name = match[1] if match is not None else None
    return next((each for each in layers(env) if name is not None and hasattr(each, name)), env)


def resolve(value: Any, path: str) -> Any:
    """Returns the value at a path in `value`, such as `transform[0].shape` or `spaces['a']`. Raises `AttributeError` if
    an attribute does not exist, or `path` is not a path, or `LookupError` if an item does not exist."""
    end = 0
    while end < len(path) or not path:
        match = _STEP.match(path, end)
        if match is None:
            raise AttributeError(f'{path!r} is not a path. Write it as in "transform[0].shape" or "spaces[\'a\']".')
        name, number, _, key = match.groups()
        value = getattr(value, name) if name else value[key if number is None else int(number)]
        end = match.end()
    return value
