"""A worker that is itself a collector: it collects with several processes on its host, over shared memory. The host
then receives one copy of the weights, and sends one message per batch of all its processes.

    trainer --network-- nested worker --shared memory-- process 0
                                      \\---------------- process 1 ...

Each process uses the seeds and trajectory ids of a worker of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from collectx import env as envs
from collectx import policy as policies
from collectx.batch import POLICY_VERSION, Key
from collectx.config.derived import frames_per_part
from collectx.config.schema.collector import CollectorConfig
from collectx.errors import WorkerError
from collectx.policy.flat_weights import FlatWeights
from collectx.rollout.loop import RolloutStopped
from collectx.rollout.wrappers import RolloutOptions
from collectx.transport.base import Fill, Request, SlotReport
from collectx.transport.messages import packed, unpacked
from collectx.transport.network.link import NetworkLink
from collectx.worker.batch_hooks import check_forms
from collectx.worker.env_settings import contents_of_each
from collectx.worker.requests import reply_without_state
from collectx.worker.spec import ConfigOverrides, ProcessSpec


class NestedSource:
    """Fills slots with the batches of a collector that `start_collector` makes; see
    `collectx.worker.slot_loop.BatchSource`. Fails if one of the collector's workers fails."""

    def __init__(self, spec: ProcessSpec, link: NetworkLink, start_collector: Callable[..., Any]):
        self._link = link
        self._start(spec, start_collector)
        self._weights = FlatWeights(self._policy)
        self._slots = [slot.tensors for slot in link.slots]
        self._version = spec.first_version
        self._num_workers = spec.cfg.collector.num_workers_per_collector
        # The trainer's version for each version that this collector has published.
        self._versions = {0: self._version}
        # The collector's version of the last part of each of its workers.
        self._last_versions: dict[int, int] = {}
        self._end_watch = link.on_disconnect(self._collector.interrupt)

    def _start(self, spec: ProcessSpec, start_collector: Callable[..., Any]) -> None:
        """Starts the collector; builds the module that receives the trainer's weights."""
        cfg = dataclasses.replace(spec.cfg, collector=nested_options(spec.cfg.collector))
        env_spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy), numbers=spec.placement.numbers)
        policy = policies.build(cfg.policy, env_spec, cfg.seed)
        overrides = [ConfigOverrides(hooks=spec.hooks)] * cfg.collector.num_workers
        self._collector = start_collector(cfg, policy, env_spec, overrides=overrides, outer=spec.placement)
        rollout_spec = RolloutOptions.of(cfg.collector).env_spec(env_spec)
        actor, _ = policies.configured_actor(cfg, policy, rollout_spec, torch.device("cpu"))
        self._policy = actor.module

    def refresh(self) -> None:
        newest = self._link.refresh(self._weights.read, self._version)
        if newest != self._version:
            self._version = newest
            self._versions[self._collector.publish(self._policy)] = newest

    def fill(self, grant: Fill) -> SlotReport:
        collector, tensors = self._collector, self._slots[grant.slot]
        try:
            if grant.reset is not None:
                collector.wait_until_idle()  # drops batches that were collected ahead
                collector.request_reset(grant.reset)
            batch = next(collector)
        except WorkerError:
            if self._link.stop[0]:
                raise RolloutStopped from None  # the interrupt ended its workers
            raise
        for key, tensor in tensors.items():
            tensor.copy_(batch.get(key).reshape(tensor.shape))
        info = collector.last_batch_info
        parts = info.parts
        self._last_versions |= {part.worker: part.report.policy_version for part in parts}
        acted = self._versions[parts[0].report.policy_version]
        if len(self._last_versions) == self._num_workers:
            oldest = min(self._last_versions.values())
            self._versions = {inner: outer for inner, outer in self._versions.items() if inner >= oldest}
        tensors[POLICY_VERSION].fill_(acted)
        return SlotReport(
            acted,
            batch.numel(),
            float(np.mean([part.report.env_s for part in parts])),
            float(np.mean([part.report.policy_s for part in parts])),
            np.concatenate([part.report.returns for part in parts]),
            np.concatenate([part.report.lengths for part in parts]),
            metrics=sum(part.report.metrics for part in parts),
            settings_lag=collector.settings.version - min(info.settings, default=0),
            added=_joined([part.report.added for part in parts]),
        )

    def reply(self, request: Request) -> None:
        if request.name not in ("change", "get_attr"):
            reply_without_state(self._link, request)
            return
        try:
            self._link.reply(getattr(self, f"_{request.name}")(*request.arguments))
        except Exception as error:
            self._link.reply(None, error)

    def _change(self, changes: Sequence[tuple[str, str, Any]]) -> list[Any]:
        results: dict[int, Any] = {}
        for kind, name, content in unpacked(changes):
            contents = [content]
            if kind == "set_attr" and content[0]:
                contents = contents_of_each(content[1], self._collector.envs_per_worker)
            results = self._collector.change(kind, name, contents)
        return packed([*chain.from_iterable(results.values())])

    def _get_attr(self, name: str) -> list[Any]:
        return packed([*chain.from_iterable(self._collector.get_attr(name).values())])

    def close(self) -> None:
        self._end_watch()
        self._collector.close()


def _joined(added: Sequence[dict[Key, torch.Tensor]]) -> dict[Key, torch.Tensor]:
    """Returns what the hooks of the processes added to their parts, `[rows, steps, *shape]`, as one part."""
    check_forms(added)
    return {key: torch.cat([each[key] for each in added]) for key in added[0]}


def nested_options(options: CollectorConfig) -> CollectorConfig:
    """Returns the options of the collector that each worker runs; `options` are those of the run's collector."""
    values: dict[str, Any] = {each.name: getattr(options, each.name) for each in dataclasses.fields(CollectorConfig)}
    values |= {
        "kind": f"multi_{options.inner}",
        "num_workers": options.num_workers_per_collector,
        "frames_per_batch": frames_per_part(options),
        "total_frames": -1,
        "zero_copy": True,
        "on_worker_failure": "raise",
        "min_workers": None,
        "max_policy_lag": None,
        "overlap": 0,
        "num_workers_per_collector": 1,
        "init_random_frames": -(-(options.init_random_frames or 0) // options.num_workers),
    }
    return CollectorConfig(**values)
