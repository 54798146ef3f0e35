"""Converts batches to the form that the keywords request, and writes them to a replay buffer. Runs in the thread that
iterates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import POLICY_VERSION, SETTINGS_VERSION, TRAJ_IDS, Key
from collectx.collector.batch_info import WrittenBatch
from collectx.collector.collector import CollectorCore
from collectx.config.schema.collector import CollectorConfig
from collectx.env.base import EnvSpec
from collectx.library.keywords import Keywords
from collectx.trajectories import MASK, split_trajectories
from collectx.worker.batch_hooks import check_forms


class AllDelivered(Exception):
    """All batches were delivered. Not `StopIteration`, because functions of the user may raise that too."""


class BatchConverter:
    """Delivers the batches of a collector in TorchRL's form, to the caller or to `replay_buffer`.

    Attributes:
        version_offset: added to the policy versions in batches, to continue those of a loaded state.
    """

    def __init__(self, keywords: Keywords, options: CollectorConfig, core: CollectorCore, spec: EnvSpec):
        # Number of collected batches.
        self.num_collected = 0
        # Called with every delivered batch; None if the worker processes call the hook.
        self.post_collect_hook = None if keywords.has_workers else keywords.post_collect_hook
        self.keywords = keywords
        self.version_offset = 0
        self._core = core
        self._cuts = [("truncated",), ("done",), *(spec.observation[index].key for index in spec.agents_cuts)]
        # Whether a batch is `[workers, ...]`.
        self._stacked = options.schedule == "sync"
        # With `return_same_td`: the TensorDict into which every batch is copied.
        self._reused: TensorDictBase | None = None

    def next(self) -> Any:
        """Collects a batch, and returns it in the requested form; None if it went to the replay buffer. Blocks. Raises
        `AllDelivered` after `total_frames`."""
        keywords = self.keywords
        if keywords.replay_buffer is not None:
            self._write(self._collect())
            return None
        assembler, collect = self._core.assembler, self._collect_converted
        batch = collect() if assembler is None else assembler.next(collect)
        if keywords.return_same_td:
            if self._reused is not None and self._reused.shape == batch.shape:
                # Also adds new keys, such as the settings version.
                batch = self._reused.update(batch, inplace=True)
            self._reused = batch
        return batch

    def _collect_converted(self) -> Any:
        return self.convert(self._collect(), self._core.filled_steps, self._stacked)

    def _collect(self) -> Any:
        try:
            batch = next(self._core)
        except StopIteration:
            raise AllDelivered from None
        self.num_collected += 1
        if self.version_offset and not isinstance(batch, WrittenBatch):
            batch[POLICY_VERSION].add_(self.version_offset)
        added = [part.report.added for part in self._core.last_batch_info.parts]
        if any(added) and not isinstance(batch, WrittenBatch):
            self._add(batch, added)
        return batch

    def _add(self, batch: TensorDict, parts: Sequence[dict[Key, torch.Tensor]]) -> None:
        """Adds the entries that the workers' `post_collect_hook` added to the parts of the batch; zeros in unfilled
        steps."""
        check_forms(parts)
        rows = batch.unbind(0) if self._stacked else (batch,)
        for key, value in parts[0].items():
            whole = value.new_zeros(*batch.shape, *value.shape[2:], device=batch.device)
            for part, added, frames in zip(rows, parts, whole if self._stacked else (whole,), strict=True):
                filled = added[key].reshape(*part.shape[:-1], -1, *value.shape[2:])
                frames.narrow(part.ndim - 1, 0, filled.shape[part.ndim - 1]).copy_(filled)
            batch[key] = whole

    def zeros(self, steps_of_workers: Sequence[int | None]) -> Any:
        """Returns a batch of zeros in the form of `next`; the workers that take part fill these numbers of steps, None:
        all."""
        batch = self._core.zeros(steps_of_workers)
        if self.keywords.set_truncated:
            for key in self._cuts:
                batch["next", *key].select(batch.ndim - 1, -1).fill_(True)
        steps = [each or batch.shape[-1] for each in steps_of_workers]
        return self.convert(batch, steps, self._stacked)

    def convert(self, batch: Any, steps: Sequence[int], stacked: bool) -> Any:
        """Returns the batch, `[workers, ...]` if `stacked`, in the requested form; `steps` of each part are filled."""
        keywords = self.keywords
        if not stacked and steps[0] < batch.shape[-1]:
            batch = batch[..., : steps[0]]
        if keywords.track_policy_version:
            versions = batch[POLICY_VERSION]
            batch["policy_version"] = versions
            batch["next", "policy_version"] = versions.clone()
        if stacked and isinstance(keywords.cat_results, int):
            parts = zip(batch.exclude(MASK).unbind(0), steps, strict=True)
            batch = torch.cat([part[..., :filled] for part, filled in parts], keywords.cat_results)
        if not keywords.track_traj_ids:
            del batch[TRAJ_IDS]
        result = split_trajectories(batch) if keywords.split_trajs else batch
        if keywords.postproc is not None:
            result = keywords.postproc(result)
        if self.post_collect_hook is not None:
            self.post_collect_hook(result)
        return result

    def _write(self, batch: Any) -> None:
        """Writes a batch to the replay buffer, unless the workers wrote it: part by part, or with `trajs_per_batch` the
        trajectories that ended. A step of all envs of a worker is an item of the buffer, as in TorchRL."""
        if isinstance(batch, WrittenBatch):
            return
        # The first batch fixes the keys of a buffer, and only batches after a setting contain a version.
        batch.pop(SETTINGS_VERSION, None)
        buffer, steps = self.keywords.replay_buffer, self._core.filled_steps
        if (assembler := self._core.assembler) is not None:
            assembler.add(self.convert(batch, steps, self._stacked))
            for frames in assembler.writes(self.keywords.trajs_per_write):
                buffer.extend(_on_device_of(buffer, frames))
            return
        parts = batch.unbind(0) if self._stacked else (batch,)
        for part, filled in zip(parts, steps, strict=True):
            delivered = _on_device_of(buffer, self.convert(part, [filled], stacked=False))
            if _is_shared_and_filled(buffer):
                # Shared memory takes no new keys.
                delivered = delivered.select(*buffer.storage[:0].keys(True, True), strict=False)
            if self.keywords.extend_buffer:
                buffer.extend(delivered)
                continue
            for step in delivered.unbind(-1):
                buffer.add(step)


def _on_device_of(buffer: Any, frames: TensorDictBase) -> TensorDictBase:
    """Returns the frames, on the device of the buffer's storage if it names one."""
    device = getattr(getattr(buffer, "storage", None), "device", None)
    return frames if device in (None, "auto") else frames.to(device)


def _is_shared_and_filled(buffer: Any) -> bool:
    """Whether the buffer is one of TorchRL's in shared memory, whose keys its first write has fixed."""
    return bool(getattr(buffer, "shared", False)) and getattr(buffer.storage, "initialized", False)
