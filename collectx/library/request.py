"""All of them together: checked, and made into a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from collectx.config import (
    REMOTE,
    CollectorConfig,
    EitherCollectorConfig,
    LauncherConfig,
    MeterTrainerConfig,
    RunConfig,
    is_stacked,
    rows_per_env,
)
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.library.early_stop import Early
from collectx.library.keywords.coerce import (
    exploration_of,
    for_each,
    name_of,
    positive,
    round_up,
)
from collectx.library.keywords.custom import call_problems, custom_problems, given_collector, given_collectors
from collectx.library.keywords.env_and_policy import Work
from collectx.library.keywords.remote import Nested, RayRemote, RpcRemote, own_problems
from collectx.library.keywords.specs import Devices, Frames, Weights, Workers
from collectx.library.output import BatchOutput
from collectx.library.trajectories import Assembly
from collectx.transport.network.availability import gpu_problems, visible_problems
from collectx.user_objects import Hooks, UserEnvConfig


@dataclass(frozen=True)
class Order:
    """All that was asked for.

    Attributes:
        kind: of `collectx.config.CollectorConfig`.
        sync: whether it is sync, of a kind that can be both.
    """

    kind: str
    work: Work
    frames: Frames
    devices: Devices
    output: BatchOutput
    workers: Workers
    weights: Weights
    remote: Nested
    hooks: Hooks
    assembly: Assembly
    early: Early
    sync: bool | None = None

    @property
    def num_workers(self) -> int:
        """How many workers are meant."""
        if self.kind == "single":
            return 1
        if self.workers.num_workers is not None:
            return self.workers.num_workers
        if isinstance(self.remote, RayRemote) and self.remote.num_collectors is not None:
            return self.remote.num_collectors
        create = self.work.create_env_fn
        return len(create) if isinstance(create, list | tuple) else 1

    @property
    def update_interval(self) -> int:
        """After how many batches this process's weights are published to all workers; -1: never by itself."""
        told = self.weights.interval
        if told is not None:
            return told
        return -1 if self.work.has_individual_policies else self.weights.default_interval

    @property
    def workers_write(self) -> bool:
        """Whether workers write to the replay buffer themselves."""
        is_whole = self.assembly.trajs_per_batch is not None
        return self.kind.startswith("multi") and self.output.shared_buffer is not None and not is_whole

    def check(self, known: Sequence[str] = ()) -> None:
        """Looks at all of it.

        Args:
            known: what is wrong beside.

        Raises:
            ConfigError: what is wrong, all at once.
        """
        num_workers = self.num_workers
        problems = [
            *known,
            *self.work.problems(num_workers),
            *self._graph_problems(),
            *self._share_problems(),
            *self.early.problems(self.kind, self.output),
            *self.frames.problems(),
            *self.devices.problems(num_workers, self.kind not in REMOTE),
            *self.output.problems(),
            *self.workers.problems(),
            *self.weights.problems(),
            *self.remote.problems(num_workers),
            *self._visible_problems(),
            *self.hooks.problems(),
            *self.assembly.problems(),
            *custom_problems(self),
        ]
        if self.assembly.trajs_per_batch is not None:
            needs = {"return_same_td": False, "track_traj_ids": True, "split_trajs": False, "extend_buffer": True}
            problems += [
                f"{name}={not value} with trajs_per_batch={self.assembly.trajs_per_batch}: batches are of whole "
                f"trajectories, each of its own length: leave {name} out."
                for name, value in needs.items()
                if bool(getattr(self.output, name)) is not value
            ]
        if self.weights.update_weights_between_steps and self.remote.num_workers_per_collector > 1:
            problems.append(
                "update_weights_between_steps=True: a worker that is itself a collector (num_workers_per_collector="
                f"{self.remote.num_workers_per_collector}) takes weights between its batches: use 1."
            )
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))

    def _share_problems(self) -> list[str]:
        """What is wrong about frames that are told worker by worker."""
        told = self.frames.per_worker
        if told is None:
            return []
        if self.kind not in ("multi_sync", "multi_async"):
            return [f"frames_per_batch={told}: must be one number, but for MultiSyncCollector and MultiAsyncCollector."]
        found = []
        if len(told) != self.num_workers:
            found.append(
                f"frames_per_batch={told} has {len(told)} entries for {self.num_workers} workers: one for each, or one "
                "number."
            )
        if self.kind == "multi_sync" and not self.output.is_concatenated:
            found.append(
                f"frames_per_batch={told}: parts of different lengths cannot be stacked: give cat_results=-1, or one "
                "number."
            )
        return found

    def fit(self, cfg: RunConfig, own: list[dict[str, Any]], spec: EnvSpec) -> int:
        """Rounds the frames of a batch up to whole steps of all envs, as TorchRL does, in what `config` gave; returns
        how many they are.

        Args:
            spec: of one worker's process.

        Raises:
            ConfigError: parts are to be concatenated along a dimension that they have not, or, where they have
                different lengths, along another than time.
        """
        want, told, dim = cfg.collector, self.frames.per_worker, self.output.cat_results
        stacked = is_stacked(want)
        num_envs, num_dims = spec.num_envs, len(spec.batch_shape) or int(spec.num_envs > 1)
        if rows_per_env(want) > 1:
            num_dims = 1
        part = [*["envs"] * num_dims, "time"]
        if stacked and isinstance(dim, int) and not -len(part) <= dim < len(part):
            raise ConfigError(
                [
                    f"cat_results={dim}: a worker's part is [{', '.join(part)}], so it must be from {-len(part)} to "
                    f"{len(part) - 1}, or 'stack'."
                ]
            )
        uneven = told is not None or self.early.threshold is not None
        if stacked and uneven and self.output.is_concatenated and dim not in (-1, num_dims):
            raise ConfigError(
                [
                    f"cat_results={dim}: parts of different lengths, [envs, time] or [time], fit together along time "
                    "only: use cat_results=-1."
                ]
            )
        unit = num_envs * rows_per_env(want) * (want.num_workers if stacked else 1)
        if told is None or not stacked:
            want.frames_per_batch = round_up(self.frames.in_all, unit)
            return want.frames_per_batch
        steps = [-(-frames // num_envs) for frames in told]
        for each, count in zip(own, steps, strict=True):
            each["steps"] = count
        # Every slot has room for the longest part.
        want.frames_per_batch = max(steps) * unit
        frames = sum(steps) * num_envs
        if want.init_random_frames is not None:
            want.init_random_frames = -(-want.init_random_frames // frames) * want.frames_per_batch
        return frames

    def _graph_problems(self) -> list[str]:
        """What is wrong about CUDA graphs and where the policy acts."""
        given = self.work.cudagraph_policy
        if not given or self.devices.problems(self.num_workers) or self.remote.problems(self.num_workers):
            return []
        acting = sorted({device for device in self._acting() if torch.device(device).type != "cuda"})
        if not acting:
            return []
        return [
            f"cudagraph_policy={given!r}: the policy acts on {', '.join(acting)}, and CUDA graphs are recorded on GPUs "
            "only: give policy_device='cuda', or leave it out."
        ]

    def _visible_problems(self) -> list[str]:
        """What is wrong about the GPUs that workers see, and where their policies act."""
        remote = self.remote
        if self.devices.problems(self.num_workers) or remote.problems(self.num_workers):
            return []
        if isinstance(remote, RpcRemote):
            return visible_problems("visible_devices", remote.visible, self._acting())
        if isinstance(remote, RayRemote):
            return gpu_problems("remote_configs", for_each(remote.remote_configs, self.num_workers), self._acting())
        return []

    def _acting(self) -> list[str]:
        """Where each worker's policy acts."""
        _, general = self.devices.resolve(self.num_workers)
        own = [kwargs or {} for kwargs in for_each(self.remote.collector_kwargs, self.num_workers)]
        named = [name_of(kwargs.get("policy_device") or kwargs.get("device")) for kwargs in own]
        return [mine or device or "cpu" for mine, device in zip(named, general, strict=True)]

    def config(self) -> tuple[RunConfig, list[dict[str, Any]]]:
        """The configuration, of workers on this machine, and for each worker the fields of its
        `collectx.worker.spec.WorkerSpec` that are its own. For an order that is right."""
        num_workers, workers, remote = self.num_workers, self.workers, self.remote
        envs, (devices, _), acting = self.work.envs(num_workers), self.devices.resolve(num_workers), self._acting()
        each = for_each(remote.collector_kwargs, num_workers)
        own = [_own(env, device, kwargs or {}) for env, device, kwargs in zip(envs, acting, each, strict=True)]
        policies = self.work.policies(num_workers)
        if self.work.has_individual_policies:
            added = [{"policy": policy, "keeps_weights": True} for policy in policies]
            own = [each | more for each, more in zip(own, added, strict=True)]
        if self.hooks != Hooks():
            own = [each | {"hooks": self.hooks} for each in own]
        for own_fields, custom in zip(own, given_collectors(self), strict=False):
            own_fields["user_collector"] = custom
        if self.workers_write:
            own = [each | {"replay": self.output.shared_buffer} for each in own]
        collector = (CollectorConfig if self.sync is None else partial(EitherCollectorConfig, sync=self.sync))(
            kind=self.kind,
            num_workers=num_workers,
            frames_per_batch=self.frames.in_all,
            total_frames=-1 if self.frames.total_frames is None else self.frames.total_frames,
            exploration_type=self.work.exploration,
            num_slots=workers.num_slots,
            zero_copy=self.output.zero_copy,
            on_worker_failure=workers.on_worker_failure,
            max_restarts=workers.max_restarts,
            start_timeout_s=workers.start_timeout_s,
            worker_timeout_s=workers.worker_timeout_s,
            close_timeout_s=workers.close_timeout_s,
            num_workers_per_collector=remote.num_workers_per_collector,
            inner=remote.inner,
            max_frames_per_traj=positive(self.frames.max_frames_per_traj),
            init_random_frames=positive(self.frames.init_random_frames),
            reset_at_each_iter=self.frames.reset_at_each_iter,
            set_truncated=self.frames.set_truncated,
            refresh="step" if self.weights.update_weights_between_steps else "batch",
            preemptive_threshold=self.early.threshold,
            trajs_per_batch=self.assembly.trajs_per_batch,
            traj_format=self.assembly.traj_format or "padded",
            compact_obs=self.output.compact_obs,
            check_finite=self.output.check_finite,
            order_of=None,
        )
        if self.early.asked is not None:
            own[0]["should_end"] = self.early.asked
        cfg = RunConfig(
            env=own[0]["env"],
            policy=policies[0],
            collector=collector,
            backend=remote.backend_config(),
            launcher=LauncherConfig(
                kind="local", hydra_mode=None, num_threads=workers.num_sub_threads, pin_cores=False
            ),
            devices=devices,
            trainer=MeterTrainerConfig(kind="meter", digest=False),
            seed=self.work.seed,
        )
        return cfg, own


def own_of(order: Order, create: Callable[..., Any], kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """What a worker has of its own that comes later, beside the first one's device.

    Raises:
        ConfigError: what is wrong with `kwargs`.
    """
    custom = given_collector(order, 0, kwargs or {})
    problems = own_problems(kwargs or {}, custom is None) + ([] if custom is None else call_problems(custom))
    if problems:
        raise ConfigError(problems)
    own = _own(order.work.env(create), order._acting()[0], kwargs or {})
    if order.hooks != Hooks():
        own["hooks"] = order.hooks
    if custom is not None:
        own["user_collector"] = custom
    return own


def _own(env: UserEnvConfig, device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    env = dataclasses.replace(env, kwargs=env.kwargs | (kwargs.get("create_env_kwargs") or {}))
    own: dict[str, Any] = {"env": env, "policy_device": device}
    if "exploration_type" in kwargs:
        own["exploration_type"] = exploration_of(kwargs["exploration_type"])
    return own
