"""Publishes weights in the forms that `update_policy_weights_` accepts, or that a weight updater supplies.

The updaters have the names of TorchRL's, for scripts that subclass them. An updater supplies and maps the weights; the
collector's transport sends them.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.collector.collector import CollectorCore
from collectx.config.problem import counted
from collectx.library.keywords import Keywords
from collectx.library.values import numbered_workers, within
from collectx.policy.flat_weights import FlatWeights, check_finite
from collectx.transport.base import WeightWriters


class WeightUpdaterBase:
    """Base class of weight updaters, for the keyword `weight_updater`. Override `_get_server_weights` to supply the
    weights when none are passed, or `_maybe_map_weights` to map all weights before they are sent. The collector never
    calls TorchRL's `_sync_weights_with_worker` and `all_worker_ids`.
    """

    _registered: Callable[[], Any] | None = None

    @functools.cached_property
    def post_hooks(self) -> list[Callable[[], Any]]:
        """Functions that are called without arguments after every publish of weights."""
        return []

    @property
    def collector(self) -> Any:
        """The collector that uses this updater; None before its constructor, and after its end."""
        return None if self._registered is None else self._registered()

    def _get_server_weights(self) -> Any:
        """Returns the weights, in a form that `update_policy_weights_` takes; by default the policy's."""
        policy = getattr(self.collector, "policy", None)
        return TensorDict.from_module(policy).data if isinstance(policy, nn.Module) else None

    def _maybe_map_weights(self, weights: Any) -> Any:
        """Returns the weights to send for these weights, which were passed or supplied."""
        return weights

    def register_collector(self, collector: Any) -> None:
        """Sets `collector`, by a weak reference. The collector's constructor calls this."""
        self._registered = weakref.ref(collector)

    def register_post_hook(self, hook: Callable[[], Any]) -> None:
        """Appends to `post_hooks`."""
        self.post_hooks.append(hook)

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Publishes weights like `collector.update_policy_weights_`.

        Raises:
            RuntimeError: there is no collector.
        """
        if self.collector is None:
            raise RuntimeError(
                f"this {type(self).__name__} does not belong to a collector yet. Pass it to a collector's constructor: "
                "weight_updater=..."
            )
        self.collector.update_policy_weights_(policy_or_weights, worker_ids=worker_ids)

    __call__ = push_weights


class VanillaWeightUpdater(WeightUpdaterBase):
    """Supplies the weights that a function returns.

    Args:
        weight_getter: returns the weights; None: those of the collector's policy.
        policy_weights: ignored (accepted for TorchRL compatibility).
    """

    def __init__(self, *, weight_getter: Callable[[], Any] | None = None, policy_weights: Any = None):
        self._getter = weight_getter

    def _get_server_weights(self) -> Any:
        return super()._get_server_weights() if self._getter is None else self._getter()


class MultiProcessedWeightUpdater(VanillaWeightUpdater):
    """`VanillaWeightUpdater` with another name for `weight_getter`."""

    def __init__(self, *, get_server_weights: Callable[[], Any] | None = None, policy_weights: Any = None):
        super().__init__(weight_getter=get_server_weights)


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """Supplies no weights: `update_policy_weights_` without weights raises `RuntimeError`."""

    def _get_server_weights(self) -> Any:
        raise RuntimeError("RemoteModuleWeightUpdater supplies no weights. Pass them to update_policy_weights_().")


class RayWeightUpdater(WeightUpdaterBase):
    """Supplies the weights of the collector's policy.

    Args:
        options: ignored (accepted for TorchRL compatibility); the collector's keyword `update_interval` is the number
            of batches between two publishes.
    """

    def __init__(self, *options: Any, **others: Any):
        pass


DistributedWeightUpdater = RPCWeightUpdater = RayWeightUpdater


# Ends messages about unknown models.
MODELS_HINT = "Valid names: 'policy', 'env.<path>', 'replay_buffer.<path>'"
_ADVICE = "Pass the weights of a module with the policy's architecture"
# None stands for the weights of `collector.policy`.
WeightsLike: TypeAlias = nn.Module | TensorDictBase | Mapping[str, Any] | None


class WeightPublisher:
    """Publishes weights to all workers or to single ones. Safe to use from several threads.

    Attributes:
        individual: indices of the workers that act with individual weights.
        versions: the newest version for each worker; the key None stands for all other workers.
        updater: the keyword `weight_updater`; an instance of it, if it is a subclass of `WeightUpdaterBase`.
    """

    def __init__(self, core: CollectorCore, keywords: Keywords, individual: Iterable[int]):
        self._core = core
        self._keywords = keywords
        self.individual = set(individual)
        self.versions: dict[int | None, int] = {None: core.policy_version}
        updater = keywords.weight_updater
        self.updater: Any = updater
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            self.updater = updater()
        self._lock = threading.Lock()

    def publish(self, policy: Any, by_worker: Mapping[int | None, WeightsLike], strict: bool = False) -> None:
        """Publishes weights by worker index, then calls the updater's post-hooks. Weights with the key None are loaded
        into `policy`, whose weights are published to all workers. Raises the errors of `load_weights`."""
        scheme = (self._keywords.weight_sync_schemes or {}).get("policy")
        if type(scheme).__name__ == "NoWeightSyncScheme":
            return
        with self._lock:
            by_worker = {worker: apply_weight_updater(self.updater, weights) for worker, weights in by_worker.items()}
            individual = {worker: weights for worker, weights in by_worker.items() if worker is not None}
            if individual and self._keywords.has_workers:
                writers = weight_writers(policy, individual, strict, self._keywords.check_finite)
                version = self._core.publish_weights(writers)
                self.versions |= dict.fromkeys(individual, version)
                self.individual |= set(individual)
            else:
                (weights,) = by_worker.values()
                if weights is not None:
                    load_weights(policy, weights, strict)
                version = self._core.publish(policy if isinstance(policy, nn.Module) else None)
                self.versions = {None: version}
                self.individual.clear()
        for hook in getattr(self.updater, "post_hooks", ()):
            hook()


def unknown_models(names: Iterable[str]) -> list[str]:
    """Returns the names that are neither "policy" nor paths in the env or the replay buffer."""
    is_path = {name: within("env", name) or within("replay_buffer", name) for name in names}
    return sorted(name for name in is_path if name != "policy" and not is_path[name])


def weights_by_model(
    alternatives: Sequence[Any], models: Mapping[str, Any] | None, model: str | None
) -> dict[str, Any]:
    """Returns the weights by model id: those of `models`, and the one of `alternatives` that is not None, which belongs
    to `model` (None: "policy"). Without any, the result is `{"policy": None}`, the policy's current weights.

    Raises:
        TypeError: several arguments contain weights of one model, or a model other than the policy gets None.
        ValueError: there is no such model.
    """
    passed = [(model or "policy", each) for each in alternatives if each is not None] + [*(models or {}).items()]
    by_model = dict(passed) or {model or "policy": None}
    if unknown := unknown_models(by_model):
        raise ValueError(f"model {unknown[0]!r} is unknown. {MODELS_HINT}")
    if len(passed) > len(by_model):
        raise TypeError(
            "the weights were passed more than once. Pass only one of policy_or_weights, weights, policy_weights, "
            "policy and weights_dict."
        )
    if missing := [name for name, weights in by_model.items() if weights is None and name != "policy"]:
        raise TypeError(f"the weights of {missing[0]!r} are None. Pass them, because only the policy's may be None.")
    return by_model


def weights_by_worker(
    weights: Any, worker_ids: int | Sequence[int] | None, num_workers: int
) -> dict[int | None, WeightsLike]:
    """Returns the weights of one model by worker index; `weights` may be such a dict already. The key None stands for
    all workers. Raises ValueError if a worker does not exist."""
    # Not every Mapping: a TensorDict is one, but iterating over it yields rows.
    if isinstance(weights, dict) and any(isinstance(key, int | np.integer) for key in weights):
        if worker_ids is not None:
            raise ValueError(f"the weights already name their workers. Leave out worker_ids={worker_ids!r}.")
        by_worker = {int(key) if isinstance(key, int | np.integer) else key: value for key, value in weights.items()}
    elif worker_ids is None:
        return {None: weights}
    else:
        indices = [worker_ids] if isinstance(worker_ids, int | np.integer) else worker_ids
        by_worker = dict.fromkeys(map(int, indices), weights)
    if unknown := [worker for worker in by_worker if worker not in range(num_workers)]:
        raise ValueError(f"worker {unknown[0]!r} does not exist: {numbered_workers(num_workers)}")
    if not by_worker:
        raise ValueError("worker_ids is empty. Name the workers that get the weights, or leave worker_ids out for all.")
    return by_worker


def apply_weight_updater(updater: Callable[[], Any] | None, weights: WeightsLike) -> WeightsLike:
    """Returns the weights to publish: `weights` as the keyword `weight_updater` maps them; for None, the weights that
    it supplies."""
    if updater is None:
        return weights
    of_torchrl: Any = updater
    if not _is_torchrl(updater):
        if weights is not None and not isinstance(updater, type):
            return weights
        of_torchrl = updater()
        if not _is_torchrl(of_torchrl):
            return of_torchrl
    if isinstance(weights, nn.Module):
        weights = TensorDict.from_module(weights).data
    return of_torchrl._maybe_map_weights(of_torchrl._get_server_weights() if weights is None else weights)


def as_state_dict(weights: nn.Module | TensorDictBase | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights as a dict from names to tensors."""
    if isinstance(weights, nn.Module):
        return weights.state_dict()
    return weights.flatten_keys(".").to_dict() if isinstance(weights, TensorDictBase) else dict(weights)


