"""The wrappers around a user's env, and those that keep statistics in each env."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    while env is not None:
        yield env
        env = next((inner for name in _INNER if (inner := _own(env, name)) is not None), None)


def normalizers_of(envs: Sequence[Any]) -> tuple[str, ...]:
    """Returns the classes of running normalisers around the first of a worker's envs, and in its TorchRL transforms."""
    found: dict[str, None] = {}
    for layer in (each for env in envs[:1] for each in layers(env)):
        transform = _own(layer, "transform")
        for each in (layer, transform, *(_own(transform, "transforms") or ())):
            found[type(each).__name__] = None
    return tuple(name for name in found if name in _INSTEAD)


def _own(value: Any, name: str) -> Any:
    """Returns an attribute that an object has itself. Others are not asked for: TorchRL's envs look in the envs below,
    endlessly before these are made."""
    fields = getattr(value, "__dict__", {})
    modules = fields.get("_modules", {})
    return modules.get(name, fields.get(name)) if not hasattr(type(value), name) else getattr(value, name, None)


def note_of(normalizer: str) -> str:
    """Returns what a user should know about a running normaliser."""
    return (
        f"{normalizer} keeps statistics in each env. Workers that are replaced, collectx eval and load_policy start "
        f"without them. Use {_INSTEAD[normalizer]} instead."
    )
