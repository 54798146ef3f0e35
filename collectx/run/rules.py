"""Rules that span several fields of a configuration, each with its arithmetic and the change to make.

Called by the command line after types and ranges of single fields were checked, before anything starts. A field that
has a problem of its own holds MISSING; rules that need it stay silent. Imports neither torch nor gymnasium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import MISSING

from collectx.config import CnnPolicyConfig, GymEnvConfig, GymVectorEnvConfig, RunConfig

_DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")


def problems(cfg: RunConfig) -> list[str]:
    """Every rule that `cfg` breaks; empty where it can run."""
    rules = (_frames_per_batch, _total_frames, _single, _backend, _env, _policy, _devices)
    return [problem for rule in rules for problem in rule(cfg)]


def advice(cfg: RunConfig) -> list[str]:
    """Combinations that run, but hardly as meant. For a valid `cfg`."""
    if cfg.trainer.kind == "ppo" and cfg.collector.kind == "multi_async":
        return [
            "trainer=ppo collector=multi_async: batches are a few updates old, which PPO does not correct for; "
            "trainer=impala does, and collector=multi_sync has no lag."
        ]
    if cfg.trainer.kind == "impala" and cfg.collector.kind == "multi_sync":
        return ["trainer=impala collector=multi_sync: nothing lags, so V-trace corrects nothing; try multi_async."]
    return []


def device_problems(cfg: RunConfig) -> list[str]:
    """Devices that this machine does not have. Imports torch, unless everything is on the CPU."""
    chosen = {name: value for name, value in vars(cfg.devices).items() if value not in (None, MISSING, "cpu")}
    if not chosen:
        return []
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    found = []
    for name, value in chosen.items():
        kind, _, index = value.partition(":")
        here = {"cpu": 1, "cuda": gpus}.get(kind, 0)
        if int(index or 0) >= here:
            found.append(f"devices.{name}={value}: no such device; torch sees {', '.join(there)}.")
    return found


def _frames_per_batch(cfg: RunConfig) -> Iterator[str]:
    """Every env contributes the same number of steps to a batch."""
    frames, envs, workers = cfg.collector.frames_per_batch, cfg.env.num_envs, cfg.collector.num_workers
    if _missing(frames, envs, cfg.collector.kind):
        return
    if cfg.collector.kind == "multi_sync":
        if _missing(workers):
            return
        unit, shown = workers * envs, f"collector.num_workers={workers} x env.num_envs={envs}"
    else:
        unit, shown = envs, f"env.num_envs={envs}"
    if frames % unit:
        yield _not_a_multiple("collector.frames_per_batch", frames, shown, unit)


def _total_frames(cfg: RunConfig) -> Iterator[str]:
    total, frames = cfg.collector.total_frames, cfg.collector.frames_per_batch
    if not _missing(total, frames) and total != -1 and total % frames:
        shown = f"collector.frames_per_batch={frames}"
        yield _not_a_multiple("collector.total_frames", total, shown, frames) + " -1 is endless."


def _single(cfg: RunConfig) -> Iterator[str]:
    workers = cfg.collector.num_workers
    if cfg.collector.kind == "single" and not _missing(workers) and workers != 1:
        yield (
            f"collector.num_workers={workers}: collector=single has one worker, the trainer's own process: "
            "use collector=multi_sync or collector=multi_async, or collector.num_workers=1."
        )


def _backend(cfg: RunConfig) -> Iterator[str]:
    collector, backend, launcher = cfg.collector.kind, cfg.backend.kind, cfg.launcher.kind
    if _missing(collector, backend, launcher):
        return
    one_process = collector == "single" or launcher == "inline"
    if backend == "shared_memory" and one_process:
        reason = "collector=single" if collector == "single" else "launcher=inline"
        yield f"backend=shared_memory: {reason} is one process, which shares nothing: use backend=auto or inline."
    if backend == "inline" and not one_process:
        yield (
            f"backend=inline: collector={collector} with launcher={launcher} has several processes: "
            "use backend=auto or shared_memory, or launcher=inline."
        )


def _env(cfg: RunConfig) -> Iterator[str]:
    env = cfg.env
    if not isinstance(env, (GymEnvConfig, GymVectorEnvConfig)) or _missing(env.id, env.entry_point):
        return
    if env.id is None and env.entry_point is None:
        yield "env.id is not set: give a Gymnasium id, env.id=CartPole-v1, or env.entry_point=module:Class."
    if env.id is not None and env.entry_point is not None:
        yield (
            f"env.id={env.id} and env.entry_point={env.entry_point} both say which env to make: "
            "set one of them to null."
        )
    if not isinstance(env, GymVectorEnvConfig) or _missing(env.wrappers):
        return
    if env.wrappers and (env.vectorization_mode == "vector_entry_point" or env.entry_point is not None):
        yield (
            "env.wrappers: an env that is a vector itself has no single envs to wrap: "
            "use env.id with env.vectorization_mode=sync or async, or no wrappers."
        )


def _policy(cfg: RunConfig) -> Iterator[str]:
    policy = cfg.policy
    if isinstance(policy, CnnPolicyConfig):
        lists = {"channels": policy.channels, "kernel_sizes": policy.kernel_sizes, "strides": policy.strides}
        if not _missing(*lists.values()) and len({len(values) for values in lists.values()}) > 1:
            shown = ", ".join(f"policy.{name} has {len(values)}" for name, values in lists.items())
            yield f"{shown}: one entry for each convolution is needed in all three."
    if policy.kind == "random" and cfg.trainer.kind in ("ppo", "impala"):
        yield f"trainer={cfg.trainer.kind} policy=random: there is nothing to train: use policy=mlp, or trainer=meter."


def _devices(cfg: RunConfig) -> Iterator[str]:
    for name, value in vars(cfg.devices).items():
        if value not in (None, MISSING) and not _DEVICE.fullmatch(value):
            yield f"devices.{name}={value}: not a device: use cpu, cuda or cuda:N."
        elif name == "env_device" and value not in (None, MISSING) and not value.startswith("cpu"):
            yield f"devices.env_device={value}: envs step on the CPU: use cpu or null."


def _not_a_multiple(key: str, value: int, shown: str, unit: int) -> str:
    below = value // unit * unit
    use = f"use {below} or {below + unit}." if below else f"use {unit}."
    product = f"{value} / {unit} = {value / unit:.2f}"
    return f"{key}={value} is not a multiple of {shown} ({product}): {use}"


def _missing(*values: Any) -> bool:
    return any(isinstance(value, str) and value == MISSING for value in values)
