"""The wrappers around a user's env, and those that keep statistics in each env.

Also explains results of an env's `step` or `reset` that cannot be unpacked, such as those of Gym before 0.26.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from collectx.errors import DataError, summary_of

# The key by which the metadata of a vector env tell that its envs are `collectx.env.gym_vector.CheckedEnv`s.
CHECKED = "collectx_checked"
# Where wrappers of Gymnasium, TorchRL and Stable-Baselines3 keep what they wrap.
_INNER = ("base_env", "env", "_env", "venv")
# The classes of running normalisers there, and the options that replace them.
_OBSERVATIONS, _REWARDS = "policy.normalize_observations=true", "trainer.normalize_rewards=true"
_INSTEAD = {
    "NormalizeObservation": _OBSERVATIONS,
    "NormalizeReward": _REWARDS,
    **dict.fromkeys(("VecNorm", "VecNormV2", "VecNormalize"), f"{_OBSERVATIONS} and {_REWARDS}"),
}
# Where Gymnasium's normalisers, also those of vector envs, keep their statistics.
_STATISTICS = {"NormalizeObservation": "obs_rms", "NormalizeReward": "return_rms"}

# Wrappers of Gymnasium and Stable-Baselines3 that write files, and where they keep the path.
_OUTPUTS = {"RecordVideo": "video_folder", "Monitor": "results_writer.file_handler.name"}


def layers(env: Any) -> Iterator[Any]:
    """Yields the outermost wrapper of an env, the one within, and so on; the env itself is the last."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        yield env
        seen.add(id(env))
        env = next((inner for name in _INNER if (inner := _own(env, name)) is not None), None)


def outputs_of(env: Any) -> Iterator[str]:
    """Yields the paths to which the wrappers of an env write."""
    for layer in layers(env):
        with suppress(KeyError, AttributeError):
            yield str(attrgetter(_OUTPUTS[type(layer).__name__])(layer))


def normalizers_of(envs: Sequence[Any]) -> tuple[str, ...]:
    """Returns the classes of running normalisers around the first of a worker's envs, and in its TorchRL transforms."""
    found: dict[str, None] = {}
    for layer in (each for env in envs[:1] for each in _layers_of_each(env)[0]):
        transform = _own(layer, "transform")
        several = _own(transform, "transforms")
        for each in (layer, transform, *(several if isinstance(several, Iterable) else ())):
            found[type(each).__name__] = None
    names = (*found, *(each["wrapper"] for each in statistics_of(envs)))
    return tuple(dict.fromkeys(name for name in names if name in _INSTEAD))


