"""The specification of a worker process, in plain data and user objects, and the seeds that follow from it. The
trainer's process makes it; the worker's process reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from collectx import hydra_state
from collectx.config.problem import current_names
from collectx.config.registry import from_json, to_json
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.launcher import DevicesConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.env.env_indices import EnvNumbers
from collectx.random_state import seed_generators
from collectx.rollout.wrappers import RolloutOptions
from collectx.user_objects import Hooks, UserCollector, UserObjects
from collectx.worker.inference.rollout import ServedActor, split

# The number of incarnations that a worker may have over the whole run, resumes included.
INCARNATIONS_PER_WORKER = 2**16


@dataclass(frozen=True)
class ProcessHistory:
    """What came before a worker's process.

    Attributes:
        incarnation: number of earlier processes that used other seeds and trajectory ids, so that a restart repeats no
            data. A process that continues saved envs keeps their incarnation. An added worker with the envs of an
            earlier one starts at the next multiple of `INCARNATIONS_PER_WORKER`.
        restart_count: number of earlier processes over the whole run (`collectx.env.env_indices`).
        num_restarts: number of processes that replaced a failed one, since this trainer process started.
        num_requeues: number of processes that replaced one whose job the cluster's scheduler ended, since this trainer
            process started.
    """

    incarnation: int = 0
    restart_count: int = 0
    num_restarts: int = 0
    num_requeues: int = 0

    @property
    def is_last(self) -> bool:
        """Whether the next incarnation would be one of another worker."""
        return (self.incarnation + 1) % INCARNATIONS_PER_WORKER == 0

    @property
    def num_replaced(self) -> int:
        """Number of earlier processes that this trainer process started."""
        return self.num_restarts + self.num_requeues

    def after_restart(self) -> ProcessHistory:
        """Returns the history of the process that replaces a failed one."""
        return replace(self._next(), num_restarts=self.num_restarts + 1)

    def after_requeue(self) -> ProcessHistory:
        """Returns the history of the process that replaces one whose job the scheduler ended."""
        return replace(self._next(), num_requeues=self.num_requeues + 1)

    def _next(self) -> ProcessHistory:
        return replace(self, incarnation=self.incarnation + 1, restart_count=self.restart_count + 1)


@dataclass(frozen=True)
class Placement:
    """Which of a run's worker processes a process is.

    Attributes:
        worker: the worker's index in its collector.
        run_index: the process's index in the run. An added worker takes the index of one of the first workers.
        num_workers: number of workers in the run; with nested collectors, number of the processes of all workers.
        incarnation: see `ProcessHistory`.
        visible_device: the only GPU that the process sees, or "cpu"; None: all GPUs.
        env_index, worker_index, restart_count: the env numbers of the process's first env (`collectx.env.env_indices`).
    """

    worker: int
    run_index: int
    num_workers: int
    incarnation: int = 0
    visible_device: str | None = None
    env_index: int = 0
    worker_index: int = 0
    restart_count: int = 0

    @property
    def numbers(self) -> EnvNumbers:
        """The env numbers of the process's first env."""
        return EnvNumbers(self.env_index, self.worker_index, self.restart_count)


@dataclass(kw_only=True)
class ProcessExtras:
    """What a worker process needs besides the options of its configuration.

    Attributes:
        steps: number of steps per batch, if batches are shorter than slots; None: the steps of a slot.
        should_end: called after every step; returns whether to end the batch early. For inline workers only.
        user_collector: the user's collector that the worker runs (`collectx/worker/user_collector.py`).
        keeps_weights: whether the worker acts with the weights of its policy factory until version 1 is published.
    """

    steps: int | None = None
    should_end: Callable[[], bool] | None = None
    hooks: Hooks = field(default_factory=Hooks)
    user_collector: UserCollector | None = None
    keeps_weights: bool = False


@dataclass(kw_only=True)
class ConfigOverrides(ProcessExtras):
    """The values of one worker that replace those of the configuration; None keeps the configured value."""

    env: EnvConfig | None = None
    policy: PolicyConfig | None = None
    devices: DevicesConfig | None = None
    exploration_type: str | None = None


