"""CartPole with a part whose state cannot be saved, or not be read again, each for another reason."""

import random
from typing import Any

import gymnasium

from user_code.cartpoles import cartpole


class _Raising:
    def __getstate__(self):
        raise LookupError("no state")

    def __repr__(self):
        raise LookupError("no text")


class _NotMadeAnew:
    def __reduce__(self):
        return int, ("no number",)


class _Endless:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)()

    def __reduce__(self):
        return type(self), (), {"following": type(self)()}


PARTS = {
    "generator": lambda: (number for number in range(9)),
    "system": random.SystemRandom,
    "raising": _Raising,
    "key": lambda: {_Raising(): 1},
    "not_made_anew": _NotMadeAnew,
    "endless": _Endless,
}


class UnsavedEnv(gymnasium.Wrapper):
    """Has the part from its construction on, or from its first step."""

    def __init__(self, part: str, from_step: bool = False):
        super().__init__(cartpole())
        self._make = PARTS[part]
        self._part = None if from_step else self._make()

    def step(self, action: Any) -> Any:
        self._part = self._make()
        return super().step(action)


class FailingStateDict(gymnasium.Wrapper):
    def __init__(self) -> None:
        super().__init__(cartpole())

    def state_dict(self) -> dict[str, Any]:
        raise LookupError("no state")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