def load_weights(policy: Any, weights: nn.Module | TensorDictBase | Mapping[str, Any], strict: bool = False) -> None:
    """Copies weights into `policy`, whatever their device and dtype: those of a module with its architecture, or
    weights by name.

    Raises:
        TypeError: `weights` is of a wrong type, or the policy is not a module.
        ValueError: weights of the policy are missing; shapes differ, or the numbers of weights of the two modules; or,
            with `strict`, weights have unknown names, or the two modules' names differ.
    """
    if not isinstance(policy, nn.Module):
        raise TypeError(
            f"the policy is of type {type(policy).__name__}, not a torch.nn.Module, so it has no weights to load. Call "
            "update_policy_weights_() without weights."
        )
    if weights is policy:
        return
    if isinstance(weights, nn.Module):
        targets, sources = _pairs(policy, weights, strict)
    else:
        targets, sources = policy.state_dict(), _values_for(policy, weights, strict)
    _check_shapes(targets, sources)
    with torch.no_grad():
        for target, source in zip(targets.values(), sources, strict=True):
            target.copy_(source)


def weight_writers(
    policy: Any, by_worker: Mapping[int, WeightsLike], strict: bool = False, finite: bool = False
) -> WeightWriters:
    """Returns, for each worker, a function that writes its weights into a flat buffer. None stands for the weights of
    `policy`, which stays unchanged. These functions raise the errors of `load_weights`, and with `finite` those of
    `check_finite`."""
    scratch = copy.deepcopy(policy)

    def write(weights: WeightsLike, buffer: torch.Tensor) -> None:
        load_weights(scratch, policy if weights is None else weights, strict)
        if finite:
            check_finite(scratch)
        FlatWeights(scratch).write(buffer)

    return {worker: partial(write, weights) for worker, weights in by_worker.items()}


