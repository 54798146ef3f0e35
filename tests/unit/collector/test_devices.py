"""Refusals of devices and of what workers ask of their launcher, in YAML and in Python, before anything starts."""

import math
import re

import pytest
from composed_overrides import examine
from configurations import config
from user_code.cartpoles import cartpole

from collectx import RayCollector, RPCCollector
from collectx.config.schema.launcher import RpcBackendConfig
from collectx.errors import ConfigError, LauncherError
from collectx.run import preflight

RAY = {"kind": "ray", "place": "ray"}


def rpc(visible, **knobs):
    cfg = config("rpc", **knobs)
    cfg.backend = RpcBackendConfig(kind="rpc", interface=None, port=None, tensorpipe={}, visible_devices=visible)
    return cfg


# Configurations, and what is said of them; None where nothing is.
CONFIGURATIONS = [
    (config("ray"), r"^launcher=local cannot be used: Ray starts the workers of collector=ray. Use launcher=ray"),
    (
        config(**RAY, backend="shared_memory"),
        r"^backend=shared_memory cannot be used: collector=ray always uses a network. Use",
    ),
    (config(**RAY, backend="gloo"), None),
    (
        config(place="ray", backend="mpi"),
        r"^backend=mpi cannot be used: Ray starts the workers of launcher=ray, so MPI cannot connect",
    ),
    (config(place="ray", backend="shared_memory"), r"the workers of launcher=ray may be on other hosts"),
    (config(**RAY, remote_configs={"cpus": 2}), r"^launcher\.remote_configs cannot be used: .*cpus"),
    (config(**RAY, remote_configs=[{"num_cpus": 1}]), r"remote_configs has 1 entry"),
    (config(**RAY, remote_configs={"num_gpus": "one"}), r"remote_configs cannot be used: .*'num_gpus'"),
    (config(**RAY, remote_configs={"num_gpus": [1]}, policy_device="cuda"), r"cannot be used: .*'num_gpus'"),
    (
        config(**RAY, remote_configs={"num_gpus": math.inf}),
        r"cannot be used: cannot convert float infinity",
    ),
    (config(**RAY, policy_device="cuda"), r"acts on cuda, .*num_gpus=0: .*\. Ask for num_gpus=1 \(or a fraction\)"),
    (
        config(**RAY, policy_device="cuda:1", remote_configs={"num_gpus": 1}),
        r"num_gpus=1: it only sees 1 GPU, .*\. Ask for num_gpus=2",
    ),
    (config(**RAY, policy_device="cuda", remote_configs={"num_gpus": 0.5}), None),
    (rpc(["cuda:0", "gpu"]), r"^backend\.visible_devices.*must be a list"),
    (rpc(["cuda:0"]), r"^backend\.visible_devices has 1 entry for 2 workers"),
    (rpc(["cuda:0", "cuda:1"], policy_device="cuda:0"), r"worker 1 acts on cuda:0, but the worker only sees cuda:1"),
    (rpc(["cuda:0", "cuda:1"], policy_device="cuda"), None),
]


@pytest.mark.parametrize(("cfg", "message"), CONFIGURATIONS)
def test_what_does_not_fit_together_in_a_configuration(cfg, message):
    problems = preflight.rule_problems(cfg)
    assert any(re.search(message, problem) for problem in problems) if message else not problems, problems


def test_the_resources_of_actors_are_mappings():
    (problem,) = examine("collector=ray launcher=ray launcher.remote_configs=3")[1]
    assert problem == "launcher.remote_configs=3 must be a mapping or a list of mappings."


def test_gpus_of_workers_need_not_be_here():
    assert preflight.device_problems(config(**RAY, policy_device="cuda")) == []


SEES_NONE = {"visible_devices": ["cpu", "cpu"], "policy_device": "cuda"}
HAS_NONE = {"remote_configs": [{"num_gpus": 1}, {}], "policy_device": "cuda"}
MANY = {"num_workers": 3, "remote_configs": [{"cpus": 1}], "num_workers_per_collector": 0, "queue_timeout_s": 0}


@pytest.mark.parametrize(
    ("cls", "keywords", "starts"),
    [
        (RPCCollector, {"visible_devices": ["cpu", "cuda:7"], "launcher": "mp"}, ["visible_devices="]),
        (
            RPCCollector,
            SEES_NONE,
            ["visible_devices=['cpu', 'cpu'] cannot be used: the policy of worker 0 acts on cuda"],
        ),
        (RayCollector, HAS_NONE, ["remote_configs cannot be used: the policy acts on cuda"]),
        (
            RayCollector,
            {"remote_configs": {"num_gpus": "one"}},
            ["remote_configs cannot be used: The type of"],
        ),
        (RayCollector, {"remote_configs": [{}, 2]}, ["remote_configs[1]=2 must be a dict, or None."]),
        (RayCollector, MANY, ["num_workers=3", "remote_configs has 1", "num_workers_per_collector=0", "queue_timeout"]),
    ],
)
def test_wrong_keywords_are_refused_all_at_once(cls, keywords, starts):
    with pytest.raises(ConfigError) as caught:
        cls([cartpole] * 2, frames_per_batch=20, **keywords)
    problems = caught.value.problems
    assert [start for start in starts if not any(problem.startswith(start) for problem in problems)] == [], problems


@pytest.mark.difference("`RayCollector` without an address")
@pytest.mark.parametrize(
    ("address", "environment", "asked", "message"),
    [
        ("auto", {}, "auto", r"requires a token, set RAY_AUTH_MODE=token"),
        ("auto", {"RAY_AUTH_MODE": "token"}, "auto", r"^((?!token).)*$"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, None, r"RAY_ADDRESS=10.0.0.1:6379, "),
        # Ray itself would connect to that of another run, which ends with that run.
        (None, {}, "local", "no such cluster"),
    ],
)
def test_which_ray_cluster_a_run_asks_for_and_what_a_refusal_says(monkeypatch, address, environment, asked, message):
    ray_cluster = pytest.importorskip("collectx.place.ray_actors")
    calls = []

    def init(**options):
        calls.append(options.get("address"))
        raise ConnectionError("no such cluster")

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LauncherError, match=message):
        ray_cluster.connect({} if address is None else {"address": address}, 10.0)
    assert calls == [asked]
