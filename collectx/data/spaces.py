"""Converts Gymnasium's spaces to and from JSON, for the files of runs in a data set."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import Space, spaces

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(spaces.Dict, spaces.Tuple, spaces.Box, spaces.Discrete),
        *(spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text),
    )
}


def to_json(space: Space) -> dict[str, Any]:
    """Returns a space that collectx can store (see `collectx/env/spaces.py`) as plain data."""
    content: dict[str, Any] = {"kind": type(space).__name__}
    if isinstance(space, spaces.Dict):
        return content | {"parts": [[name, to_json(part)] for name, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return content | {"parts": [to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        bounds = {name: _short(getattr(space, name)) for name in ("low", "high")}
        return content | bounds | {"shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return content | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return content | {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return content | {"n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.Text):
        return content | {"max_length": space.max_length}
    raise TypeError(f"{space} cannot be stored")


def _short(bound: np.ndarray) -> Any:
    """Returns all numbers of a bound; if they are equal, a single number."""
    is_uniform = bound.size > 0 and (bound == bound.flat[0]).all()
    return bound.flat[0].item() if is_uniform else bound.tolist()


def from_json(content: dict[str, Any]) -> Space:
    """Reverses `to_json`."""
    cls = _CLASSES[content["kind"]]
    values = {name: value for name, value in content.items() if name != "kind"}
    if cls is spaces.Dict:
        return spaces.Dict(OrderedDict((name, from_json(part)) for name, part in values["parts"]))
    if cls is spaces.Tuple:
        return spaces.Tuple([from_json(part) for part in values["parts"]])
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"]).type
    if cls is spaces.Box:
        values |= {name: np.full(values["shape"], values[name], values["dtype"]) for name in ("low", "high")}
    return cls(**values)