def _tensors_of(module: nn.Module, remove_duplicate: bool = True) -> dict[str, torch.Tensor]:
    """Returns all parameters and buffers, including those outside the state dict. `remove_duplicate`: a shared tensor
    has the first of its names only."""
    parameters = module.named_parameters(remove_duplicate=remove_duplicate)
    return dict(parameters) | dict(module.named_buffers(remove_duplicate=remove_duplicate))


def _pairs(policy: nn.Module, module: nn.Module, strict: bool) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Returns the policy's weights by name, and the module's in the same order: matched by name, or by position if
    their names differ, as those of a wrapped network do."""
    targets, sources = _tensors_of(policy), [*_tensors_of(module).values()]
    if len(targets) != len(sources):
        raise ValueError(
            f"the module has {counted(len(sources), 'weight')}, but the policy has {len(targets)}. {_ADVICE}"
        )
    # A shared tensor has all its names here, as its first one depends on the order of the layers.
    named, by_name = _without_prefixes(_tensors_of(policy, False), _tensors_of(module, False))
    if named.keys() == by_name.keys():
        return named, [by_name[name] for name in named]
    if strict:
        example = min(named.keys() ^ by_name.keys())
        who = "the policy" if example in by_name else "the module"
        raise ValueError(
            f"{who} has no weight named {example!r}. Pass a module with the policy's names, or strict=False to match "
            "weights by position."
        )
    return targets, sources


def _values_for(policy: nn.Module, weights: TensorDictBase | Mapping[str, Any], strict: bool) -> list[Any]:
    if not isinstance(weights, Mapping | TensorDictBase):
        raise TypeError(f"weights={weights!r} must be a module, a state dict or a TensorDict of parameters")
    names, weights = _without_prefixes(dict.fromkeys(policy.state_dict()), as_state_dict(weights))
    if missing := sorted(names.keys() - weights):
        raise ValueError(f"the weights lack {' and '.join(map(repr, missing))}, which the policy needs. {_ADVICE}")
    if strict and (unexpected := sorted(weights.keys() - names)):
        them = "it" if len(unexpected) == 1 else "them"
        unknown = " or ".join(map(repr, unexpected))
        raise ValueError(f"the policy has no weight named {unknown}. Leave {them} out, or pass strict=False.")
    return [weights[name] for name in names]


def _without_prefixes(names: dict[str, Any], weights: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Removes the prefixes of wrappers from the policy's names and from those of the weights, as far as only one of
    them has these."""
    names, weights = _without_orig_mod(names), _without_orig_mod(weights)
    if names.keys() - weights and names.keys() <= _without_module(weights).keys():
        weights = _without_module(weights)
    elif names.keys() - weights and _without_module(names).keys() <= weights.keys():
        names = _without_module(names)
    return names, weights


def _without_orig_mod(weights: dict[str, Any]) -> dict[str, Any]:
    """Removes the names that `torch.compile` inserts."""
    return {".".join(part for part in name.split(".") if part != "_orig_mod"): each for name, each in weights.items()}


def _without_module(weights: dict[str, Any]) -> dict[str, Any]:
    """Removes the prefix of data parallelism from names."""
    return {name.removeprefix("module."): each for name, each in weights.items()}


def _check_shapes(targets: Mapping[str, torch.Tensor], sources: Sequence[Any]) -> None:
    for (name, target), source in zip(targets.items(), sources, strict=True):
        shape, expected = list(getattr(source, "shape", ())), list(getattr(target, "shape", ()))
        if shape != expected:
            raise ValueError(f"{name!r} has shape {shape} in the weights, but {expected} in the policy. {_ADVICE}")


def _is_torchrl(updater: Any) -> bool:
    return hasattr(updater, "_get_server_weights") and not isinstance(updater, type)
