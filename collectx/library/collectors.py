"""The collector classes, with TorchRL's names and keywords. `base.py` contains their methods, `attributes.py` their
attributes.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectx.config.problem import naming
from collectx.config.schema.launcher import RayLauncherConfig
from collectx.errors import ConfigError
from collectx.library import backend_choice
from collectx.library.base import BaseCollector
from collectx.library.configuration import takes_keywords
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
from collectx.library.rules import worker_problems


class Collector(BaseCollector):
    """Collects in this process, without workers. A batch is `[time]`, or `[envs, time]` for several envs. The collector
    acts with the policy object itself, so you don't have to publish its weights.

    With `num_collectors` or `backend`, or within `collectx.service_backend`, `Collector(...)` creates a collector of
    another class. That object is not an instance of `Collector`, so test with `BaseCollector`. Type checkers take it
    for a `Collector`.

    Examples:
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> with Collector(make_env, frames_per_batch=64, total_frames=128) as collector:
        ...     shapes = [batch.shape for batch in collector]
        >>> shapes
        [torch.Size([64]), torch.Size([64])]
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        chosen = backend_choice.select(CLASSES_OF_BACKENDS, arguments, keywords) if cls is Collector else None
        if chosen is None:
            return super().__new__(cls)
        other, arguments, keywords = chosen
        return other(*arguments, **keywords)

    def __init_subclass__(cls, **keywords: Any):
        super().__init_subclass__(**keywords)
        # By default, `inspect` shows the signature of `__new__`.
        cls.__signature__ = _signature(cls)  # type: ignore[attr-defined]

    @takes_keywords(SingleKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(SingleKeywords, arguments, keywords)

    @property
    def env(self) -> Any:
        """The env that the collector steps; a list for several. If you step or reset it yourself, the collected frames
        change."""
        return self._ask("envs")[0]

    def reset(self, index: Any = None, **keywords: Any) -> None:  # type: ignore[override]
        """Resets the envs, or some of them, before the next batch.

        Args:
            index: the envs to reset: a mask, indices or a slice of them; None: all.

        Raises:
            TypeError: `index` is not a mask, an index or a slice.
            ValueError: keywords were passed; or `index` selects some envs with `trajs_per_batch`, or of a vector env
                that resets its envs itself.
            IndexError: `index` selects an env that does not exist.
        """
        if keywords:
            raise ValueError(
                f"reset() has no argument {' or '.join(map(repr, keywords))}. To seed, call set_seed(). To pass "
                "options to the envs, call set_reset_options()."
            )
        if index is None:
            super().reset()
            return
        if not _is_index(index):
            raise TypeError(f"index={index!r} is neither a mask nor indices nor a slice of the envs.")
        mask = torch.zeros(self._spec.num_envs, dtype=torch.bool)
        try:
            mask[index] = True
        except IndexError:
            envs = "1 env (0)" if len(mask) == 1 else f"{len(mask)} envs (0 to {len(mask) - 1})"
            raise IndexError(f"index={index!r} does not exist: this collector has {envs}.") from None
        self._check_selection("index", mask.tolist(), self._spec.num_envs, "env")
        if not self._spec.can_reset_early:
            raise ValueError(
                f"index={index!r} cannot be used, because this vector env only resets an env when its episode ends. "
                "Leave index out, or make it with autoreset_mode=AutoresetMode.DISABLED."
            )
        self._ask("reset_some", mask.tolist())


class MultiCollector(BaseCollector):
    """Collects in worker processes of this machine, over shared memory. Every worker acts with a copy of the policy.

    `sync=True` gives the batches of `MultiSyncCollector`, `sync=False` those of `MultiAsyncCollector`.
    """

    @takes_keywords(MultiKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(MultiKeywords, arguments, keywords)


class MultiSyncCollector(MultiCollector):
    """Collects in worker processes of this machine, over shared memory. A batch stacks one part of every worker,
    `[workers, time]`, or `[workers, envs, time]` for several envs per worker. All parts are collected with the newest
    weights. Workers wait while this process learns, unless `overlap=1`.

    Examples:
        >>> make_env, policy = lambda: gymnasium.make("Pendulum-v1"), torch.nn.Linear(3, 1)
        >>> with MultiSyncCollector(
        ...     [make_env] * 2, policy, frames_per_batch=64, total_frames=128
        ... ) as collector:
        ...     for batch in collector:  # learn from the batch, then publish the new weights
        ...         collector.update_policy_weights_()
        >>> batch.shape
        torch.Size([2, 32])
    """

    @takes_keywords(MultiSyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(MultiSyncKeywords, arguments, keywords)


class MultiAsyncCollector(MultiCollector):
    """Collects in worker processes of this machine that do not wait for each other, over shared memory. A batch comes
    from the first worker that has filled one, `[time]`, or `[envs, time]` for several envs per worker. Workers collect
    while this process learns, so the weights of a batch may be some versions old; `("collector", "policy_version")`
    contains their version.

    Examples:
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> with MultiAsyncCollector(
        ...     [make_env] * 2, frames_per_batch=64, total_frames=128
        ... ) as collector:
        ...     shapes = [batch.shape for batch in collector]
        >>> shapes
        [torch.Size([64]), torch.Size([64])]
    """

    @takes_keywords(MultiAsyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(MultiAsyncKeywords, arguments, keywords)


class AsyncBatchedCollector(BaseCollector):
    """Collects in worker processes of this machine that only step envs. One more process calls the policy, with a batch
    of the observations that are waiting for actions. Batches are those of `MultiAsyncCollector`. Published weights act
    from the next call of the policy on, so `("collector", "policy_version")` may differ between the frames of a
    batch."""

    @takes_keywords(AsyncBatchedKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(AsyncBatchedKeywords, arguments, keywords)


class AsyncCollector(MultiAsyncCollector):
    """Collects in one worker process of this machine, while this process learns. The same as `MultiAsyncCollector` with
    one worker; `create_env_fn` is a single callable."""

    @takes_keywords(MultiAsyncKeywords)
    def __init__(self, create_env_fn: Any, *arguments: Any, **keywords: Any):
        if (count := keywords.get("num_workers")) not in (None, 1):
            raise ConfigError(
                f"num_workers={count!r} cannot be used: an AsyncCollector has one worker. Use MultiAsyncCollector."
            )
        super().__init__([create_env_fn], *arguments, **keywords)


class DistributedCollector(BaseCollector):
    """Collects in workers on any host, over torch.distributed: by default SLURM jobs (`launcher`). Batches are those of
    `MultiAsyncCollector`, with `sync=True` those of `MultiSyncCollector`.

    Examples:
        >>> make_env = lambda: gymnasium.make("CartPole-v1")
        >>> with DistributedCollector(
        ...     [make_env] * 2, launcher="mp", frames_per_batch=64, total_frames=64
        ... ) as collector:
        ...     shapes = [batch.shape for batch in collector]
        >>> shapes
        [torch.Size([64])]
    """

    @takes_keywords(DistributedKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(DistributedKeywords, arguments, keywords)


class DistributedSyncCollector(DistributedCollector):
    """Collects in workers on any host, over torch.distributed. Batches are those of `MultiSyncCollector`. By default,
    the collector publishes the policy's weights after every batch, unless workers have individual policies."""

    @takes_keywords(DistributedSyncKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(DistributedSyncKeywords, arguments, keywords)

    @property
    def update_interval(self) -> int:
        """Number of batches between two publishes of the policy's weights; -1: never."""
        return self._keywords.publish_interval


class RPCCollector(BaseCollector):
    """Collects in workers on any host, over torch RPC. Batches are those of `MultiAsyncCollector`, with `sync=True`
    those of `MultiSyncCollector`.

    Torch RPC exchanges pickles and checks no secret: whoever can reach its ports can run code. Use it in trusted
    networks only.
    """

    @takes_keywords(RpcKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(RpcKeywords, arguments, keywords)


class RayCollector(BaseCollector):
    """Collects in actors of a Ray cluster, over gloo. Batches are those of `MultiAsyncCollector`, or with `sync=True`
    those of `MultiSyncCollector`. The first `RayCollector` connects this process to Ray, until the process ends or
    calls `ray.shutdown()`. Ray exchanges pickles: whoever can reach its ports can run code."""

    @takes_keywords(RayKeywords)
    def __init__(self, *arguments: Any, **keywords: Any):
        self._open(RayKeywords, arguments, keywords)

    def add_collectors(
        self,
        create_env_fn: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_envs: int | None = None,
        policy: Any = None,
        collector_kwargs: dict[str, Any] | None = None,
        remote_configs: dict[str, Any] | None = None,
    ) -> None:
        """Starts more workers, with new seeds and trajectory ids. Waits for the background thread's current batch, not
        for the workers. With `sync=True`, the next batch already contains their parts, so it waits for them.

        Args:
            create_env_fn: a callable per new worker. It must make the same number of envs, with the same spaces, as for
                the other workers.
            num_envs, policy: ignored (accepted for TorchRL compatibility); new workers use the collector's policy.
            collector_kwargs: as in the constructor, for every new worker.
            remote_configs: as in the constructor, for every new worker. None: those of the first worker.

        Raises:
            ConfigError: `collector_kwargs` or `remote_configs` are wrong. Nothing has changed.
            LauncherError: the cluster is too small for the new workers, even if it were idle.
        """
        from collectx.place.ray_actors import check_resources, objections

        self._check_process()
        launcher = self._cfg.launcher
        assert isinstance(launcher, RayLauncherConfig)
        assert isinstance(launcher.remote_configs, list)
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
            with naming(self._names):
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
            shutdown_ray: whether to disconnect this process from Ray, which ends the cluster if this process started
                it.
        """
        try:
            super().shutdown(timeout, close_env, raise_on_error)
        finally:
            if shutdown_ray:
                from collectx.place import ray_actors

                ray_actors.disconnect()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, shutdown_ray: bool = False) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env, shutdown_ray=shutdown_ray)

    stop = stop_remote_collectors = shutdown


def _is_index(index: Any) -> bool:
    """Whether PyTorch takes the value as an index along one dimension."""
    if isinstance(index, slice):
        return True
    try:
        values = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        return False
    # An empty list has no integers.
    return not (values.is_floating_point() or values.is_complex()) or not values.numel()


def _signature(cls: type) -> inspect.Signature:
    """Returns the signature of the class: its constructor's, without `self`."""
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
