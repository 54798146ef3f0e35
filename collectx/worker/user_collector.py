"""Fills slots with batches of a user-defined collector: a class with the constructor and methods of TorchRL's
collectors.

trainer --weights--> policy --update_policy_weights_--> user's collector --batch--> slot --network--> trainer
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.batch import DONE_KEYS, POLICY_VERSION, TRAJ_IDS, Key, Slot, as_key
from collectx.errors import DataError, WorkerError
from collectx.policy.flat_weights import FlatWeights
from collectx.rollout.episodes import IDS_PER_INCARNATION
from collectx.transport.base import Fill, Link, Request, Reset, SlotReport
from collectx.user_objects import UserCollector, UserEnvConfig, UserPolicyConfig
from collectx.worker.requests import reply_without_state
from collectx.worker.spec import Placement, ProcessSpec, env_seed, seed_policy

_REWARD: Key = ("next", "reward")
_DONE, _TERMINATED, _TRUNCATED = (("next", *key) for key in DONE_KEYS)


class UserCollectorSource:
    """Fills slots with batches of the user's collector; see `collectx.worker.slot_loop.BatchSource`.

    A reset calls the collector's `reset` and `set_seed`. Newer weights are copied into the policy's tensors, then
    passed to the collector's `update_policy_weights_`, if it has this method.
    """

    def __init__(self, spec: ProcessSpec, user_collector: UserCollector, link: Link):
        placement = self._placement = spec.placement
        seed_policy(spec.cfg.seed, placement)
        if spec.hooks.init_fn is not None:
            spec.hooks.init_fn()
        self._hooks = spec.hooks
        self._link = link
        self._name = user_collector.name
        self._slots = link.slots
        self._layout = _Layout(f"{user_collector.name} of worker {placement.worker}", self._slots[0])
        policy, env, num_workers = spec.cfg.policy, spec.cfg.env, user_collector.num_workers
        self._policy: Any = None  # random actions
        if isinstance(policy, UserPolicyConfig):
            self._policy = policy.policy if policy.factory is None else policy.factory()
        self._weights = FlatWeights(self._policy if isinstance(self._policy, nn.Module) else None)
        assert isinstance(env, UserEnvConfig)
        create_env = functools.partial(env.create, **env.kwargs) if env.kwargs else env.create
        self._collector: Any = user_collector.create(
            create_env if num_workers is None else [create_env] * num_workers,
            self._policy,
            frames_per_batch=self._layout.frames,
            total_frames=-1,
            **user_collector.kwargs,
        )
        if hasattr(self._collector, "set_seed"):
            self._seed(env_seed(spec.cfg.seed, placement.run_index, placement.incarnation))
        self._batches = iter(self._collector)
        self._trajectories = _Trajectories(self._layout.rows, placement)
        self._version = spec.first_version
        # The trainer's version for each version of the collector.
        self._versions = {getattr(self._collector, "policy_version", None): self._version}

    def refresh(self) -> None:
        newest = self._link.refresh(self._weights.read, self._version)
        if newest == self._version:
            return
        self._version = newest
        if self._weights.nbytes and hasattr(self._collector, "update_policy_weights_"):
            self._collector.update_policy_weights_(TensorDict.from_module(self._policy).data)
        self._versions[getattr(self._collector, "policy_version", None)] = newest

    def fill(self, grant: Fill) -> SlotReport:
        hooks, tensors = self._hooks, self._slots[grant.slot].tensors
        if grant.reset is not None:
            self._do_reset(grant.reset)
        if hooks.pre_collect_hook is not None:
            hooks.pre_collect_hook()
        began = perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise WorkerError(
                f"{self._name} of worker {self._placement.worker} ended, although it was created with total_frames=-1. "
                "Let it return batches until the trainer stops it."
            ) from None
        seconds = perf_counter() - began
        if hooks.post_collect_hook is not None:
            hooks.post_collect_hook(batch)
        leaves = self._layout.leaves_of(batch)
        for key, value in leaves.items():
            tensors[key].copy_(value.reshape(tensors[key].shape))
        version = self._translate_versions(tensors[POLICY_VERSION], POLICY_VERSION in leaves)
        returns, lengths = self._trajectories.take(tensors, TRAJ_IDS in leaves)
        # The collector does not report how it spent its time, so all of it counts as the env's.
        return SlotReport(version, self._layout.frames, seconds, 0.0, returns, lengths)

    def _translate_versions(self, versions: torch.Tensor, has_versions: bool) -> int:
        """Replaces the collector's versions in a slot, if any, by the trainer's versions; returns that of the first
        frame."""
        numbers = versions.unique().tolist() if has_versions else []
        translated = {number: self._versions.get(number, self._version) for number in numbers}
        if len(translated) < 2:
            versions.fill_(next(iter(translated.values()), self._version))
        else:
            versions.apply_(lambda number: translated[number])
        return int(versions[0, 0])

    def _do_reset(self, reset: Reset) -> None:
        method = "reset" if reset.seed is None else "set_seed"
        if not hasattr(self._collector, method):
            raise NotImplementedError(
                f"{self._name} of worker {self._placement.worker} has no method {method}(), which the trainer called. "
                "Add it."
            )
        self._trajectories.abandon()
        if reset.seed is None:
            self._collector.reset()
        elif reset.static:
            self._seed(reset.seed, static_seed=True)
        else:
            self._seed(env_seed(reset.seed, self._placement.run_index, self._placement.incarnation))

    def _seed(self, seed: int, **options: bool) -> None:
        self._collector.set_seed(seed, **options)
        # TorchRL's collectors continue the current trajectories unless they are reset.
        if hasattr(self._collector, "reset"):
            self._collector.reset()

    def reply(self, request: Request) -> None:
        reply_without_state(self._link, request)

    def close(self) -> None:
        for name in ("shutdown", "close"):
            if hasattr(self._collector, name):
                getattr(self._collector, name)()
                return


class _Layout:
    """The leaves of the trainer's slots, which every batch must contain."""

    def __init__(self, name: str, slot: Slot):
        self._name = name
        # Shape and dtype of each leaf, as text.
        self._expected = {key: _kind(tensor, 2) for key, tensor in slot.tensors.items()}
        self.rows, self.steps = (int(size) for size in next(iter(slot.tensors.values())).shape[:2])
        self.frames = self.rows * self.steps

    def leaves_of(self, batch: Any) -> dict[Key, torch.Tensor]:
        """Returns the leaves of a batch, and adds missing `DONE_KEYS` that follow from others. `TRAJ_IDS` and
        `POLICY_VERSION` may be missing. Raises `DataError` if the batch does not fit the slots."""
        if not isinstance(batch, TensorDictBase):
            raise DataError(
                f"{self._name} returned a value of type {type(batch).__name__}, but must return a TensorDict of frames"
            )
        size = tuple(batch.batch_size)
        if not size or size[-1] != self.steps or math.prod(size) != self.frames:
            raise DataError(
                f"{self._name} returned a batch of size {list(size)}, but the trainer expects {self.frames:,} frames "
                f"with time as the last dimension: [{self.steps}] or [{self.rows}, {self.steps}]"
            )
        leaves = {as_key(key): value for key, value in batch.items(include_nested=True, leaves_only=True)}
        _complete(leaves)
        kinds = {key: _kind(value, len(size)) for key, value in leaves.items()}
        expected = {key: kind for key, kind in self._expected.items() if key in kinds or key not in _OPTIONAL}
        if kinds != expected:
            missing = [f"{'.'.join(key)} {expected[key]} is missing" for key in expected if key not in kinds]
            different = [
                f"{'.'.join(key)} {kinds[key]} should be {kind}"
                for key, kind in expected.items()
                if kinds.get(key, kind) != kind
            ]
            unexpected = [f"{'.'.join(key)} {kinds[key]} is unexpected" for key in kinds if key not in expected]
            raise DataError(
                f"{self._name} returned a batch that does not match what the trainer's env and policy write (shapes of "
                f"one frame): {'; '.join([*missing, *different, *unexpected])}. Return the same keys, shapes and "
                "dtypes."
            )
        return leaves


