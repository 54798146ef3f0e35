"""Writes the weights of a run to its `policy.pt`, which `collectx.run.after.trained` reads. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from collectx.policy.flat_weights import FlatWeights
from collectx.run.folder.files import write_atomically


def write_weights(path: Path, policy: Any, flat: torch.Tensor) -> None:
    """Writes the state dict of `policy` with other weights to a file; blocks until it is on the disk. Writes nothing
    for a policy without weights.

    Args:
        policy: unchanged afterwards.
        flat: the weights, see `FlatWeights`.
    """
    if not flat.numel():
        return
    weights, before = FlatWeights(policy), torch.empty_like(flat)
    weights.write(before)
    weights.read(flat)
    try:
        write_atomically(path, lambda file: torch.save(policy.state_dict(), file))
    finally:
        weights.read(before)
