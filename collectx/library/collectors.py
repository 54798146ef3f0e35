"""The classes, with TorchRL's names and keywords. What they share is in `collectx/library/base.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from collectx.collector.actors import leave_ray
from collectx.config import RayLauncherConfig
from collectx.library.early_stop import Interrupted, Preempted
from collectx.library.inspection import InspectableCollector
from collectx.library.keywords import (
    BatchOutput,
    CreateEnv,
    Devices,
    EachBatchWeights,
    Frames,
    RayRemote,
    Remote,
    RpcRemote,
    Weights,
    Work,
    Workers,
    described,
    own_of,
)
from collectx.library.trajectories import Assembly
from collectx.user_objects import Hooks


@described(Work, Frames, Devices, BatchOutput, Weights, Hooks, Assembly, Interrupted)
class Collector(InspectableCollector):
    """One rollout in this process (TorchRL's `Collector`, formerly `SyncDataCollector`). Acts with the policy itself,
    so that no publishing is needed."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__("single", create_env_fn, policy, keywords)

    def reset(self, index: Any = None, **keywords: Any) -> None:  # type: ignore[override]
        """New trajectories from the next batch on.

        Args:
            index: which of the env's own: a mask, indices or a slice; None: all.
            keywords: none: resets take no other arguments than seeds.

        Raises:
            ValueError: keywords are given, the envs reset themselves, or only some are meant where batches are of whole
                trajectories.
            IndexError: there is no such env.
        """
        if keywords:
            raise ValueError(
                f"{', '.join(keywords)}: resets take no such arguments; set them on the env, or in its maker"
            )
        if index is None:
            super().reset()
            return
        chosen = torch.zeros(self._num_envs, dtype=torch.bool)
        chosen[index] = True
        self._check_selection("index", chosen.tolist(), self._num_envs, "envs")
        if not self._is_cuttable:
            raise ValueError(f"index={index!r}: this vector env resets its envs by itself, and none before its end")
        self._ask("restart", chosen.tolist())


@described(Work, Frames, Devices, BatchOutput, Workers, Weights, Hooks, Assembly, Preempted)
class MultiCollector(InspectableCollector):
    """Workers in processes of this machine, over shared memory. The policy is copied to them.

    `sync=True`: a batch is one equal part of each worker, `[workers, ...]`, all with the newest weights. `sync=False`:
    every batch comes whole from the worker that is ready first.
    """

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool, **keywords: Any):
        super().__init__("multi_sync" if sync else "multi_async", create_env_fn, policy, keywords)


@described(*MultiCollector._specs)
class MultiSyncCollector(MultiCollector):
    """`MultiCollector(sync=True)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


@described(*MultiCollector._specs)
class MultiAsyncCollector(MultiCollector):
    """`MultiCollector(sync=False)`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=False, **keywords)


@described(Work, Frames, Devices, BatchOutput, Workers, Weights, Remote, Assembly)
class DistributedCollector(InspectableCollector):
    """Workers over torch.distributed; `sync` as in `MultiCollector`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("distributed_sync" if sync else "distributed", create_env_fn, policy, keywords)


@described(Work, Frames, Devices, BatchOutput, Workers, EachBatchWeights, Remote, Assembly)
class DistributedSyncCollector(DistributedCollector):
    """`DistributedCollector(sync=True)`; publishes the policy's weights after every batch if nothing else is said."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, **keywords: Any):
        super().__init__(create_env_fn, policy, sync=True, **keywords)


@described(Work, Frames, Devices, BatchOutput, Workers, Weights, RpcRemote, Assembly)
class RPCCollector(InspectableCollector):
    """Workers over torch RPC, which pickles between them and this process: whoever reaches the ports that it opens can
    run code there, without the run's secret; `sync` as in `MultiCollector`."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("rpc", create_env_fn, policy, keywords, sync)


@described(Work, Frames, Devices, BatchOutput, Workers, Weights, RayRemote, Hooks, Assembly)
class RayCollector(InspectableCollector):
    """Workers that are actors of a Ray cluster, over its object store; `sync` as in `MultiCollector`. This process is
    connected to Ray by the first, and stays so until it ends, or `ray.shutdown()` is called. Ray pickles what its
    processes tell each other."""

    def __init__(self, create_env_fn: CreateEnv, policy: Any = None, *, sync: bool = False, **keywords: Any):
        super().__init__("ray", create_env_fn, policy, keywords, sync)

    def add_collectors(
        self,
        create_env_fn: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_envs: int | None = None,
        policy: Any = None,
        collector_kwargs: dict[str, Any] | None = None,
        remote_configs: dict[str, Any] | None = None,
    ) -> None:
        """Starts more workers, with envs' seeds and trajectory ids of their own. Does not wait for them. The batches of
        a sync collector grow by their parts, and wait for them.

        Args:
            create_env_fn: one callable for each new worker; all must make as many envs, of the same spaces, as the
                others do.
            num_envs, policy: are not looked at: what `create_env_fn` makes, and the policy that the others have.
            collector_kwargs, remote_configs: as the constructor's, for each of the new ones; None: `remote_configs` of
                the first worker.

        Raises:
            ConfigError: what is wrong with `collector_kwargs`.
            LauncherError: the cluster has no room for them, even if nobody else uses it.
        """
        from collectx.transport.network.ray_cluster import check_resources

        launcher = self._cfg.launcher
        assert isinstance(launcher, RayLauncherConfig)
        creates = [create_env_fn] if callable(create_env_fn) else list(create_env_fn)
        asked = dict(remote_configs or launcher.remote_configs[0])
        own = [own_of(self._request, create, collector_kwargs) for create in creates]
        if not launcher.autoscaling:
            check_resources("remote_configs", [asked] * len(creates))
        with self.pause():
            for each in own:
                self._overrides.append(each)
                launcher.remote_configs.append(dict(asked))
                self._collector.add()

    @property
    def remote_collectors(self) -> list[Any]:
        """Ray's handles of the workers' actors."""
        return [handle.actor for _, handle in sorted(self._collector.handles().items())]

    def local_policy(self) -> Any:
        """This process's policy."""
        return self.policy

    def shutdown(
        self,
        timeout: float | None = None,
        close_env: bool = True,
        raise_on_error: bool = True,
        shutdown_ray: bool = False,
    ) -> None:
        """As any collector's.

        Args:
            shutdown_ray: whether this process leaves Ray too, which ends a cluster that it has begun.
        """
        super().shutdown(timeout, close_env, raise_on_error)
        if shutdown_ray:
            leave_ray()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True, shutdown_ray: bool = False) -> None:
        """`shutdown`, after `start()`."""
        self.shutdown(timeout, close_env, shutdown_ray=shutdown_ray)

    def stop_remote_collectors(self) -> None:
        """`shutdown`."""
        self.shutdown()

    stop = stop_remote_collectors


# TorchRL's earlier names.
SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
DistributedDataCollector = DistributedCollector
DistributedSyncDataCollector = DistributedSyncCollector
RPCDataCollector = RPCCollector
