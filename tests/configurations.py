"""Configurations for tests, and collectors over them. One default of each configuration class; tests replace fields."""

import io
from dataclasses import fields, replace
from typing import Any

import torch

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import start_collector
from collectx.config.registry import group_from_dict, schemas
from collectx.config.schema.collector import EitherCollectorConfig
from collectx.config.schema.env import CountingEnvConfig, GymEnvConfig, GymVectorEnvConfig
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig, RayLauncherConfig
from collectx.config.schema.policy import CustomPolicyConfig, MlpPolicyConfig, PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.run.digest import Digest

# Inline workers use the trainer's threads; worker processes have one.
torch.set_num_threads(1)

# Ray starts as many processes as it has cores, and is there until the tests end. Its GPUs are so in name only.
RAY = {"num_cpus": 2, "num_gpus": 2, "address": "local", "include_dashboard": False}

_COLLECTOR = {"frames_per_batch": 12, "total_frames": 120, "start_timeout_s": 200.0, "close_timeout_s": 60.0}
COLLECTOR = EitherCollectorConfig(kind="multi_sync", **_COLLECTOR)
_LAUNCHER = {"kind": "local", "ray_init_config": RAY, "remote_configs": {"num_cpus": 0.1}, "queue_timeout_s": 240.0}
LAUNCHER = RayLauncherConfig(**_LAUNCHER)
DEVICES = DevicesConfig(device=None)


def counting(num_envs=1, episode_length=7, observation_size=5, step_s=0.0):
    values = {"num_envs": num_envs, "episode_length": episode_length, "observation_size": observation_size}
    return CountingEnvConfig(kind="counting", step_s=step_s, **values)


def gym(num_envs=1, id="CartPole-v1", entry_point=None, **kwargs):
    values = {"num_envs": num_envs, "id": None if entry_point else id, "entry_point": entry_point, "kwargs": kwargs}
    return GymEnvConfig(kind="gym", **values)


def faulty(fault, at_step=5, num_envs=1, **kwargs):
    return gym(num_envs, entry_point="user_code.faulty:FaultyEnv", fault=fault, at_step=at_step, **kwargs)


def gym_vector(num_envs, mode=None, vectorization="vector_entry_point", id="CartPole-v1"):
    values = {"num_envs": num_envs, "id": id, "vectorization_mode": vectorization, "autoreset_mode": mode}
    return GymVectorEnvConfig(kind="gym_vector", **values)


def mlp():
    return MlpPolicyConfig(kind="mlp", hidden_sizes=[8], activation="tanh")


def custom(target, **kwargs):
    return CustomPolicyConfig(kind="custom", target=target, kwargs=kwargs)


class Log:
    """Keeps what the collector reports."""

    def __init__(self):
        self.lines = []

    def __call__(self, name, **fields):
        self.lines.append((name, fields))

    def of(self, name):
        return [fields for each, fields in self.lines if each == name]


def config(
    kind="multi_sync", place="local", env=None, policy=None, *, backend="auto", seed=0, inference=None, **knobs: Any
):
    """A run's configuration. `kind` is `collector.kind`, with `_sync` where it can be both and is to be sync; `knobs`
    are fields of the collector's, the devices' and the launcher's configuration; `inference` are options of
    `inference=server`, None: `inference=local`."""
    devices, launcher = (
        replace(default, **{name: knobs.pop(name) for name in _names(default) & knobs.keys()})
        for default in (DEVICES, replace(LAUNCHER, kind=place))
    )
    either = kind.removesuffix("_sync")
    if either in ("rpc", "ray"):
        collector = replace(COLLECTOR, kind=either, sync=kind != either, **knobs)
    else:
        collector = _as(schemas("collector")[kind], replace(COLLECTOR, kind=kind, **knobs))
    return RunConfig(
        env=env or counting(),
        policy=policy or PolicyConfig(kind="random"),
        collector=collector,
        backend=BackendConfig(kind=backend),
        launcher=launcher if place == "ray" else _as(LauncherConfig, launcher),
        devices=devices,
        trainer=TrainerConfig(kind="meter"),
        seed=seed,
        inference=group_from_dict(
            "inference", {"kind": "local"} if inference is None else {"kind": "server"} | inference
        ),
    )


def _names(cfg) -> set[str]:
    return {field.name for field in fields(cfg)} - {"kind"}


def _as(cls, cfg):
    """The part of `cfg` that its base class has."""
    return cls(**{field.name: getattr(cfg, field.name) for field in fields(cls)})


def start(*args: Any, log_dir=None, events=None, **kwargs: Any):
    """A collector over `config(*args, **kwargs)`."""
    cfg = config(*args, **kwargs)
    spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy))
    events = events or (lambda name, **fields: None)
    return start_collector(cfg, policies.build(cfg.policy, spec, cfg.seed), spec, events, log_dir)


def batches(*args: Any, **kwargs: Any) -> list:
    """All batches of one run."""
    with start(*args, **kwargs) as collector:
        return list(collector)


def worker_pids(collector) -> list[int]:
    """The processes behind a collector of local workers."""
    return [handle.pid for _, handle in sorted(collector.handles().items())]


def through_a_file(state):
    """A state as `torch.load` reads it from a file, without pickles."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def digest_of(batch):
    """The digest of one batch."""
    return Digest().add(batch)
