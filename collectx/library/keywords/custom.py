"""A class of the user's own as `collector_class`: what it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from collectx.library.keywords.coerce import for_each, kwargs_of, positive
from collectx.policy.exploration import ExplorationType
from collectx.user_objects import UserCollector

if TYPE_CHECKING:
    from collectx.library.request import Order

# What `collector_class` may be called, and what that means.
MEANINGS = {
    "Collector": "single",
    "SyncDataCollector": "single",
    "MultiSyncCollector": "sync",
    "MultiSyncDataCollector": "sync",
    "MultiAsyncCollector": "async",
    "MultiaSyncDataCollector": "async",
}


def custom_class(given: Any) -> Callable[..., Any] | None:
    """`given`, if it is neither a name nor a class of this package or of TorchRL."""
    return None if isinstance(given, str) or not callable(given) or _is_known(given) else given


def meaning(given: Callable[..., Any]) -> str | None:
    """Of the nearest class of this package or TorchRL from which a class is derived; None: of none."""
    known = [cls.__name__ for cls in getattr(given, "__mro__", ()) if _is_known(cls)]
    return next((MEANINGS[name] for name in known if name in MEANINGS), None)


def given_collectors(order: Order) -> list[UserCollector]:
    """For each worker, what it calls; none where `collector_class` is no class of the user's own."""
    each = enumerate(for_each(order.remote.collector_kwargs, order.num_workers))
    made = [given_collector(order, worker, own or {}) for worker, own in each]
    return [given for given in made if given is not None]


def given_collector(order: Order, worker: int, own: Mapping[str, Any]) -> UserCollector | None:
    """What a worker with these `collector_kwargs` calls; None: `collector_class` is no class of the user's own."""
    remote = order.remote
    create = custom_class(remote.collector_class)
    if create is None:
        return None
    count = None if remote.inner == "single" else remote.num_workers_per_collector
    kwargs = _asked(order, worker) | dict(own)
    # The env is made with them already.
    kwargs.pop("create_env_kwargs", None)
    return UserCollector(create, kwargs, count)


def custom_problems(order: Order) -> list[str]:
    """What is wrong with the class and what it would be called with."""
    if custom_class(order.remote.collector_class) is None or order.remote.problems(order.num_workers):
        return []
    found = []
    if order.weights.update_weights_between_steps:
        found.append(
            "update_weights_between_steps=True: a collector_class of your own is given weights between its batches: "
            "leave it out."
        )
    for name in ("num_envs", "info_keys", "exclude_keys"):
        if value := getattr(order.work, name):
            found.append(f"{name}={value!r}: a collector_class of your own makes its envs itself: leave it out.")
    for given in given_collectors(order):
        found += call_problems(given)
    return list(dict.fromkeys(found))


def call_problems(given: UserCollector) -> list[str]:
    """Why a class cannot be called with what a worker would call it with."""
    try:
        signature = inspect.signature(given.create)
    except ValueError:
        return []
    try:
        signature.bind(None, None, frames_per_batch=1, total_frames=-1, **given.kwargs)
    except TypeError as error:
        told = "".join(f", {name}={value!r}" for name, value in given.kwargs.items())
        return [
            f"collector_class={given.name} cannot be called as {given.name}(create_env_fn, policy, "
            f"frames_per_batch=..., total_frames=-1{told}): {error}."
        ]
    return []


def _asked(order: Order, worker: int) -> dict[str, Any]:
    """The keywords of the distributed collector that are for its workers', as far as they were given."""
    frames, work, num_workers = order.frames, order.work, order.num_workers
    random = positive(frames.init_random_frames)
    asked: dict[str, Any] = {
        "max_frames_per_traj": positive(frames.max_frames_per_traj),
        "init_random_frames": None if random is None else -(-random // num_workers),
        "reset_at_each_iter": frames.reset_at_each_iter or None,
        "set_truncated": frames.set_truncated or None,
        "exploration_type": None if work.exploration == ExplorationType.RANDOM.value else work.exploration_type,
        "compile_policy": kwargs_of(work.compile_policy),
        "cudagraph_policy": kwargs_of(work.cudagraph_policy),
    }
    for name in ("device", "policy_device", "env_device"):
        asked[name] = for_each(getattr(order.devices, name), num_workers)[worker]
    return {name: value for name, value in asked.items() if value is not None}


def _is_known(given: Any) -> bool:
    return getattr(given, "__module__", "").partition(".")[0] in ("collectx", "torchrl")
