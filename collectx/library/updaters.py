"""Classes with the names of TorchRL's weight updaters, for scripts that subclass them. An updater supplies and maps the
weights; the collector's transport sends them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from tensordict import TensorDict
from torch import nn


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
