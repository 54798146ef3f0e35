"""A worker that is itself a collector: of several processes on its host, over shared memory. The host then gets one
copy of the weights, and sends one message for a batch of all of them.

    trainer --network-- relay --shared memory-- worker 0
                              \\--------------- worker 1 ...

Runs in the worker's process, in place of `rollout_worker` of `collectx/worker/rollout_source.py`. Each of its workers
acts as a worker of the run: the same seeds, the same trajectory ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

import numpy as np
import torch
from torch import nn

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import POLICY_VERSION
from collectx.collector.batch_info import Part
from collectx.collector.collector import Collector
from collectx.collector.compose import Share, build, rollout_options
from collectx.config import BackendConfig, DevicesConfig, MeterTrainerConfig, RunConfig
from collectx.errors import WorkerError
from collectx.launcher.local import warm_up
from collectx.policy.weights import FlatWeights
from collectx.rollout.loop import Stopped
from collectx.transport.base import NO_RESET
from collectx.transport.network.worker import NetworkLink
from collectx.worker.loop import BatchStats, run_worker_loop
from collectx.worker.spec import NestedSpec, WorkerSpec


def run_nested(task: WorkerSpec, inner: NestedSpec, link: NetworkLink) -> Generator[None]:
    """Fills granted slots with the batches of a collector of its own; yields after each that it has sent.

    When one of its workers fails, this one has failed.
    """
    warm_up()
    yield from run_worker_loop(link, NestedSource(task, inner, link))


class NestedSource:
    """Batches of a collector of this package (`collectx.worker.loop.BatchSource`)."""

    def __init__(self, task: WorkerSpec, inner: NestedSpec, link: NetworkLink):
        self._link = link
        self._collector, self._policy = _collector(task, inner)
        link.on_disconnect(self._collector.interrupt)
        self._weights = FlatWeights(self._policy)
        self._slots = [slot.tensors for slot in link.slots]
        self._version = task.first_version
        self._versions = _Versions(inner.collector.num_workers, self._version)

    def refresh(self) -> None:
        newest = self._link.refresh(self._weights.read, self._version)
        if newest != self._version:
            self._version = newest
            self._versions.add(self._collector.publish(self._policy), newest)

    def fill(self, slot: int, order: int) -> BatchStats:
        collector, tensors = self._collector, self._slots[slot]
        if order != NO_RESET:
            collector.request_reset(order)
        try:
            batch = next(collector)
        except WorkerError:
            if self._link.stop[0]:
                raise Stopped from None  # that is why
            raise
        for key, tensor in tensors.items():
            tensor.copy_(batch.get(key).reshape(tensor.shape))
        parts = collector.delivery.parts
        acted = self._versions.of(parts)
        tensors[POLICY_VERSION].fill_(acted)
        return BatchStats(
            acted,
            float(np.mean([part.timings.env_s for part in parts])),
            float(np.mean([part.timings.policy_s for part in parts])),
            np.concatenate([part.returns for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def reply(self) -> None:
        """Nobody asks over a network."""

    def close(self) -> None:
        self._collector.close()


class _Versions:
    """By which number the trainer knows what the collector within has published by one of its own."""

    def __init__(self, num_workers: int, first: int):
        self._num_workers = num_workers
        # Its first are those that it was built with.
        self._theirs = {0: first}
        self._last: dict[int, int] = {}

    def add(self, mine: int, theirs: int) -> None:
        self._theirs[mine] = theirs

    def of(self, parts: Sequence[Part]) -> int:
        """Of the weights that acted in a batch. Forgets those with which nobody will act any more."""
        self._last |= {part.worker: part.policy_version for part in parts}
        if len(self._last) == self._num_workers:
            oldest = min(self._last.values())
            self._theirs = {mine: theirs for mine, theirs in self._theirs.items() if mine >= oldest}
        return self._theirs[parts[0].policy_version]


def _collector(task: WorkerSpec, inner: NestedSpec) -> tuple[Collector, nn.Module | None]:
    """The collector within, and the module that holds the newest weights for it."""
    cfg = RunConfig(
        env=task.env,
        policy=task.policy,
        collector=dataclasses.replace(inner.collector, exploration_type=task.exploration_type),
        backend=BackendConfig(kind="shared_memory", interface=None, port=None),
        launcher=inner.launcher,
        devices=DevicesConfig(device=None, storing_device=None, policy_device=task.policy_device, env_device=None),
        trainer=MeterTrainerConfig(kind="meter", digest=False),
        seed=task.seed,
    )
    spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy))
    policy = policies.build(cfg.policy, spec, cfg.seed)
    share = Share(task.worker * inner.collector.num_workers, task.num_workers, task.life)
    collector = build(cfg, policy, spec, overrides=[{"hooks": task.hooks}] * inner.collector.num_workers, share=share)
    seen = rollout_options(inner.collector, inner.collector.num_workers).env_spec(spec)
    exploration, is_trusted = policies.ExplorationType(task.exploration_type), policies.is_trusted(cfg.policy)
    actor = policies.make_actor(policy, seen, torch.device("cpu"), exploration, is_trusted)
    return collector, actor.module
