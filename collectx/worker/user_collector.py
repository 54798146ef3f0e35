"""A worker that runs a collector of the user's own: a class that is called as TorchRL's collectors are, and whose
batches are handed over as they come.

    trainer --weights--> policy --update_policy_weights_--> the collector --batch--> slot --network--> trainer

Runs in the worker's process, in place of `collectx/worker/rollout_source.py`'s `rollout_worker`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.batch import DONE_KEYS, POLICY_VERSION, TRAJ_IDS, Key, Slot, as_key
from collectx.errors import ShapeError, WorkerError
from collectx.policy.weights import FlatWeights
from collectx.transport.base import NO_RESET, Link, decode_reset
from collectx.user_objects import UserCollector, UserEnvConfig, UserPolicyConfig
from collectx.worker.loop import BatchStats, run_worker_loop
from collectx.worker.spec import WorkerSpec, env_seed, seed_policy

_REWARD: Key = ("next", "reward")
_DONE, _TERMINATED, _TRUNCATED = (("next", *key) for key in DONE_KEYS)


def run_user_collector(task: WorkerSpec, given: UserCollector, link: Link) -> Generator[None]:
    """Fills granted slots with the batches of the user's collector; yields after each that it has sent."""
    seed_policy(task, is_guest=False)
    if task.hooks.init_fn is not None:
        task.hooks.init_fn()
    yield from run_worker_loop(link, UserCollectorSource(task, given, link))


class UserCollectorSource:
    """Batches of the user's collector (`collectx.worker.loop.BatchSource`).

    Of what the trainer asks, `reset` and `set_seed` are called where it has them; newer weights are copied into its
    policy's tensors, then given to its `update_policy_weights_`, if it has one.
    """

    def __init__(self, task: WorkerSpec, given: UserCollector, link: Link):
        self._task = task
        self._link = link
        self._name = given.name
        self._layout = _Layout(f"worker {task.worker}: {given.name}", link.slots[0])
        self._policy = _policy(task)
        module = self._policy if isinstance(self._policy, nn.Module) else None
        self._weights = FlatWeights(module)
        creates = _create_env(task) if given.num_workers is None else [_create_env(task)] * given.num_workers
        self._collector: Any = given.create(
            creates, self._policy, frames_per_batch=self._layout.frames, total_frames=-1, **given.kwargs
        )
        if hasattr(self._collector, "set_seed"):
            self._seed(env_seed(task.seed, task.index, task.life))
        self._batches = iter(self._collector)
        self._trajectories = _Trajectories(self._layout.rows, task)
        self._version = task.first_version
        # By which number the trainer knows the weights that the collector numbers itself.
        self._versions = {self._own_version(): self._version}

    def refresh(self) -> None:
        newest = self._link.refresh(self._weights.read, self._version)
        if newest == self._version:
            return
        self._version = newest
        if self._weights.nbytes and hasattr(self._collector, "update_policy_weights_"):
            self._collector.update_policy_weights_(TensorDict.from_module(self._policy).data)
        self._versions[self._own_version()] = newest

    def fill(self, slot: int, order: int) -> BatchStats:
        hooks, tensors = self._task.hooks, self._link.slots[slot].tensors
        if order != NO_RESET:
            self._begin_anew(order)
        if hooks.pre_collect_hook is not None:
            hooks.pre_collect_hook()
        began = perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise WorkerError(
                f"worker {self._task.worker}: {self._name} has ended, and was made with total_frames=-1, which is never"
            ) from None
        seconds = perf_counter() - began
        if hooks.post_collect_hook is not None:
            hooks.post_collect_hook(batch)
        leaves = self._layout.leaves_of(batch)
        for key, value in leaves.items():
            tensors[key].copy_(value.reshape(tensors[key].shape))
        version = self._acted(tensors[POLICY_VERSION], POLICY_VERSION in leaves)
        returns, lengths = self._trajectories.take(tensors, TRAJ_IDS in leaves)
        # How its time was spent it does not tell: all of it counts as the env's.
        return BatchStats(version, seconds, 0.0, returns, lengths)

    def _acted(self, versions: torch.Tensor, is_told: bool) -> int:
        """Writes the versions of the weights that acted, as the trainer numbers them; returns the first frame's."""
        told = versions.unique().tolist() if is_told else []
        known = {number: self._versions.get(number, self._version) for number in told}
        if len(known) < 2:
            versions.fill_(next(iter(known.values()), self._version))
        else:
            versions.apply_(lambda number: known[number])
        return int(versions[0, 0])

    def _own_version(self) -> Any:
        return getattr(self._collector, "policy_version", None)

    def _begin_anew(self, order: int) -> None:
        given = decode_reset(order)
        wanted = "reset" if given is None else "set_seed"
        if not hasattr(self._collector, wanted):
            raise NotImplementedError(f"worker {self._task.worker}: {self._name} has no {wanted}(), and was asked for")
        self._trajectories.abandon()
        if given is None:
            self._collector.reset()
            return
        seed, static = given
        if static:
            self._collector.set_seed(seed, static_seed=True)
            self._reset()
        else:
            self._seed(env_seed(seed, self._task.index, self._task.life))

    def _seed(self, seed: int) -> None:
        self._collector.set_seed(seed)
        self._reset()

    def _reset(self) -> None:
        # TorchRL's go on with the trajectories that they have begun.
        if hasattr(self._collector, "reset"):
            self._collector.reset()

    def reply(self) -> None:
        """Nobody asks over a network."""

    def close(self) -> None:
        for name in ("shutdown", "close"):
            if hasattr(self._collector, name):
                getattr(self._collector, name)()
                return


