"""Makes, from the constructor's keywords, what may differ between workers: env, policy, device, hooks and user-defined
collector. The run's configuration contains what they share.

Also appends the transforms that a recurrent policy needs to an env of TorchRL (`auto_register_policy_transforms`), and
takes the keywords `collector_class` and `collector_kwargs`, which name the collector that each worker runs. torchrl is
imported only if an env is one of its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from collectx.batch import as_key
from collectx.collector.batch_info import workers_can_write
from collectx.config.derived import device_named
from collectx.config.schema.fields import Unset
from collectx.config.schema.launcher import DevicesConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.env.torchrl import is_torchrl_env
from collectx.library.keywords import Keywords, SingleKeywords
from collectx.library.values import device_name, exploration_name, for_each, kwargs_of
from collectx.policy.exploration import ExplorationType
from collectx.replay.buffer import ReplayBuffer
from collectx.user_objects import UserCollector, UserEnvConfig, UserPolicyConfig
from collectx.worker.spec import ConfigOverrides

# The classes of this package and TorchRL that a worker may run, and their `collector.inner`.
KNOWN_CLASSES = {
    "Collector": "single",
    "SyncDataCollector": "single",
    "MultiSyncCollector": "sync",
    "MultiSyncDataCollector": "sync",
    "MultiAsyncCollector": "async",
    "MultiaSyncDataCollector": "async",
}
# Entries of `collector_kwargs` that may differ between workers, and entries that must be the same for all.
PER_WORKER = ("create_env_kwargs", "device", "policy_device", "exploration_type")
SAME_FOR_ALL = (
    "max_frames_per_traj",
    "reset_at_each_iter",
    "reset_when_done",
    "set_truncated",
    "storing_device",
    "env_device",
    "no_cuda_sync",
    "track_traj_ids",
    "track_policy_version",
    "compact_obs",
    "check_finite",
    "use_buffers",
    "trust_policy",
    "auto_register_policy_transforms",
    "compile_policy",
    "cudagraph_policy",
)


def user_class(collector_class: Any) -> Callable[..., Any] | None:
    """Returns `collector_class` if it is user-defined; None for a name, or a class of this package or TorchRL."""
    return collector_class if callable(collector_class) and not _is_known(collector_class) else None


def kind_of_class(collector_class: Any) -> str | None:
    """Returns "single", "sync" or "async": the passed name, or the one of the nearest known base class; None for
    others."""
    if isinstance(collector_class, str):
        return collector_class if collector_class in KNOWN_CLASSES.values() else None
    known = [cls.__name__ for cls in getattr(collector_class, "__mro__", ()) if _is_known(cls)]
    return next((KNOWN_CLASSES[name] for name in known if name in KNOWN_CLASSES), None)


def _is_known(cls: Any) -> bool:
    return getattr(cls, "__module__", "").partition(".")[0] in ("collectx", "torchrl")


def lift_shared(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Moves the entries of `SAME_FOR_ALL` from `collector_kwargs` to the constructor's keywords, unless the class is
    user-defined. Returns the new keywords, and messages about entries that contradict each other."""
    kwargs = keywords.get("collector_kwargs")
    per_worker = kwargs if isinstance(kwargs, list | tuple) else [kwargs]
    if not all(each is None or isinstance(each, Mapping) for each in per_worker):
        return dict(keywords), []  # `parse` refuses it
    names = [name for name in SAME_FOR_ALL if any(name in (each or ()) for each in per_worker)]
    if not names or user_class(keywords.get("collector_class")) is not None:
        return dict(keywords), []
    lifted, problems = dict(keywords), []
    for name in names:
        values = [(each or {}).get(name) for each in per_worker]
        if len(set(map(str, values))) > 1:
            problems.append(
                f"{name!r} in collector_kwargs must be the same for all workers, but its values are {values}. Pass one "
                "value to all."
            )
        # By their texts, so a device equals its name.
        elif keywords.get(name) is not None and str(keywords[name]) != str(values[0]):
            problems.append(
                f"{name}={keywords[name]!r} and collector_kwargs[{name!r}]={values[0]!r} contradict each other. Pass "
                "only one of them."
            )
        else:
            lifted[name] = values[0]
    rest = [{name: value for name, value in (each or {}).items() if name not in SAME_FOR_ALL} for each in per_worker]
    lifted["collector_kwargs"] = rest if isinstance(kwargs, list | tuple) else rest[0]
    return lifted, problems


