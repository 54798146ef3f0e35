"""The collector classes, with TorchRL's names and keywords. Base classes: `attributes.py`, what can be read; `base.py`,
the methods.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectx.config.schema.launcher import RayLauncherConfig
from collectx.errors import ConfigError
from collectx.library import unified
from collectx.library.base import BaseCollector
from collectx.library.keywords import (
    AsyncBatchedKeywords,
    DistributedKeywords,
    DistributedSyncKeywords,
    MultiAsyncKeywords,
    MultiKeywords,
    MultiSyncKeywords,
    RayKeywords,
    RpcKeywords,
    SingleKeywords,
)
from collectx.library.overrides import overrides_of_added
from collectx.library.parse import signature_of
from collectx.library.rules import worker_problems


class Collector(BaseCollector):
    """Collects in this process, without workers (TorchRL's `Collector` or `SyncDataCollector`). Acts with the policy
    object itself, so its weights need not be published.

    With `num_collectors`, `backend` or `collectx.service_backend`, the result is a collector of another class.
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        chosen = unified.select(CLASSES_OF_BACKENDS, arguments, keywords) if cls is Collector else None
        if chosen is None:
            return super().__new__(cls)
        other, arguments, keywords = chosen
        return other(*arguments, **keywords)

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        # Otherwise the signature would be that of `__new__`.
        cls.__signature__ = _signature(cls)  # type: ignore[attr-defined]

    @signature_of(SingleKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, SingleKeywords, arguments, keywords)

    @property
    def env(self) -> Any:
        """The env; a list for several envs. If you step or reset it, the collected frames change."""
        return self._ask("envs")[0]

    def reset(self, index: Any = None, **keywords: Any) -> None:  # type: ignore[override]
        """Resets envs before the next batch.

        Args:
            index: which of the vector env's envs: a mask, indices or a slice; None: all.
            keywords: not supported.

        Raises:
            ValueError: keywords were passed; or only some envs are selected, but the env resets its envs itself, or
                batches consist of whole trajectories.
            IndexError: an env does not exist.
        """
        if keywords:
            raise ValueError(
                f"{', '.join(keywords)}: resets take no such arguments; set them on the env, or in its factory"
            )
        if index is None:
            super().reset()
            return
        mask = torch.zeros(self._spec.num_envs, dtype=torch.bool)
        mask[index] = True
        self._check_selection("index", mask.tolist(), self._spec.num_envs, "envs")
        if not self._spec.can_restart_early:
            raise ValueError(f"index={index!r}: this vector env resets its envs by itself, at the ends of episodes")
        self._ask("restart", mask.tolist())


class MultiCollector(BaseCollector):
    """Collects in worker processes of this machine, over shared memory. Every worker has a copy of the policy.

    `sync=True`: a batch stacks one part of equal size per worker, `[workers, ...]`, collected with the newest weights.
    `sync=False`: a batch comes from a single worker, the first that is ready.
    """

    @signature_of(MultiKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, MultiKeywords, arguments, keywords)


class MultiSyncCollector(MultiCollector):
    """Collects in worker processes of this machine, over shared memory. A batch stacks one part of equal size per
    worker, `[workers, ...]`, collected with the newest weights. Workers wait while this process learns, unless
    `overlap=1`. The same as `MultiCollector(sync=True)`."""

    @signature_of(MultiSyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, MultiSyncKeywords, arguments, keywords)


class MultiAsyncCollector(MultiCollector):
    """Collects in worker processes of this machine that do not wait for each other, over shared memory. A batch comes
    from a single worker, the first that is ready; its weights may be some versions old. The same as
    `MultiCollector(sync=False)`."""

    @signature_of(MultiAsyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, MultiAsyncKeywords, arguments, keywords)


class AsyncBatchedCollector(BaseCollector):
    """Collects in worker processes of this machine that only step envs. One more process calls the policy, for all envs
    that wait for actions at a time. A batch comes from a single worker, the first that is ready. Published weights act
    from the next call of the policy on; `("collector", "policy_version")` contains the version of each frame."""

    policy: Any = None

    @signature_of(AsyncBatchedKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, AsyncBatchedKeywords, arguments, keywords)

    @property
    def env(self) -> Any:
        """Raises AttributeError, because the envs are in the worker processes."""
        raise AttributeError("env: the envs are in the workers' processes: use getattr_env, or create_env_fn")


class AsyncCollector(MultiAsyncCollector):
    """Collects in one worker process of this machine, while this process learns: `MultiAsyncCollector` with one
    worker."""

    @signature_of(MultiAsyncKeywords)
    def __init__(self, create_env_fn: Any, *arguments: Any, **keywords: Any):
        super().__init__([create_env_fn], *arguments, **keywords)


class DistributedCollector(BaseCollector):
    """Collects in workers on any host, over torch.distributed. A batch comes from a single worker, the first that is
    ready; with `sync=True` it stacks one part of every worker."""

    @signature_of(DistributedKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, DistributedKeywords, arguments, keywords)


class DistributedSyncCollector(DistributedCollector):
    """Collects in workers on any host, over torch.distributed. A batch stacks one part of every worker,
    `[workers, ...]`. By default publishes the policy's weights after every batch, unless workers have individual
    policies."""

    @signature_of(DistributedSyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, DistributedSyncKeywords, arguments, keywords)

    @property
    def update_interval(self) -> int:
        """Number of batches between two publishes of the policy's weights; -1: never."""
        return self._keywords.publish_interval


class RPCCollector(BaseCollector):
    """Collects in workers on any host, over torch RPC. A batch comes from a single worker, the first that is ready;
    with `sync=True` it stacks one part of every worker.

    Torch RPC exchanges pickles and does not check the run's secret: a peer that can reach its ports can run code.
    """

    @signature_of(RpcKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, RpcKeywords, arguments, keywords)


class RayCollector(BaseCollector):
    """Collects in actors of a Ray cluster, over gloo. A batch comes from a single worker, the first that is ready; with
    `sync=True` it stacks one part of every worker. The first collector connects this process to Ray, until the process
    ends or calls `ray.shutdown()`. Ray exchanges pickles."""

    @signature_of(RayKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        BaseCollector.__init__(self, RayKeywords, arguments, keywords)

    def add_collectors(
        self,
        create_env_fn: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_envs: int | None = None,
        policy: Any = None,
        collector_kwargs: dict[str, Any] | None = None,
        remote_configs: dict[str, Any] | None = None,
    ) -> None:
        """Starts more workers, with new seeds and trajectory ids; does not wait for them. Batches of a sync collector
        grow by their parts, so the next batch waits for them.

        Args:
            create_env_fn: a callable per new worker, which makes as many envs, with the same spaces, as for other
                workers.
            num_envs, policy: ignored (accepted for TorchRL compatibility); new workers use the collector's policy.
            collector_kwargs, remote_configs: as for the constructor, for every new worker; None: the first worker's
                `remote_configs`.

        Raises:
            ConfigError: `collector_kwargs` or `remote_configs` are wrong, or a callable cannot be pickled. Nothing has
                changed then.
            LauncherError: the cluster is too small for the new workers, even when idle.
        """
        from collectx.place.ray_actors import objections
        from collectx.place.ray_cluster import check_resources

        self._check_process()
        launcher = self._cfg.launcher
        assert isinstance(launcher, RayLauncherConfig)
        creates = [create_env_fn] if callable(create_env_fn) else list(create_env_fn)
        resources = dict(remote_configs or launcher.remote_configs[0])
        kwargs = collector_kwargs or {}
        refused = [f"remote_configs={resources}: {each}" for each in objections([resources])]
        if problems := [*worker_problems(self._keywords, self._cfg, 0, kwargs), *refused]:
            raise ConfigError(*problems)
        overrides = [overrides_of_added(self._keywords, self._cfg, create, kwargs) for create in creates]
        for each in overrides:  # what cannot be pickled is known before any worker starts
            pickle.dumps((each.env, each.hooks, each.user_collector))
        if not launcher.autoscaling:
            timeout_s = self._cfg.collector.start_timeout_s
            check_resources("remote_configs", [resources] * len(creates), timeout_s)
        with self.pause():
            for each in overrides:
                self._overrides.append(each)
                launcher.remote_configs.append(dict(resources))
                try:
                    self._core.add()
                except BaseException:
                    self._overrides.pop()
                    launcher.remote_configs.pop()
                    raise

    @property
    def remote_collectors(self) -> list[Any]:
        """The actor handles of the workers."""
        return [handle.actor for _, handle in sorted(self._core.handles().items())]

    @property
    def num_collectors(self) -> int:
        """The number of workers."""
        return self.num_workers

    @property
    def collected_frames(self) -> int:
        """Number of delivered frames."""
        return self._core.num_frames

    def local_policy(self) -> Any:
        """Returns `collector.policy`."""
        return self.policy

    def shutdown(
        self,
        timeout: float | None = None,
        close_env: bool = True,
        raise_on_error: bool = True,
        shutdown_ray: bool = False,
    ) -> None:
        """See `BaseCollector.shutdown`.

        Args:
            shutdown_ray: whether to disconnect this process from Ray, which ends a cluster that it started.
        """
        super().shutdown(timeout, close_env, raise_on_error)
        if shutdown_ray:
            from collectx.place import ray_cluster

            ray_cluster.disconnect()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, shutdown_ray: bool = False) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env, shutdown_ray=shutdown_ray)

    def stop_remote_collectors(self) -> None:
        """The same as `shutdown()`."""
        self.shutdown()

    stop = stop_remote_collectors


def _signature(cls: type) -> inspect.Signature:
    """Returns the constructor's signature, for the class."""
    parameters = [*inspect.signature(cls.__init__).parameters.values()]  # type: ignore[misc]
    return inspect.Signature(parameters[1:])


Collector.__signature__ = _signature(Collector)  # type: ignore[attr-defined]

# The async class and the sync class of each value of `Collector`'s keyword `backend`.
CLASSES_OF_BACKENDS: dict[str, tuple[type, type]] = {
    "process": (MultiAsyncCollector, MultiSyncCollector),
    "ray": (RayCollector, RayCollector),
    "rpc": (RPCCollector, RPCCollector),
    "distributed": (DistributedCollector, DistributedCollector),
    "submitit": (DistributedCollector, DistributedCollector),
}

# TorchRL's earlier names.
DataCollectorBase = BaseCollector
aSyncDataCollector = AsyncCollector
SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector
RPCDataCollector = RPCCollector
