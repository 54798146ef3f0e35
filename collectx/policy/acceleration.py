"""Acceleration of a policy's calls by `torch.compile` and CUDA graphs.

Applied once per worker, after the weights have their final memory: both may keep its addresses, and newer weights are
copied there. Used by actors, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import CudaGraphModule

from collectx.policy.fast_call import fast_callable


@dataclass(frozen=True)
class Acceleration:
    """Keyword arguments of `torch.compile` and of tensordict's `CudaGraphModule`; None: not used.

    Attributes:
        one_row: the policy is called with one env's observation, without a batch dimension.
    """

    compile: dict[str, Any] | None = None
    cudagraph: dict[str, Any] | None = None
    one_row: bool = False

    def compile_call(self, function: Any) -> Callable[..., Any]:
        """A faster form of `function`, a module or another callable."""
        return (
            fast_callable(function, self.one_row) if self.compile is None else torch.compile(function, **self.compile)
        )

    def capture(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A form of `function`, which takes tensors, that records a CUDA graph after some calls, then replays it."""
        return function if self.cudagraph is None else CudaGraphModule(function, **self.cudagraph)
