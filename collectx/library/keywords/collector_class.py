"""`collector_class`: a name, a class of this package or TorchRL, or a user's class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from collectx.user_objects import UserCollector

# Names of known classes, and what a worker that runs one is.
KNOWN_CLASSES = {
    "Collector": "single",
    "SyncDataCollector": "single",
    "MultiSyncCollector": "sync",
    "MultiSyncDataCollector": "sync",
    "MultiAsyncCollector": "async",
    "MultiaSyncDataCollector": "async",
}


def user_class(collector_class: Any) -> Callable[..., Any] | None:
    """Returns `collector_class` if it is neither a name nor a class of this package or TorchRL."""
    is_user_class = callable(collector_class) and not isinstance(collector_class, str)
    return collector_class if is_user_class and not _is_known(collector_class) else None


def known_base(collector_class: Callable[..., Any]) -> str | None:
    """Returns "single", "sync" or "async" by the nearest known base class; None without one."""
    known = [cls.__name__ for cls in getattr(collector_class, "__mro__", ()) if _is_known(cls)]
    return next((KNOWN_CLASSES[name] for name in known if name in KNOWN_CLASSES), None)


def call_problems(collector: UserCollector) -> list[str]:
    """Why the class cannot be called with its keyword arguments."""
    try:
        signature = inspect.signature(collector.create)
    except ValueError:
        return []
    try:
        signature.bind(None, None, frames_per_batch=1, total_frames=-1, **collector.kwargs)
    except TypeError as error:
        kwargs = "".join(f", {name}={value!r}" for name, value in collector.kwargs.items())
        return [
            f"collector_class={collector.name} cannot be called as {collector.name}(create_env_fn, policy, "
            f"frames_per_batch=..., total_frames=-1{kwargs}): {error}."
        ]
    return []


def _is_known(cls: Any) -> bool:
    return getattr(cls, "__module__", "").partition(".")[0] in ("collectx", "torchrl")
