"""Every `kind` of every group: the dataclass of its options, and the function or class that builds it. A new kind is
its module, its dataclass, an entry here, and its YAML file, of which `make config` writes all but the first comment.

    env        build(cfg, first_index, incarnation, numbers) -> collectx.env.base.Env, see collectx.env.build
    policy     build(cfg, spec) -> torch.nn.Module or another callable
    backend    a module with make(...) -> Pair and why_not(), see collectx.transport.network.p2p
    trainer    build(cfg, policy, spec, seed, device) -> collectx.trainer.base.Trainer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, fields
from importlib import import_module
from typing import Any, get_type_hints

from collectx.config.problem import opt
from collectx.config.schema import collector, env, launcher, policy, trainer
from collectx.config.schema.fields import section_of
from collectx.config.schema.run import SECTIONS, RunConfig

# The groups, in the order of the data path. Each needs a choice, except those of `DEFAULTS`.
GROUPS = ("env", "policy", "collector", "inference", "backend", "launcher", "devices", "trainer")
# All options of these groups are fixed on resume; of other groups, only the marked ones.
KEPT_GROUPS = ("env", "policy")
# The choices of groups that a configuration of the user may lack.
DEFAULTS = {"inference": "local"}


@dataclass(frozen=True)
class Kind:
    """One entry of the registry. `implementation` is "module:name" or "module", imported when it is built. Empty if
    nothing is built: random actions, backends within one machine, collectors (they choose a schedule) and launchers
    (they are places, `collectx.place`). Ray's launcher names the module that imports ray."""

    schema: type
    implementation: str = ""


# The values of `kind:` in each group; `devices` knows no kinds.
KINDS: dict[str, dict[str, Kind]] = {
    "env": {
        "gym": Kind(env.GymEnvConfig, "collectx.env.gym:build"),
        "gym_vector": Kind(env.GymVectorEnvConfig, "collectx.env.gym_vector:build"),
        "envpool": Kind(env.EnvPoolEnvConfig, "collectx.env.envpool:EnvPoolEnv"),
        "torchrl": Kind(env.TorchrlEnvConfig, "collectx.env.torchrl.group:build"),
        "dataset": Kind(env.DatasetEnvConfig, "collectx.env.dataset:DatasetEnv"),
        "counting": Kind(env.CountingEnvConfig, "collectx.env.counting:CountingEnv"),
    },
    "policy": {
        "random": Kind(policy.PolicyConfig),
        "mlp": Kind(policy.MlpPolicyConfig, "collectx.policy.mlp:build"),
        "cnn": Kind(policy.CnnPolicyConfig, "collectx.policy.cnn:build"),
        "multi": Kind(policy.MultiPolicyConfig, "collectx.policy.multi:build"),
        "q_mlp": Kind(policy.MlpPolicyConfig, "collectx.policy.q:build"),
        "q_cnn": Kind(policy.CnnPolicyConfig, "collectx.policy.q:build"),
        "q_multi": Kind(policy.MultiPolicyConfig, "collectx.policy.q:build"),
        "squashed_mlp": Kind(policy.SquashedMlpPolicyConfig, "collectx.policy.squashed:build"),
        "squashed_multi": Kind(policy.SquashedMultiPolicyConfig, "collectx.policy.squashed:build"),
        "custom": Kind(policy.CustomPolicyConfig, "collectx.policy.custom:build"),
    },
    "collector": {
        "single": Kind(collector.SingleCollectorConfig),
        "multi_sync": Kind(collector.CollectorConfig),
        "multi_async": Kind(collector.CollectorConfig),
        "distributed": Kind(collector.CollectorConfig),
        "distributed_sync": Kind(collector.CollectorConfig),
        "rpc": Kind(collector.EitherCollectorConfig),
        "ray": Kind(collector.EitherCollectorConfig),
    },
    "inference": {
        "local": Kind(collector.InferenceConfig),
        "server": Kind(collector.ServerInferenceConfig),
    },
    "backend": {
        "auto": Kind(launcher.BackendConfig),
        "inline": Kind(launcher.BackendConfig),
        "shared_memory": Kind(launcher.BackendConfig),
        "gloo": Kind(launcher.BackendConfig, "collectx.transport.network.gloo"),
        "nccl": Kind(launcher.BackendConfig, "collectx.transport.network.nccl"),
        "mpi": Kind(launcher.BackendConfig, "collectx.transport.network.mpi"),
        "ucc": Kind(launcher.BackendConfig, "collectx.transport.network.ucc"),
        "rpc": Kind(launcher.RpcBackendConfig, "collectx.transport.network.rpc"),
    },
    "launcher": {
        "local": Kind(launcher.LauncherConfig),
        "inline": Kind(launcher.LauncherConfig),
        "slurm": Kind(launcher.SlurmLauncherConfig),
        "submitit": Kind(launcher.SubmititLauncherConfig),
        "submitit_delayed": Kind(launcher.SubmititDelayedLauncherConfig),
        "ray": Kind(launcher.RayLauncherConfig, "collectx.place.ray_actors"),
    },
    "devices": {},
    "trainer": {
        "meter": Kind(trainer.TrainerConfig, "collectx.trainer.base:MeterTrainer"),
        "ppo": Kind(trainer.PpoTrainerConfig, "collectx.trainer.actor_critic:PpoTrainer"),
        "impala": Kind(trainer.ImpalaTrainerConfig, "collectx.trainer.actor_critic:ImpalaTrainer"),
        "dqn": Kind(trainer.DqnTrainerConfig, "collectx.trainer.dqn:DqnTrainer"),
        "sac": Kind(trainer.SacTrainerConfig, "collectx.trainer.sac:SacTrainer"),
        "record": Kind(trainer.RecordTrainerConfig, "collectx.trainer.record:RecordTrainer"),
        "custom": Kind(trainer.CustomTrainerConfig, "collectx.trainer.custom:build"),
    },
}


