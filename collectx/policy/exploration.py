"""Exploration types: how an actor chooses an action from a distribution."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Any


class ExplorationType(StrEnum):
    """The values of tensordict's `InteractionType`, without its import, which takes longer than torch's."""

    MODE = "mode"
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    DETERMINISTIC = "deterministic"


def exploration(kind: ExplorationType) -> AbstractContextManager:
    """Returns a context manager that sets the exploration type of tensordict's and TorchRL's probabilistic modules.
    Does nothing if tensordict is not imported.

    The built-in policies sample only with RANDOM. With the other four they return the mode: the most likely action of a
    discrete policy, the mean of a Gaussian one.
    """
    if "tensordict" not in sys.modules:
        return nullcontext()
    context = _interaction(kind)()
    return _with_medians(context) if kind is ExplorationType.MEDIAN else context


@functools.cache
def _interaction(kind: ExplorationType) -> Callable[[], AbstractContextManager]:
    from tensordict.nn import InteractionType, set_interaction_type

    return functools.partial(set_interaction_type, InteractionType(kind))


@contextmanager
def _with_medians(context: AbstractContextManager) -> Iterator[None]:
    """Sets the exploration type, and adds the property `median`, which tensordict reads, to torch's distributions."""
    from torch.distributions import Distribution

    base: Any = Distribution
    is_ours = not hasattr(base, "median")
    if is_ours:
        base.median = property(_median)
    try:
        with context:
            yield
    finally:
        if is_ours:
            del base.median


def _median(distribution: Any) -> Any:
    """Returns the median of each component. Raises `AttributeError`, like a missing property, if the distribution has
    no inverse."""
    import torch
    from torch.distributions import Independent

    if isinstance(distribution, Independent):
        return distribution.base_dist.median
    try:
        return distribution.icdf(torch.tensor(0.5))
    except NotImplementedError as error:
        raise AttributeError(f"{type(distribution).__name__} has no inverse of its distribution function") from error
