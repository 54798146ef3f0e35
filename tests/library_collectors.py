"""The library's collectors over the ways of `ways.py`."""

from functools import partial
from typing import Any

import pytest
from configurations import RAY
from user_code.cartpoles import cartpole

from collectx import (
    Collector,
    DistributedCollector,
    DistributedSyncCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
    RayCollector,
    RPCCollector,
)
from collectx.config.schema.run import RunConfig
from collectx.library import configuration

# For tests whose envs cannot continue after `load_state_dict`, over some ways.
new_episodes = pytest.mark.filterwarnings("ignore:.*new episodes after load_state_dict")
CLASSES = {
    "single": Collector,
    "multi_sync": MultiSyncCollector,
    "multi_async": MultiAsyncCollector,
    "distributed": DistributedCollector,
    "distributed_sync": DistributedSyncCollector,
    "rpc": RPCCollector,
    "rpc_sync": partial(RPCCollector, sync=True),
    "ray": RayCollector,
    "ray_sync": partial(RayCollector, sync=True),
}


def make(way, create=cartpole, policy: Any = None, *, num_workers=2, **keywords: Any):
    """A collector of the library: `create` makes the env of each of `num_workers` workers, which may also be a list of
    as many. Its seed is 0 by default. Over inline transport the workers are the same code in this process, where they
    start at once."""
    keywords.setdefault("seed", 0)
    if way.place == "ray":
        keywords.setdefault("remote_configs", {"num_cpus": 0.1})
        keywords.setdefault("ray_init_config", RAY)
    elif way.transport in ("gloo", "rpc"):
        keywords.setdefault("launcher", "mp")
    if way.kind != "single":
        create = [create] * num_workers if callable(create) else create
        keywords.setdefault("start_timeout_s", 200.0)  # for a busy machine
    with pytest.MonkeyPatch.context() as patch:
        if way.place == "inline":
            patch.setattr(configuration, "RunConfig", _inline)
        return CLASSES[way.kind](create, policy, **keywords)


def _inline(**options):
    options["launcher"].kind = options["backend"].kind = "inline"
    return RunConfig(**options)


def by_worker(way, batch):
    """Workers, and their parts of a batch: a sync one has a part of each, an async one is of one."""
    if way.is_sync:
        return enumerate(batch.unbind(0))
    return [(int(batch["collector", "traj_ids"].flatten()[0]) % way.num_workers, batch)]
