"""What a worker builds and how it fills its slots, as plain data and user objects; and the seeds that follow from it.
Made in the trainer's process, read in the worker's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from collectx.batch import Leaf
from collectx.config.derived import is_stacked
from collectx.config.registry import group_from_dict
from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.launcher import LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.rollout.options import RolloutOptions
from collectx.user_objects import Hooks, UserCollector, UserObjects


@dataclass(frozen=True)
class NestedSpec:
    """The collector that a worker runs (`collectx/worker/nested.py`), and the launcher of its processes."""

    collector: CollectorConfig
    launcher: LauncherConfig


@dataclass(frozen=True)
class WorkerSpec:
    """One worker. Picklable.

    Attributes:
        worker: its index among the workers of its collector.
        num_workers: workers of the whole run.
        num_envs: envs of every worker.
        env, policy: what to build.
        policy_device: the device that the policy acts on, as `torch.device` takes it; None: the CPU, as no device was
            named.
        exploration_type: how the policy acts.
        seed: the run's seed.
        leaves: of the trainer's slots; the worker's env and policy must have the same.
        rollout: how its batches and trajectories begin and end.
        life: the number of its sequence of seeds and trajectory ids: 0 at first; a restart begins the next one, so that
            no data is repeated, and a process that continues saved envs has that of their worker. Added workers begin
            at a higher number.
        first_worker: `index - worker`: for the first workers of a collector, the number of the run's workers before
            those of the collector; lower, and possibly negative, for added workers, which reuse an index.
        nested: the collector that the worker runs; `num_workers` then counts the processes of all workers, and
            `num_envs` is of one process.
        steps: steps per batch, if batches are shorter than slots; None: as many as in a slot.
        should_end: called after every step; whether the batch ends early. Of an inline worker only.
        hooks: called around its batches.
        user_collector: the user's collector that the worker runs (`collectx/worker/user_collector.py`).
        visible_device: the only GPU that its process sees, or "cpu"; None: all.
        keeps_weights: acts with the weights from its policy factory until version 1 is published.
    """

    worker: int
    num_workers: int
    num_envs: int
    env: EnvConfig
    policy: PolicyConfig
    policy_device: str | None
    exploration_type: str
    seed: int
    leaves: tuple[Leaf, ...]
    rollout: RolloutOptions
    life: int = 0
    first_worker: int = 0
    nested: NestedSpec | None = None
    steps: int | None = None
    should_end: Callable[[], bool] | None = None
    hooks: Hooks = field(default_factory=Hooks)
    user_collector: UserCollector | None = None
    visible_device: str | None = None
    keeps_weights: bool = False

    @property
    def first_version(self) -> int:
        """The version of the initial weights: -1 if even the first version that is published replaces them."""
        return 0 if self.keeps_weights else -1

    @property
    def index(self) -> int:
        """The index of the worker in the whole run."""
        return self.first_worker + self.worker

    @property
    def user_objects(self) -> UserObjects:
        """The parts that `to_json` leaves out."""
        return UserObjects.of(self.env, self.policy, self.hooks, self.user_collector)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data, for workers on other hosts, which get `user_objects` by another way."""
        objects: dict[str, Any] = {name: None for name, each in vars(self.user_objects).items() if each is not None}
        return asdict(replace(self, **objects)) | {"leaves": [leaf.to_json() for leaf in self.leaves]}

    @classmethod
    def from_json(cls, fields: dict[str, Any], objects: UserObjects) -> WorkerSpec:
        """The inverse of `to_json`."""
        groups = fields["nested"]
        values = {
            "env": objects.env or group_from_dict("env", fields["env"]),
            "policy": objects.policy or group_from_dict("policy", fields["policy"]),
            "leaves": tuple(map(Leaf.from_json, fields["leaves"])),
            "nested": groups and NestedSpec(**{group: group_from_dict(group, groups[group]) for group in groups}),
            "rollout": RolloutOptions(**fields["rollout"]),
            "hooks": objects.hooks,
            "user_collector": objects.user_collector,
        }
        return cls(**(fields | values))


def rollout_options(options: CollectorConfig, num_workers: int) -> RolloutOptions:
    """The rollout options of the first life of each of `num_workers` workers."""
    frames_per_part = options.frames_per_batch // (num_workers if is_stacked(options) else 1)
    names = {each.name for each in fields(RolloutOptions)}
    return RolloutOptions(
        num_random_batches=-(-(options.init_random_frames or 0) // (num_workers * frames_per_part)),
        refresh_each_step=options.refresh == "step",
        **{name: value for name, value in vars(options).items() if name in names},
    )


def env_seed(seed: int, index: int, life: int = 0) -> int:
    """The seed of the env with global index `index`, whichever worker it is in: `[1, 2**31)`, as some envs of TorchRL
    refuse 0."""
    words = (seed, index, life, 2) if life else (seed, index)
    return max(1, int(np.random.SeedSequence(words).generate_state(1)[0] >> 1))


def env_seeds(spec: WorkerSpec, seed: int) -> list[int]:
    """The seeds of a worker's envs."""
    first = spec.index * spec.num_envs
    return [env_seed(seed, first + index, spec.life) for index in range(spec.num_envs)]


def seed_policy(spec: WorkerSpec, is_guest: bool) -> None:
    """Seeds torch, and, unless the worker is a guest in the trainer's process, numpy and random."""
    # SeedSequence((seed, index)) with two words are the seeds of envs.
    words = (spec.seed, spec.index, 1, spec.life) if spec.life else (spec.seed, spec.index, 1)
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    torch.manual_seed(seed)
    if not is_guest:
        np.random.seed(seed)
        random.seed(seed)
