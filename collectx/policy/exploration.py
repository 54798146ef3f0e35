"""How an actor turns a distribution into an action. Used wherever a configuration names an exploration type."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class ExplorationType(enum.Enum):
    """TorchRL's exploration types; the values are what a configuration says.

    Only RANDOM samples. The built-in policies answer the other four with the mode: the most likely action of a
    discrete policy, the mean of a Gaussian one.
    """

    RANDOM = "random"
    DETERMINISTIC = "deterministic"
    MODE = "mode"
    MEAN = "mean"
    MEDIAN = "median"


def exploration(kind: ExplorationType) -> AbstractContextManager:
    """A context in which tensordict's probabilistic modules (and TorchRL's) see `kind`; entered once per rollout."""
    from tensordict.nn import InteractionType, set_interaction_type

    seen = set_interaction_type(InteractionType[kind.name])
    return _with_medians(seen) if kind is ExplorationType.MEDIAN else seen


@contextmanager
def _with_medians(seen: AbstractContextManager) -> Iterator[None]:
    """tensordict asks a distribution for its `median`, which those of torch do not have, though most can tell it."""
    from torch.distributions import Distribution

    base: Any = Distribution
    is_ours = not hasattr(base, "median")
    if is_ours:
        base.median = property(_median)
    try:
        with seen:
            yield
    finally:
        if is_ours:
            del base.median


def _median(distribution: Any) -> Any:
    """Of each component by itself: where half of the probability lies below.

    Raises:
        AttributeError: it cannot be told.
    """
    import torch
    from torch.distributions import Independent

    if isinstance(distribution, Independent):
        return distribution.base_dist.median
    try:
        return distribution.icdf(torch.tensor(0.5))
    except NotImplementedError as error:
        raise AttributeError(f"{type(distribution).__name__} has no inverse of its distribution function") from error
