"""The kept entries of `info`, as leaves `("info", name)`. A mask `("info", "_name")` tells which frames contain the
entry, as in Gymnasium's vector envs.

Gymnasium declares no space for infos. If the user does not declare shapes and dtypes, the trainer reads them from up to
one episode of an env that it makes and closes; workers then get them declared (`declare`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from collectx.batch import Leaf, is_numeric
from collectx.config.problem import opt
from collectx.config.schema.env import EnvConfig
from collectx.env.action_masks import can_be_masked, mask_of, sample
from collectx.env.base import Env
from collectx.env.observation import ACTION_MASK
from collectx.env.spaces import Leaves, Path, leave_out, numpy_dtype, torch_dtype
from collectx.errors import CollectxError, SpaceError

# Maximum number of steps in which entries are searched.
_PROBED_STEPS = 10_000
# Ends messages about entries that cannot be stored.
_REMOVE = ". Remove it from info_keys."


class InfoKeys:
    """The kept info entries of one env, or of a vector of envs.

    An entry is a number, an array, or a dict of numbers and arrays. If `info` lacks the entry (often at a reset, or
    before the last step of an episode), zeros are stored, and its mask is False. Raises `SpaceError` if an entry does
    not occur in an episode, is not numeric, or its declaration is wrong.

    Args:
        keys: top-level keys of `info`, or mappings from keys to declared forms. The form of a number is its dtype,
            `float32`; of an array, its dtype and shape, `[float32, 2, 3]`; of a dict, a mapping from its keys to forms.
        env: the env in which undeclared entries are searched: it is reset, and stepped with random actions until each
            has occurred.

    Attributes:
        declared: the form of each entry, by name.
        leaves: `("info", name)` of each name, or `("info", name, part)` of each part of a dict, then
            `("info", "_name")`, [] bool.
    """

    def __init__(self, keys: Sequence[str | Mapping[str, Any]], env: gymnasium.Env | VectorEnv):
        self.declared: dict[str, Any] = {}
        for key in keys:
            self.declared |= key if isinstance(key, Mapping) else {key: None}
        if names := undeclared(keys):
            self.declared |= {name: _form(name, value, ()) for name, value in _examples(names, env).items()}
        self._entries: dict[str, Leaves] = {}
        for name, form in self.declared.items():
            if f"_{name}" in self.declared:
                raise SpaceError(
                    f"info_keys cannot keep both {name!r} and '_{name}', because in batches '_{name}' is the mask "
                    f"of {name!r}. Remove one of them."
                )
            parts = list(_walk(name, form, ()))
            if not parts:
                raise SpaceError(f"the info entry {name!r} cannot be stored, because it is an empty dict{_REMOVE}")
            self._entries[name] = Leaves(parts)
        self.leaves = tuple(
            leaf
            for name, entry in self._entries.items()
            for leaf in (*entry.leaves, Leaf(("info", f"_{name}"), (), torch.bool))
        )

    def values(self, info: Mapping) -> list[Any]:
        """Returns one value for each of `leaves`, from one env's info."""
        values: list[Any] = []
        for name, entry in self._entries.items():
            zeros = (np.zeros(leaf.shape, bool) for leaf in entry.leaves)
            values += entry.flatten(info[name]) if name in info else zeros
            values.append(name in info)
        return values

    def batched_values(self, info: Mapping, num_envs: int) -> list[np.ndarray]:
        """Returns an array `[num_envs, *shape]` for each of `leaves`, from the info of a vector env. The caller owns
        them."""
        values: list[np.ndarray] = []
        for name, entry in self._entries.items():
            is_present = np.full(num_envs, name in info)
            if name in info:
                is_present &= np.asarray(info.get(f"_{name}", True), bool)
                arrays = [np.array(value) for value in entry.flatten(info[name])]
                for array in arrays:
                    if array.shape[:1] == (num_envs,):
                        array[~is_present] = 0
            else:
                arrays = [np.zeros((num_envs, *leaf.shape), numpy_dtype(leaf)) for leaf in entry.leaves]
            values += [*arrays, is_present]
        return values

    def first_and_final_values(self, info: Mapping, ended: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Splits the infos of a vector env in SAME_STEP mode. Returns the entries of the first infos of new episodes,
        then those of the final infos, each in the form of `batched_values`. An entry of an ended env that is in `info`,
        but not in `info["final_info"]`, counts as final, because a wrapper of the vector env has added it."""
        first = self.batched_values(info, len(ended))
        final = self.batched_values(info.get("final_info", {}), len(ended))
        start = 0
        for entry in self._entries.values():
            mask = start + len(entry.leaves)
            moved = ended & first[mask] & ~final[mask]
            for i in range(start, mask + 1):
                final[i][moved] = first[i][moved]
                first[i][moved] = 0
            start = mask + 1
        return first, final


def keep_mask(group: Env, is_needed: bool) -> bool:
    """Keeps the mask of legal actions that the first env of a Gymnasium group returned in the `info` of the last reset.
    Returns whether there is one. If there is, but it cannot be kept, raises `SpaceError` with `is_needed`, and returns
    False without."""
    env: Any = group.user_envs[0]
    info = _of_env(group.reset_info, 0) if isinstance(env, VectorEnv) else group.reset_info
    if (mask := info.get(ACTION_MASK)) is None:
        return False
    try:
        group.keep_infos(InfoKeys([group.spec.infos, {ACTION_MASK: _form(ACTION_MASK, mask, ())}], env))
    except SpaceError as error:
        if is_needed:
            advice = f"Return a single array as mask. If it is not a mask of legal actions, {leave_out(ACTION_MASK)}."
            raise SpaceError(f"{str(error).removesuffix(_REMOVE)}. {advice}") from error
        return False
    return True


def lacks_mask(group: Env, exclude: Sequence[str]) -> bool:
    """Whether to look for a mask of legal actions in the infos of a group. `exclude` is `env.exclude_keys`, where users
    may name the mask."""
    is_possible = group.spec.device is None and may_return_mask(next(iter(group.user_envs), None))
    return is_possible and ACTION_MASK not in exclude and mask_of(group.spec) is None


def may_return_mask(env: Any) -> bool:
    """Whether the infos of an env may contain masks of legal actions: those of Gymnasium's envs with discrete
    actions."""
    name = "single_action_space" if isinstance(env, VectorEnv) else "action_space"
    return isinstance(env, gymnasium.Env | VectorEnv) and can_be_masked(getattr(env, name, None))


def undeclared(keys: Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Returns the entries of `env.info_keys` without a declared form."""
    return [key for key in keys if not isinstance(key, Mapping)]


def declare(cfg: EnvConfig, infos: Mapping[str, Any]) -> EnvConfig:
    """Returns the configuration with declared infos (`InfoKeys.declared`), so that no env is stepped to find them."""
    return dataclasses.replace(cfg, info_keys=[infos]) if infos else cfg  # type: ignore[call-arg]


def shown(form: Any) -> str:
    """Returns a form as YAML on one line, which the command line accepts too."""
    if isinstance(form, Mapping):
        return "{" + ", ".join(f"{name}: {shown(part)}" for name, part in form.items()) + "}"
    return form if isinstance(form, str) else f"[{', '.join(map(str, form))}]"


def _examples(names: Sequence[str], env: gymnasium.Env | VectorEnv) -> dict[str, Any]:
    """Returns the first value of each entry in one episode."""
    examples: dict[str, Any] = {}
    known: dict[str, None] = {}
    for info in _explained(_episode(env), names):
        known |= dict.fromkeys(map(str, info))
        examples |= {name: info[name] for name in names if name in info and name not in examples}
        if len(examples) == len(set(names)):
            return examples
    missing, shown = next(name for name in names if name not in examples), ", ".join(map(repr, sorted(known)))
    raise SpaceError(
        f"info_keys contains {missing!r}, but the infos of an episode with random actions "
        f"{f'only contain {shown}' if shown else 'are empty'}. If {missing!r} only occurs in other episodes, declare "
        f"it: {_example(missing)}."
    )


def _explained(infos: Iterator[Mapping], names: Sequence[str]) -> Iterator[Mapping]:
    """Yields `infos`. Adds a note to an error of the env: who stepped it, why, and how to avoid it."""
    try:
        yield from infos
    except CollectxError:
        raise
    except Exception as error:
        error.add_note(
            f"raised while collectx stepped an env with random actions, to learn the shape of {', '.join(names)} "
            f"in its infos. To avoid this, declare the shape: {_example(names[0])}"
        )
        raise


def _episode(env: gymnasium.Env | VectorEnv) -> Iterator[Mapping]:
    """Yields the infos of each env, with random actions, until an episode ends; then the infos of the reset."""

    def of_each(info: Mapping) -> Iterable[Mapping]:
        return (_of_env(info, e) for e in range(env.num_envs)) if isinstance(env, VectorEnv) else (info,)

    observation, at_reset = env.reset(seed=1)
    info = at_reset
    env.action_space.seed(0)
    for _ in range(_PROBED_STEPS):
        observation, _, terminated, truncated, info = env.step(sample(env.action_space, observation, info))
        if isinstance(env, VectorEnv):
            yield from of_each(info.get("final_info", {}))
        yield from of_each(info)
        if np.any(terminated) or np.any(truncated):
            break
    yield from of_each(at_reset)


def _of_env(info: Mapping, e: int) -> dict[str, Any]:
    one = {}
    for key, value in info.items():
        mask = info.get(f"_{key}")
        if str(key).startswith("_") or (mask is not None and not mask[e]):
            continue
        if isinstance(value, Mapping):
            one[key] = _of_env(value, e)
        elif isinstance(value, np.ndarray | list | tuple):
            one[key] = value[e]
    return one


def _form(name: str, value: Any, path: Path) -> Any:
    """Returns the form of the part of an info entry at `path`; see `InfoKeys`."""
    if isinstance(value, Mapping):
        return {part: _form(name, inner, (*path, part)) for part, inner in value.items()}
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)  # of uneven shape
    if not is_numeric(array.dtype):
        raise SpaceError(
            f"the info entry {_dotted(name, path)!r} cannot be stored, because its value {value!r:.100} is not a "
            f"number, an array or a dict of these{_REMOVE}"
        )
    return [str(array.dtype), *array.shape] if array.shape else str(array.dtype)


def _example(name: str) -> str:
    """Returns how to declare the entry `name`."""
    scalar, vector = (opt(f"env.info_keys=[{{{name}: {form}}}]") for form in ("float32", "[float32, 3]"))
    return f"{scalar}, or for a vector of 3 {vector}"


def _dotted(name: str, path: Path) -> str:
    return ".".join(map(str, (name, *path)))


def _walk(name: str, form: Any, path: Path) -> Iterator[tuple[Leaf, Path]]:
    """Yields the leaf and the path of every number and array in an entry with this form."""
    if isinstance(form, Mapping):
        for part, inner in form.items():
            yield from _walk(name, inner, (*path, part))
        return
    try:
        dtype, *shape = [form] if isinstance(form, str) else form
        leaf = Leaf(("info", name, *map(str, path)), tuple(map(int, shape)), torch_dtype(np.dtype(dtype)))
        np.broadcast_to(0, leaf.shape)  # a ValueError if a size is negative
    except (TypeError, ValueError) as error:
        problem = (
            f"info_keys declares {_dotted(name, path)!r} as {form!r:.100}, but needs a dtype, or a list of a dtype "
            "and a shape"
        )
        raise SpaceError(f"{problem}. Write {_example(name)}.") from error
    yield leaf, path