def overrides_of_workers(keywords: Keywords, cfg: RunConfig) -> list[ConfigOverrides]:
    """Returns the overrides of `cfg` for each worker, each with its env."""
    num_workers = cfg.collector.num_workers
    has_both = keywords.policy is not None and keywords.policy_factory is not None
    lists = (keywords.create_env_fn, keywords.create_env_kwargs, keywords.policy_factory)
    per_worker = zip(
        *(for_each(each, num_workers) for each in lists), kwargs_of_workers(keywords, num_workers), strict=True
    )
    overrides = []
    for worker, (create, kwargs_of_env, factory, kwargs) in enumerate(per_worker):
        each = _overrides(keywords, cfg, worker, _env(keywords, create, kwargs_of_env or {}), kwargs)
        if has_both or keywords.has_individual_policies:
            each.policy, each.keeps_weights = _policy(keywords, keywords.policy, factory), True
        overrides.append(each)
    if isinstance(keywords, SingleKeywords) and keywords.interruptor is not None:
        (single,) = overrides
        single.should_end = keywords.interruptor.collection_stopped
    return overrides


def overrides_of_added(
    keywords: Keywords, cfg: RunConfig, create: Callable[..., Any], kwargs: Mapping[str, Any]
) -> ConfigOverrides:
    """Returns the overrides for a worker that is added to a running collector, with the first worker's device."""
    return _overrides(keywords, cfg, 0, _env(keywords, create, {}), kwargs)


def _env(keywords: Keywords, create: Callable[..., Any], kwargs: Mapping[str, Any]) -> UserEnvConfig:
    """Returns the env configuration of a worker; `create` makes its envs."""
    if keywords.auto_register_policy_transforms and isinstance(keywords.policy, nn.Module):
        add = with_policy_transforms if is_torchrl_env(create) else WithPolicyTransforms
        create = add(create, keywords.policy)
    return UserEnvConfig(
        kind="python",
        num_envs=keywords.num_envs or 0,
        create=create,
        kwargs=dict(kwargs),
        info_keys=list(keywords.info_keys),
        exclude_keys=list(keywords.exclude_keys),
    )


def _overrides(
    keywords: Keywords, cfg: RunConfig, worker: int, env: UserEnvConfig, kwargs: Mapping[str, Any]
) -> ConfigOverrides:
    """Returns the overrides of a worker, whose `collector_kwargs` are `kwargs`."""
    device = policy_devices(keywords, cfg.collector.num_workers)[worker]
    device = device and device_named(device)
    hooks = keywords.hooks
    if not keywords.has_workers:
        # `BatchConverter` calls it with the delivered batch.
        hooks = replace(hooks, post_collect_hook=None)
    collector, buffer = user_collector(keywords, cfg, worker, kwargs), keywords.replay_buffer
    needs_batches = keywords.changes_batches or collector is not None
    exploration = kwargs.get("exploration_type")
    if isinstance(buffer, ReplayBuffer) and workers_can_write(cfg, needs_batches):
        hooks = replace(hooks, write_batch=buffer.extend)
    return ConfigOverrides(
        env=replace(env, kwargs=env.kwargs | (kwargs.get("create_env_kwargs") or {})),
        devices=DevicesConfig(device=None, storing_device=None, policy_device=device, env_device=None),
        exploration_type=None if exploration is None else exploration_name(exploration),
        hooks=hooks,
        user_collector=collector,
    )


def kwargs_of_workers(keywords: Keywords, num_workers: int) -> list[dict[str, Any]]:
    """Returns the `collector_kwargs` of each worker. Raises `Unset` for a list of a wrong length."""
    return [kwargs or {} for kwargs in for_each(getattr(keywords, "collector_kwargs", None), num_workers)]


