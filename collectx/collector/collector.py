"""The collector: a schedule over a transport. Yields batches and publishes weights."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing.util import Finalize
from time import perf_counter
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.batch import POLICY_VERSION, SETTINGS_VERSION
from collectx.collector import saved_state
from collectx.collector.batch_info import BatchInfo, BatchSpec, WrittenBatch
from collectx.collector.pool import WorkerPool
from collectx.collector.saved_state import CollectorState
from collectx.collector.worker_record import Setting, Settings, WorkerState
from collectx.config.schema.collector import CollectorConfig
from collectx.policy.flat_weights import FlatWeights, check_finite
from collectx.rollout.episodes import IDS_PER_INCARNATION
from collectx.schedule.base import Grant, Schedule
from collectx.trajectories import Assembler, add_mask
from collectx.transport.base import PLAIN_REQUESTS, Arrival, Departure, Joined, Reset, Transport, WeightWriters
from collectx.transport.messages import packed, unpacked
from collectx.worker.spec import INCARNATIONS_PER_WORKER, env_seed

# What a user called, for messages, where a request has another name.
_CALLS = {
    "envs": "env",
    "load_weights": "loading weights into a module of the envs",
    "profile": "enable_profile",
    "set_hook": "replacing a hook",
}


class ExclusiveUse:
    """Lets one call at a time use a collector, in the process that made it. A `with` block raises `RuntimeError` in
    other processes, if another thread is in a block, and if a hook or an env calls the collector during a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # The thread that is in a block.
        self._thread: int | None = None

    @property
    def is_this_process(self) -> bool:
        """Whether this process made the collector; False in a fork of that process."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises `RuntimeError` if another process made the collector."""
        if not self.is_this_process:
            raise RuntimeError(
                f"this collector belongs to process {self._pid}, but was called in its fork {os.getpid()}. Both would "
                "consume the same frames. Create a collector in this process, or send it the batches."
            )

    def check_not_within(self, name: str) -> None:
        """Raises `RuntimeError` if this thread is in a block, so that a hook or an env calls the method `name`."""
        if self._thread == threading.get_ident():
            raise RuntimeError(
                f"{name}() was called by a hook, an env or the policy of this collector while it was collecting a "
                "batch. Call it between two batches."
            )

    def __enter__(self) -> None:
        self.check_process()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this collector is already in use: by another thread, or by one of its own hooks or envs. Take its "
                "batches in one thread, and pass them to others through a queue.Queue."
            )
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._thread = None
        self._lock.release()


