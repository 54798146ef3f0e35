"""A worker that is itself a collector, of several processes on its host over shared memory. The host then receives one
copy of the weights, and sends one message for a batch of all processes.

    trainer --network-- nested worker --shared memory-- process 0
                                      \\---------------- process 1 ...

Each of its processes acts as a worker of the run: the same seeds, the same trajectory ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import POLICY_VERSION
from collectx.config.schema.launcher import BackendConfig, DevicesConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.errors import WorkerError
from collectx.launcher.local import warm_up
from collectx.policy.weights import FlatWeights
from collectx.rollout.loop import Stopped
from collectx.transport.base import NO_RESET, BatchReport
from collectx.transport.network.link import NetworkLink
from collectx.worker.requests import reply_without_state
from collectx.worker.spec import NestedSpec, WorkerSpec, rollout_options


class NestedSource:
    """Batches of a collector that `build` makes (`collectx.worker.loop.BatchSource`). Fails when one of the collector's
    workers fails."""

    def __init__(self, spec: WorkerSpec, nested: NestedSpec, link: NetworkLink, build: Callable[..., Any]):
        warm_up()
        self._link = link
        self._build(spec, nested, build)
        self._weights = FlatWeights(self._policy)
        self._slots = [slot.tensors for slot in link.slots]
        self._version = spec.first_version
        self._num_workers = nested.collector.num_workers
        # The trainer's version for each one that the collector has published; it begins with 0.
        self._versions = {0: self._version}
        # The collector's version with which each of its workers acted last.
        self._acted: dict[int, int] = {}
        self._end_watch = link.on_disconnect(self._collector.interrupt)

    def _build(self, spec: WorkerSpec, nested: NestedSpec, build: Callable[..., Any]) -> None:
        """Starts the collector; builds the module that receives its weights."""
        num_workers = nested.collector.num_workers
        cfg = RunConfig(
            env=spec.env,
            policy=spec.policy,
            collector=dataclasses.replace(nested.collector, exploration_type=spec.exploration_type),
            backend=BackendConfig(kind="shared_memory", interface=None, port=None),
            launcher=nested.launcher,
            devices=DevicesConfig(device=None, storing_device=None, policy_device=spec.policy_device, env_device=None),
            trainer=TrainerConfig(kind="meter", digest=False),
            seed=spec.seed,
        )
        env_spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy))
        policy = policies.build(cfg.policy, env_spec, cfg.seed)
        fields = {
            "hooks": spec.hooks,
            "first_worker": spec.worker * num_workers,
            "num_workers": spec.num_workers,
            "life": spec.life,
        }
        self._collector = build(cfg, policy, env_spec, overrides=[fields] * num_workers)
        rollout_spec = rollout_options(nested.collector, num_workers).env_spec(env_spec)
        if spec.policy_device is not None:
            rollout_spec = dataclasses.replace(rollout_spec, data_device=torch.device("cpu"))
        exploration, is_trusted = policies.ExplorationType(spec.exploration_type), policies.is_trusted(cfg.policy)
        actor = policies.make_actor(policy, rollout_spec, torch.device("cpu"), exploration, is_trusted)
        self._policy = actor.module

    def refresh(self) -> None:
        newest = self._link.refresh(self._weights.read, self._version)
        if newest != self._version:
            self._version = newest
            self._versions[self._collector.publish(self._policy)] = newest

    def fill(self, slot: int, reset: int) -> BatchReport:
        collector, tensors = self._collector, self._slots[slot]
        if reset != NO_RESET:
            collector.request_reset(reset)
        try:
            batch = next(collector)
        except WorkerError:
            if self._link.stop[0]:
                raise Stopped from None  # the interrupt ended its workers
            raise
        for key, tensor in tensors.items():
            tensor.copy_(batch.get(key).reshape(tensor.shape))
        parts = collector.delivery.parts
        self._acted |= {part.worker: part.report.policy_version for part in parts}
        acted = self._versions[parts[0].report.policy_version]
        if len(self._acted) == self._num_workers:
            oldest = min(self._acted.values())
            self._versions = {inner: outer for inner, outer in self._versions.items() if inner >= oldest}
        tensors[POLICY_VERSION].fill_(acted)
        return BatchReport(
            acted,
            batch.numel(),
            float(np.mean([part.report.env_s for part in parts])),
            float(np.mean([part.report.policy_s for part in parts])),
            np.concatenate([part.report.returns for part in parts]),
            np.concatenate([part.report.lengths for part in parts]),
        )

    def reply(self) -> None:
        reply_without_state(self._link)

    def close(self) -> None:
        self._end_watch()
        self._collector.close()
