"""Keywords about the collector that a worker runs: `collector_class`, which may be a name, a class of this package or
TorchRL, or a user's class, and `collector_kwargs`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from collectx.config.schema.launcher import BackendConfig
from collectx.library.keywords.coerce import device_problem, exploration_name, exploration_problems, for_each
from collectx.library.keywords.options import option
from collectx.library.keywords.specs import Keywords
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
# Entries of `collector_kwargs` that a worker may have for itself, and those that must be the same for all workers.
PER_WORKER = ("create_env_kwargs", "device", "policy_device", "exploration_type")
SHARED = (
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


@dataclass(frozen=True, kw_only=True)
class WorkerClass(Keywords):
    """The class of the collector that a worker of this machine runs.

    Args:
        collector_class: None or `Collector`; or a user's class, see docs/LIBRARY.md, "User-defined collector classes".
    """

    collector_class: Any = None

    def problems(self) -> list[str]:
        problems, base = super().problems(), _known_base(self.collector_class)
        is_users = user_class(self.collector_class) is not None
        if self.collector_class is not None and not is_users and base != "single":
            rule = "workers of this machine are single collectors"
            problems.append(f"collector_class={self.collector_class!r}: {rule}: leave it out, or give a user's class.")
        return problems


@dataclass(frozen=True, kw_only=True)
class Nested(Keywords):
    """The keywords about the collector that a worker runs.

    Args:
        num_workers_per_collector: processes of each worker; more than one make it a collector itself.
        collector_class: its kind: "single" (one process), "sync" (a batch has a part of each process) or "async" (a
            batch comes from one process), or the class of that kind, of this package or TorchRL; or a user's class, see
            docs/LIBRARY.md, "User-defined collector classes". None: "single" for one process, otherwise "sync".
        collector_kwargs: keyword arguments of a worker's collector; one dict for all, or one per worker. May have
            `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, the same for all workers, the
            constructor's keywords about trajectories and devices, such as `max_frames_per_traj`; for a user's class,
            any that it takes.
    """

    num_workers_per_collector: int = option("collector.num_workers_per_collector", 1)
    collector_class: Any = None
    collector_kwargs: Any = None

    @property
    def inner(self) -> str:
        """ "single", "sync" or "async"."""
        collector_class = self.collector_class
        if isinstance(collector_class, str):
            return collector_class
        if (base := _known_base(collector_class)) is not None:
            return base
        if collector_class is not None and user_class(collector_class) is None:
            return str(collector_class)
        return "sync" if self.num_workers_per_collector > 1 else "single"

    def problems(self) -> list[str]:
        return super().problems() + self.remote_problems()

    def remote_problems(self) -> list[str]:
        """What is wrong with the keywords about the workers' collectors and hosts."""
        problems, kwargs_of_workers = [], for_each(self.collector_kwargs, self.worker_count)
        if self.inner not in ("single", "sync", "async"):
            problems.append(
                f"collector_class={self.collector_class!r}: must be 'single', 'sync', 'async', one of "
                f"{', '.join(KNOWN_CLASSES)}, or a user's class."
            )
        if len(kwargs_of_workers) != self.worker_count:
            count = f"{len(kwargs_of_workers)} entries for {self.worker_count} workers"
            problems.append(f"collector_kwargs has {count}: one for each, or one dict.")
        for kwargs in kwargs_of_workers:
            problems += kwargs_problems(kwargs or {}, user_class(self.collector_class) is None)
        return list(dict.fromkeys(problems))

    def backend_config(self) -> BackendConfig:
        """The options of the group `backend`."""
        return BackendConfig(kind="auto", interface=None, port=None)


def kwargs_problems(kwargs: dict[str, Any], is_known: bool) -> list[str]:
    """What is wrong with the `collector_kwargs` of a worker; `is_known`: they are not for a user's class."""
    problems = []
    unknown = sorted(kwargs.keys() - set(PER_WORKER))
    if unknown and is_known:
        problems.append(f"collector_kwargs has {', '.join(unknown)}: may have {', '.join(PER_WORKER + SHARED)}.")
    for name in ("device", "policy_device"):
        if reason := device_problem(kwargs.get(name)):
            problems.append(f"collector_kwargs: {name}={kwargs[name]!r}: {reason}")
    if "exploration_type" in kwargs and is_known:
        problems += exploration_problems("collector_kwargs: ", exploration_name(kwargs["exploration_type"]))
    return problems


def user_class(collector_class: Any) -> Callable[..., Any] | None:
    """Returns `collector_class` if it is neither a name nor a class of this package or TorchRL."""
    is_user_class = callable(collector_class) and not isinstance(collector_class, str)
    return collector_class if is_user_class and not _is_known(collector_class) else None


def _known_base(collector_class: Any) -> str | None:
    """Returns "single", "sync" or "async" by the nearest known base class; None without one."""
    known = [cls.__name__ for cls in getattr(collector_class, "__mro__", ()) if _is_known(cls)]
    return next((KNOWN_CLASSES[name] for name in known if name in KNOWN_CLASSES), None)


def _is_known(cls: Any) -> bool:
    return getattr(cls, "__module__", "").partition(".")[0] in ("collectx", "torchrl")


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


def lift_shared(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Moves the entries of `SHARED` from `collector_kwargs` to the constructor's keywords. A class of the user gets all
    entries unchanged.

    Returns:
        The keywords, and the problems of the entries.
    """
    kwargs = keywords.get("collector_kwargs")
    per_worker = kwargs if isinstance(kwargs, list | tuple) else [kwargs]
    names = [name for name in SHARED if any(isinstance(each, Mapping) and name in each for each in per_worker)]
    if not names or user_class(keywords.get("collector_class")) is not None:
        return dict(keywords), []
    lifted, problems = dict(keywords), []
    for name in names:
        values = [(each or {}).get(name) for each in per_worker]
        if len(set(map(str, values))) > 1:
            problems.append(f"collector_kwargs: {name}={values}: must be the same for all workers.")
        # A device equals its name.
        elif keywords.get(name) is not None and str(keywords[name]) != str(values[0]):
            problems.append(f"{name}={keywords[name]!r}, but {values[0]!r} in collector_kwargs: give one of them.")
        else:
            lifted[name] = values[0]
    rest = [{name: value for name, value in (each or {}).items() if name not in SHARED} for each in per_worker]
    lifted["collector_kwargs"] = rest if isinstance(kwargs, list | tuple) else rest[0]
    return lifted, problems