class CollectorCore(Iterator[Any], AbstractContextManager["CollectorCore"]):
    """Yields batches until `total_frames` are delivered: TensorDicts of `frames_per_batch` frames
    (`collectx/batch.py`); or a `WrittenBatch` for each, if workers write them to a replay buffer. A sync batch is
    smaller while workers are missing. With `collector.preemptive_threshold`, batches have a mask. After the first
    `set_attr` or `call`, each frame has a settings version.

    Attributes:
        assembler: joins batches to complete trajectories for the consumer, see `join_trajectories`; None: the consumer
            takes the batches as they are. Its frames are a part of the state.
        last_batch_info: the metadata of the last delivered batch.
        exclusive_use: a block around each use of the collector; raises in other processes.
        policy_version: the newest published version.
        leaves: the key, shape and dtype of each tensor of a frame.
        num_frames, num_batches: numbers of frames and batches delivered so far.
    """

    last_batch_info: BatchInfo

    def __init__(self, transport: Transport, schedule: Schedule, spec: BatchSpec, pool: WorkerPool):
        self.transport = transport
        self.exclusive_use = ExclusiveUse()
        self._schedule = schedule
        self._spec = spec
        # Whether the consumer owns a batch on the CPU: a leased region, or a copy if none is free. `_copy_to` is the
        # other device to which batches are copied. With neither (`zero_copy`), a batch is a view of the slots.
        is_elsewhere = spec.storing_device is not None and spec.storing_device.type != "cpu"
        self._is_owned = not spec.zero_copy and not is_elsewhere
        self._copy_to = spec.storing_device if is_elsewhere and not spec.zero_copy else None
        self.pool = pool
        self.num_batches = 0
        self._is_interrupted = False
        self.num_frames = 0
        self._failure: Exception | None = None
        # The parts of the next batch, once it is complete, until it is counted as delivered.
        self._next_parts: tuple[Arrival, ...] | None = None
        # Delivered parts whose slots are not released yet.
        self._delivered: tuple[Arrival, ...] = ()
        self.settings: Settings = pool.settings
        # The settings version for each granted or filled slot, by worker and slot; 0 without an entry.
        self._settings_of_slots: dict[tuple[int, int], int] = {}
        # The memory of undelivered batches of a loaded state, by the negative slot number of their parts.
        self._restored: dict[int, torch.Tensor] = {}
        self.policy_version = -1
        self.assembler: Assembler | None = None
        self.total_frames = spec.total_frames
        self.leaves = spec.slots.leaves
        # Also runs at exit, before multiprocessing joins its processes, so a collector that is not closed leaves no
        # process behind and does not block the exit. Does not run in a forked process.
        self._finalizer = Finalize(self, transport.close, exitpriority=0)

    def __next__(self) -> Any:
        """Returns the next batch; blocks until it is complete.

        Raises:
            RuntimeError: the collector is closed, belongs to another process, or is in use by another thread.
            WorkerTimeout, WorkerDied, Exception: a worker failed, and `collector.on_worker_failure` ends the run.
        """
        spec = self._spec
        with self.exclusive_use:
            parts, waited_s = self._wait_for_parts()
            if spec.is_written:
                self._count(parts, waited_s)
                self._release_slots()
                return WrittenBatch(self.last_batch_info.frames)
            memory = self._deliver(parts)
            self._count(parts, waited_s)
            if not spec.zero_copy:
                self._release_slots()
            batch = spec.batch(memory, len(parts))
            if settings := self.last_batch_info.settings:
                versions = torch.tensor(settings, device=batch.device).view(-1, *[1] * (batch.ndim - 1))
                batch[SETTINGS_VERSION] = versions.expand(batch.shape).clone()
            if spec.has_gaps:
                add_mask(batch, self.filled_steps)
            return batch

    def grant_next_batch(self) -> None:
        """Lets the workers begin the next batch, as `next` does before it waits. Does not block. Does nothing while too
        few workers are ready. With `zero_copy`, invalidates the last batch.
        """
        with self.exclusive_use:
            if 0 <= self._spec.total_frames <= self.num_frames or self.pool.must_wait_for_workers:
                return
            self.check_usable()
            self._grant_next()

    def _grant_next(self) -> None:
        self._release_slots()
        # After an interrupted call, a complete batch may be left, whose slots are not free yet.
        if self._next_parts is None and not self.pool.must_wait_for_workers:
            self._grant(self._schedule.batch_requested())

    def wait_until_idle(self) -> None:
        """Blocks until the workers have filled their granted slots, and counts these batches as delivered, as workers
        have written them to a replay buffer or a state replaces them. The workers stay idle until `next`. Raises the
        errors of `next`."""
        self.check_usable()
        with self.exclusive_use:
            while (parts := self._take_parts()) or self._has_granted_slots:
                if parts:
                    self._count(parts, 0.0)
                else:
                    self._handle_event()

    def wait_until_filled(self) -> None:
        """Blocks until the workers have filled their granted slots, whose batches are delivered later. Raises the
        errors of `next`."""
        with self.exclusive_use:
            while self._has_granted_slots:
                self._handle_event()

    def _wait_for_parts(self) -> tuple[tuple[Arrival, ...], float]:
        """Returns the parts of the next batch, and the seconds for which this blocked."""
        if 0 <= self._spec.total_frames <= self.num_frames:
            raise StopIteration
        self.check_usable()
        began = perf_counter()
        while self.pool.must_wait_for_workers and not self._restored:
            self._handle_event()
        self._grant_next()
        while (parts := self._take_parts()) is None:
            if not self.pool.must_wait_for_workers:
                self._grant(self._schedule.batch_awaited())
            self._handle_event()
        return parts, perf_counter() - began

    def check_usable(self) -> None:
        """Raises `RuntimeError` if the collector is closed, or the error that ended it."""
        if not self._finalizer.still_active():
            raise RuntimeError("this collector is closed. Create a new one.")
        if self._failure is not None:
            raise self._failure

    def _take_parts(self) -> tuple[Arrival, ...] | None:
        """Returns the parts of the next batch, None while it is incomplete. Until they are counted, a further call
        returns them again."""
        if self._next_parts is None:
            self._next_parts = self._schedule.next_batch()
        return self._next_parts

    def _deliver(self, parts: tuple[Arrival, ...]) -> torch.Tensor:
        """Returns the memory of a batch for its consumer."""
        if self._copy_to is not None:
            return self._gather(parts, copy=False).to(self._copy_to, copy=True)
        if self._is_owned and parts[0].slot not in self._restored:
            leased = self.transport.lease(parts)
            if leased is not None:
                return leased
        # A restored batch is delivered once, so it need not be copied.
        return self._gather(parts, copy=self._is_owned and parts[0].slot not in self._restored)

    def _gather(self, parts: tuple[Arrival, ...], copy: bool) -> torch.Tensor:
        restored = self._restored.get(parts[0].slot)
        if restored is None:
            return self.transport.gather(parts, copy)
        return restored.clone() if copy else restored

    def _count(self, parts: tuple[Arrival, ...], waited_s: float) -> None:
        self._next_parts, self._delivered = None, self._delivered + parts
        self._restored.pop(parts[0].slot, None)
        frames = sum(part.report.frames for part in parts)
        settings = tuple(self._settings_version(part) for part in parts) if self.settings.version else ()
        self.last_batch_info = BatchInfo(self.num_batches, frames, parts, self.policy_version, waited_s, settings)
        self.num_batches += 1
        self.num_frames += frames
        for part in parts:
            worker = self.pool.records[part.worker]
            worker.num_frames += part.report.frames
            worker.num_parts += 1

    def _release_slots(self) -> None:
        parts, self._delivered = self._delivered, ()
        if parts:
            self.transport.release(parts)
            self._grant(self._schedule.released(parts))

    def _grant(self, grants: Iterable[Grant]) -> None:
        for index, slot in grants:
            worker = self.pool.records[index]
            worker.num_granted += 1
            if self.settings.version:
                self._settings_of_slots[index, slot] = worker.settings_version
            self.transport.grant(index, slot, worker.take_reset(), self._schedule.version_of(slot))

    def _handle_event(self) -> None:
        """Blocks until the next event of the transport, and handles it."""
        event = self.transport.receive()
        if isinstance(event, Arrival):
            self.pool.records[event.worker].num_granted -= 1
            self._schedule.arrived(event)
        elif isinstance(event, Joined):
            self.pool.handle_joined(event)
        elif isinstance(event, Departure):
            with self._final_errors():
                grants = self.pool.handle_departure(event, self._is_interrupted)
            self._grant(grants)
        elif self.pool.records[event.worker].first_requests:
            with self._final_errors():
                self.pool.handle_first_reply(event, self.num_batches)
        else:
            with self._final_errors():
                self.pool.handle_reply(event)

    @contextmanager
    def _final_errors(self) -> Iterator[None]:
        """Stores an error that the block raises, so that every later use of the collector raises it again."""
        try:
            yield
        except Exception as failure:
            self._failure = failure
            raise

    def join_trajectories(
        self,
        options: CollectorConfig,
        say: Callable[[str], object],
        prefix: str = "",
        post_traj: Callable[[TensorDictBase], TensorDictBase | None] | None = None,
    ) -> None:
        """Makes the assembler, with `collector.trajs_per_batch`; see `collectx.trajectories.Assembler`."""
        if options.trajs_per_batch is not None:
            count, ends_with_batch = options.trajs_per_batch, options.reset_at_each_iter
            arguments = count, options.traj_format, ends_with_batch, post_traj, say, prefix, self.env_of
            self.assembler = Assembler(*arguments)

    @property
    def filled_steps(self) -> list[int]:
        """The number of filled steps of each part of the last batch."""
        return [part.report.frames // self._spec.slots.rows for part in self.last_batch_info.parts]

    def publish(self, policy: nn.Module | None) -> int:
        """Publishes a copy of the policy's current weights as a new version; returns its number, 0 the first time. A
        worker acts with it from its next batch on. With `collector.overlap=1`, it does so from the batch after that. An
        async worker over a network does not wait for new weights before a batch. In the reproduction of an async run,
        blocks until all batches of the previous version have arrived, and raises the errors of `next`. Raises
        `TrainingDivergedError` if a weight is not finite, unless `collector.check_finite` is false."""
        if self._spec.check_finite:
            check_finite(policy)
        return self.publish_weights({None: FlatWeights(policy).write})

    def publish_weights(self, writes: WeightWriters) -> int:
        """Publishes weights like `publish`, but by functions that write them, for all workers or for some; see
        `Transport.publish`. Raises `NotImplementedError` if `writes` are for some workers only, with
        `collector.overlap=1` or `inference=server`; `RuntimeError` if the collector is closed."""
        if self.pool.server is not None and None not in writes:
            raise NotImplementedError(
                "single workers cannot get their own weights, because one policy acts for all workers. Publish the "
                "weights for all of them."
            )
        if self._schedule.grants_name_version and None not in writes:
            raise NotImplementedError(
                "single workers cannot get their own weights with overlap=1, because all workers act with the same "
                "ones. Use overlap=0."
            )
        self.exclusive_use.check_process()
        self.check_usable()
        self._wait_to_publish()
        self.policy_version = self.transport.publish(writes)
        self._schedule.published(self.policy_version)
        return self.policy_version

    def _wait_to_publish(self) -> None:
        """Blocks, in the reproduction of a run, until all batches of the current weights and settings have arrived."""
        while self._schedule.must_wait_to_publish:
            self._grant(self._schedule.before_publish())
            self._handle_event()

    def change(self, kind: str, name: str, contents: Sequence[Any]) -> dict[int, Any]:
        """Makes a setting in all workers; see `collectx.collector.worker_record`. Blocks until the workers have filled
        the slots that were granted before, and have applied the setting. For `kind`, `name` and `contents`, see
        `Setting`. Returns the result of each env, by worker; None for the envs of a lost worker. If an env raises, this
        raises its error, and workers that start later do not get the setting."""
        contents = [packed(content) for content in contents]
        self.check_can_ask("change")
        self.check_usable()
        with self.exclusive_use:
            self._wait_for_workers()
            self._wait_to_publish()
            setting = self.settings.add(kind, name, contents)
            self._schedule.changed(setting.version)
            arguments = {worker: ([setting.of(worker)],) for worker in self.pool.ready}
            # A replacement gets the setting in any case.
            self._ask_and_wait("change", arguments, setting)
            replies = self.pool.replies()
            self.settings.confirm(setting)
            self.pool.report_setting(setting, self.num_batches)
            lost = [None] * self.envs_per_worker
            return {worker: unpacked(replies.get(worker, lost)) for worker in sorted(arguments)}

    def get_attr(self, name: str) -> dict[int, list[Any]]:
        """Returns the attribute `name` of each env, by worker. Blocks and raises like `ask`."""
        return {worker: unpacked(values) for worker, values in self.ask("get_attr", name).items()}

    def _settings_version(self, part: Arrival) -> int:
        return self._settings_of_slots.get((part.worker, part.slot), 0) - part.report.settings_lag

    def env_of(self, traj_id: int) -> tuple[int, int]:
        """Returns a key for the env of a trajectory, which all incarnations of its worker share. If a user's collector
        numbers the trajectories, each has its own key."""
        if (num_envs := self._spec.num_envs) is None:
            return traj_id, 0
        index, env = divmod(traj_id, num_envs)
        # How many workers with the same envs were added before.
        return env, index // (IDS_PER_INCARNATION * INCARNATIONS_PER_WORKER)

    @property
    def envs_per_worker(self) -> int:
        """Number of envs of one worker."""
        return self._spec.slots.rows

    @property
    def num_envs(self) -> int:
        """Number of envs of all workers that were started, also of lost ones."""
        return self._spec.slots.rows * self.pool.num_started

    @property
    def worker_indices(self) -> list[int]:
        """The indices of the workers that take part in batches."""
        return sorted(self.pool.ready)

    @property
    def frames_by_worker(self) -> Counter[int]:
        """The number of frames delivered so far, by worker."""
        return Counter({worker.index: worker.num_frames for worker in self.pool.records if worker.num_frames})

    def zeros(self, steps_of_workers: Sequence[int | None]) -> TensorDict:
        """Returns a batch of zeros in which workers take part that fill these numbers of steps; None: all."""
        batch = self._spec.zeros(len(steps_of_workers) if self._schedule.stacked else 1)
        if self.settings.version:
            batch[SETTINGS_VERSION] = torch.zeros(batch.shape, dtype=torch.int64)
        if self._spec.has_gaps:
            add_mask(batch, [batch.shape[-1] if steps is None else steps for steps in steps_of_workers])
        return batch

    @property
    def _has_granted_slots(self) -> bool:
        """Whether a worker may fill a slot."""
        return any(worker.num_granted for worker in self.pool.records)

    def count_from(self, num_frames: int, num_batches: int, by_worker: Mapping[int, int] | None = None) -> None:
        """Sets the counts to those of another collector, whose frames count towards `total_frames`. `by_worker`
        contains the frames of its workers; others keep their counts."""
        self._schedule.skip(num_batches - self.num_batches)
        self.num_frames, self.num_batches = num_frames, num_batches
        for worker, count in (by_worker or {}).items():
            self.pool.records[worker].num_frames = count

    def state(self, wait_for_workers: bool = True) -> CollectorState:
        """Returns the state for `load`, see `collectx.collector.saved_state`. Blocks until the workers have filled
        their granted slots and have sent their states. Without `wait_for_workers` it does not block, and omits the
        states of the workers if a slot is being filled."""
        replies: dict[int, Any] = {}
        if wait_for_workers or not self._has_granted_slots:
            # The inference server last: it draws actions from its generators until all slots are full.
            for group in (self.pool.ready, self.pool.askable - self.pool.ready):
                replies |= self.ask("state", per_worker=dict.fromkeys(group, ()))
        batches = [] if self._next_parts is None else [self._next_parts]
        batches += self._schedule.undelivered()
        return {
            "frames": self.num_frames,
            "batches": self.num_batches,
            "frames_by_worker": dict(self.frames_by_worker),
            "version": self.policy_version,
            "weights": self.transport.newest_weights(),
            "undelivered": [
                saved_state.save_batch(parts, self._gather(parts, copy=True), list(map(self._settings_version, parts)))
                for parts in batches
            ],
            "settings": self.settings.state(),
            "assembler": None if self.assembler is None else self.assembler.state(),
            **saved_state.save_workers(self.pool.records, replies),
        }

    def fits(self, saved: Mapping[str, Any]) -> bool:
        """Whether a batch of `CollectorState.undelivered` has the size of this collector's batches."""
        num_parts = len(saved["parts"])
        is_possible = num_parts == 1 or self._schedule.stacked
        return is_possible and saved["memory"].numel() == self._spec.slots.layout(num_parts).nbytes

    def with_versions(self, saved: Mapping[str, Any], change: int) -> dict[str, Any]:
        """Returns a batch of `CollectorState.undelivered` in which the policy versions of frames differ by `change`."""
        memory = saved["memory"].clone()
        # A view: on another device, the batch would be a copy.
        replace(self._spec, storing_device=None).batch(memory, len(saved["parts"]))[POLICY_VERSION].add_(change)
        return {**saved, "memory": memory}

    def load(self, state: CollectorState, seed: int) -> dict[int, str]:
        """Continues from a state: restores its counts, its undelivered batches and the workers. Blocks until all ready
        workers are restored. Workers that are still starting are restored before they take part
        (`saved_state.first_requests`). Returns, by worker, the reason why its envs begin new episodes.

        Args:
            state: the state of a collector with the same configuration. This does not publish its weights, which may be
                missing.
            seed: the run's seed, from which the envs of workers that cannot be restored get seeds for new episodes.
        """
        self.count_from(state["frames"], state["batches"], state["frames_by_worker"])
        if (settings := state.get("settings")) is not None:
            self.settings.load(settings)
            self._schedule.changed(self.settings.version)
        for number, saved in enumerate(state["undelivered"], start=1):
            parts, memory = saved_state.load_batch(saved, -number)
            versions = zip(parts, saved["settings"], strict=True)
            self._settings_of_slots |= {(part.worker, part.slot): version for part, version in versions}
            self._restored[-number] = memory.to(self._spec.storing_device or memory.device)
            self._schedule.restore(parts)
        if self.assembler is not None and state["assembler"] is not None:
            self.assembler.load(state["assembler"])
        saved_workers = state["workers"]
        self.pool.restore_starting(saved_workers)
        ready, starting = self.pool.ready, self.pool.starting
        reset = Reset(env_seed(seed, state["frames"], 1))
        # A starting worker may restore its envs or not. It gets a reset now, which `handle_first_reply` drops if the
        # worker restores them.
        self._reset_after(state, reset, starting & saved_workers.keys())
        askable = self.pool.askable & saved_workers.keys()
        replies = self.ask("load", per_worker={index: (saved_workers[index],) for index in askable})
        reasons = {index: reason for index, reason in replies.items() if reason is not None}
        for index in starting & saved_workers.keys():
            if (reason := saved_workers[index]["rollout"].get("reason")) is not None:
                reasons[index] = reason
        for worker in self.pool.records:
            is_restored = worker.index in saved_workers and worker.index not in reasons
            worker.settings_version = self.settings.version if is_restored else 0
            if is_restored:
                worker.reset = None  # it was requested before the load
            if worker.index in ready:
                self.pool.send_settings(worker, is_restored)
        for index in (ready | starting) & state["incarnations"].keys() - saved_workers.keys():
            reasons[index] = "the state of the envs was not saved"
        self._reset_after(state, reset, reasons.keys() - (starting & saved_workers.keys()))
        return reasons

    def _reset_after(self, state: CollectorState, reset: Reset, workers: Iterable[int]) -> None:
        """Requests a reset of these workers, except of those in a later incarnation than in `state`, whose envs are
        new."""
        for index in workers:
            if self.pool.records[index].history.incarnation == state["incarnations"].get(index):
                self.request_reset(reset, [index])

    def can_ask(self, name: str) -> bool:
        """Whether the transport can carry this request."""
        return self.transport.carries_objects or name in PLAIN_REQUESTS

    def check_can_ask(self, name: str) -> None:
        """Raises NotImplementedError unless `can_ask`."""
        if not self.can_ask(name):
            raise NotImplementedError(
                f"{_CALLS.get(name, name)} is not possible with workers over a network, which only accept plain data. "
                "Use MultiSyncCollector or MultiAsyncCollector."
            )

    def ask(self, name: str, *arguments: Any, per_worker: Mapping[int, tuple] | None = None) -> dict[int, Any]:
        """Calls a method in workers; returns the results by worker. Blocks until the workers have filled the slots that
        were granted before, and have replied. Asks the replacement of a worker that is lost meanwhile, once, and leaves
        out workers that are dropped.

        Args:
            name: a method of `collectx.worker.requests.RequestHandler`.
            per_worker: arguments by worker; other workers are not asked. None: `arguments` for all workers that are
                ready, after a wait for as many as the next batch needs.

        Raises:
            NotImplementedError: the workers exchange data over a network, and the request is none of its plain ones.
            Exception: the method raised this in a worker; or a worker failed, see `next`.
        """
        self.check_can_ask(name)
        self.check_usable()
        with self.exclusive_use:
            if per_worker is None:
                self._wait_for_workers()
                per_worker = dict.fromkeys(self.pool.ready, arguments)
            self._ask_and_wait(name, per_worker)
            replies = self.pool.replies()
            if lost := self.pool.lost.keys():
                self._wait_for_workers()
                self._ask_and_wait(name, {index: per_worker[index] for index in lost & self.pool.ready})
                replies |= self.pool.replies()
                for error in self.pool.lost.values():
                    raise error  # the request may be what ends the process
            return dict(sorted(replies.items()))

    def ask_first(self, name: str, *arguments: Any) -> Any:
        """Returns the result of the first worker that is ready. Blocks and raises like `ask`."""
        replies: dict[int, Any] = {}
        while not replies:  # the first worker may be dropped
            self.check_usable()
            self.wait_for_workers()
            replies = self.ask(name, per_worker={min(self.pool.ready): arguments})
        return next(iter(replies.values()))

    def wait_for_workers(self) -> None:
        """Blocks until as many workers are ready as the next batch needs. Raises the errors of `next`."""
        with self.exclusive_use:
            self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        while self.pool.must_wait_for_workers:
            self._handle_event()

    def _ask_and_wait(self, name: str, arguments: Mapping[int, tuple], setting: Setting | None = None) -> None:
        """Sends requests; blocks until all these workers have replied, or have failed. See `WorkerPool.request`."""
        self.pool.request(name, arguments, setting)
        while self.pool.num_awaited:
            self._handle_event()

    def wait_until_ready(self) -> None:
        """Blocks until the workers, or `min_workers` of them, have made their envs and policies. Raises the errors of
        `next`."""
        with self.exclusive_use:
            self._wait_for_workers()
            # Does not collect the replies: errors of workers that were replaced or dropped have been handled.
            while new := self.pool.not_replied:
                self._ask_and_wait("ready", dict.fromkeys(new, ()))

    def request_reset(self, reset: Reset, workers: Iterable[int] | None = None) -> None:
        """Makes workers (None: all) reset their envs before the next slot that they are granted; batches of slots that
        are granted already come first. Does not block. If a worker is restarted before then, its replacement is reset
        instead. A reset with a seed replaces a pending one. A reset without a seed does not, and does not reset new
        envs."""
        if reset.seed is not None and workers is None:
            self.pool.tell_server("seed", reset.seed)
        for index in self.pool.ready | self.pool.starting if workers is None else workers:
            worker = self.pool.records[index]
            if reset.seed is not None or worker.reset is None:
                worker.reset = reset

    def add(self) -> None:
        """Starts one more worker, with the next index, which takes part from the next batch on. Does not block. Only
        over networks, because other transports allocate all slots at once."""
        self.pool.add()

    def handles(self) -> dict[int, Any]:
        """Returns the launcher's process handles, by worker; empty if workers are not processes."""
        workers = [worker for worker in self.pool.records if worker.state is not WorkerState.DROPPED]
        return {
            worker.index: worker.handle
            for worker in workers
            if worker.handle is not None and not isinstance(worker.handle, Iterator)
        }

    def interrupt(self) -> None:
        """Tells the workers to stop after their current step; does not wait for them. `next` then raises `WorkerDied`,
        or `RolloutStopped` if the workers are inline. May be called from any thread."""
        self._is_interrupted = True
        self.transport.interrupt()

    def close(self) -> None:
        """Stops the workers, and kills those that do not stop within `collector.close_timeout_s`. Blocks until they
        have ended. Idempotent."""
        self._finalizer()

    def close_by(self, call: Callable[[Callable[[], None]], None]) -> None:
        """Makes `call(close)` close envs and workers from now on, in the thread that steps the envs; also if this
        object is garbage-collected or Python ends. `call` must not refer to this object."""
        self._finalizer.cancel()
        self._finalizer = Finalize(self, call, args=(self.transport.close,), exitpriority=0)

    def __exit__(self, *_: object) -> None:
        self.close()
