"""What a collector is, as it was told or has resolved; and what TorchRL's collectors have that these have not.

Called in the trainer's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from collectx.collector.compose import resolve_devices
from collectx.config import RunConfig, is_stacked

_NO_CLASSES_OF_SCHEMES = (
    "it is for calls between the parts of TorchRL's collectors; weights travel by the collector's own way"
)

# Public methods and attributes of TorchRL's collectors that these have not, and why or what to use instead.
REFUSED = {
    "cascade_execute": _NO_CLASSES_OF_SCHEMES,
    "get_cached_weights": "no copy of the weights is kept; use collector.policy",
    "get_distant_attr": "workers are no collectors of their own; use getattr_env, getattr_policy or getattr_rb",
    "init_updater": "a weight updater is only asked for weights; set it up before it is given to the constructor",
    "register_scheme_receiver": _NO_CLASSES_OF_SCHEMES,
    "verbose": "use the logging of the program that iterates",
}


class Attributes:
    """Devices are those that the keywords resolve to: of a collector in this process one each, otherwise a list, one
    for each worker. None: where they are, on the CPU."""

    _order: Any
    _cfg: RunConfig
    _overrides: list[dict[str, Any]]
    _frames_per_batch: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            why = f" (of TorchRL's, not here: {REFUSED[name]})" if name in REFUSED else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}")

    @property
    def device(self) -> Any:
        """What fills the other devices."""
        return self._each(self._cfg.devices.device)

    @property
    def storing_device(self) -> Any:
        """Where batches lie."""
        return self._each(resolve_devices(self._cfg.devices).storing_device)

    @property
    def env_device(self) -> Any:
        """Where envs take actions from and give observations to."""
        return self._each(resolve_devices(self._cfg.devices).env_device)

    @property
    def policy_device(self) -> Any:
        """Where each worker's policy acts."""
        found = [torch.device(own["policy_device"]) for own in self._overrides]
        return found[0] if self._cfg.collector.kind == "single" else found

    def _each(self, name: str | None) -> Any:
        found = None if name is None else torch.device(name)
        return found if self._cfg.collector.kind == "single" else [found] * self.num_workers

    @property
    def num_workers(self) -> int:
        """How many were meant, those that were added among them; 1 in this process."""
        return len(self._overrides)

    @property
    def frames_per_batch(self) -> int:
        """Frames of one batch, rounded up."""
        return self._frames_per_batch

    def frames_per_batch_worker(self, *, worker_idx: int | None = None) -> int:
        """Frames of one worker's part of a batch, rounded up to its whole steps.

        Args:
            worker_idx: which worker; None: the mean over all, rounded up.

        Raises:
            ValueError: there is no such worker.
        """
        want = self._cfg.collector
        slot = want.frames_per_batch // (want.num_workers if is_stacked(want) else 1)
        steps = [own["steps"] for own in self._overrides if "steps" in own]
        each = [slot // max(steps) * own for own in steps] if steps else [slot] * self.num_workers
        if worker_idx is None:
            return -(-sum(each) // len(each))
        if not 0 <= worker_idx < len(each):
            raise ValueError(f"worker_idx={worker_idx}: there are {len(each)} workers, from 0 on")
        return each[worker_idx]

    @property
    def requested_frames_per_batch(self) -> int:
        """As the constructor was told."""
        return self._order.frames.in_all

    @property
    def total_frames(self) -> int:
        """When it ends; -1: never."""
        return self._cfg.collector.total_frames

    @property
    def trajs_per_batch(self) -> int | None:
        """As the constructor was told."""
        return self._order.assembly.trajs_per_batch

    @property
    def trajs_per_write(self) -> int | None:
        """As the constructor was told."""
        return self._order.assembly.trajs_per_write

    @property
    def traj_format(self) -> str:
        """ "padded" or "cat"."""
        return self._order.assembly.traj_format or "padded"

    @property
    def weight_updater(self) -> Any:
        """As the constructor was told."""
        return self._order.weights.weight_updater
