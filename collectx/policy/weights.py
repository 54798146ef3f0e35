"""A module's parameters and buffers as one flat run of bytes: what `publish` copies once and every worker reads.

    | parameter | parameter | ... | buffer | ...      each starts on a 64-byte boundary, tied tensors lie there once

Runs in the trainer (`write`) and in the workers (`adopt`, `read`). Must not know transports: a buffer is any flat uint8
tensor on the CPU, in shared memory or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from collectx.batch import ALIGNMENT_BYTES


def is_on_device(policy: Any, device: torch.device) -> bool:
    """Whether `device` has all tensors of a policy; one that is no module has none."""
    if not isinstance(policy, nn.Module):
        return True
    there = {tensor.device for tensor in (*policy.parameters(), *policy.buffers())}
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return all(one == device or one.type == device.type == "cpu" for one in there)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies. It is looked up in `owner` at each use, so one that the user replaces is still found."""

    owner: dict[str, Any]
    name: str
    offset: int
    nbytes: int
    shape: torch.Size
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        tensor = self.owner[self.name]
        assert tensor is not None
        return tensor.detach()

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


class FlatWeights:
    """Copies between `module` and flat buffers. Two modules built alike have the same layout.

    Attributes:
        nbytes: size of the flat run; 0 for a module without tensors, or for None.
    """

    def __init__(self, module: nn.Module | None):
        self._places: list[_Place] = []
        self._flat: torch.Tensor | None = None
        self.nbytes = 0
        seen: set[int] = set()
        owners = [] if module is None else list(module.modules())
        registers: list[dict[str, Any]] = [owner._parameters for owner in owners]
        registers += [owner._buffers for owner in owners]
        for tensors in registers:
            for name, tensor in tensors.items():
                if tensor is None or id(tensor) in seen:
                    continue
                if nn.parameter.is_lazy(tensor):
                    raise ValueError(f"the lazy parameter {name} has no shape yet: call the module once before")
                seen.add(id(tensor))
                nbytes = tensor.numel() * tensor.dtype.itemsize
                self._places.append(_Place(tensors, name, self.nbytes, nbytes, tensor.shape, tensor.dtype))
                self.nbytes += -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def adopt(self) -> None:
        """Moves the module's tensors into one private flat run, so that `read` and `write` are one memcpy.

        The Parameter objects stay the same ones; only their storage changes, so optimisers and actors made before keep
        working. Tensors moved off it later (`module.to(...)`) are noticed, and copied one by one from then on. Does
        nothing for modules off the CPU.
        """
        tensors = [place.tensor() for place in self._places]
        if not tensors or any(tensor.device.type != "cpu" for tensor in tensors):
            return
        # Not under inference mode, whose tensors could never be trained again.
        with torch.inference_mode(False), torch.no_grad():
            flat = torch.zeros(self.nbytes, dtype=torch.uint8)
            for place in self._places:
                view = place.view(flat)
                view.copy_(place.tensor())
                target = place.owner[place.name]
                assert target is not None
                target.data = view
        self._flat = flat

    def write(self, buffer: torch.Tensor) -> None:
        """Module -> `buffer` (`[nbytes]` uint8 on the CPU). The module may be changed as soon as this returns.

        Raises:
            ValueError: the buffer's size or dtype is not that of these weights.
        """
        self._check(buffer)
        if self._flat is not None and self._is_adopted(self._flat):
            buffer.copy_(self._flat)
            return
        tensors = [place.tensor() for place in self._places]
        device = self._one_accelerator(tensors)
        # From an accelerator: gathered there, then one transfer instead of one for each tensor.
        flat = buffer if device is None else torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        with torch.no_grad():
            for place, tensor in zip(self._places, tensors, strict=True):
                place.view(flat).copy_(tensor)
            if device is not None:
                buffer.copy_(flat)

    def read(self, buffer: torch.Tensor) -> None:
        """`buffer` -> module, in place.

        Raises:
            ValueError: the buffer's size or dtype is not that of these weights.
        """
        self._check(buffer)
        if self._flat is not None and self._is_adopted(self._flat):
            self._flat.copy_(buffer)
            return
        tensors = [place.tensor() for place in self._places]
        device = self._one_accelerator(tensors)
        with torch.no_grad():
            flat = buffer if device is None else buffer.to(device)
            for place, tensor in zip(self._places, tensors, strict=True):
                tensor.copy_(place.view(flat))

    def _check(self, buffer: torch.Tensor) -> None:
        if buffer.dtype != torch.uint8 or buffer.numel() != self.nbytes:
            raise ValueError(
                f"the weights take {self.nbytes} uint8, got {buffer.numel()} {buffer.dtype}: are the trainer's and the "
                "worker's policies built alike?"
            )

    def _is_adopted(self, flat: torch.Tensor) -> bool:
        base = flat.data_ptr()
        for place in self._places:
            tensor = place.owner[place.name]
            if tensor is None or (tensor.data_ptr() != base + place.offset and place.nbytes):
                return False
        return True

    @staticmethod
    def _one_accelerator(tensors: list[torch.Tensor]) -> torch.device | None:
        """The device that holds all tensors; None where that is the CPU or there are several."""
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            return None
        device = devices.pop()
        return None if device.type == "cpu" else device
