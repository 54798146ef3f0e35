"""The wrappers around a user's env, and those that keep statistics in each env."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

# Where wrappers of Gymnasium, TorchRL and Stable-Baselines3 keep what they wrap.
_INNER = ("base_env", "env", "_env", "venv")
# The classes of running normalisers there, and the options that replace them.
_OBSERVATIONS, _REWARDS = "policy.normalize_observations=true", "trainer.normalize_rewards=true"
_INSTEAD = {
    "NormalizeObservation": _OBSERVATIONS,
    "NormalizeReward": _REWARDS,
    **dict.fromkeys(("VecNorm", "VecNormV2", "VecNormalize"), f"{_OBSERVATIONS} and {_REWARDS}"),
}


def layers(env: Any) -> Iterator[Any]:
    """Yields the outermost wrapper of an env, the one within, and so on; the env itself is the last."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        yield env
        seen.add(id(env))
        env = next((inner for name in _INNER if (inner := _own(env, name)) is not None), None)


def normalizers_of(envs: Sequence[Any]) -> tuple[str, ...]:
    """Returns the classes of running normalisers around the first of a worker's envs, and in its TorchRL transforms."""
    found: dict[str, None] = {}
    for layer in (each for env in envs[:1] for each in layers(env)):
        transform = _own(layer, "transform")
        several = _own(transform, "transforms")
        for each in (layer, transform, *(several if isinstance(several, Iterable) else ())):
            found[type(each).__name__] = None
    return tuple(name for name in found if name in _INSTEAD)


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


def note_of(normalizer: str) -> str:
    """Returns what a user should know about a running normaliser."""
    return (
        f"{normalizer} keeps statistics in each env. Workers that are replaced, collectx eval and load_policy start "
        f"without them. Use {_INSTEAD[normalizer]} instead."
    )
