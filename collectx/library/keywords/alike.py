"""What `collector_kwargs` says of all workers alike: as if it had been given to the constructor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectx.library.keywords.custom import custom_class

# What is the same in all workers. What is each worker's own is in `remote.py`.
ALIKE = (
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


def alike(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A constructor's keywords, with those of `ALIKE` taken out of `collector_kwargs`, and what is wrong with them. A
    class of the user's own is given all as it is."""
    given = keywords.get("collector_kwargs")
    each = given if isinstance(given, list | tuple) else [given]
    named = [name for name in ALIKE if any(isinstance(own, Mapping) and name in own for own in each)]
    if not named or custom_class(keywords.get("collector_class")) is not None:
        return dict(keywords), []
    lifted, problems = dict(keywords), []
    for name in named:
        values = [(own or {}).get(name) for own in each]
        if len(set(map(str, values))) > 1:
            problems.append(f"collector_kwargs: {name}={values}: must be the same for all workers.")
        # A device and its name are the same.
        elif keywords.get(name) is not None and str(keywords[name]) != str(values[0]):
            problems.append(f"{name}={keywords[name]!r}, but {values[0]!r} in collector_kwargs: give one of them.")
        else:
            lifted[name] = values[0]
    left = [{name: value for name, value in (own or {}).items() if name not in ALIKE} for own in each]
    lifted["collector_kwargs"] = left if isinstance(given, list | tuple) else left[0]
    return lifted, problems
