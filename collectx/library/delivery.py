"""Delivers batches in the form that the user asked for, or writes them to a replay buffer. Runs in the thread that
iterates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import POLICY_VERSION, TRAJ_IDS, Key
from collectx.collector.batch_info import WrittenBatch
from collectx.collector.stream import Stream
from collectx.config.schema.collector import CollectorConfig
from collectx.env.base import EnvSpec
from collectx.errors import ShapeError
from collectx.library.keywords import Keywords
from collectx.trajectories import split_trajectories


class Delivery:
    """The batches of a stream in the form of TorchRL's.

    Attributes:
        num_collected: number of batches that were collected.
        post_collect_hook: called with every batch as it is delivered; None if workers of other processes call it.
    """

    def __init__(self, keywords: Keywords, options: CollectorConfig, stream: Stream, spec: EnvSpec):
        self.num_collected = 0
        self.post_collect_hook = None if keywords.has_workers else keywords.post_collect_hook
        self._keywords = keywords
        self._stream, self._core = stream, stream.core
        self._cuts = [("truncated",), ("done",), *(spec.observation[index].key for index in spec.agents_cuts)]
        # Whether the first dimension of a batch is that of the workers.
        self._stacked = options.schedule == "sync"
        # The TensorDict that every batch is copied into, with `return_same_td`.
        self._reused: TensorDictBase | None = None

    def next(self) -> Any:
        """Collects a batch and returns what is delivered; None if it went to the replay buffer.

        Raises:
            StopIteration: `total_frames` are collected.
        """
        keywords = self._keywords
        if keywords.replay_buffer is not None:
            self._write(self._collect())
            return None
        batch = self._stream.next(self._convert_next)
        if keywords.return_same_td:
            if self._reused is not None and self._reused.shape == batch.shape:
                batch = self._reused.copy_(batch)
            self._reused = batch
        return batch

    def _collect(self) -> Any:
        batch = self._stream.collect()
        self.num_collected += 1
        added = [part.report.added for part in self._core.delivery.parts]
        if any(added) and not isinstance(batch, WrittenBatch):
            self._add(batch, added)
        return batch

    def _convert_next(self) -> Any:
        return self.convert(self._collect(), self._core.steps, self._stacked)

    def _add(self, batch: TensorDict, parts: Sequence[dict[Key, torch.Tensor]]) -> None:
        """Adds what the hooks of the workers have added to their parts."""
        forms = [{key: (*value.shape[2:], value.dtype) for key, value in added.items()} for added in parts]
        if any(form != forms[0] for form in forms):
            raise ShapeError(f"the post_collect_hook of the workers adds different keys, shapes or dtypes: {forms}")
        rows = batch.unbind(0) if self._stacked else (batch,)
        for key, value in parts[0].items():
            whole = value.new_zeros(*batch.shape, *value.shape[2:], device=batch.device)
            for part, added, frames in zip(rows, parts, whole if self._stacked else (whole,), strict=True):
                filled = added[key].reshape(*part.shape[:-1], -1, *value.shape[2:])
                frames.narrow(part.ndim - 1, 0, filled.shape[part.ndim - 1]).copy_(filled)
            batch[key] = whole

    def zeros(self, steps_of_workers: Sequence[int | None]) -> Any:
        """A batch of zeros as `next` returns it.

        Args:
            steps_of_workers: steps of each worker's part; None: all of it.
        """
        batch = self._core.zeros()
        if self._keywords.set_truncated:
            for key in self._cuts:
                batch["next", *key].select(batch.ndim - 1, -1).fill_(True)
        steps = [each or batch.shape[-1] for each in steps_of_workers]
        self._stream.mask(batch, steps)
        return self.convert(batch, steps, self._stacked)

    def convert(self, batch: Any, steps: Sequence[int], stacked: bool) -> Any:
        """Returns the batch in the form that the user asked for.

        Args:
            steps: for each part, how many steps are filled.
            stacked: whether the first dimension of the batch is that of the workers.
        """
        keywords = self._keywords
        if not stacked and steps[0] < batch.shape[-1]:
            batch = batch[..., : steps[0]]
        if keywords.track_policy_version:
            versions = batch[POLICY_VERSION]
            batch["policy_version"] = versions
            batch["next", "policy_version"] = versions.clone()
        if stacked and isinstance(keywords.cat_results, int):
            parts = zip(batch.unbind(0), steps, strict=True)
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
        """Writes a batch to the replay buffer, part by part, or the trajectories that have ended; nothing if a worker
        has written it. As with TorchRL, an item is one frame; with several envs per worker, it is a row of frames."""
        if isinstance(batch, WrittenBatch):
            return
        buffer, steps = self._keywords.replay_buffer, self._core.steps
        if (assembler := self._stream.assembler) is not None:
            assembler.add(self.convert(batch, steps, self._stacked))
            for frames in assembler.writes(self._keywords.trajs_per_write):
                buffer.extend(_on_device_of(buffer, frames))
            return
        parts = batch.unbind(0) if self._stacked else (batch,)
        for part, filled in zip(parts, steps, strict=True):
            delivered = _on_device_of(buffer, self.convert(part, [filled], stacked=False))
            if _is_shared_and_filled(buffer):
                # A key that memory of several processes lacks cannot be added.
                delivered = delivered.select(*buffer.storage[:0].keys(True, True), strict=False)
            if self._keywords.extend_buffer:
                buffer.extend(delivered)
                continue
            for step in delivered.unbind(-1):
                buffer.add(step)


def _on_device_of(buffer: Any, frames: TensorDictBase) -> TensorDictBase:
    """The frames on the device of the buffer's storage, if that has one."""
    device = getattr(getattr(buffer, "storage", None), "device", None)
    return frames if device in (None, "auto") else frames.to(device)


def _is_shared_and_filled(buffer: Any) -> bool:
    """Whether a replay buffer is one of TorchRL's in shared memory whose keys are given by what was written before."""
    return bool(getattr(buffer, "shared", False)) and getattr(buffer.storage, "initialized", False)
