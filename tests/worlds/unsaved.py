"""CartPole with a part whose state cannot be saved, or not be read again, each for another reason."""

import random
from typing import Any

import gymnasium
import torch

from worlds.cartpoles import cartpole


class _Node:
    def __init__(self, following: Any):
        self.following = following


class _Raising:
    @property
    def __dict__(self):
        raise LookupError("no attributes")

    def __repr__(self):
        raise LookupError("no text")


class _Tensor(torch.Tensor):
    """A class that torch does not load with `weights_only=True`."""


def _linked(length: int = 3000) -> Any:
    node = None
    for _ in range(length):
        node = _Node(node)
    return node


PARTS = {
    "linked": _linked,
    "system": random.SystemRandom,
    "raising": _Raising,
    "key": lambda: {_Raising(): 1},
    "integer": lambda: 10**5000,
    "tensor": lambda: torch.zeros(2).as_subclass(_Tensor),
}


class UnsavedEnv(gymnasium.Wrapper):
    """Has the part from its construction on, or from its first reset."""

    def __init__(self, part: str, from_reset: bool = False):
        super().__init__(cartpole())
        self._make = PARTS[part]
        self._part = None if from_reset else self._make()

    def reset(self, **kwargs: Any) -> Any:
        self._part = self._make()
        return super().reset(**kwargs)


class FailingStateDict(gymnasium.Wrapper):
    def __init__(self) -> None:
        super().__init__(cartpole())

    def state_dict(self) -> dict[str, Any]:
        raise LookupError("no state")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
