"""What `update_policy_weights_` is given, in all the forms that TorchRL's collectors take, and what a weight updater
gives. Called in the trainer's process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from collectx.policy.weights import FlatWeights
from collectx.transport.base import Write

WeightsLike: TypeAlias = nn.Module | TensorDictBase | Mapping[str, Any] | None


def weights_by_worker(
    all_given: Sequence[WeightsLike | Mapping[int, WeightsLike]],
    models: Mapping[str, Any] | None,
    model: str | None,
    worker_ids: int | Sequence[int] | None,
    num_workers: int,
) -> dict[int | None, WeightsLike]:
    """The one that was given, of `all_given` and what `models` has for the policy, by the worker that it is for; None:
    for all.

    Raises:
        TypeError: several are given.
        ValueError: weights of another model than "policy", or for workers that do not exist.
    """
    if unknown := sorted({"policy" if model is None else model, *(models or ())} - {"policy"}):
        raise ValueError(f"weights of {', '.join(unknown)}: the only model here is 'policy'")
    given: list[Any] = [one for one in (*all_given, (models or {}).get("policy")) if one is not None]
    if len(given) > 1:
        raise TypeError(
            "the weights were given more than once, of policy_or_weights, weights, policy_weights, policy, weights_dict"
        )
    one = given[0] if given else None
    # TensorDicts count as mappings, but are iterated over by rows.
    if isinstance(one, dict) and any(isinstance(key, int | np.integer) for key in one):
        if worker_ids is not None:
            raise ValueError(f"weights by worker, and worker_ids={worker_ids!r}: give one of them")
        by_worker = {int(key) if isinstance(key, int | np.integer) else key: value for key, value in one.items()}
    elif worker_ids is None:
        return {None: one}
    else:
        indices = [worker_ids] if isinstance(worker_ids, int | np.integer) else worker_ids
        by_worker = dict.fromkeys(map(int, indices), one)
    if not by_worker or not set(by_worker) <= set(range(num_workers)):
        raise ValueError(f"weights for the workers {list(by_worker)}: give one or more, from 0 to {num_workers - 1}")
    return by_worker


def apply_weight_updater(updater: Callable[[], Any] | None, given: WeightsLike) -> WeightsLike:
    """What is to be published, where `given` was given: what a weight updater makes of it, or gives where it is None.

    Args:
        updater: returns the weights when it is called; or one of TorchRL's (or a callable that makes one), of which the
            weights and their mapping are taken, while their way to the workers is the collector's own.
    """
    if updater is None:
        return given
    made: Any = updater if _is_torchrl(updater) else None
    if made is None and (given is None or isinstance(updater, type)):
        result = updater()
        if not _is_torchrl(result):
            return result
        made = result
    if made is None:
        return given
    if isinstance(given, nn.Module):
        given = TensorDict.from_module(given).data
    return made._maybe_map_weights(made._get_server_weights() if given is None else given)


def load_weights(policy: Any, weights: nn.Module | TensorDictBase | Mapping[str, Any]) -> None:
    """Copies the weights of a module that is built as `policy`, or weights by name (a state dict, or a TensorDict of
    parameters), into `policy`, whatever their device and dtype.

    Raises:
        KeyError: one of the policy's is lacking.
        TypeError: they are no weights, or the policy can have none.
        ValueError: one has another shape than the policy's, or the module has more or fewer.
    """
    if not isinstance(policy, nn.Module):
        raise TypeError(f"the policy is {policy!r}, no module, which has no weights: call without any")
    if weights is policy:
        return
    if isinstance(weights, nn.Module):
        own, given = _tensors_of(policy), [*_tensors_of(weights).values()]
        if len(own) != len(given):
            raise ValueError(f"the module has {len(given)} weights, the policy has {len(own)}: {_ALIKE}")
    else:
        own, given = policy.state_dict(), _by_name(policy, weights)
    _check_shapes(own, given)
    with torch.no_grad():
        for value, other in zip(own.values(), given, strict=True):
            value.copy_(other)


def weight_writers(policy: Any, given: Mapping[int, WeightsLike]) -> dict[int, Write]:
    """What writes the weights for each worker, each in any form that `load_weights` takes; None: `policy`'s. The policy
    is left as it is. A write raises what `load_weights` does."""
    other = copy.deepcopy(policy)

    def write(weights: WeightsLike, buffer: torch.Tensor) -> None:
        load_weights(other, policy if weights is None else weights)
        FlatWeights(other).write(buffer)

    return {worker: partial(write, weights) for worker, weights in given.items()}


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Also those that are in no state dict."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _by_name(policy: nn.Module, weights: TensorDictBase | Mapping[str, Any]) -> list[Any]:
    if isinstance(weights, TensorDictBase):
        weights = weights.flatten_keys(".").to_dict()
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights={weights!r}: give a module, a state dict or a TensorDict of parameters")
    own = policy.state_dict()
    if missing := sorted(set(own) - set(weights)):
        raise KeyError(f"the weights lack {', '.join(missing)}")
    return [weights[name] for name in own]


_ALIKE = "give those of a module that is built as the policy"


def _check_shapes(own: Mapping[str, torch.Tensor], given: Sequence[Any]) -> None:
    for (name, value), other in zip(own.items(), given, strict=True):
        shape, wanted = list(getattr(other, "shape", ())), list(getattr(value, "shape", ()))
        if shape != wanted:
            raise ValueError(f"the weights for {name} have the shape {shape}, the policy's have {wanted}: {_ALIKE}")


def _is_torchrl(updater: Any) -> bool:
    return hasattr(updater, "_get_server_weights") and not isinstance(updater, type)
