"""Explains results of an env's `step` or `reset` that cannot be unpacked, such as those of Gym before 0.26."""

from __future__ import annotations

import re
import traceback
from typing import Any

from collectx.errors import ShapeError

# What the methods of a Gymnasium env take and return.
_GYMNASIUMS = {
    "step": "Return observation, reward, terminated, truncated, info.",
    "reset": "Write reset(self, *, seed=None, options=None), and return observation, info.",
}


def refuse(error: Exception, method: str, where: str, result: Any = None) -> None:
    """Raises a `ShapeError` if the env uses the old API, or `step` or `reset` returned no tuple of the right length;
    otherwise does nothing.

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
    if not what and (returned := _not_unpacked(error, method, text)):
        raise ShapeError(f"{where}: {method}() returned {returned}. {_GYMNASIUMS[method]}") from error
    if what:
        raise ShapeError(f"{where}: {method}() {what}, as in Gym before 0.26. {_GYMNASIUMS[method]}") from error


def _not_unpacked(error: Exception, method: str, text: str) -> str | None:
    """Returns what a call of `method` returned, if `error` was raised where its results are unpacked."""
    frames = traceback.extract_tb(error.__traceback__)
    line = (frames[-1].line if frames else None) or ""
    if not isinstance(error, TypeError | ValueError) or not re.search(rf"{method}|\*result", line):
        return None
    if found := re.search(r"cannot unpack non-iterable (\w+) object|must be an iterable, not (\w+)", text):
        kind = found[1] or found[2]
        return "None" if kind == "NoneType" else f"one value of type {kind}"
    found = re.search(r"values to unpack \(expected \d+(?:, got (\d+))?\)", text)
    return (f"{found[1]} values" if found[1] else "too many values") if found else None