def policy_devices(keywords: Keywords, num_workers: int) -> list[str | None]:
    """Returns the name of each worker's policy device; None if no device was passed. Raises `Unset` if a list is of a
    wrong length, or a device in `collector_kwargs` does not exist."""
    candidates = zip(
        kwargs_of_workers(keywords, num_workers),
        for_each(keywords.policy_device, num_workers),
        for_each(keywords.device, num_workers),
        strict=True,
    )
    try:
        return [
            device_name(kwargs.get("policy_device") or kwargs.get("device") or policy or device)
            for kwargs, policy, device in candidates
        ]
    except ValueError as error:
        raise Unset(str(error)) from error


def trainers_policy(keywords: Keywords, num_workers: int) -> PolicyConfig:
    """Returns the policy of this process, with which workers without a policy of their own act too."""
    factory = for_each(keywords.policy_factory, num_workers)[0]
    return _policy(keywords, keywords.policy, None if keywords.policy is not None else factory)


def _policy(keywords: Keywords, policy: Any, factory: Callable[[], Any] | None) -> PolicyConfig:
    """Returns the policy that `factory` makes; without a factory, `policy`."""
    if policy is None and factory is None:
        return PolicyConfig(kind="random")
    return UserPolicyConfig(
        kind="python",
        policy=policy if factory is None else None,
        factory=factory,
        compile=kwargs_of(keywords.compile_policy),
        cudagraph=kwargs_of(keywords.cudagraph_policy),
        skip_signature_check=bool(keywords.trust_policy),
    )


def user_collector(keywords: Keywords, cfg: RunConfig, worker: int, kwargs: Mapping[str, Any]) -> UserCollector | None:
    """Returns the user-defined collector that the worker runs, with its keyword arguments; None if `collector_class` is
    not user-defined."""
    create = user_class(getattr(keywords, "collector_class", None))
    if create is None:
        return None
    options = cfg.collector
    random_frames, is_random = options.init_random_frames, options.exploration_type == ExplorationType.RANDOM.value
    passed_on: dict[str, Any] = {
        "max_frames_per_traj": options.max_frames_per_traj,
        "init_random_frames": None if random_frames is None else -(-random_frames // options.num_workers),
        "reset_at_each_iter": options.reset_at_each_iter or None,
        "set_truncated": options.set_truncated or None,
        "exploration_type": None if is_random else keywords.chosen_exploration,
        "compile_policy": kwargs_of(keywords.compile_policy),
        "cudagraph_policy": kwargs_of(keywords.cudagraph_policy),
    }
    for name in ("device", "policy_device", "env_device"):
        passed_on[name] = for_each(getattr(keywords, name), options.num_workers)[worker]
    merged = {name: value for name, value in passed_on.items() if value is not None} | dict(kwargs)
    # The env's factory gets these.
    merged.pop("create_env_kwargs", None)
    return UserCollector(create, merged, None if options.inner == "single" else options.num_workers_per_collector)


@dataclass
class WithPolicyTransforms:
    """Calls `create`, and appends `InitTracker` and the primers of the policy's modules (`make_tensordict_primer`) to
    the env, unless its specs contain their keys. Envs that are not TorchRL's stay unchanged.
    """

    create: Callable[..., Any]
    policy: nn.Module

    def __call__(self, **kwargs: Any) -> Any:
        env = self.create(**kwargs)
        return with_policy_transforms(env, self.policy) if is_torchrl_env(env) else env


def with_policy_transforms(env: Any, policy: nn.Module) -> Any:
    """Returns a TorchRL env with those of the transforms that it lacks."""
    from torchrl.envs.transforms import InitTracker

    if "is_init" not in {key[-1] for key in _keys(env)}:
        env = env.append_transform(InitTracker())
    makers = [make for module in policy.modules() if (make := getattr(module, "make_tensordict_primer", None))]
    for made in (make() for make in makers):
        for primer in made if hasattr(made, "__iter__") else (made,):
            if not {as_key(key) for key in primer.primers.keys(True, True)} <= _keys(env):
                env = env.append_transform(primer)
    return env


def _keys(env: Any) -> set[tuple[str, ...]]:
    specs = env.full_observation_spec, env.full_state_spec
    return {as_key(key) for spec in specs for key in spec.keys(True, True)}
