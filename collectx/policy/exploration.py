"""How an actor turns a distribution into an action. Used wherever a configuration names an exploration type."""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager


class ExplorationType(enum.Enum):
    """TorchRL's exploration types; the values are what a configuration says.

    Only RANDOM samples. The built-in policies answer the other three with the mode: the most likely action of a
    discrete policy, the mean of a Gaussian one.
    """

    RANDOM = "random"
    DETERMINISTIC = "deterministic"
    MODE = "mode"
    MEAN = "mean"


def exploration(kind: ExplorationType) -> AbstractContextManager:
    """A context in which tensordict's probabilistic modules (and TorchRL's) see `kind`; entered once per rollout."""
    from tensordict.nn import InteractionType, set_interaction_type

    return set_interaction_type(InteractionType[kind.name])
