"""What the process of a worker is told."""

import json
from dataclasses import replace

import pytest
from configurations import config, counting, gym, mlp

from collectx.collector.compose import SpecMaker
from collectx.config.schema.launcher import RpcBackendConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.user_objects import Hooks, UserObjects, UserPolicyConfig
from collectx.worker.spec import ConfigOverrides, ProcessHistory


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
    made |= {"inference server": served.make_server(3), "worker that it serves": served.make(2, ProcessHistory())}
    lines = [
        f"{name}: {each.placement}\n    {each.placement.numbers}, rows {each.groups}" for name, each in made.items()
    ]
    expected("placements", "\n".join(lines))


def test_what_a_worker_is_told_of_the_configuration(expected):
    """A worker gets the options that concern it, some with other values."""
    knobs = {"num_threads": 3, "pin_cores": True, "policy_device": "cuda:1", "storing_device": "cpu"}
    cfg = config("distributed", env=gym(2), policy=mlp(), seed=7, **knobs)
    cfg.trainer = TrainerConfig(kind="ppo", digest=True)
    devices = replace(cfg.devices, policy_device="cpu")
    overrides = [
        ConfigOverrides(),
        ConfigOverrides(env=gym(3), policy=PolicyConfig(kind="random"), devices=devices, exploration_type="mode"),
    ]
    maker = SpecMaker(cfg, overrides, 2, infos={"mask": 1})
    plain, other = (maker.make(worker, ProcessHistory()).to_json()["cfg"] for worker in (0, 1))
    changed = {group: value for group, value in other.items() if value != plain[group]}
    changed["collector"] = changed["collector"]["exploration_type"]
    given = {group: plain[group] for group in ("backend", "launcher", "devices", "trainer", "seed", "inference")}
    expected("configurations", {"given": given, "changed": changed})


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
