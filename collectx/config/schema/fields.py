"""The range or the words of one option, as metadata of its dataclass field. Read by `collectx.config.check`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from omegaconf import MISSING


def at_least(minimum: float) -> Any:
    """A number, or a list of numbers, none below `minimum`."""
    return field(default=MISSING, metadata={"minimum": minimum})


def above(bound: float) -> Any:
    """A number greater than `bound`."""
    return field(default=MISSING, metadata={"above": bound})


def within(minimum: float, maximum: float) -> Any:
    """A number from `minimum` to `maximum`, both included."""
    return field(default=MISSING, metadata={"minimum": minimum, "maximum": maximum})


def count_or_endless() -> Any:
    """A positive count, or -1 for no end."""
    return field(default=MISSING, metadata={"minimum": 1, "also": (-1,)})


def one_of(*names: str) -> Any:
    """One of these words."""
    return field(default=MISSING, metadata={"choices": names})
