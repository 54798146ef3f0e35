"""What a keyword may be given as, read. Used by the specs."""

from __future__ import annotations

from typing import Any

import torch

from collectx.policy.exploration import ExplorationType


def for_each(value: Any, num_workers: int) -> list[Any]:
    """One for each worker: the entries of a list or tuple, or the same for all."""
    return list(value) if isinstance(value, (list, tuple)) else [value] * num_workers


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def kwargs_of(given: bool | dict[str, Any] | None) -> dict[str, Any] | None:
    """Keyword arguments, of a keyword that may be True in their place."""
    return dict(given) if isinstance(given, dict) else {} if given else None


def positive(count: int | None) -> int | None:
    """TorchRL takes None, 0 and negative numbers for none."""
    return count if count is not None and count > 0 else None


def exploration_of(given: Any) -> str:
    """The name of an exploration type, of this package's, TorchRL's, or a name; None: RANDOM."""
    if given is None:
        return ExplorationType.RANDOM.value
    return str(getattr(given, "name", given)).lower()


def exploration_problems(where: str, name: str) -> list[str]:
    known = [kind.value for kind in ExplorationType]
    return [] if name in known else [f"{where}exploration_type={name!r}: must be one of {', '.join(known)}."]


def name_of(device: Any) -> str | None:
    return None if device is None else str(torch.device(device))


def why_no_device(device: Any, is_here: bool = False) -> str | None:
    """What is wrong with a device; if `is_here`, also that this machine has no such GPU."""
    try:
        name_of(device)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    except TypeError:
        return "must be a torch.device or its name, as 'cpu' or 'cuda:0'."
    if not is_here or device is None or torch.device(device).type != "cuda":
        return None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (torch.device(device).index or 0) < gpus:
        return None
    there = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    return f"no such device here; torch sees {', '.join(there)}."
