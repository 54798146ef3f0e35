"""What the process of a worker is told."""

import json
from dataclasses import replace

import pytest
from configurations import config, counting, gym, mlp

from collectx.collector.compose import SpecMaker
from collectx.config.schema.launcher import RpcBackendConfig
from collectx.user_objects import Hooks, UserObjects, UserPolicyConfig
from collectx.worker.spec import ConfigOverrides, ProcessHistory


@pytest.mark.parametrize("kind", ["single", "distributed_sync", "rpc", "ray"])
def test_a_spec_travels_as_plain_json(kind):
    cfg = config(kind, env=counting(2), policy=mlp(), seed=7, exploration_type="mode", policy_device="cuda")
    spec = SpecMaker(cfg, [ConfigOverrides(steps=4)] * 2, 2).make(1, ProcessHistory(3))
    again = type(spec).from_json(json.loads(json.dumps(spec.to_json())), UserObjects())
    assert again == spec
    assert (again.cfg.seed, again.policy_device, again.cfg.collector.exploration_type) == (7, "cuda:0", "mode")


def test_keys_that_are_no_texts_stay_what_they_are():
    """Pickles, which workers of this machine get, keep them anyway."""
    table = {1: 0.5, None: [{True: {2.5: "x"}}], "text": {}}
    env = replace(gym(table=table), wrappers=[{"user_code.wrapper": {"by": {0: 1}}}])
    cfg = config("distributed_sync", env=env)
    spec = SpecMaker(cfg, [ConfigOverrides()], 1).make(0, ProcessHistory())
    again = type(spec).from_json(json.loads(json.dumps(spec.to_json())), UserObjects())
    assert again.cfg.env.kwargs == {"table": table}
    assert again.cfg.env.wrappers == [{"user_code.wrapper": {"by": {0: 1}}}]


def test_user_objects_travel_another_way():
    policy = UserPolicyConfig(kind="python", policy=print)
    overrides = ConfigOverrides(policy=policy, hooks=Hooks(init_fn=print), keeps_weights=True)
    spec = SpecMaker(config("distributed", env=counting()), [overrides], 1).make(0, ProcessHistory())
    message = json.loads(json.dumps(spec.to_json()))
    assert type(spec).from_json(message, spec.user_objects) == spec
    assert spec.first_version == 0


def test_where_workers_stand_in_the_run(expected):
    """The cases are workers that are collectors, an added one with its processes, and an inference server."""
    cfg = replace(
        config("rpc", env=counting(2), num_workers_per_collector=3),
        backend=RpcBackendConfig(kind="rpc", visible_devices=["cpu", "cuda:1"]),
    )
    outer = SpecMaker(cfg, (), 2)
    made = {
        f"worker {worker}": outer.make(worker, ProcessHistory(life, life + 1))
        for worker, life in ((0, 0), (1, 2), (3, 11))
    }
    inner = SpecMaker(config(env=counting(2), num_workers=3), (), 2, outer=made["worker 3"].placement)
    made |= {
        f"process {worker} of worker 3": inner.make(worker, ProcessHistory(life)) for worker, life in ((0, 0), (2, 1))
    }
    served = SpecMaker(config(env=counting(5), num_workers=3), (), 5)
    made |= {
        "inference server": served.make(3, ProcessHistory(), is_server=True),
        "worker that it serves": served.make(2, ProcessHistory()),
    }
    lines = [
        f"{name}: {each.placement}\n    {each.placement.numbers}, rows {each.groups}" for name, each in made.items()
    ]
    expected("placements", "\n".join(lines))
