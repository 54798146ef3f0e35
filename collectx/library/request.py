"""`CollectorRequest`: the parsed keywords of a collector. Checked in `checks.py`, converted in `configuration.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

from collectx.library.early_stop import EarlyStop
from collectx.library.keywords.coerce import device_name, for_each
from collectx.library.keywords.env_and_policy import CreateEnv, EnvAndPolicy
from collectx.library.keywords.parse import KeywordParser
from collectx.library.keywords.remote import Nested, RayRemote
from collectx.library.keywords.shared import lift_shared
from collectx.library.keywords.specs import Devices, Frames, Weights, Workers
from collectx.library.output import BatchOutput
from collectx.library.trajectories import Assembly
from collectx.user_objects import Hooks


@dataclass(frozen=True)
class CollectorRequest:
    """All keywords of a collector.

    Attributes:
        kind: `collector.kind` of the configuration.
        sync: whether it is sync, if the kind can be both.
    """

    kind: str
    env_and_policy: EnvAndPolicy
    frames: Frames
    devices: Devices
    output: BatchOutput
    workers: Workers
    weights: Weights
    remote: Nested
    hooks: Hooks
    assembly: Assembly
    early: EarlyStop
    sync: bool | None = None

    @property
    def num_workers(self) -> int:
        """Number of workers, by `num_workers`, `num_collectors` or `create_env_fn`."""
        if self.kind == "single":
            return 1
        if self.workers.num_workers is not None:
            return self.workers.num_workers
        if isinstance(self.remote, RayRemote) and self.remote.num_collectors is not None:
            return self.remote.num_collectors
        create = self.env_and_policy.create_env_fn
        return len(create) if isinstance(create, list | tuple) else 1

    @property
    def update_interval(self) -> int:
        """Number of batches after which the policy's weights are published to all workers; -1: never."""
        interval = self.weights.interval
        if interval is not None:
            return interval
        return -1 if self.env_and_policy.has_individual_policies else self.weights.default_interval

    @property
    def workers_write(self) -> bool:
        """Whether workers write to the replay buffer themselves."""
        is_assembled = self.assembly.trajs_per_batch is not None
        return self.kind.startswith("multi") and self.output.shared_buffer is not None and not is_assembled

    @property
    def policy_devices(self) -> list[str]:
        """The device of each worker's policy. Requires `has_valid_devices`."""
        _, devices = self.devices.resolve(self.num_workers)
        kwargs = [each or {} for each in for_each(self.remote.collector_kwargs, self.num_workers)]
        overrides = [device_name(each.get("policy_device") or each.get("device")) for each in kwargs]
        return [override or device or "cpu" for override, device in zip(overrides, devices, strict=True)]

    @property
    def has_valid_devices(self) -> bool:
        """Whether `policy_devices` can be read."""
        return not (self.devices.problems(self.num_workers) or self.remote.problems(self.num_workers))


def parse_request(
    name: str,
    specs: tuple[type, ...],
    kind: str,
    sync: bool | None,
    create_env_fn: CreateEnv,
    policy: Any,
    keywords: dict[str, Any],
) -> tuple[CollectorRequest, list[str]]:
    """Returns the request that the arguments of a constructor stand for, and the problems of single arguments.

    Args:
        name: name of the collector class, for messages.
        specs: the specs of the class's keywords; fields of the request without one have their defaults.

    Raises:
        TypeError: unknown keywords.
    """
    keywords, problems = lift_shared(keywords)
    parser = KeywordParser(name, {"create_env_fn": create_env_fn, "policy": policy, **keywords})

    def parse(base: type) -> Any:
        spec = next((each for each in specs if issubclass(each, base)), None)
        return base() if spec is None else parser.parse(spec)

    hints = get_type_hints(CollectorRequest)
    fields = {field: parse(base) for field, base in hints.items() if field not in ("kind", "sync")}
    parser.finish()
    return CollectorRequest(kind=kind, sync=sync, **fields), parser.problems + problems
