"""The end of a sentence about a name that does not exist: the nearest one that does, and all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], listed: bool = True, prefix: str = "") -> str:
    """`; did you mean X? (valid: ...)`, without the parts that do not apply.

    Args:
        name: what was given.
        names: what would have been right.
        listed: whether to name all of `names`.
        prefix: stands before each name that is proposed.
    """
    candidates = list(names)
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if not listed:
        return f"; did you mean {prefix}{near[0]}?" if near else "."
    if near:
        return f"; did you mean {prefix}{near[0]}? (valid: {', '.join(candidates)})"
    return f"; valid: {', '.join(candidates)}."
