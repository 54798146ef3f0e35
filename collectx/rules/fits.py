"""Rules between the configuration and the envs that were made: the second phase (`collectx/rules/__init__.py`). A
process that starts workers calls `check` as soon as it knows the spec of their envs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import psutil
import torch

from collectx.batch import REWARD, STEP_COUNT
from collectx.config.derived import resolve_devices
from collectx.config.problem import Conflict, Problem, opt, page, use
from collectx.config.schema.collector import ServerInferenceConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import ImpalaTrainerConfig, LearningTrainerConfig, PpoTrainerConfig
from collectx.env.base import EnvSpec
from collectx.env.tensor_vector import with_index
from collectx.errors import ConfigError
from collectx.policy.base import Actor
from collectx.rules.collection import slow_resets
from collectx.transport.base import SlotSpec
from collectx.transport.slab import SlabLayout


def check(cfg: RunConfig, spec: EnvSpec, has_interruptor: bool = False) -> None:
    """Raises `ConfigError` with all options of `cfg` that envs without wrappers, whose spec is `spec`, do not
    support."""
    problems = [
        *_resets(cfg, spec, has_interruptor),
        *_step_count(cfg, spec),
        *_device(cfg, spec),
        *_learning(cfg, spec),
    ]
    if problems:
        raise ConfigError(*problems)


def check_slots(cfg: RunConfig, spec: EnvSpec, actor: Actor, slots: SlotSpec) -> None:
    """Raises `ConfigError` if the policy does not write what the trainer needs, if its state cannot be kept beside the
    env's tensors, or if the slots do not fit in this machine's memory; over a network, the trainer receives as many
    bytes."""
    outputs = [".".join(leaf.key) for leaf in actor.leaves]
    learns = isinstance(cfg.trainer, PpoTrainerConfig | ImpalaTrainerConfig) and actor.module is not None
    if learns and "action_log_prob" not in outputs:
        advice = f". To see how: {page('your-policy')}"
        if cfg.collector.exploration_type != "random":
            advice = f", or use {opt('collector.exploration_type=random')}, if it does so when it samples."
        raise ConfigError(
            f"trainer={cfg.trainer.kind} needs action_log_prob, but the policy {type(actor.module).__name__} writes "
            f"only {' and '.join(outputs)}. Let it write the log-probability of its action too{advice}"
        )
    if spec.device is not None:
        if actor.states:
            raise ConfigError(
                f"the policy is recurrent, but the env returns tensors on {spec.device}, so collectx cannot keep the "
                "policy's state. Use a policy that is not recurrent, or let the env return the state with its "
                "observations."
            )
        return
    # Pages of spare regions take memory only when they are used.
    nbytes, total = SlabLayout(dataclasses.replace(slots, num_spare=0)).nbytes, psutil.virtual_memory().total
    if nbytes > total:
        fewer = (
            f", or {opt('collector.num_slots')} below {slots.num_slots}" if cfg.collector.schedule == "async" else ""
        )
        rule = f"these batches need {nbytes / 1e9:,.0f} GB, but this machine has {total / 1e9:,.0f} GB of memory"
        frames = cfg.collector.frames_per_batch
        raise ConfigError(Conflict("collector.frames_per_batch", rule, frames, f"use fewer frames{fewer}."))


def _resets(cfg: RunConfig, spec: EnvSpec, has_interruptor: bool) -> Iterator[Problem]:
    """Envs can end trajectories and batches early."""
    if spec.ragged:
        yield from slow_resets(cfg)
        if has_interruptor:
            rule = (
                "cannot be used with this vector env: it spends steps on resets, so ending a batch early would leave "
                "its envs with different numbers of frames"
            )
            yield Problem("interruptor", rule, advice="make the env with the autoreset_mode disabled or same_step.")
    elif not spec.can_reset_early:
        rule = "this vector env resets its envs by itself, so no env can be reset before its episode ends"
        advice = (
            "use Gymnasium's own vector env (vectorization_mode=sync) with the autoreset_mode disabled or same_step, "
            "or single envs."
        )
        for name in ("max_frames_per_traj", "reset_at_each_iter"):
            if value := getattr(cfg.collector, name):
                yield Conflict(f"collector.{name}", rule, value, advice)


def _step_count(cfg: RunConfig, spec: EnvSpec) -> Iterator[Problem]:
    """The time limit adds the observation `step_count`."""
    limit = cfg.collector.max_frames_per_traj
    if limit is not None and any(leaf.key == STEP_COUNT for leaf in spec.observation):
        advice = "remove it, or let the env itself truncate its trajectories, as TorchRL's StepCounter does."
        yield Conflict("collector.max_frames_per_traj", "the env already observes step_count", limit, advice)


def _device(cfg: RunConfig, spec: EnvSpec) -> Iterator[Problem]:
    """The env steps on the CPU, or returns tensors on the device of policy and batches (`EnvSpec.device`)."""
    devices, there = resolve_devices(cfg.devices), spec.device
    if there is None:
        if (named := cfg.devices.env_device) is not None and not named.startswith("cpu"):
            rule = "the env returns arrays, so it always steps on the CPU"
            yield Conflict("devices.env_device", rule, named, use("devices.env_device=null"))
        return
    for name in ("policy_device", "env_device", "storing_device"):
        value = getattr(devices, name) or ("cpu" if name == "policy_device" else there)
        if with_index(torch.device(value)) != there:
            rule = f"the env returns tensors on {there}, so policy and batches must be there too"
            advice = f"use {opt(f'devices.device={there}')}, and leave the other devices out."
            is_of_all = getattr(cfg.devices, name) is None and cfg.devices.device is not None
            yield Conflict("devices.device" if is_of_all else f"devices.{name}", rule, value, advice)
            return
    if there.type != "cpu" and cfg.collector.has_workers:
        rule = f"the env returns tensors on {there}, so only this process can step it"
        yield Conflict(f"collector={cfg.collector.kind}", rule, advice=use("collector=single"))
    elif isinstance(cfg.inference, ServerInferenceConfig):
        rule = f"the env returns tensors on {there}"
        yield Conflict("inference=server", rule, advice=use("inference=local"))


def _learning(cfg: RunConfig, spec: EnvSpec) -> Iterator[Problem]:
    """Trainers that learn find one float32 reward, and the next observation."""
    path = f"trainer={cfg.trainer.kind}"
    if not isinstance(cfg.trainer, LearningTrainerConfig):
        return
    if spec.deltas:
        rule = "needs the next observation, but NextObservationDelta deletes it"
        yield Problem(path, rule, advice="leave out this transform, or use trainer=meter or trainer=custom.")
    if spec.rewards != (REWARD,):
        rewards = ", ".join(f"{'.'.join(leaf.key)} {list(leaf.shape)} {leaf.dtype}" for leaf in spec.rewards)
        rule = f"it learns from one reward with shape [1], torch.float32, but the env returns {rewards}"
        advice = (
            "convert it with a transform, such as TorchRL's LineariseRewards or DoubleToFloat, or use trainer=custom."
        )
        yield Conflict(path, rule, advice=advice)