@dataclass
class ProcessSpec(ProcessExtras):
    """The specification of one worker process. Picklable.

    Attributes:
        cfg: the run's configuration, with this worker's env, policy, exploration type and device. `backend` and
            `launcher` are those of processes that the worker itself starts.
        served: describes the outputs and states of the policy that the inference server calls; None: the worker calls
            the policy.
        names: how the worker's messages name options (`collectx.config.problem.naming`).
    """

    cfg: RunConfig
    placement: Placement
    num_envs: int
    served: ServedActor | None = None
    names: dict[str, str] | None = field(default_factory=current_names)

    @property
    def groups(self) -> list[slice]:
        """The slot rows of each env group; with central inference, the groups take turns. Envs that cannot be made
        separately, such as a vector env or those of a user's callable, form one group."""
        return split(self.num_envs, 2 if self.cfg.env.are_separate and self.num_envs > 1 else 1)

    @property
    def worker(self) -> int:
        return self.placement.worker

    @property
    def policy_device(self) -> str | None:
        """The name of the policy's device; None means the CPU."""
        return self.cfg.devices.policy_device

    @property
    def rollout(self) -> RolloutOptions:
        """How batches and trajectories of the process begin and end."""
        return RolloutOptions.of(self.cfg.collector, self.placement.incarnation, self.should_end is not None)

    @property
    def first_version(self) -> int:
        """The version of the initial weights: -1, so that the first published version, 0, replaces them; with
        `keeps_weights` 0, so that the worker keeps them until version 1 is published."""
        return 0 if self.keeps_weights else -1

    @property
    def user_objects(self) -> UserObjects:
        """The parts that the result of `to_json` lacks."""
        return UserObjects.of(self.cfg.env, self.cfg.policy, self.hooks, self.user_collector)

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as plain data, for workers on other hosts, which get `user_objects` separately. Contains
        what Hydra set up in this process as `hydra`."""
        objects, cfg = self.user_objects, self.cfg
        if objects.env is not None:
            cfg = replace(cfg, env=EnvConfig(kind="python", num_envs=cfg.env.num_envs))
        if objects.policy is not None:
            cfg = replace(cfg, policy=PolicyConfig(kind="python"))
        return {
            "cfg": to_json(cfg),
            "placement": asdict(self.placement),
            "num_envs": self.num_envs,
            "steps": self.steps,
            "keeps_weights": self.keeps_weights,
            "names": self.names,
            "hydra": hydra_state.current(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any], objects: UserObjects) -> ProcessSpec:
        """Reverses `to_json`; ignores `hydra`."""
        cfg = from_json(fields["cfg"])
        values = {
            "cfg": replace(cfg, env=objects.env or cfg.env, policy=objects.policy or cfg.policy),
            "placement": Placement(**fields["placement"]),
            "hooks": objects.hooks,
            "user_collector": objects.user_collector,
        }
        return cls(**({key: value for key, value in fields.items() if key != "hydra"} | values))


def env_seed(seed: int, index: int, incarnation: int = 0) -> int:
    """Returns the seed of the env with global index `index`, whichever worker steps it: from 1 to 2**31 - 1, because
    some TorchRL envs refuse 0."""
    words = (seed, index, incarnation, 2) if incarnation else (seed, index)
    return max(1, int(np.random.SeedSequence(words).generate_state(1)[0] >> 1))


def env_seeds(spec: ProcessSpec, seed: int) -> list[int]:
    first = spec.placement.run_index * spec.num_envs
    return [env_seed(seed, first + index, spec.placement.incarnation) for index in range(spec.num_envs)]


def policy_seed(seed: int, placement: Placement, is_apart: bool = False) -> int:
    """Returns the 32-bit seed of a worker's global generators; with `is_apart`, another seed, for the policy's own
    states of generators that the envs have seeded."""
    index, incarnation = placement.run_index, placement.incarnation
    # Sequences of two words, (seed, index), give the seeds of envs.
    words = (seed, index, 1, incarnation) if incarnation or is_apart else (seed, index, 1)
    return int(np.random.SeedSequence((*words, 1) if is_apart else words).generate_state(1)[0])


def seed_policy(seed: int, placement: Placement) -> None:
    """Seeds the global generators of torch, NumPy and Python."""
    seed_generators(policy_seed(seed, placement))
