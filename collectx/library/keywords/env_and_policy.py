"""Keywords about envs and policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv
from tensordict.nn import CudaGraphModule
from torch import nn

from collectx.config.schema.policy import PolicyConfig
from collectx.env.policy_transforms import WithPolicyTransforms, with_policy_transforms
from collectx.env.torchrl import is_torchrl_env
from collectx.env.user_env import is_env
from collectx.library.keywords.coerce import exploration_name, exploration_problems, for_each, kwargs_of
from collectx.library.keywords.options import option
from collectx.library.keywords.specs import Keywords
from collectx.policy.exploration import ExplorationType
from collectx.user_objects import UserEnvConfig, UserPolicyConfig

CreateEnv = Callable[..., Any] | gymnasium.Env | VectorEnv | Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class EnvAndPolicy(Keywords):
    """The keywords about envs and policies.

    Args:
        create_env_fn: returns a Gymnasium env, a vector env, whose envs are a dimension of the batch, or a TorchRL env.
            With several workers: one callable for all, or one for each. An env itself will do too: `Collector` steps
            it, and `shutdown()` closes it; workers step copies of it.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None or a
            `RandomPolicy` for random actions.
        policy_factory: returns the policy instead, in every process; with `policy`, in the workers alone, which then
            act with the weights of their factory until others are published. One callable for all workers: they act
            with the weights of the policy that it returns in this process. A list with one per worker: each worker acts
            with the weights of its policy until `update_policy_weights_`, or an update interval, publishes others; the
            first callable also makes this process's policy.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC of TorchRL's `ExplorationType`, or its name. Built-in policies support RANDOM and the mode.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: True: the policy is called with a TensorDict, and its signature and `in_keys` are not checked. It
            is still called once in each process, with first observations of the env, to learn what it writes.
        auto_register_policy_transforms: whether envs of TorchRL get `InitTracker` and the primers of `policy`, so that
            their specs show `is_init` and the state of a recurrent policy. Without it, such a policy gets both too, see
            docs/EXTENDING.md, "A policy".
        compile_policy: whether workers compile the policy by `torch.compile`: True, or its keyword arguments. The first
            batch includes the compilation (`start_timeout_s`).
        cudagraph_policy: whether tensordict's `CudaGraphModule` records the policy's calls as CUDA graphs: True, or its
            keyword arguments. For policies on GPUs.
        seed: seed of envs and of what policies draw; None: that of `torch.manual_seed`, a constant without such a call.
        num_envs: envs of each worker, if `create_env_fn` returns single ones: it is called `num_envs` times; batches
            are `[envs, time]`, also of 1. None: the envs of one call; a single env's batches are `[time]`.
        info_keys: entries of Gymnasium's `info` to keep in the batch, numbers, arrays or dicts of these, as
            `("info", name)` and `("next", "info", name)`. `("info", "_name")` is False where the env lacks the entry;
            its value then is zero.
        exclude_keys: parts of the observation that are left out of the batch, for example texts; nested ones with dots,
            "inner.text"; "observation" for one without parts. The policy does not see them.
        worker_idx: this collector's number among several of the caller: the value of the attribute `worker_idx`.
    """

    create_env_fn: CreateEnv = field(kw_only=False)
    policy: Any = field(default=None, kw_only=False)
    policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None
    create_env_kwargs: Any = None
    exploration_type: Any = ExplorationType.RANDOM
    exploration_mode: str | None = None
    trust_policy: bool | None = None
    auto_register_policy_transforms: bool | None = None
    compile_policy: bool | dict[str, Any] | None = None
    cudagraph_policy: bool | dict[str, Any] | None = None
    seed: int | None = option("seed", None)
    num_envs: int | None = option("env.num_envs", None)
    info_keys: Sequence[str] = ()
    exclude_keys: Sequence[str] = ()
    worker_idx: int | None = None

    @property
    def exploration(self) -> str:
        """The exploration type's name."""
        return exploration_name(self.exploration_type if self.exploration_mode is None else self.exploration_mode)

    def problems(self) -> list[str]:
        num_workers = self.worker_count
        creates = for_each(self.create_env_fn, num_workers)
        problems = super().problems() + [
            f"create_env_fn[{i}]={one!r} is no env and cannot be called: give a function that makes the env, as "
            "lambda: gymnasium.make('CartPole-v1')."
            for i, one in enumerate(creates)
            if not (callable(one) or is_env(one)) and (i == 0 or isinstance(self.create_env_fn, list | tuple))
        ]
        if isinstance(self.create_env_fn, list | tuple) and not creates:
            problems.append("create_env_fn is empty: give one callable for each worker.")
        elif len(creates) != num_workers:
            problems.append(
                f"num_workers={num_workers}, but create_env_fn has {len(creates)} callables: one for each worker."
            )
        kwargs = for_each(self.create_env_kwargs, num_workers)
        factories = for_each(self.policy_factory, num_workers)
        if len(kwargs) != num_workers:
            count = f"{len(kwargs)} entries for {num_workers} workers"
            problems.append(f"create_env_kwargs has {count}: one for each, or one dict.")
        else:
            wrong = [one for one in kwargs if one is not None and not isinstance(one, Mapping)]
            problems += [
                f"create_env_kwargs={one!r}: must be a dict, or a list of one for each worker." for one in wrong
            ]
        if isinstance(self.policy, type):
            problems.append(f"policy={self.policy!r} is a class: give an object of it, or the class as policy_factory.")
        elif self.policy is not None and not callable(self.policy):
            problems.append(
                f"policy={self.policy!r} cannot be called: give a module, a callable from the observation to the "
                "action, or None for random actions."
            )
        if len(factories) != num_workers:
            count = f"{len(factories)} entries for {num_workers} workers"
            problems.append(f"policy_factory has {count}: one for each, or one callable.")
        elif wrong := [one for one in factories if one is not None and not callable(one)]:
            problems.append(f"policy_factory={wrong[0]!r} cannot be called.")
        problems += self._acceleration_problems("compile_policy", torch.compile)
        problems += self._acceleration_problems("cudagraph_policy", CudaGraphModule)
        return [*problems, *exploration_problems("", self.exploration)]

    def _acceleration_problems(self, name: str, made: Callable) -> list[str]:
        value = getattr(self, name)
        if value is None or value is False:
            return []
        if self.policy is None and self.policy_factory is None:
            return [f"{name}={value!r}: there is no policy, actions are random: leave it out."]
        if not isinstance(value, bool | dict):
            return [f"{name}={value!r}: must be True, or a dict of keyword arguments of {made.__name__}."]
        try:
            inspect.signature(made).bind(None, **(kwargs_of(value) or {}))
        except TypeError as error:
            return [f"{name}={value!r}: {made.__name__}: {error}."]
        return []

    @property
    def has_individual_policies(self) -> bool:
        """Whether different factories make the policies of the workers."""
        factories = self.policy_factory
        return isinstance(factories, list | tuple) and any(factory is not factories[0] for factory in factories)

    @property
    def has_both_policies(self) -> bool:
        """Whether this process has the policy `policy`, and the workers have those of `policy_factory`."""
        return self.policy is not None and self.policy_factory is not None

    def envs(self) -> list[UserEnvConfig]:
        """One for each worker."""
        creates, kwargs = (for_each(each, self.worker_count) for each in (self.create_env_fn, self.create_env_kwargs))
        return [self.env(create, each) for create, each in zip(creates, kwargs, strict=True)]

    def env(self, create: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> UserEnvConfig:
        """The envs of a worker for which `create` makes them."""
        if self.auto_register_policy_transforms and isinstance(self.policy, nn.Module):
            if is_torchrl_env(create):
                create = with_policy_transforms(create, self.policy)
            else:
                create = WithPolicyTransforms(create, self.policy)
        return UserEnvConfig(
            kind="given",
            num_envs=self.num_envs or 0,
            create=create,
            kwargs=dict(kwargs or {}),
            info_keys=list(self.info_keys),
            exclude_keys=list(self.exclude_keys),
        )

    def policies(self) -> list[PolicyConfig]:
        """Each worker's policy, as a choice of the group."""
        factories = for_each(self.policy_factory, self.worker_count)
        return [self._policy(self.policy if factory is None else None, factory) for factory in factories]

    def trainers_policy(self) -> PolicyConfig:
        """This process's policy."""
        return self.policies()[0] if self.policy is None else self._policy(self.policy, None)

    def _policy(self, policy: Any, factory: Callable[[], Any] | None) -> PolicyConfig:
        if policy is None and factory is None:
            return PolicyConfig(kind="random")
        return UserPolicyConfig(
            kind="given",
            policy=policy,
            factory=factory,
            compile=kwargs_of(self.compile_policy),
            cudagraph=kwargs_of(self.cudagraph_policy),
            skip_signature_check=bool(self.trust_policy),
        )
