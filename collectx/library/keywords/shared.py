"""Entries of `collector_kwargs` that must be the same for all workers, as if they were passed to the constructor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectx.library.keywords.collector_class import user_class

# Entries that a worker may have for itself are `PER_WORKER` in `remote.py`.
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