# Leaves that a batch may lack.
_OPTIONAL = (TRAJ_IDS, POLICY_VERSION)


def _complete(leaves: dict[Key, torch.Tensor]) -> None:
    """Adds missing flags: done is terminated or truncated; the flags before a step are false."""
    done, terminated, truncated = (leaves.get(key) for key in (_DONE, _TERMINATED, _TRUNCATED))
    if done is None and terminated is not None and truncated is not None:
        leaves[_DONE] = done = terminated | truncated
    if done is None:
        return
    if truncated is None and terminated is not None:
        leaves[_TRUNCATED] = done & ~terminated
    if terminated is None and truncated is not None:
        leaves[_TERMINATED] = done & ~truncated
    for key in DONE_KEYS:
        leaves.setdefault(key, torch.zeros_like(done))


class _Trajectories:
    """Makes trajectory ids unique in the run, and computes returns and lengths of episodes. If the collector provides
    no ids, row e of its batches must contain the successive frames of env e."""

    def __init__(self, rows: int, placement: Placement):
        self._next = np.arange(rows, dtype=np.int64)
        self._stride = placement.num_workers
        first_id = placement.incarnation * IDS_PER_INCARNATION * placement.num_workers
        self._offset = placement.run_index + first_id
        # Return and length of each unfinished trajectory, by id; the one with the newest frame is last.
        self._running: dict[int, tuple[float, int]] = {}

    def abandon(self) -> None:
        """Drops all unfinished trajectories, at a reset."""
        self._next += len(self._next)
        self._running.clear()

    def take(self, tensors: Mapping[Key, torch.Tensor], has_ids: bool) -> tuple[np.ndarray, np.ndarray]:
        """Writes trajectory ids that are unique in the run into a slot; returns the returns and lengths of the episodes
        that ended in it, `[episodes]`, in the order of their ends. `has_ids` says whether the slot already contains the
        collector's own ids."""
        reward, done = (tensors[key][..., 0].numpy() for key in (_REWARD, _DONE))
        slot_ids = tensors[TRAJ_IDS].numpy()
        local_ids = slot_ids.copy() if has_ids else self._ids_by_row(done)
        is_filled = (local_ids >= 0).T.ravel()  # padding has the id -1
        slot_ids[:] = np.where(local_ids < 0, -1, local_ids * self._stride + self._offset)
        ids, reward, done = (each.T.ravel()[is_filled] for each in (local_ids, reward, done))
        names, places = np.unique(ids, return_inverse=True)
        totals, counts = np.bincount(places, reward), np.bincount(places)
        for name, total, count in zip(names.tolist(), totals.tolist(), counts.tolist(), strict=True):
            before, earlier = self._running.pop(name, (0.0, 0))
            self._running[name] = (before + total, earlier + count)
        ended = dict.fromkeys(ids[done].tolist())
        results = [self._running.pop(name) for name in ended]
        while len(self._running) > 4 * len(self._next):
            del self._running[next(iter(self._running))]  # ended by a reset
        columns = np.array(results, dtype=np.float64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1].astype(np.int64)

    def _ids_by_row(self, done: np.ndarray) -> np.ndarray:
        rows = len(self._next)
        ends = np.cumsum(done, axis=1, dtype=np.int64)
        ids = self._next[:, None] + (ends - done) * rows
        self._next += ends[:, -1] * rows
        return ids


def _kind(tensor: torch.Tensor, num_batch_dims: int) -> str:
    return f"{list(tensor.shape[num_batch_dims:])} {tensor.dtype}"