def statistics_of(envs: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns a copy of the statistics of Gymnasium's normalisers around the first of a worker's envs, the outermost
    first, as plain data."""
    statistics = []
    for stack in (_layers_of_each(env)[0] for env in envs[:1]):
        for layer, running in _running(stack):
            mean, var = (np.asarray(value).tolist() for value in (running.mean, running.var))
            name = type(layer).__name__
            statistics.append({"wrapper": name, "mean": mean, "var": var, "count": float(running.count)})
        if isinstance(stack[-1], AsyncVectorEnv) and CHECKED in stack[-1].metadata:
            statistics += stack[-1].call("normalizer_statistics")[0]
    return statistics


def with_statistics(env: Any, statistics: Sequence[dict[str, Any]]) -> Any:
    """Returns `env`, whose normalisers now have the statistics that `statistics_of` returned, and keep them."""
    for stack in _layers_of_each(env):
        for (layer, running), each in zip(_running(stack), statistics, strict=True):
            running.mean, running.var = (np.array(each[name], running.mean.dtype) for name in ("mean", "var"))
            running.count = each["count"]
            layer.update_running_mean = False
    return env


def _layers_of_each(env: Any) -> list[list[Any]]:
    """Returns the layers of an env; of a SyncVectorEnv, those around each of its envs."""
    outer = [*layers(env)]
    inner = outer[-1].envs if isinstance(outer[-1], SyncVectorEnv) else ()
    return [[*outer, *layers(each)] for each in inner] or [outer]


def _running(stack: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields each of Gymnasium's normalisers, and its running mean and variance."""
    for layer in stack:
        if type(layer).__module__.startswith("gymnasium.wrappers.") and type(layer).__name__ in _STATISTICS:
            yield layer, getattr(layer, _STATISTICS[type(layer).__name__])


def _own(value: Any, name: str) -> Any:
    """Returns an attribute that an object has itself; None without one, and where a property raises an error.

    Other attributes are not asked for: TorchRL's envs look for them in the envs below, endlessly before these are made.
    """
    with suppress(Exception):
        if hasattr(type(value), name):
            return getattr(value, name)
        fields = vars(value)
        return fields["_modules"][name] if name in fields.get("_modules", ()) else fields.get(name)
    return None


def note_of(normalizer: str, of_run: bool = True) -> str:
    """Returns a note on a running normaliser: of a run, or of an evaluation that lacks its statistics."""
    instead = f"Use {_INSTEAD[normalizer]} instead."
    if not of_run:
        return f"collectx eval starts without the statistics of {normalizer}, which are kept in each env. {instead}"
    uses = ", and collectx eval uses those of only one env" * (normalizer in _STATISTICS)
    return (
        f"{normalizer} keeps its statistics inside each env, so replaced workers, evaluations during the run and "
        f"load_policy start without them{uses}. {instead}"
    )


# What the methods of a Gymnasium env take and return.
_GYMNASIUMS = {
    "step": "Return observation, reward, terminated, truncated, info.",
    "reset": "Write reset(self, *, seed=None, options=None), and return observation, info.",
}


def refuse(error: Exception, method: str, where: str, result: Any = None) -> None:
    """Raises a `DataError` if the env uses the old API, or `step` or `reset` returned no tuple of the right length;
    otherwise does nothing.

    Args:
        method: the env's method that was called, "step" or "reset".
        where: the name of the env, for the message.
        result: what `reset` returned; None if it raised.
    """
    text = str(error)
    if method == "step":
        what = "returned 4 values" if "values to unpack (expected 5, got 4)" in text else ""
    elif "unexpected keyword argument 'seed'" in text:
        what = "has no argument seed"
    else:
        is_pair = isinstance(result, tuple) and len(result) == 2
        unpacked = "values to unpack (expected 2" in text or "has no attribute 'items'" in text
        lacks_info = unpacked if result is None else not is_pair
        what = "returned an observation without an info" if lacks_info else ""
    if not what and (returned := _not_unpacked(error, method, text)):
        raise DataError(f"{where}: {method}() returned {returned}. {_GYMNASIUMS[method]}") from error
    if what:
        raise DataError(f"{where}: {method}() {what}, as in Gym before 0.26. {_GYMNASIUMS[method]}") from error


def refuse_action(error: Exception, space: spaces.Space, action: Any, e: int) -> None:
    """Raises a `DataError` if env `e` raised an error for an action that its space, which is discrete, lacks."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and not space.contains(action):
        which = "another one"
        if isinstance(space, spaces.Discrete):
            which = f"an action from {space.start} to {space.start + space.n - 1}"
        raise DataError(
            f"the policy returned action {action}, which is not in {space}, the action space of env {e}. Then the env "
            f"raised {summary_of(error).removesuffix('.')}. Return {which}."
        ) from error


def _not_unpacked(error: Exception, method: str, text: str) -> str | None:
    """Returns what a call of `method` returned, if `error` was raised where its results are unpacked."""
    frames = traceback.extract_tb(error.__traceback__)
    line = (frames[-1].line if frames else None) or ""
    if not isinstance(error, TypeError | ValueError) or not re.search(rf"{method}|\*result", line):
        return None
    if found := re.search(r"cannot unpack non-iterable (\w+) object|must be an iterable, not (\w+)", text):
        kind = found[1] or found[2]
        return "None" if kind == "NoneType" else f"one value of type {kind}"
    found = re.search(r"values to unpack \(expected \d+(?:, got (\d+))?\)", text)
    return (f"{found[1]} values" if found[1] else "too many values") if found else None
