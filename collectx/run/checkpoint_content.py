"""What a checkpoint contains: names and types in its manifest and in its state. The digests say that files are as they
were written, not that they are those of a checkpoint.

Used by checkpointer.py.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from collectx.errors import DamagedFile
from collectx.run.checkpoint import Checkpoint

# A type, several, a dict by name of what must be there, or {type of the keys: content} for any number of entries.
_Form: TypeAlias = type | tuple[type, ...] | dict[Any, "_Form"]

_NUMBER = (int, float)
_COUNTS = {"frames": int, "batches": int, "version": int}
_GENERATORS: _Form = {str: list}
_MANIFEST: _Form = {
    **{"batches": int, "frames": int, "policy_version": int, "time": _NUMBER},
    "files": {str: {"size": int, "xxh3": str}},
}
_STATE: _Form = {
    # What a trainer's state_dict returns.
    "trainer": object,
    "collector": {
        **_COUNTS,
        "frames_by_worker": {int: int},
        "weights": torch.Tensor,
        "lives": {int: int},
        "workers": {
            int: {
                "rollout": {
                    "episodes": dict.fromkeys(("traj_ids", "returns", "lengths"), torch.Tensor),
                    "num_random_batches": int,
                },
                "generators": _GENERATORS,
            }
        },
    },
    "assembler": (dict, type(None)),
    "statistics": {
        "sums": {
            **{**_COUNTS, "num_episodes": int, "_first_frames": int},
            **dict.fromkeys(("waited_s", "mean_return", "lag", "checkpoint_s"), _NUMBER),
        },
        "elapsed_s": (*_NUMBER, type(None)),
        "scalars": {str: _NUMBER},
        "returns": list,
        "workers": {int: {"spent_s": (list, tuple), "frames": int, "lag": int}},
    },
    "wall_s": _NUMBER,
    "generators": _GENERATORS,
}


def load(checkpoint: Checkpoint) -> tuple[Checkpoint, dict[str, Any]]:
    """Returns a checkpoint and its state; tensors are on the CPU.

    Raises:
        DamagedFile: it cannot be loaded, or the state or the manifest is not that of a checkpoint of a run.
    """
    manifest, state = checkpoint.manifest, checkpoint.state()
    text = _problem(manifest, _MANIFEST, "manifest.json") or _problem(state, _STATE, "state.pt")
    if text is None:
        counts = [(each["batches"], each["frames"]) for each in (manifest, state["statistics"]["sums"])]
        if counts[0] != counts[1]:
            text = f"manifest.json and state.pt are not of the same checkpoint: (batches, frames) {counts}"
    if text is not None:
        raise DamagedFile([f"{checkpoint.path}: {text}"])
    return checkpoint, state


def _problem(content: Any, form: _Form, name: str) -> str | None:
    """What is wrong with `content`, called `name`; None if it has the form."""
    if not isinstance(form, dict):
        allowed = form if isinstance(form, tuple) else (form,)
        if form is int and type(content) is int and content < 0:
            return f"{name} is {content}, a negative number"
        if object in allowed or type(content) in allowed:
            return None
        return f"{name} is of type {type(content).__name__}, not {' or '.join(each.__name__ for each in allowed)}"
    if type(content) is not dict:
        return f"{name} is of type {type(content).__name__}, not dict"
    parts = []
    for key, part in form.items():
        if isinstance(key, str):
            if key not in content:
                return f"{name} lacks {key}"
            parts.append((key, part))
        else:
            if wrong := [other for other in content if type(other) is not key]:
                return f"{name} has the key {wrong[0]!r}, not one of type {key.__name__}"
            parts += [(other, part) for other in content]
    return next(filter(None, (_problem(content[key], part, f"{name}[{key!r}]") for key, part in parts)), None)
