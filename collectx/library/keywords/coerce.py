"""Converts the forms in which a keyword may be passed. Used by the specs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from collectx.config.convert import out_of_range
from collectx.config.registry import limits_of
from collectx.policy.exploration import ExplorationType

# The end of a message about weights of other models.
MODELS = "the models are 'policy', 'env.<path>' and 'replay_buffer.<path>'"


def for_each(value: Any, num_workers: int) -> list[Any]:
    """One value per worker: the entries of a list or tuple, or the same value for all."""
    return list(value) if isinstance(value, (list, tuple)) else [value] * num_workers


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def kwargs_of(value: bool | dict[str, Any] | None) -> dict[str, Any] | None:
    """Keyword arguments, of a keyword that may be True instead."""
    return dict(value) if isinstance(value, dict) else {} if value else None


def positive(count: int | None) -> int | None:
    """None for 0 and negative numbers, as TorchRL reads them."""
    return count if count is not None and count > 0 else None


def exploration_name(value: Any) -> str:
    """The name of an exploration type of this package or TorchRL, or a name; None: RANDOM."""
    if value is None:
        return ExplorationType.RANDOM.value
    return str(getattr(value, "name", value)).lower()


def exploration_problems(prefix: str, name: str) -> list[str]:
    violated = out_of_range(name, limits_of("collector.exploration_type"))
    return [f"{prefix}exploration_type={name!r}: must be {violated}"] if violated else []


def device_name(device: Any) -> str | None:
    return None if device is None else str(torch.device(device))


def device_problem(device: Any, is_here: bool = False) -> str | None:
    """Why `device` cannot be used; with `is_here`, also if this machine has no such GPU. None if it can."""
    try:
        device_name(device)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    except TypeError:
        return "must be a torch.device or its name, as 'cpu' or 'cuda:0'."
    if not is_here or device is None or torch.device(device).type != "cuda":
        return None
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (torch.device(device).index or 0) < num_gpus:
        return None
    return f"no such device here; torch sees {', '.join(['cpu', *(f'cuda:{index}' for index in range(num_gpus))])}."


def unknown_models(names: Iterable[str]) -> list[str]:
    """Those that are neither "policy" nor paths of modules of the env or of the replay buffer."""
    return sorted(name for name in names if name != "policy" and not name.startswith(("env.", "replay_buffer.")))
