"""What is run: envs and policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import CudaGraphModule

from collectx.config import PolicyConfig, RandomPolicyConfig
from collectx.library.keywords.coerce import exploration_of, exploration_problems, for_each, kwargs_of
from collectx.policy.exploration import ExplorationType
from collectx.user_objects import UserEnvConfig, UserPolicyConfig

CreateEnv = Callable[..., Any] | Sequence[Callable[..., Any]]


@dataclass(frozen=True)
class Work:
    """What is run.

    Args:
        create_env_fn: makes a Gymnasium env, or a vector env, whose envs make a dimension of the batch, or a TorchRL
            env. With several workers: one callable for all, or one for each.
        policy: a TensorDictModule, an `nn.Module`, a callable from the observation to the action, or None (or
            TorchRL's `RandomPolicy`) for random actions.
        policy_factory: makes the policy instead, in every process. One callable for all workers: they act with the
            weights of the policy that it makes in this process. A list of one for each worker: each acts with the
            weights of its policy until `update_policy_weights_`, or an update interval, publishes others; the first
            also makes this process's policy.
        create_env_kwargs: passed to `create_env_fn`; one dict for all workers, or one for each.
        exploration_type: how actions are taken from the policy's distribution: RANDOM, MODE, MEAN, MEDIAN or
            DETERMINISTIC, of TorchRL's `ExplorationType`, or its name. Built-in policies know RANDOM and the mode.
        exploration_mode: TorchRL's earlier keyword for the name.
        trust_policy: True: the policy is called with a TensorDict, and its signature and `in_keys` are not checked. It
            is still called once in each process, with first observations of the env, to learn what it writes.
        auto_register_policy_transforms: is not looked at: a recurrent policy is given its state and `is_init` without
            transforms of the env, see README.
        compile_policy: the policy is compiled in the workers by `torch.compile`: True, or its keyword arguments. The
            time that takes is in the first batch (`start_timeout_s`).
        cudagraph_policy: the policy's calls are recorded as CUDA graphs by tensordict's `CudaGraphModule`: True, or its
            keyword arguments. For policies on GPUs.
        seed: what envs and random actions are seeded with.
        num_envs: envs of each worker, where `create_env_fn` makes plain ones: it is called as often, and a batch is
            `[envs, time]`. None: as many as one call makes.
        info_keys: entries of Gymnasium's `info` to keep in the batch, numbers, arrays or dicts of these, as
            `("info", name)` and `("next", "info", name)`. `("info", "_name")` is False where the env does not give the
            entry; what is there then is zero.
        exclude_keys: parts of the observation that are left out of the batch, as those that are no tensors; nested ones
            with dots, "inner.text".
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
    num_envs: int | None = None
    info_keys: Sequence[str] = ()
    exclude_keys: Sequence[str] = ()
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
        if self.num_envs is not None and self.num_envs < 1:
            found.append(f"num_envs={self.num_envs}: must be at least 1.")
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

    @property
    def has_individual_policies(self) -> bool:
        """Whether different factories make the policies of the workers."""
        factories = self.policy_factory
        return isinstance(factories, list | tuple) and any(factory is not factories[0] for factory in factories)

    def envs(self, num_workers: int) -> list[UserEnvConfig]:
        """One for each worker."""
        creates, kwargs = for_each(self.create_env_fn, num_workers), for_each(self.create_env_kwargs, num_workers)
        return [self.env(make, own) for make, own in zip(creates, kwargs, strict=True)]

    def env(self, create: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> UserEnvConfig:
        """The envs of a worker for which `create` makes them."""
        return UserEnvConfig(
            kind="given",
            num_envs=self.num_envs or 0,
            create=create,
            kwargs=dict(kwargs or {}),
            info_keys=list(self.info_keys),
            exclude_keys=list(self.exclude_keys),
        )

    def policies(self, num_workers: int) -> list[PolicyConfig]:
        """Each worker's policy, as a choice of the group."""
        compiling, recording = kwargs_of(self.compile_policy), kwargs_of(self.cudagraph_policy)
        return [
            RandomPolicyConfig(kind="random")
            if self.policy is None and factory is None
            else UserPolicyConfig(
                kind="given",
                policy=self.policy,
                factory=factory,
                compile=compiling,
                cudagraph=recording,
                is_trusted=bool(self.trust_policy),
            )
            for factory in for_each(self.policy_factory, num_workers)
        ]
