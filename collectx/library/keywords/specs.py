"""For how many frames, on which devices, by how many workers, and how they come by newer weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectx.config import DevicesConfig
from collectx.library.keywords.coerce import for_each, name_of, why_no_device


@dataclass(frozen=True)
class Frames:
    """How many frames.

    Args:
        frames_per_batch: frames of one batch, rounded up to a multiple of the number of envs that take part in it. Of
            `MultiSyncCollector`, with `cat_results=-1`, also a list of how many each worker has of them; of
            `MultiAsyncCollector` such a list is their sum.
        total_frames: the collector ends with the batch by which it has delivered so many; -1 or None: never. The
            constructor warns if this is not a multiple of `frames_per_batch`.
        max_frames_per_traj: a trajectory that has as many is cut, marked truncated, and its env is reset; batches then
            have `step_count` as well. None or negative: never.
        init_random_frames: so many frames, rounded up to whole batches, have random actions before the policy is called
            at all. None or negative: none.
        reset_at_each_iter: every batch begins with a reset of all envs.
        set_truncated: the last frame of each row of a batch is marked truncated.
        reset_when_done: True: an env that is done is reset. There is no other way any more, as in TorchRL.
    """

    frames_per_batch: int | Sequence[int] = 200
    total_frames: int | None = -1
    max_frames_per_traj: int | None = None
    init_random_frames: int | None = None
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    reset_when_done: bool = True

    def problems(self) -> list[str]:
        """What is wrong."""
        found = self._counts()
        if not self.reset_when_done:
            found.append("reset_when_done=False: envs that are done are always reset: leave it out.")
        return found

    @property
    def per_worker(self) -> Sequence[int] | None:
        """Frames of each worker, where they are told one by one."""
        return None if isinstance(self.frames_per_batch, int) else self.frames_per_batch

    @property
    def in_all(self) -> int:
        """Frames of one batch, as they were asked for."""
        return self.frames_per_batch if isinstance(self.frames_per_batch, int) else sum(self.frames_per_batch)

    @property
    def has_surplus(self) -> bool:
        """Whether whole batches are more than `total_frames`, for other reasons than that they are rounded up."""
        return self.total_frames not in (None, -1) and self.total_frames % self.in_all > 0

    def _counts(self) -> list[str]:
        least = min(self.per_worker or [self.in_all])
        if least < 1:
            return [f"frames_per_batch={self.frames_per_batch}: must be at least 1."]
        total = self.total_frames
        if total is None or total == -1:
            return []
        if total < 1:
            return [f"total_frames={total}: must be at least 1, or -1 for an endless collector."]
        return []


@dataclass(frozen=True)
class Devices:
    """Where.

    Args:
        device, storing_device, policy_device, env_device: `device` fills whichever of the others is None. With several
            workers each may be a list, one for each worker, but `storing_device`, where batches lie.
        no_cuda_sync: is not looked at: a policy on a GPU is waited for once in a step, as its actions are needed.
    """

    device: Any = None
    storing_device: Any = None
    policy_device: Any = None
    env_device: Any = None
    no_cuda_sync: bool = False

    def problems(self, num_workers: int, are_here: bool = False) -> list[str]:
        """What is wrong, for so many workers, which act on this machine if `are_here`."""
        found = []
        for name, value in self._all().items():
            values = for_each(value, num_workers)
            if len(values) != num_workers:
                found.append(
                    f"{name} has {len(values)} entries for {num_workers} workers: one for each, or one device."
                )
            found += [f"{name}={value!r}: {why}" for why in {why_no_device(one, are_here) for one in values} if why]
        if not found and len({name_of(one) for one in for_each(self.storing_device, num_workers)}) > 1:
            found.append(f"storing_device={self.storing_device!r}: batches lie on one device, the trainer's.")
        return found

    def _all(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.endswith("device")}

    def resolve(self, num_workers: int) -> tuple[DevicesConfig, list[str | None]]:
        """The devices of the run, and where each worker's policy acts."""
        lists = {name: [name_of(one) for one in for_each(value, num_workers)] for name, value in self._all().items()}
        first = {name: values[0] for name, values in lists.items()}
        if len(set(lists["device"])) > 1:
            first["device"] = None
        acting = [own or general for own, general in zip(lists["policy_device"], lists["device"], strict=True)]
        return DevicesConfig(**first), acting


