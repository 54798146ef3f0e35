"""The keywords `collector_class` and `collector_kwargs`: which collector each worker runs, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# The classes of this package and TorchRL that a worker may run, and their `collector.inner`.
KNOWN_CLASSES = {
    "Collector": "single",
    "SyncDataCollector": "single",
    "MultiSyncCollector": "sync",
    "MultiSyncDataCollector": "sync",
    "MultiAsyncCollector": "async",
    "MultiaSyncDataCollector": "async",
}
# Entries of `collector_kwargs` that may differ between workers, and entries that must be the same for all.
PER_WORKER = ("create_env_kwargs", "device", "policy_device", "exploration_type")
SAME_FOR_ALL = (
    "max_frames_per_traj",
    "reset_at_each_iter",
    "reset_when_done",
    "set_truncated",
    "storing_device",
    "env_device",
    "no_cuda_sync",
    "track_traj_ids",
    "track_policy_version",
    "compact_obs",
    "check_finite",
    "use_buffers",
    "trust_policy",
    "auto_register_policy_transforms",
    "compile_policy",
    "cudagraph_policy",
)


def user_class(collector_class: Any) -> Callable[..., Any] | None:
    """Returns `collector_class` if it is user-defined; None for a name, or a class of this package or TorchRL."""
    return collector_class if callable(collector_class) and not _is_known(collector_class) else None


def kind_of_class(collector_class: Any) -> str | None:
    """Returns "single", "sync" or "async": the passed name, or the one of the nearest known base class; None for
    others."""
    if isinstance(collector_class, str):
        return collector_class if collector_class in KNOWN_CLASSES.values() else None
    known = [cls.__name__ for cls in getattr(collector_class, "__mro__", ()) if _is_known(cls)]
    return next((KNOWN_CLASSES[name] for name in known if name in KNOWN_CLASSES), None)


def _is_known(cls: Any) -> bool:
    return getattr(cls, "__module__", "").partition(".")[0] in ("collectx", "torchrl")


def lift_shared(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Moves the entries of `SAME_FOR_ALL` from `collector_kwargs` to the constructor's keywords, unless the class is
    user-defined. Returns the new keywords, and messages about entries that contradict each other."""
    kwargs = keywords.get("collector_kwargs")
    per_worker = kwargs if isinstance(kwargs, list | tuple) else [kwargs]
    if not all(each is None or isinstance(each, Mapping) for each in per_worker):
        wrong = f"collector_kwargs={kwargs!r} must be a dict, or a list with one dict for each worker."
        return {name: value for name, value in keywords.items() if name != "collector_kwargs"}, [wrong]
    names = [name for name in SAME_FOR_ALL if any(isinstance(each, Mapping) and name in each for each in per_worker)]
    if not names or user_class(keywords.get("collector_class")) is not None:
        return dict(keywords), []
    lifted, problems = dict(keywords), []
    for name in names:
        values = [(each or {}).get(name) for each in per_worker]
        if len(set(map(str, values))) > 1:
            problems.append(
                f"{name!r} in collector_kwargs must be the same for all workers, but its values are {values}. Pass one "
                "value to all."
            )
        # By their texts, so a device equals its name.
        elif keywords.get(name) is not None and str(keywords[name]) != str(values[0]):
            problems.append(
                f"{name}={keywords[name]!r} and collector_kwargs[{name!r}]={values[0]!r} contradict each other. Pass "
                "only one of them."
            )
        else:
            lifted[name] = values[0]
    rest = [{name: value for name, value in (each or {}).items() if name not in SAME_FOR_ALL} for each in per_worker]
    lifted["collector_kwargs"] = rest if isinstance(kwargs, list | tuple) else rest[0]
    return lifted, problems
