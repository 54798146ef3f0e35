"""Those of every collector: what to run, for how many frames, on which devices, how to deliver, how to sync weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import CudaGraphModule

from collectx.batch import POLICY_VERSION, TRAJ_IDS
from collectx.collector.trajectories import mask, split_trajectories
from collectx.config import (
    DevicesConfig,
    PolicyConfig,
    RandomPolicyConfig,
)
from collectx.given import GivenEnvConfig, GivenPolicyConfig
from collectx.library.keywords.reading import (
    exploration_of,
    exploration_problems,
    for_each,
    kwargs_of,
    name_of,
    why_no_device,
)
from collectx.policy.exploration import ExplorationType
from collectx.replay.buffer import ReplayBuffer

CreateEnv = Callable[..., Any] | Sequence[Callable[..., Any]]


@dataclass(frozen=True)
class Work:
    """What is run.

    Args:
        create_env_fn: makes a Gymnasium env, or a vector env, whose envs make a dimension of the batch, or a TorchRL
            env. With several workers: one callable for all, or one for each.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None (or
            TorchRL's `RandomPolicy`) for random actions.
        policy_factory: makes the policy instead, in every process; one callable for all workers, or one for each, the
            first of which makes this process's policy too: its weights are the ones published to all.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC, of TorchRL's `ExplorationType`, or its name. Built-in policies know RANDOM and the mode.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: is not looked at: every policy is called once, on zeros, to learn what it writes.
        auto_register_policy_transforms: is not looked at: a recurrent policy is given its state and `is_init` without
            transforms of the env, see README.
        compile_policy: the policy is compiled in the workers by `torch.compile`: True, or its keyword arguments. The
            time that takes is in the first batch (`start_timeout_s`).
        cudagraph_policy: the policy's calls are recorded as CUDA graphs by tensordict's `CudaGraphModule`: True, or its
            keyword arguments. For policies on GPUs.
        seed: what envs and random actions are seeded with.
        worker_idx: this collector's number, where it is one of several that the caller has made: `worker_idx` gives it.
    """

    create_env_fn: CreateEnv
    policy: Any = None
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None
    create_env_kwargs: Any = None
    exploration_type: Any = ExplorationType.RANDOM
    exploration_mode: str | None = None
    trust_policy: bool | None = None
    auto_register_policy_transforms: bool | None = None
    compile_policy: bool | dict[str, Any] | None = None
    cudagraph_policy: bool | dict[str, Any] | None = None
    seed: int = 0
    worker_idx: int | None = None

    @property
    def exploration(self) -> str:
        """The exploration type's name."""
        return exploration_of(self.exploration_type if self.exploration_mode is None else self.exploration_mode)

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        creates = for_each(self.create_env_fn, num_workers)
        found = [
            f"create_env_fn[{i}]={one!r} cannot be called: give a function that makes the env, as lambda: "
            "gymnasium.make('CartPole-v1')."
            for i, one in enumerate(creates)
            if not callable(one) and (i == 0 or isinstance(self.create_env_fn, list | tuple))
        ]
        if isinstance(self.create_env_fn, list | tuple) and not creates:
            found.append("create_env_fn is empty: give one callable for each worker.")
        elif len(creates) != num_workers:
            found.append(
                f"num_workers={num_workers}, but create_env_fn has {len(creates)} callables: one for each worker."
            )
        found += self._kwargs_problems(num_workers)
        if self.policy is not None and self.policy_factory is not None:
            found.append("policy and policy_factory are both given: give one of them.")
        if isinstance(self.policy, type):
            found.append(f"policy={self.policy!r} is a class: give an object of it, or the class as policy_factory.")
        elif self.policy is not None and not callable(self.policy):
            found.append(
                f"policy={self.policy!r} cannot be called: give a module, a callable from the observation to the "
                "action, or None for random actions."
            )
        found += self._factory_problems(num_workers)
        for name, made in (("compile_policy", torch.compile), ("cudagraph_policy", CudaGraphModule)):
            found += self._acceleration_problems(name, made)
        if not 0 <= self.seed < 2**61:
            found.append(f"seed={self.seed}: must be at least 0 and below 2**61.")
        return [*found, *exploration_problems("", self.exploration)]

    def _kwargs_problems(self, num_workers: int) -> list[str]:
        kwargs = for_each(self.create_env_kwargs, num_workers)
        if len(kwargs) != num_workers:
            count = len(kwargs)
            return [f"create_env_kwargs has {count} entries for {num_workers} workers: one for each, or one dict."]
        wrong = [one for one in kwargs if one is not None and not isinstance(one, Mapping)]
        return [f"create_env_kwargs={one!r}: must be a dict, or a list of one for each worker." for one in wrong]

    def _factory_problems(self, num_workers: int) -> list[str]:
        factories = for_each(self.policy_factory, num_workers)
        if len(factories) != num_workers:
            return [
                f"policy_factory has {len(factories)} entries for {num_workers} workers: one for each, or one callable."
            ]
        wrong = [one for one in factories if one is not None and not callable(one)]
        return [f"policy_factory={wrong[0]!r} cannot be called."] if wrong else []

    def _acceleration_problems(self, name: str, made: Callable) -> list[str]:
        given = getattr(self, name)
        if given is None or given is False:
            return []
        if self.policy is None and self.policy_factory is None:
            return [f"{name}={given!r}: there is no policy, actions are random: leave it out."]
        if not isinstance(given, bool | dict):
            return [f"{name}={given!r}: must be True, or a dict of keyword arguments of {made.__name__}."]
        try:
            inspect.signature(made).bind(None, **(kwargs_of(given) or {}))
        except TypeError as error:
            return [f"{name}={given!r}: {made.__name__}: {error}."]
        return []

    def envs(self, num_workers: int) -> list[GivenEnvConfig]:
        """One for each worker."""
        creates, kwargs = for_each(self.create_env_fn, num_workers), for_each(self.create_env_kwargs, num_workers)
        return [GivenEnvConfig("given", 0, make, dict(own or {})) for make, own in zip(creates, kwargs, strict=True)]

    def policies(self, num_workers: int) -> list[PolicyConfig]:
        """Each worker's policy, as a choice of the group."""
        compiling, recording = kwargs_of(self.compile_policy), kwargs_of(self.cudagraph_policy)
        return [
            RandomPolicyConfig("random")
            if self.policy is None and factory is None
            else GivenPolicyConfig("given", self.policy, factory, compiling, recording)
            for factory in for_each(self.policy_factory, num_workers)
        ]


@dataclass(frozen=True)
class Frames:
    """How many frames.

    Args:
        frames_per_batch: frames of one batch, rounded up to a multiple of the number of envs that take part in it. Of
            `MultiSyncCollector`, with `cat_results=-1`, also a list of how many each worker has of them; of
            `MultiAsyncCollector` such a list is their sum.
        total_frames: when to end, a multiple of `frames_per_batch`; -1 or None is never. What was rounded up there is
            delivered too.
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

    def _counts(self) -> list[str]:
        least = min(self.per_worker or [self.in_all])
        if least < 1:
            return [f"frames_per_batch={self.frames_per_batch}: must be at least 1."]
        frames, total = self.in_all, self.total_frames
        if total is None or total == -1:
            return []
        if total < 1:
            return [f"total_frames={total}: must be at least 1, or -1 for an endless collector."]
        if total % frames:
            below = total // frames * frames
            use = f"use {below} or {below + frames}" if below else f"use {frames}"
            return [
                f"total_frames={total} is not a multiple of frames_per_batch={frames} "
                f"({total} / {frames} = {total / frames:.2f}): {use}, or -1 for an endless collector."
            ]
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
class Handing:
    """How batches are handed over.

    Args:
        split_trajs: a batch is `[trajectories, longest]`, see `collectx.split_trajectories`.
        postproc: called with every batch, in this process; what it returns is delivered. Where it changes how many
            frames there are, `total_frames` still counts what was collected.
        cat_results: of a sync collector: None or "stack": the parts of its workers are `[workers, ...]`; 0, -1, ...:
            they are concatenated along that dimension of a part.
        return_same_td: every batch is the same TensorDict with new values, where it has the shape of the one before.
        zero_copy: batches are views of the transport's memory, valid until the next is asked for.
        track_traj_ids: whether batches have `("collector", "traj_ids")`.
        track_policy_version: batches have `policy_version` and `("next", "policy_version")`, as TorchRL's, beside
            `("collector", "policy_version")`, which they always have.
        replay_buffer: batches go there, by its `extend`, of a sync collector part by part, and iteration gives None in
            their place. See `start`. Workers of this machine write to a `collectx.ReplayBuffer` themselves, in the
            order in which they are ready, unless batches are to be changed before (`postproc`, `track_...`,
            `extend_buffer`). `split_trajs` goes with buffers of whole rows alone.
        extend_buffer: False: the frames go there step by step, by `add`; where there are several envs, one of each.
        use_buffers: is not looked at: batches are always written into memory that is allocated once.
        compact_obs: batches have no observation below `next`, which is the next frame's where a trajectory goes on.
    """

    split_trajs: bool | None = False
    postproc: Callable[[Any], Any] | None = None
    cat_results: str | int | None = None
    return_same_td: bool = False
    zero_copy: bool = False
    track_traj_ids: bool = True
    track_policy_version: bool = False
    replay_buffer: Any = None
    extend_buffer: bool = True
    use_buffers: bool | None = None
    compact_obs: bool = False

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        if self.cat_results not in (None, "stack") and not isinstance(self.cat_results, int):
            found.append(f"cat_results={self.cat_results!r}: must be 'stack' or a dimension, as 0 or -1.")
        if self.split_trajs and not self.track_traj_ids:
            found.append("split_trajs=True with track_traj_ids=False: trajectories are known by their ids.")
        if self.postproc is not None and not callable(self.postproc):
            found.append(f"postproc={self.postproc!r} cannot be called.")
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, "extend"):
            found.append(f"replay_buffer={type(self.replay_buffer).__name__}: has no `extend`.")
        elif not self.extend_buffer and not hasattr(self.replay_buffer, "add"):
            name = type(self.replay_buffer).__name__
            found.append(f"extend_buffer={self.extend_buffer}: replay_buffer={name} has no `add`, frame by frame.")
        if self.split_trajs and (isinstance(self.replay_buffer, ReplayBuffer) or not self.extend_buffer):
            found.append(
                "split_trajs=True with a replay buffer of frames: padding is none: leave it out; SliceSampler draws "
                "within trajectories."
            )
        return found

    @property
    def shared_buffer(self) -> ReplayBuffer | None:
        """The replay buffer, if workers may write their batches there as they are."""
        changed = self.postproc or self.track_policy_version or not self.track_traj_ids
        shared = isinstance(self.replay_buffer, ReplayBuffer) and self.extend_buffer and not changed
        return self.replay_buffer if shared else None

    def hand(self, batch: TensorDict, stacked: bool, steps: Sequence[int], masked: bool = False) -> Any:
        """The batch as it is wanted.

        Args:
            stacked: whether its first dimension is that of the workers.
            steps: how many of each part are filled.
            masked: whether to add `("collector", "mask")` where parts are stacked.
        """
        if not stacked and steps[0] < batch.shape[-1]:
            batch = batch[..., : steps[0]]
        if stacked and masked and not self.is_concatenated:
            mask(batch, steps)
        if self.track_policy_version:
            versions = batch[POLICY_VERSION]
            batch["policy_version"] = versions
            batch["next", "policy_version"] = versions.clone()
        if not self.track_traj_ids:
            del batch[TRAJ_IDS]
        if stacked and isinstance(self.cat_results, int):
            parts = zip(batch.unbind(0), steps, strict=True)
            batch = torch.cat([part[..., :filled] for part, filled in parts], self.cat_results)
        handed: Any = split_trajectories(batch) if self.split_trajs else batch
        return handed if self.postproc is None else self.postproc(handed)

    @property
    def is_concatenated(self) -> bool:
        """Whether the parts of a batch are put one after the other."""
        return isinstance(self.cat_results, int)

    def store(self, batch: TensorDict, stacked: bool, steps: Sequence[int]) -> None:
        """Puts a batch into the replay buffer, the part of each worker by itself, so that an item is a frame (with
        several envs in a worker, a row of frames), as where TorchRL's workers write.

        Args:
            stacked, steps: see `hand`.
        """
        parts = batch.unbind(0) if stacked else (batch,)
        for part, filled in zip(parts, steps, strict=True):
            handed = self.hand(part, False, [filled])
            if self.extend_buffer:
                self.replay_buffer.extend(handed)
                continue
            for step in handed.unbind(-1):
                self.replay_buffer.add(step)


@dataclass(frozen=True)
class Workers:
    """Those of a collector that has several.

    Args:
        num_workers: how many; None: as many as `create_env_fn` has callables.
        num_threads: of torch, in this process; None: as they are.
        num_sub_threads: of torch, in each worker.
        num_slots: batches that an async worker may have filled or under way at once.
        on_worker_failure: "raise", "restart" or "drop"; see README, "When a worker is gone".
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
    def interval(self) -> int:
        """After how many batches; -1: never by itself."""
        if self.update_at_each_batch or self.update_after_each_batch:
            return 1
        chosen = [value for value in (self.max_weight_update_interval, self.update_interval) if value not in (None, -1)]
        return min(chosen, default=-1)

    @property
    def travel(self) -> bool:
        """Whether workers are to be told at all."""
        scheme = (self.weight_sync_schemes or {}).get("policy")
        return scheme is None or type(scheme).__name__ != "NoWeightSyncScheme"


@dataclass(frozen=True)
class EachBatchWeights(Weights):
    """`Weights`, published after every batch if no interval is given."""

    @property
    def interval(self) -> int:
        """See `Weights`."""
        nothing_said = self.update_interval is None and self.max_weight_update_interval == -1
        return 1 if nothing_said else super().interval
