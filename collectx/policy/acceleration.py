"""How a policy is made faster than plain Python calls it: by `torch.compile`, by CUDA graphs.

Done once per worker, after its weights have found their place in memory: both may bind to where the weights lie, and
newer ones are then copied there. Used by actors, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import CudaGraphModule

from collectx.policy.fast_call import straighten


@dataclass(frozen=True)
class Acceleration:
    """Keyword arguments of `torch.compile` and of tensordict's `CudaGraphModule`; None: without it.

    Attributes:
        one_row: the policy is called with one env's observation, without a batch dimension.
    """

    compile: dict[str, Any] | None = None
    cudagraph: dict[str, Any] | None = None
    one_row: bool = False

    def compiled(self, function: Any) -> Callable[..., Any]:
        """`function`, a module or a callable, as it is to be called."""
        return straighten(function, self.one_row) if self.compile is None else torch.compile(function, **self.compile)

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, of tensors: after some calls it is recorded as a CUDA graph, which is replayed from then on."""
        return function if self.cudagraph is None else CudaGraphModule(function, **self.cudagraph)
