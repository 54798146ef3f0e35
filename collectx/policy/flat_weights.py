"""Copies a module's parameters and buffers to and from one contiguous run of bytes, which `publish` writes and every
worker reads.

    | parameter | parameter | ... | buffer | ...      each starts on a 64-byte boundary; tied tensors are stored once

The trainer calls `write`, workers call `adopt` and `read`. The bytes are in a flat uint8 tensor on the CPU, in shared
memory or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from collectx.batch import aligned
from collectx.config.problem import opt
from collectx.errors import TrainingDivergedError


def device_of(policy: Any) -> torch.device:
    """Returns the device of a policy's first parameter; the CPU without parameters."""
    parameters = policy.parameters() if isinstance(policy, nn.Module) else ()
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def is_on_device(policy: Any, device: torch.device) -> bool:
    """Whether all tensors of a policy are on `device`; True for a policy that is not a module."""
    if not isinstance(policy, nn.Module):
        return True
    devices = {tensor.device for tensor in (*policy.parameters(), *policy.buffers())}
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return all(one == device or one.type == device.type == "cpu" for one in devices)


def largest(weights: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the largest absolute value of each of the weights, `[]`; NaN and infinity if a weight contains them."""
    # Maximum norms, because they do not overflow, and NaN stays NaN.
    return [*torch._foreach_norm([each.detach() for each in weights if each.numel()], math.inf)]


def not_finite(policy: Any) -> str | None:
    """Returns a text that names the first parameter of a policy with NaN or infinities; None without one. Buffers may
    contain infinities, as masks of attention do."""
    parameters = dict(policy.named_parameters()) if isinstance(policy, nn.Module) else {}
    weights = {name: each for name, each in parameters.items() if each.is_floating_point() and each.numel()}
    if not weights or torch.stack([each.cpu() for each in largest(weights.values())]).isfinite().all():
        return None
    bad = [name for name, each in weights.items() if not each.isfinite().all()]
    value = weights[bad[0]][~weights[bad[0]].isfinite()][0].item()
    return f"the policy's weight {bad[0]} contains {value} ({len(bad)} of {len(weights)} weights are not finite)"


def check_finite(policy: Any) -> None:
    """Raises `TrainingDivergedError` if a parameter of a policy that is to be published contains NaN or infinities."""
    if (what := not_finite(policy)) is not None:
        raise TrainingDivergedError(
            f"{what}: training diverged. Lower the learning rate, or look for the first loss that is not finite. "
            f"Workers act with such weights only with {opt('collector.check_finite=false')}."
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor's place in the run of bytes. The tensor is looked up in `owner` at each use, because the user may
    replace it."""

    owner: dict[str, Any]
    name: str
    offset: int
    nbytes: int
    shape: torch.Size
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        return self.owner[self.name].detach()

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


class FlatWeights:
    """Copies between `module` and flat buffers. Modules with the same architecture share the layout. `nbytes` is the
    size of a buffer; 0 for a module without tensors, or for None."""

    def __init__(self, module: nn.Module | None):
        self._entries: list[_Entry] = []
        self._flat: Any = None
        self.nbytes = 0
        seen: set[int] = set()
        owners = [] if module is None else list(module.modules())
        registers: list[dict[str, Any]] = [owner._parameters for owner in owners]
        for tensors in [*registers, *(owner._buffers for owner in owners)]:
            for name, tensor in tensors.items():
                if tensor is None or id(tensor) in seen:
                    continue
                if nn.parameter.is_lazy(tensor):
                    raise ValueError(
                        f"the lazy parameter {name} has no shape yet. Call the module once before you pass it."
                    )
                seen.add(id(tensor))
                nbytes = tensor.numel() * tensor.dtype.itemsize
                self._entries.append(_Entry(tensors, name, self.nbytes, nbytes, tensor.shape, tensor.dtype))
                self.nbytes += aligned(nbytes)

    def adopt(self) -> None:
        """Moves the module's tensors into one flat tensor, so that `read` and `write` are a single memcpy.

        Only the storage of the Parameter objects changes, so existing optimisers and actors keep working. If tensors
        are moved later (`module.to(...)`), `read` and `write` copy one tensor at a time. Does nothing for a module that
        is not on the CPU.
        """
        if not self._entries or self._devices() != {torch.device("cpu")}:
            return
        # Not under inference mode: its tensors cannot be trained.
        with torch.inference_mode(False), torch.no_grad():
            flat = torch.zeros(self.nbytes, dtype=torch.uint8)
            for entry in self._entries:
                view = entry.view(flat)
                view.copy_(entry.tensor())
                entry.owner[entry.name].data = view
        self._flat = flat

    def write(self, buffer: torch.Tensor) -> None:
        """Copies the module to `buffer`, `[nbytes]` uint8 on the CPU. Blocks until the copy is complete. Raises
        `ValueError` if the size of the buffer is not that of these weights, or it is not uint8."""
        self._check(buffer)
        if self._is_adopted():
            buffer.copy_(self._flat)
            return
        accelerator = self._accelerator()
        # From an accelerator: joins the tensors there, then transfers them at once.
        flat = buffer if accelerator is None else torch.empty(self.nbytes, dtype=torch.uint8, device=accelerator)
        with torch.no_grad():
            for entry in self._entries:
                entry.view(flat).copy_(entry.tensor())
            if flat is not buffer:
                buffer.copy_(flat)

    def read(self, buffer: torch.Tensor) -> None:
        """Copies `buffer` to the module, in place. Raises `ValueError` if the size of the buffer is not that of these
        weights, or it is not uint8."""
        self._check(buffer)
        if self._is_adopted():
            self._flat.copy_(buffer)
            return
        accelerator = self._accelerator()
        flat = buffer if accelerator is None else buffer.to(accelerator)
        with torch.no_grad():
            for entry in self._entries:
                entry.tensor().copy_(entry.view(flat))

    def _check(self, buffer: torch.Tensor) -> None:
        if buffer.dtype != torch.uint8 or buffer.numel() != self.nbytes:
            raise ValueError(
                f"the weights of this module have {self.nbytes:,} bytes, but those of the run's policy "
                f"{buffer.nbytes:,}. Publish the policy that the trainer got, or a module with equal weights; build "
                "the same one in the trainer and in all workers."
            )

    def _is_adopted(self) -> bool:
        """Whether the module's tensors are still in the memory that `adopt` gave them."""
        if self._flat is None:
            return False
        base = self._flat.data_ptr()
        for entry in self._entries:
            tensor = entry.owner[entry.name]
            if tensor is None or (tensor.data_ptr() != base + entry.offset and entry.nbytes):
                return False
        return True

    def _devices(self) -> set[torch.device]:
        return {entry.tensor().device for entry in self._entries}

    def _accelerator(self) -> torch.device | None:
        """Returns the accelerator on which all tensors are; None for the CPU or several devices."""
        device, *others = self._devices() or {torch.device("cpu")}
        return None if others or device.type == "cpu" else device
