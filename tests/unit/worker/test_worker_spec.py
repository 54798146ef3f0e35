"""What the process of a worker is told."""

import json
from dataclasses import replace

import pytest
from configurations import config, counting, mlp

from collectx.collector.compose import SpecMaker
from collectx.config.schema.launcher import RpcBackendConfig
from collectx.user_objects import Hooks, UserObjects, UserPolicyConfig
from collectx.worker.spec import ConfigOverrides, Placement, ProcessHistory


@pytest.mark.parametrize("kind", ["single", "distributed_sync", "rpc", "ray"])
def test_a_spec_travels_as_plain_json(kind):
    cfg = config(kind, env=counting(2), policy=mlp(), seed=7, exploration_type="mode", policy_device="cuda")
    spec = SpecMaker(cfg, [ConfigOverrides(steps=4)] * 2, 2).make(1, ProcessHistory(3))
    again = type(spec).from_json(json.loads(json.dumps(spec.to_json())), UserObjects())
    assert again == spec
    assert (again.cfg.seed, again.policy_device, again.cfg.collector.exploration_type) == (7, "cuda", "mode")


def test_user_objects_travel_another_way():
    policy = UserPolicyConfig(kind="python", policy=print)
    overrides = ConfigOverrides(policy=policy, hooks=Hooks(init_fn=print), keeps_weights=True)
    spec = SpecMaker(config("distributed", env=counting()), [overrides], 1).make(0, ProcessHistory())
    message = json.loads(json.dumps(spec.to_json()))
    assert type(spec).from_json(message, spec.user_objects) == spec
    assert spec.first_version == 0


def test_where_workers_stand_in_the_run():
    cfg = replace(
        config("rpc", num_workers_per_collector=3),
        backend=RpcBackendConfig(kind="rpc", visible_devices=["cpu", "cuda:1"]),
    )
    added = SpecMaker(cfg, (), 1).make(3, ProcessHistory(11)).placement
    assert added == Placement(
        worker=3, index=1, num_workers=6, incarnation=11, visible_device="cuda:1", env_index=9, worker_index=9
    )
    inner = SpecMaker(config(num_workers=3), (), 1, outer=added).make(2, ProcessHistory()).placement
    assert inner == Placement(worker=2, index=11, num_workers=6, incarnation=11, env_index=11, worker_index=11)


def test_random_actions_are_those_of_the_first_incarnation():
    specs = SpecMaker(config("multi_async", frames_per_batch=10, init_random_frames=41), (), 1)
    assert [specs.make(1, ProcessHistory(incarnation)).rollout.num_random_batches for incarnation in (0, 1)] == [3, 0]


def test_batches_may_end_early_where_anything_may_end_them():
    for knobs, overrides, expected in (
        ({}, ConfigOverrides(), False),
        ({"preemptive_threshold": 0.5}, ConfigOverrides(), True),
        ({}, ConfigOverrides(should_end=bool), True),
    ):
        spec = SpecMaker(config(**knobs), [overrides], 1).make(0, ProcessHistory())
        assert spec.rollout.may_end_early == expected
