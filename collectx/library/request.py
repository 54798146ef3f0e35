"""The keywords of each constructor: `CollectorRequest`, which has what all take, and a subclass for each constructor.
Checked in `checks.py`, converted in `configuration.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from collectx.library.keywords.batches import Assembly, BatchOutput, Interruptor, Preemption
from collectx.library.keywords.coerce import device_name, for_each
from collectx.library.keywords.env_and_policy import EnvAndPolicy
from collectx.library.keywords.nested import Nested, WorkerClass, user_class
from collectx.library.keywords.remote import RayRemote, Remote, RpcRemote
from collectx.library.keywords.specs import Devices, Frames, Weights, Workers
from collectx.library.keywords.unified import Unified
from collectx.user_objects import Hooks, UserHooks


# The fields of the last base class come first.
@dataclass(frozen=True, kw_only=True)
class CollectorRequest(UserHooks, Assembly, Weights, BatchOutput, Devices, Frames, EnvAndPolicy):
    """The arguments of a collector's constructor."""

    # `collector.kind` of the configuration: of an async collector, and of a sync one.
    _kinds: ClassVar[tuple[str, str]]

    @property
    def kind(self) -> str:
        """`collector.kind` of the configuration."""
        return self._kinds[bool(getattr(self, "sync", False))]

    @property
    def workers(self) -> Workers:
        """The keywords about workers; the defaults for a class that does not take them."""
        return self if isinstance(self, Workers) else Workers()

    @property
    def remote(self) -> Nested:
        """The keywords about the workers' collectors and hosts; the defaults for a class that does not take them."""
        return self if isinstance(self, Nested) else Nested(collector_class=getattr(self, "collector_class", None))

    @property
    def hooks(self) -> Hooks:
        """The hooks."""
        return Hooks(**{field.name: getattr(self, field.name) for field in dataclasses.fields(UserHooks)})

    @property
    def threshold(self) -> float | None:
        """The share of the workers that a batch waits for; None: all."""
        return self.preemptive_threshold if isinstance(self, Preemption) else None

    @property
    def worker_count(self) -> int:
        """Number of workers, by `num_workers`, `num_collectors` or `create_env_fn`."""
        if self.kind == "single":
            return 1
        if self.workers.num_workers is not None:
            return self.workers.num_workers
        if isinstance(self, RayRemote) and self.num_collectors is not None:
            return self.num_collectors
        return len(self.create_env_fn) if isinstance(self.create_env_fn, list | tuple) else 1

    @property
    def kwargs_of_workers(self) -> list[dict[str, Any]]:
        """`collector_kwargs` by worker."""
        return [kwargs or {} for kwargs in for_each(self.remote.collector_kwargs, self.worker_count)]

    @property
    def publish_interval(self) -> int:
        """Number of batches after which the policy's weights are published to all workers; -1: never."""
        if self.chosen_interval is not None:
            return self.chosen_interval
        return -1 if self.has_individual_policies else self.default_interval

    @property
    def workers_write(self) -> bool:
        """Whether workers write to the replay buffer themselves."""
        are_able = self.kind.startswith("multi") and user_class(self.remote.collector_class) is None
        return are_able and self.shared_buffer is not None and self.trajs_per_batch is None

    @property
    def policy_devices(self) -> list[str]:
        """The device of each worker's policy. Requires `has_valid_devices`."""
        return [device or "cpu" for device in self.chosen_policy_devices]

    @property
    def chosen_policy_devices(self) -> list[str | None]:
        """The device that was passed for each worker's policy; None: none. Requires `has_valid_devices`."""
        values = self.devices_of_workers()
        candidates = zip(self.kwargs_of_workers, values["policy_device"], values["device"], strict=True)
        return [
            device_name(kwargs.get("policy_device") or kwargs.get("device") or policy or device)
            for kwargs, policy, device in candidates
        ]

    @property
    def has_valid_devices(self) -> bool:
        """Whether `policy_devices` can be read."""
        return not (self.device_problems() or self.remote.remote_problems())


@dataclass(frozen=True, kw_only=True)
class SingleRequest(Unified, Interruptor, CollectorRequest):
    """Of `Collector`."""

    _kinds = ("single", "single")

    def problems(self) -> list[str]:
        refused = "policy and policy_factory: give one of them, as there are no workers."
        return super().problems() + ([refused] if self.has_both_policies else [])


@dataclass(frozen=True, kw_only=True)
class MultiSyncRequest(Preemption, WorkerClass, Workers, CollectorRequest):
    """Of `MultiSyncCollector`."""

    _kinds = ("multi_sync", "multi_sync")


@dataclass(frozen=True, kw_only=True)
class MultiAsyncRequest(MultiSyncRequest):
    """Of `MultiAsyncCollector`."""

    _kinds = ("multi_async", "multi_async")


@dataclass(frozen=True, kw_only=True)
class MultiRequest(MultiSyncRequest):
    """Of `MultiCollector`."""

    _kinds = ("multi_async", "multi_sync")
    sync: bool


@dataclass(frozen=True, kw_only=True)
class DistributedRequest(Remote, Workers, CollectorRequest):
    """Of `DistributedCollector`."""

    _kinds = ("distributed", "distributed_sync")
    sync: bool = False


@dataclass(frozen=True, kw_only=True)
class DistributedSyncRequest(Remote, Workers, CollectorRequest):
    """Of `DistributedSyncCollector`: publishes after every batch by default, but for individual policies."""

    _kinds = ("distributed_sync", "distributed_sync")
    default_interval = 1


@dataclass(frozen=True, kw_only=True)
class RpcRequest(RpcRemote, Workers, CollectorRequest):
    """Of `RPCCollector`."""

    _kinds = ("rpc", "rpc")
    sync: bool = False


@dataclass(frozen=True, kw_only=True)
class RayRequest(RayRemote, Workers, CollectorRequest):
    """Of `RayCollector`."""

    _kinds = ("ray", "ray")
    sync: bool = False
