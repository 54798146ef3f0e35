"""The entry points of workers: what a remote worker tells, prepares and runs."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from configurations import config, counting

from collectx.collector.compose import SpecMaker
from collectx.config.schema.launcher import RpcBackendConfig
from collectx.errors import RendezvousError
from collectx.user_objects import Sealed, UserObjects
from collectx.worker import entry
from collectx.worker.spec import ProcessHistory


@pytest.fixture
def calls(monkeypatch):
    found = []

    def record(name, value=None):
        return lambda *arguments, **keywords: found.append((name, *arguments, *keywords.items())) or value

    monkeypatch.setattr(entry, "socket", SimpleNamespace(gethostname=lambda: "here"))
    for name in ("reuse_imports", "warm_up", "set_visible_device", "write_on_signal", "RolloutSource", "NestedSource"):
        monkeypatch.setattr(entry, name, record(name))
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return found


JOBS = [
    ({}, {}),
    ({"SLURM_JOB_ID": "7"}, {"job": "7"}),
    ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}, {"job": "7_1"}),
]


@pytest.mark.parametrize(("environment", "job"), JOBS)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_remote_worker_joins_and_runs(calls, monkeypatch, environment, job, is_nested):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    knobs = {"num_workers_per_collector": 2} if is_nested else {}
    spec = SpecMaker(config("distributed", env=counting(), **knobs), (), 1).make(1, ProcessHistory())
    link = SimpleNamespace(connection="line", report_progress=lambda: calls.append("progress"))
    build = print if is_nested else None

    def join(endpoint, worker, info, timeout_s, prepare):
        assert (endpoint, worker, timeout_s) == ("endpoint", 1, 60.0)
        assert info == {"host": "here", "pid": os.getpid(), **job}
        prepare(spec.to_json())
        return spec.to_json(), link

    monkeypatch.setattr(entry, "join_trainer", join)
    monkeypatch.setattr(entry, "run_until_stopped", lambda there, make: calls.append((there is link, make())))
    entry.run_remote_worker("endpoint", 1, 60.0, None, build)
    forks = [("reuse_imports",), ("warm_up",)] if is_nested else []
    source = ("NestedSource", spec, link, build) if is_nested else ("RolloutSource", spec, link, False)
    assert calls == [
        ("set_visible_device", None),
        *forks,
        ("write_on_signal", "line"),
        "progress",
        source,
        (True, None),
    ]


@pytest.mark.parametrize(
    ("visible", "policy_device", "expected"),
    [("cuda:1", "cuda:1", "cuda:0"), ("cuda:1", "cpu", "cpu"), ("cpu", "cpu", "cpu"), (None, "cuda:1", "cuda:1")],
)
def test_a_worker_that_sees_one_gpu_calls_it_the_first(calls, monkeypatch, visible, policy_device, expected):
    cfg = config("rpc", policy_device=policy_device)
    devices = None if visible is None else [visible] * 2
    cfg.backend = RpcBackendConfig(kind="rpc", interface=None, port=None, tensorpipe={}, visible_devices=devices)
    message = SpecMaker(cfg, (), 1).make(0, ProcessHistory()).to_json()
    link = SimpleNamespace(connection="line", report_progress=lambda: None)
    monkeypatch.setattr(entry, "join_trainer", lambda *arguments: (message, link))
    monkeypatch.setattr(entry, "run_until_stopped", lambda there, make: make())
    entry.run_remote_worker("endpoint", 0, 60.0, Sealed.of(UserObjects()), None)
    ((_, spec, *_),) = [each for each in calls if each[0] == "RolloutSource"]
    assert spec.policy_device == expected


@pytest.mark.parametrize(
    ("device", "present", "expected"),
    [
        (None, None, None),
        ("cpu", None, ""),
        ("cpu", "3", ""),
        ("cuda:1", None, "1"),
        ("cuda:0", "5", "5"),
        ("cuda:1", "5,3", "3"),
        ("cuda:0", "", "this worker should see cuda:0 .* its host only provides CUDA_VISIBLE_DEVICES="),
        ("cuda:1", "5", "this worker should see cuda:1 .* its host only provides CUDA_VISIBLE_DEVICES=5"),
    ],
)
def test_which_gpus_are_visible(monkeypatch, device, present, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if present is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", present)
    raised = pytest.raises(RendezvousError, match=expected) if "worker" in str(expected) else nullcontext()
    with raised:
        entry.set_visible_device(device)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (present if "worker" in str(expected) else expected)