def _policy(task: WorkerSpec) -> Any:
    if not isinstance(task.policy, UserPolicyConfig):
        return None  # random actions
    return task.policy.policy if task.policy.factory is None else task.policy.factory()


def _create_env(task: WorkerSpec) -> Any:
    env = task.env
    assert isinstance(env, UserEnvConfig)
    return functools.partial(env.create, **env.kwargs) if env.kwargs else env.create


class _Layout:
    """What the trainer's slots hold, and how a batch is fitted to it.

    Args:
        whose: names the collector in messages.
    """

    def __init__(self, whose: str, slot: Slot):
        self._whose = whose
        self._wanted = {key: (tuple(tensor.shape[2:]), tensor.dtype) for key, tensor in slot.tensors.items()}
        self.rows, self.steps = (int(size) for size in next(iter(slot.tensors.values())).shape[:2])

    @property
    def frames(self) -> int:
        """Of a slot."""
        return self.rows * self.steps

    def leaves_of(self, batch: Any) -> dict[Key, torch.Tensor]:
        """The batch's leaves, those that follow from others added.

        Raises:
            ShapeError: they are not those of a slot; `TRAJ_IDS` and `POLICY_VERSION` may be missing.
        """
        if not isinstance(batch, TensorDictBase):
            raise ShapeError(f"{self._whose} gave a {type(batch).__name__}, not a TensorDict of frames")
        size = tuple(batch.batch_size)
        if not size or size[-1] != self.steps or math.prod(size) != self.frames:
            raise ShapeError(
                f"{self._whose} gave a batch of size {list(size)}: the trainer expects {self.frames} frames, time "
                f"last, as [{self.steps}] or [{self.rows}, {self.steps}]"
            )
        leaves = {as_key(key): value for key, value in batch.items(include_nested=True, leaves_only=True)}
        _complete(leaves)
        told = {key: (tuple(value.shape[len(size) :]), value.dtype) for key, value in leaves.items()}
        wanted = {key: kind for key, kind in self._wanted.items() if key in told or key not in _FILLED_IN}
        if told != wanted:
            raise ShapeError(self._unlike(told, wanted))
        return leaves

    def _unlike(self, told: Mapping[Key, Any], wanted: Mapping[Key, Any]) -> str:
        lacks = [f"{_named(key, wanted[key])} is missing" for key in wanted if key not in told]
        differs = [
            f"{_named(key, told[key])} should be {_kind(wanted[key])}"
            for key in wanted
            if key in told and told[key] != wanted[key]
        ]
        more = [f"{_named(key, told[key])} has no place" for key in told if key not in wanted]
        return (
            f"{self._whose} gave a batch that is not what the trainer's env and policy write (shapes of one frame): "
            f"{'; '.join([*lacks, *differs, *more])}"
        )


# What a batch may lack, and is told otherwise.
_FILLED_IN = (TRAJ_IDS, POLICY_VERSION)


def _complete(leaves: dict[Key, torch.Tensor]) -> None:
    """Adds what follows: done = terminated | truncated, and no frame starts from a final state."""
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
    """Trajectory ids that are unique over the run, and how episodes went. Where a collector gives no ids of its own,
    row e of its batches is env e: frames of it one after the other, from batch to batch."""

    def __init__(self, rows: int, task: WorkerSpec):
        self._next = np.arange(rows, dtype=np.int64)
        self._stride = task.num_workers
        self._offset = task.index + task.life * 2**32 * task.num_workers
        # Return and length of those under way; the one heard of last stands last.
        self._running: dict[int, tuple[float, int]] = {}

    def abandon(self) -> None:
        """Those under way do not go on."""
        self._next += len(self._next)
        self._running.clear()

    def take(self, tensors: Mapping[Key, torch.Tensor], is_told: bool) -> tuple[np.ndarray, np.ndarray]:
        """Writes the ids of a slot; returns and lengths of the episodes that ended in it, in order of time.

        Args:
            is_told: whether the collector's own ids are in the slot.
        """
        reward, done = (tensors[key][..., 0].numpy() for key in (_REWARD, _DONE))
        slot_ids = tensors[TRAJ_IDS].numpy()
        own = slot_ids.copy() if is_told else self._by_rows(done)
        slot_ids[:] = own * self._stride + self._offset
        ids = own.T.ravel()
        names, places = np.unique(ids, return_inverse=True)
        totals, counts = np.bincount(places, reward.T.ravel()), np.bincount(places)
        for name, total, count in zip(names.tolist(), totals.tolist(), counts.tolist(), strict=True):
            before, earlier = self._running.pop(name, (0.0, 0))
            self._running[name] = (before + total, earlier + count)
        ended = dict.fromkeys(ids[done.T.ravel()].tolist())
        results = [self._running.pop(name) for name in ended]
        while len(self._running) > 4 * len(self._next):
            del self._running[next(iter(self._running))]  # cut short by a reset
        columns = np.array(results, dtype=np.float64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1].astype(np.int64)

    def _by_rows(self, done: np.ndarray) -> np.ndarray:
        rows = len(self._next)
        ends = np.cumsum(done, axis=1, dtype=np.int64)
        ids = self._next[:, None] + (ends - done) * rows
        self._next += ends[:, -1] * rows
        return ids


def _kind(kind: tuple[tuple[int, ...], torch.dtype]) -> str:
    return f"{list(kind[0])} {kind[1]}"


def _named(key: Key, kind: tuple[tuple[int, ...], torch.dtype]) -> str:
    return f"{'.'.join(key)} {_kind(kind)}"
