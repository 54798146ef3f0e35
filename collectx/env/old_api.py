"""Recognises the API of Gym before 0.26, when the `step` or `reset` of an env fails."""

from __future__ import annotations

from typing import Any

from collectx.errors import ShapeError

# What the methods of a Gymnasium env take and return.
_GYMNASIUMS = {
    "step": "Return observation, reward, terminated, truncated, info.",
    "reset": "Write reset(self, *, seed=None, options=None), and return observation, info.",
}


def refuse(error: Exception, method: str, where: str, result: Any = None) -> None:
    """Raises a `ShapeError` if the env uses the old API; otherwise does nothing.

    Args:
        method: the env's method that was called, "step" or "reset".
        where: the name of the env, for the message.
        result: what `reset` returned; None if it raised.
    """
    text = str(error)
    if method == "step":
        what = "returned 4 values" if "values to unpack (expected 5, got 4)" in text else ""
    elif "unexpected keyword argument 'seed'" in text:
        what = "has no argument seed"
    else:
        is_pair = isinstance(result, tuple) and len(result) == 2
        unpacked = "values to unpack (expected 2" in text or "has no attribute 'items'" in text
        lacks_info = unpacked if result is None else not is_pair
        what = "returned an observation without an info" if lacks_info else ""
    if what:
        raise ShapeError(f"{where}: {method}() {what}, as in Gym before 0.26. {_GYMNASIUMS[method]}") from error