def schemas(group: str) -> dict[str, Any]:
    """Returns the dataclasses of a group by kind; of `devices`, which knows no kinds, by the name of its default
    choice."""
    return {name: kind.schema for name, kind in KINDS[group].items()} or {"cpu": launcher.DevicesConfig}


def implementation(group: str, name: str) -> Any:
    """Imports and returns what builds a kind; None if nothing does."""
    module, _, attribute = KINDS[group][name].implementation.partition(":")
    if not module:
        return None
    return getattr(import_module(module), attribute) if attribute else import_module(module)


def why_not(kind: str, group: str = "backend") -> str | None:
    """Checks whether a network backend, or a kind of another group, can work in this process; imports its libraries.
    Returns one clause that says why not, and what to do; None if it can."""
    alternative = opt("backend=gloo") if group == "backend" else f"another {group}"
    install = f"Install it (pip install 'collectx[{kind}]'), or use {alternative}"
    try:
        module = implementation(group, kind)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed. {install}"
    except Exception as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return f"its library cannot be loaded ({first}). {install}"
    return module.why_not() if group == "backend" else None


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Returns the configuration of which `dataclasses.asdict` made `values`. Checks nothing."""
    missing = {group: {"kind": kind} for group, kind in DEFAULTS.items()}
    groups = {group: group_from_dict(group, (missing | values)[group]) for group in GROUPS}
    sections = {name: _from_dict(cls, values.get(name, {})) for name, cls in SECTIONS.items()}
    written = [(tuple(path), text) for path, text in values.get("written", ())]
    return RunConfig(**groups, **sections, seed=values["seed"], written=written)


# The only key of a mapping that stands for one with keys that are not texts, which JSON does not have.
_PAIRS = "\0pairs"


def to_json(cfg: RunConfig) -> dict[str, Any]:
    """Returns the configuration as plain data whose keys are all texts, for `from_json`."""
    return _with_text_keys(asdict(cfg))


def from_json(values: dict[str, Any]) -> RunConfig:
    """Reverses `to_json`. Checks nothing."""
    return from_dict(_with_own_keys(values))


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_text_keys(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: _with_text_keys(each) for key, each in value.items()}
    return {_PAIRS: [[key, _with_text_keys(each)] for key, each in value.items()]}


def _with_own_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_own_keys(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if _PAIRS in value:
        return {key: _with_own_keys(each) for key, each in value[_PAIRS]}
    return {key: _with_own_keys(each) for key, each in value.items()}


def group_from_dict(group: str, values: dict[str, Any]) -> Any:
    """Returns the section of which `dataclasses.asdict` made `values`: `group_from_dict("env", asdict(cfg.env))` equals
    `cfg.env`."""
    if values.get("kind") == "python":
        return env.EnvConfig(**values) if group == "env" else policy.PolicyConfig(**values)
    return _from_dict(schemas(group)[values.get("kind", "cpu")], values)


def _from_dict(cls: Any, values: Mapping[str, Any]) -> Any:
    sections = {key: section_of(hint) for key, hint in get_type_hints(cls).items()}
    return cls(
        **{
            key: value if value is None or sections[key] is None else _from_dict(sections[key], value)
            for key, value in values.items()
        }
    )


def field_of(path: str) -> Field:
    """Returns the dataclass field of an option, such as "collector.num_slots"; if several kinds take the option, that
    of the most general dataclass."""
    group, _, name = path.rpartition(".")
    fields_of_kinds = [
        cls.__dataclass_fields__.get(name) for cls in sorted(_classes(group), key=lambda cls: len(cls.__mro__))
    ]
    return next(filter(None, fields_of_kinds))


def _classes(group: str) -> Iterable[Any]:
    return schemas(group).values() if group else (RunConfig,)


def marked(group: str, mark: str) -> list[str]:
    """Returns the options of a group, of all its kinds, with a mark of `collectx.config.schema.fields`, such as "kept";
    of the group "", those of `RunConfig`: sections and `seed`."""
    options = (field for cls in _classes(group) for field in fields(cls))
    return list(dict.fromkeys(field.name for field in options if field.metadata.get(mark)))
