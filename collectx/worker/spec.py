"""What a worker is told, as plain data or as what only Python can give, and what it seeds itself with.

Made in the trainer's process, read in the worker's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from collectx.batch import Leaf
from collectx.config import (
    CollectorConfig,
    EnvConfig,
    LauncherConfig,
    PolicyConfig,
    as_dict,
    group_from_dict,
)
from collectx.rollout.options import RolloutOptions
from collectx.user_objects import Hooks, UserCollector, UserObjects


class Extended(Protocol):
    """A `collectx.ReplayBuffer`, or what writes to one."""

    def extend(self, batch: Any, /) -> Any: ...


@dataclass(frozen=True)
class NestedSpec:
    """The collector that a worker is itself (`collectx/collector/nested.py`): schedule and size, and where its own
    workers come up."""

    collector: CollectorConfig
    launcher: LauncherConfig

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"collector": as_dict(self.collector), "launcher": as_dict(self.launcher)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> NestedSpec:
        """What `to_json` made."""
        return cls(**{group: group_from_dict(group, values) for group, values in fields.items()})


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker is told. Picklable.

    Attributes:
        worker: its index among the workers of its collector.
        num_workers: how many there are in the whole run.
        env, policy: what to build.
        num_envs: envs of every worker.
        policy_device: where the policy acts, as `torch.device` takes it.
        keeps_weights: it acts with the weights that its policy was made with until others than the first are published.
        exploration_type: how it acts.
        seed: the run's seed.
        life: 0, or how often a worker of this index was started again. Each life has envs' seeds and trajectory ids of
            its own, so that nothing is repeated.
        leaves: what the trainer's slots hold; the worker's own env and policy must give the same.
        first_worker: how many workers of the run come before those of its collector.
        nested: the collector that the worker runs; `num_workers` then counts the processes of all workers, and
            `num_envs` is of one process.
        steps: of its batches, where they are fewer than its slots have.
        rollout: how its batches and trajectories begin and end.
        should_end: of a worker in the trainer's process: called after every step, whether a batch is to end.
        replay: of a process of the trainer's machine: where it writes its batches itself.
        hooks: what is called around its batches.
        user_collector: the collector of the user's own that it runs, see `collectx/worker/user_collector.py`.
        visible_device: of a process of its own: the only GPU that it sees, or "cpu". None: all that there are.
    """

    worker: int
    num_workers: int
    num_envs: int
    env: EnvConfig
    policy: PolicyConfig
    policy_device: str
    exploration_type: str
    seed: int
    leaves: tuple[Leaf, ...]
    rollout: RolloutOptions
    life: int = 0
    first_worker: int = 0
    nested: NestedSpec | None = None
    steps: int | None = None
    should_end: Callable[[], bool] | None = None
    replay: Extended | None = None
    hooks: Hooks = field(default_factory=Hooks)
    user_collector: UserCollector | None = None
    visible_device: str | None = None
    keeps_weights: bool = False

    @property
    def first_version(self) -> int:
        """Of the weights that its policy is made with: -1 where even the first that are published are newer."""
        return 0 if self.keeps_weights else -1

    @property
    def index(self) -> int:
        """Its index in the whole run."""
        return self.first_worker + self.worker

    @property
    def given(self) -> UserObjects:
        """What `to_json` cannot tell."""
        return UserObjects.of(self.env, self.policy, self.hooks, self.user_collector)

    def to_json(self) -> dict[str, Any]:
        """As plain data, for workers on other hosts; what is `given` they must have already."""
        leaves = [[list(leaf.key), list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in self.leaves]
        given = self.given
        env = as_dict(self.env) if given.env is None else None
        policy = as_dict(self.policy) if given.policy is None else None
        nested = None if self.nested is None else self.nested.to_json()
        rollout = asdict(self.rollout)
        return {
            **vars(self),
            "env": env,
            "policy": policy,
            "leaves": leaves,
            "nested": nested,
            "rollout": rollout,
            "hooks": None,
            "user_collector": None,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any], given: UserObjects) -> WorkerSpec:
        """What `to_json` made, with what it could not tell."""
        leaves = tuple(Leaf(tuple(key), tuple(shape), getattr(torch, dtype)) for key, shape, dtype in fields["leaves"])
        env = given.env or group_from_dict("env", fields["env"])
        policy = given.policy or group_from_dict("policy", fields["policy"])
        nested = None if fields["nested"] is None else NestedSpec.from_json(fields["nested"])
        rollout = RolloutOptions(**fields["rollout"])
        told = {
            "env": env,
            "policy": policy,
            "leaves": leaves,
            "nested": nested,
            "rollout": rollout,
            "hooks": given.hooks,
            "user_collector": given.user_collector,
        }
        return cls(**(fields | told))


def env_seed(seed: int, index: int, life: int = 0) -> int:
    """The seed of the env with global index `index`, whichever worker it is in: `[0, 2**31)`."""
    words = (seed, index, life, 2) if life else (seed, index)
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def env_seeds(task: WorkerSpec, seed: int) -> list[int]:
    first = task.index * task.num_envs
    return [env_seed(seed, first + index, task.life) for index in range(task.num_envs)]


def seed_policy(task: WorkerSpec, guest: bool) -> None:
    # Apart from the env's seeds: those are SeedSequence((seed, index)) with an index >= 0 and two words.
    words = (task.seed, task.index, 1, task.life) if task.life else (task.seed, task.index, 1)
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    torch.manual_seed(seed)
    if not guest:
        np.random.seed(seed)
        random.seed(seed)
