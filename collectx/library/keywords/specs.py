"""Keywords about frames, devices, workers and weights, and the base class of all groups of keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from collectx.config.schema.launcher import DevicesConfig
from collectx.library.keywords.coerce import MODELS, device_name, device_problem, for_each, unknown_models
from collectx.library.keywords.options import limited, option


class Keywords:
    """Base class of the groups of keywords. A class may combine several groups: `problems` then has those of all."""

    @property
    def worker_count(self) -> int:
        """Number of workers."""
        return 1

    def problems(self) -> list[str]:
        """What is wrong with the values."""
        return []


@dataclass(frozen=True, kw_only=True)
class Frames(Keywords):
    """The keywords about frames and trajectories.

    Args:
        frames_per_batch: frames of one batch, rounded up to a multiple of the envs that take part in it. For
            `MultiSyncCollector` with `cat_results=-1` also a list with the frames of each worker; for
            `MultiAsyncCollector` such a list counts as its sum.
        total_frames: the collector ends with the batch that reaches this number; -1 or None: never. The constructor
            warns if it is not a multiple of `frames_per_batch`.
        max_frames_per_traj: longer trajectories are cut: the last frame is marked truncated, and the env is reset.
            Batches then have `step_count`. None or negative: no limit.
        init_random_frames: number of first frames with random actions, without a call of the policy; rounded up to
            whole batches. None or negative: 0.
        reset_at_each_iter: whether every batch begins with a reset of all envs.
        set_truncated: whether the last frame of each row of a batch is marked truncated.
        reset_when_done: must be True: envs that are done are always reset, as in TorchRL.
    """

    frames_per_batch: int | Sequence[int] = option("collector.frames_per_batch", 200)
    total_frames: int | None = option("collector.total_frames", -1)
    max_frames_per_traj: int | None = None
    init_random_frames: int | None = None
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    reset_when_done: bool = True

    def problems(self) -> list[str]:
        refused = "reset_when_done=False: envs that are done are always reset: leave it out."
        return [*super().problems(), *([] if self.reset_when_done else [refused])]

    @property
    def frames_per_worker(self) -> Sequence[int] | None:
        """Frames of each worker, if `frames_per_batch` is a list."""
        return None if isinstance(self.frames_per_batch, int) else self.frames_per_batch

    @property
    def requested_frames(self) -> int:
        """Requested frames of one batch."""
        return self.frames_per_batch if isinstance(self.frames_per_batch, int) else sum(self.frames_per_batch)

    @property
    def has_surplus(self) -> bool:
        """Whether whole batches exceed `total_frames`, apart from rounding up to the number of envs."""
        return self.total_frames not in (None, -1) and self.total_frames % self.requested_frames > 0


@dataclass(frozen=True, kw_only=True)
class Devices(Keywords):
    """The keywords about devices.

    Args:
        device, storing_device, policy_device, env_device: `device` is the default of the others. With several workers
            each may be a list with one device per worker, except `storing_device`, the device of the batches.
        no_cuda_sync: ignored (accepted for TorchRL compatibility): a step waits for the policy's actions anyway.
    """

    device: Any = None
    storing_device: Any = None
    policy_device: Any = None
    env_device: Any = None
    no_cuda_sync: bool = False

    def device_problems(self, are_here: bool = False) -> list[str]:
        """What is wrong with the devices of workers, which act on this machine if `are_here`."""
        problems = []
        for name, values in self.devices_of_workers().items():
            value = getattr(self, name)
            if len(values) != self.worker_count:
                count = f"{len(values)} entries for {self.worker_count} workers"
                problems.append(f"{name} has {count}: one for each, or one device.")
            reasons = {device_problem(one, are_here) for one in values}
            problems += [f"{name}={value!r}: {reason}" for reason in reasons if reason]
        if not problems and len({*map(device_name, self.devices_of_workers()["storing_device"])}) > 1:
            problems.append(f"storing_device={self.storing_device!r}: batches lie on one device, the trainer's.")
        return problems

    def devices_of_workers(self) -> dict[str, list[Any]]:
        """For each keyword the devices by worker."""
        names = ("device", "storing_device", "policy_device", "env_device")
        return {name: for_each(getattr(self, name), self.worker_count) for name in names}

    def devices_config(self) -> DevicesConfig:
        """The options of the group `devices`: those of the first worker."""
        devices = {name: [device_name(one) for one in values] for name, values in self.devices_of_workers().items()}
        first = {name: values[0] for name, values in devices.items()}
        return DevicesConfig(**first | {"device": first["device"] if len({*devices["device"]}) == 1 else None})


@dataclass(frozen=True, kw_only=True)
class Workers(Keywords):
    """The keywords of collectors with several workers.

    Args:
        num_workers: None: as many as `create_env_fn` has callables.
        num_threads: torch threads of this process; None: unchanged.
        num_sub_threads: torch threads of each worker.
        num_slots: batches that an async worker may have filled or in progress at once.
        on_worker_failure: "raise", "restart" or "drop"; see docs/RUNS.md, "Worker failures".
        max_restarts: maximal number of restarts, over all workers.
        start_timeout_s, worker_timeout_s, close_timeout_s: seconds within which a worker must start, send a batch, and
            stop.
    """

    num_workers: int | None = option("collector.num_workers", None)
    num_threads: int | None = limited(None, minimum=1)
    num_sub_threads: int = option("launcher.num_threads", 1)
    num_slots: int = option("collector.num_slots", 2)
    on_worker_failure: str = option("collector.on_worker_failure", "raise")
    max_restarts: int = option("collector.max_restarts", 10)
    start_timeout_s: float = option("collector.start_timeout_s", 60.0)
    worker_timeout_s: float = option("collector.worker_timeout_s", 120.0)
    close_timeout_s: float = option("collector.close_timeout_s", 10.0)


@dataclass(frozen=True, kw_only=True)
class Weights(Keywords):
    """The keywords about publishing of weights. Without any of these, call `update_policy_weights_`.

    Args:
        update_at_each_batch, update_after_each_batch: whether the policy's weights are published after every batch.
        max_weight_update_interval, update_interval: number of batches after which they are published; -1: never.
        update_weights_between_steps: whether workers take newer weights also between two steps of a batch;
            `("collector", "policy_version")` has the version of each frame.
        weight_updater: called without arguments whenever weights are published and none are passed; returns weights as
            `update_policy_weights_` takes them. Of TorchRL's updaters, or a callable that makes one, only the weights
            and their mapping are used; the transport is the collector's.
        weight_sync_schemes, weight_recv_schemes: TorchRL's schemes by model, see `update_policy_weights_`. The
            transport is the collector's, whatever the scheme; with TorchRL's `NoWeightSyncScheme` no weights of the
            policy are published.
    """

    # Number of batches between two publishes where the keywords do not say; -1: never.
    default_interval: ClassVar[int] = -1

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = limited(-1, minimum=1, also=(-1,))
    update_interval: int | None = limited(None, minimum=1, also=(-1,))
    update_weights_between_steps: bool = False
    weight_updater: Callable[[], Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None

    def problems(self) -> list[str]:
        problems = super().problems()
        updater = self.weight_updater
        if updater is not None and not callable(updater):
            problems.append(f"weight_updater={updater!r}: give a callable that returns the weights, or TorchRL's.")
        for name in ("weight_sync_schemes", "weight_recv_schemes"):
            if unknown := unknown_models(getattr(self, name) or ()):
                problems.append(f"{name} names {', '.join(unknown)}: {MODELS}.")
        return problems

    @property
    def chosen_interval(self) -> int | None:
        """Number of batches between two publishes; -1: never; None: the keywords do not say."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        return min(chosen, default=self.update_interval)

    @property
    def are_published(self) -> bool:
        """Whether weights are published at all."""
        scheme = (self.weight_sync_schemes or {}).get("policy")
        return scheme is None or type(scheme).__name__ != "NoWeightSyncScheme"