@dataclass(frozen=True)
class Workers:
    """Those of a collector that has several.

    Args:
        num_workers: how many; None: as many as `create_env_fn` has callables.
        num_threads: of torch, in this process; None: as they are.
        num_sub_threads: of torch, in each worker.
        num_slots: batches that an async worker may have filled or under way at once.
        on_worker_failure: "raise", "restart" or "drop"; see README, "Worker failures".
        max_restarts: how many may be started again, of all workers together.
        start_timeout_s, worker_timeout_s, close_timeout_s: how long a worker may take to start, may be silent, and may
            take to stop.
    """

    num_workers: int | None = None
    num_threads: int | None = None
    num_sub_threads: int = 1
    num_slots: int = 2
    on_worker_failure: str = "raise"
    max_restarts: int = 10
    start_timeout_s: float = 60.0
    worker_timeout_s: float = 120.0
    close_timeout_s: float = 10.0

    def problems(self) -> list[str]:
        """What is wrong."""
        least = {
            "num_workers": 1,
            "num_threads": 1,
            "num_sub_threads": 1,
            "num_slots": 1,
            "max_restarts": 0,
            "close_timeout_s": 0,
        }
        given = {name: getattr(self, name) for name in least}
        found = [
            f"{name}={value}: must be at least {least[name]}."
            for name, value in given.items()
            if value is not None and value < least[name]
        ]
        for name in ("start_timeout_s", "worker_timeout_s"):
            if getattr(self, name) <= 0:
                found.append(f"{name}={getattr(self, name)}: must be above 0.")
        if self.on_worker_failure not in ("raise", "restart", "drop"):
            found.append(f"on_worker_failure={self.on_worker_failure!r}: must be 'raise', 'restart' or 'drop'.")
        return found


@dataclass(frozen=True)
class Weights:
    """How the workers come by newer weights; without any of these, `update_policy_weights_` has to be called.

    Args:
        update_at_each_batch, update_after_each_batch: the policy's weights are published after every batch.
        max_weight_update_interval, update_interval: they are published after so many batches; -1: never by itself.
        update_weights_between_steps: a worker takes newer weights between two steps of a batch too, of which
            `("collector", "policy_version")` then tells frame by frame.
        weight_updater: called without arguments whenever weights are published and none are given; returns them, as
            `update_policy_weights_` takes them. Of one of TorchRL's, or a callable that makes one, the weights and
            their mapping are taken; their way to the workers is the collector's own.
        weight_sync_schemes, weight_recv_schemes: TorchRL's, by model; "policy" is the only one. Weights travel by the
            collector's own way, whatever the scheme; of TorchRL's `NoWeightSyncScheme` none do.
    """

    update_at_each_batch: bool = False
    update_after_each_batch: bool = False
    max_weight_update_interval: int = -1
    update_interval: int | None = None
    update_weights_between_steps: bool = False
    weight_updater: Callable[[], Any] | None = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        for name in ("max_weight_update_interval", "update_interval"):
            value = getattr(self, name)
            if value is not None and value != -1 and value < 1:
                found.append(f"{name}={value}: must be at least 1, or -1 for never.")
        updater = self.weight_updater
        if updater is not None and not callable(updater):
            found.append(f"weight_updater={updater!r}: give a callable that returns the weights, or one of TorchRL's.")
        for name in ("weight_sync_schemes", "weight_recv_schemes"):
            if unknown := sorted(set(getattr(self, name) or ()) - {"policy"}):
                found.append(f"{name} names {', '.join(unknown)}: the only model here is 'policy'.")
        return found

    @property
    def interval(self) -> int | None:
        """After how many batches; -1: never by itself; None: nothing was said."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        return min(chosen, default=self.update_interval)

    @property
    def default_interval(self) -> int:
        """Where nothing was said."""
        return -1

    @property
    def travel(self) -> bool:
        """Whether workers are to be told at all."""
        scheme = (self.weight_sync_schemes or {}).get("policy")
        return scheme is None or type(scheme).__name__ != "NoWeightSyncScheme"


@dataclass(frozen=True)
class EachBatchWeights(Weights):
    """`Weights`, published after every batch if no interval is given, unless workers have individual policies."""

    @property
    def default_interval(self) -> int:
        """See `Weights`."""
        return 1
