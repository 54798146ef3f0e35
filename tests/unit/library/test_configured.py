"""Arguments of the Python classes, and the configuration, the workers and the attributes that follow, or the messages.
Nothing starts."""

import dataclasses
import os
from types import SimpleNamespace

import gymnasium
import pytest
import torch

import collectx
from collectx.errors import ConfigError
from collectx.library import base, configuration, rules
from collectx.library.configuration import fit_frames
from collectx.library.overrides import overrides_of_added
from collectx.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("srun")
ATTRIBUTES = (
    *("device", "storing_device", "env_device", "policy_device", "num_workers", "frames_per_batch"),
    *("requested_frames_per_batch", "total_frames", "init_random_frames", "max_frames_per_traj", "n_env"),
    *("compiled_policy", "cudagraphed_policy", "compiled_policy_kwargs", "cudagraphed_policy_kwargs"),
    *("create_env_kwargs", "policy_factory", "preemptive_threshold", "traj_format", "trust_policy", "replay_buffer"),
    *("trajs_per_batch", "trajs_per_write", "worker_idx", "interruptor", "weight_updater", "exploration_type"),
)
OF_KEYWORDS = ("publish_interval", "is_concatenated", "has_individual_policies", "kind", "inference")


def cartpole(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)


def other(**kwargs):
    return cartpole(**kwargs)


def hook(*batch):
    return None


def policy(observation):
    return observation


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """The command that submitit looks for before it checks `slurm_kwargs`."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


class Ends:
    def collection_stopped(self):
        return True

    def __repr__(self):
        return "Ends()"


class Mine:
    """A collector of a user."""

    def __init__(self, create_env_fn, policy, *, frames_per_batch, total_frames, exploration_type=None, **others):
        pass


class Picky(Mine):
    def __init__(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        pass


class Buffer(ReplayBuffer):
    def __repr__(self):
        return "Buffer(8)"


BUFFER = Buffer(8)
MODULE = torch.nn.Linear(4, 2)


def shown(value):
    """Returns a configuration without what differs between machines: addresses of objects."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: vars(value).get(each.name) for each in dataclasses.fields(value)}
        kept = {name: each for name, each in fields.items() if each not in (None, {}, [], False)}
        return f"{type(value).__name__}({', '.join(f'{name}={shown(each)}' for name, each in kept.items())})"
    if isinstance(value, torch.nn.Module):
        return type(value).__name__
    return getattr(value, "__qualname__", None) or str(value)


def parts_of(collector):
    """Returns the configuration of a collector, what differs between its workers, and its keywords."""
    return collector._cfg, collector._overrides, collector._keywords


def facts_of(collector):
    """Everything about a collector that its arguments set, by name."""
    (cfg, overrides, keywords), facts = parts_of(collector), {}
    for group in dataclasses.fields(cfg):
        section = getattr(cfg, group.name)
        if not dataclasses.is_dataclass(section):
            facts[group.name] = section
        elif group.name not in ("env", "policy", "checkpoint", "eval", "logger", "run"):
            facts |= {f"{group.name}.{name}": value for name, value in vars(section).items()}
    facts["policy"] = cfg.policy
    facts |= {f"worker {index}": each for index, each in enumerate(overrides)}
    for name in ATTRIBUTES:
        facts[f".{name}"] = getattr(collector, name)
    frames = [collector.frames_per_batch_worker(worker_idx=index) for index in range(collector.num_workers)]
    facts[".frames_per_batch_worker"] = [collector.frames_per_batch_worker(), *frames]
    try:
        facts["len"] = len(collector)
    except TypeError:
        facts["len"] = "none"
    facts |= {f"keywords.{name}": getattr(keywords, name) for name in OF_KEYWORDS}
    return {name: shown(value) for name, value in facts.items()}


@pytest.fixture
def configured(monkeypatch):
    """`configured(CLASS, *ARGUMENTS, **KEYWORDS)`: a collector that has not started anything."""

    def configure(self, keywords_class, arguments, passed):
        self._configure(keywords_class, arguments, passed)
        self._policy = self._cfg.policy
        num_envs = self._keywords.num_envs
        spec = SimpleNamespace(num_envs=num_envs or 1, policy_shape=(num_envs,) if num_envs else ())
        self._spec = spec
        self._frames_per_batch = fit_frames(self._keywords, self._cfg, self._overrides, spec)

    monkeypatch.setattr(base.BaseCollector, "_open", configure)
    return lambda cls, *arguments, **keywords: getattr(collectx, cls)(*arguments, **keywords)


ONE, MANY = (cartpole,), ([cartpole, other],)
# Classes and their arguments; the first row of a class is what the others are compared with.
ROWS = {
    "Collector": [
        (ONE, {}),
        (ONE, {"num_envs": 3, "frames_per_batch": 10, "total_frames": 25}),
        (ONE, {"num_envs": 1, "frames_per_batch": 1, "total_frames": 0 + 1}),
        ((cartpole, MODULE), {"compile_policy": True, "cudagraph_policy": False, "trust_policy": True}),
        ((cartpole, MODULE), {"compile_policy": {"mode": "default"}, "exploration_type": None}),
        ((cartpole, policy), {"exploration_type": "MODE", "trust_policy": False}),
        (ONE, {"exploration_mode": "mean"}),
        (ONE, {"policy_factory": policy, "create_env_kwargs": {"render_mode": None}, "worker_idx": 0}),
        (ONE, {"max_frames_per_traj": 0, "init_random_frames": -1, "total_frames": None}),
        (ONE, {"max_frames_per_traj": 1, "init_random_frames": 1, "seed": 0, "reset_at_each_iter": True}),
        (ONE, {"device": "cpu", "set_truncated": True, "zero_copy": True, "compact_obs": True, "check_finite": False}),
        (ONE, {"policy_device": torch.device("cpu"), "env_device": "cpu"}),
        (ONE, {"storing_device": "cpu", "interruptor": Ends(), "info_keys": ["a"], "exclude_keys": ["b"]}),
        (ONE, {"post_collect_hook": hook, "pre_collect_hook": hook, "init_fn": hook, "update_interval": 3}),
        (ONE, {"replay_buffer": BUFFER, "trajs_per_batch": 1, "trajs_per_write": 1, "traj_format": "cat"}),
        (ONE, {"update_at_each_batch": True, "update_interval": -1}),
        (ONE, {"update_after_each_batch": True, "cat_results": 0}),
        (ONE, {"update_interval": 2, "update_weights_between_steps": True}),
        (ONE, {"frames_per_batch": 0}),
        (ONE, {"frames_per_batch": [4, 4]}),
        (ONE, {"num_envs": 0, "total_frames": 0, "max_frames_per_traj": "1", "seed": -1, "worker_idx": "a"}),
        (ONE, {"reset_when_done": False, "device": "gpu", "storing_device": ["cpu", "meta"], "env_device": None}),
        ((cartpole, policy), {"policy_factory": policy, "interruptor": 3, "traj_format": "cat"}),
        ((cartpole, torch.nn.Linear), {}),
        (ONE, {"compile_policy": True}),
        ((cartpole, policy), {"compile_policy": 1, "cudagraph_policy": {"modes": 1}}),
        ((cartpole, policy), {"cudagraph_policy": True}),
        (([cartpole],), {}),
        ((cartpole, 3), {"postproc": 3, "create_env_kwargs": [{}]}),
        ((3,), {"backend": "direct", "num_collectors": 1}),
        (ONE, {"backend": "proces"}),
        (ONE, {"num_collectors": 2}),
        (ONE, {"num_collectors": 2, "sync": True, "backend_options": {"num_slots": 1}}),
        (MANY, {"backend": "multiprocessing", "sync": False}),
        (MANY, {"num_collectors": 3}),
        (ONE, {"num_collectors": 0}),
        (ONE, {"num_collectors": 2, "backend_options": {"sync": True, "seed": 1}, "seed": 1}),
        (ONE, {"num_collectors": 2, "backend_options": 3}),
        (MANY, {"backend": "rpc", "backend_options": {"launcher": "mp"}, "sync": True}),
        (MANY, {"backend": "submitit", "launcher": "mp"}),
        (MANY, {"backend": "submitit"}),
    ],
    "MultiSyncCollector": [
        (MANY, {}),
        (ONE, {}),
        (ONE, {"num_workers": 3, "num_threads": 2, "num_sub_threads": 2, "num_envs": 2}),
        (MANY, {"num_workers": 2, "frames_per_batch": 7, "total_frames": 8, "cat_results": "stack"}),
        (MANY, {"frames_per_batch": [3, 6], "cat_results": -1, "init_random_frames": 10}),
        (MANY, {"frames_per_batch": [3, 6], "cat_results": -1, "num_envs": 2, "init_random_frames": 9}),
        (MANY, {"cat_results": 0, "overlap": 1, "split_trajs": True, "update_interval": 1}),
        (MANY, {"preemptive_threshold": 0.5, "cat_results": -1, "worker_timeout_s": 1}),
        (MANY, {"preemptive_threshold": 0, "max_restarts": 0, "on_worker_failure": "restart"}),
        ((*MANY, MODULE), {"policy_factory": policy}),
        (MANY, {"policy_factory": [policy, hook], "create_env_kwargs": [None, {"x": 1}]}),
        (MANY, {"policy_factory": [policy, policy], "policy_device": ["cpu", "cpu"], "device": ["cpu", None]}),
        (MANY, {"replay_buffer": BUFFER}),
        (MANY, {"replay_buffer": BUFFER, "overlap": 1}),
        (MANY, {"replay_buffer": BUFFER, "track_policy_version": True}),
        (MANY, {"replay_buffer": BUFFER, "track_traj_ids": False}),
        (MANY, {"replay_buffer": BUFFER, "postproc": hook}),
        (MANY, {"replay_buffer": BUFFER, "extend_buffer": False}),
        (MANY, {"collector_class": collectx.Collector, "post_collect_hook": hook}),
        (MANY, {"collector_class": Mine, "device": ["cpu", None], "init_random_frames": 3, "compile_policy": None}),
        (MANY, {"collector_class": Mine, "num_envs": 1, "info_keys": ["a"], "update_weights_between_steps": True}),
        (MANY, {"collector_class": collectx.MultiSyncCollector}),
        (MANY, {"frames_per_batch": [3, 6]}),
        (MANY, {"frames_per_batch": [3], "cat_results": 1}),
        (MANY, {"cat_results": 1}),
        (MANY, {"cat_results": -2, "num_envs": 2}),
        (MANY, {"cat_results": -3, "num_envs": 2}),
        (MANY, {"cat_results": 0, "num_envs": 2, "preemptive_threshold": 0.5}),
        (MANY, {"cat_results": 1, "num_envs": 2, "preemptive_threshold": 0.5}),
        (MANY, {"cat_results": "cat"}),
        (MANY, {"num_workers": 3}),
        (([],), {}),
        (([torch.nn.Identity(), 3],), {"device": ["cpu"], "create_env_kwargs": 3, "policy_factory": [policy, 3]}),
        (MANY, {"overlap": 1, "policy_factory": [policy, hook], "weight_sync_schemes": {"critic": 1}}),
        (MANY, {"min_workers": 3, "num_slots": 0, "preemptive_threshold": 2, "close_timeout_s": -1}),
        (MANY, {"return_same_td": True, "trajs_per_batch": 2, "split_trajs": True, "track_traj_ids": False}),
        (MANY, {"num_worker": 3, "sync": True, "n_steps": 128}),
        ((), {}),
    ],
    "MultiCollector": [(MANY, {"sync": True}), (MANY, {"sync": False}), (MANY, {})],
    "AsyncCollector": [(ONE, {}), (ONE, {"frames_per_batch": 3, "max_weight_update_interval": 1})],
    "MultiAsyncCollector": [
        (MANY, {}),
        (MANY, {"frames_per_batch": [3, 6], "num_envs": 2, "total_frames": 25}),
        (MANY, {"num_slots": 1, "policy_factory": [policy, hook], "update_interval": None}),
        (MANY, {"overlap": 1, "preemptive_threshold": 0.5}),
    ],
    "AsyncBatchedCollector": [
        ((*MANY, MODULE), {}),
        ((*MANY, MODULE), {"max_batch_size": 4, "min_batch_size": 2, "server_timeout": 0.5, "backend": "threading"}),
        ((*MANY, MODULE), {"min_batch_size": None, "server_timeout": None, "transport": "auto", "envs_per_worker": 1}),
        (MANY, {}),
        ((*MANY, MODULE), {"policy_factory": policy, "policy_device": ["cpu", "meta"], "max_batch_size": 0}),
        ((*MANY, MODULE), {"envs_per_worker": True, "verbose": True, "policy_version": 1, "compile_policy": True}),
        ((*MANY, MODULE), {"max_batch_size": 1, "min_batch_size": 2, "server_timeout": 120}),
    ],
    "DistributedCollector": [
        (MANY, {"launcher": "mp"}),
        (MANY, {"launcher": "mp", "sync": True, "tcp_port": "1234", "num_workers_per_collector": 2}),
        (MANY, {"launcher": "mp", "num_workers_per_collector": 2, "collector_class": "async", "num_envs": 2}),
        (MANY, {"launcher": "mp", "num_workers_per_collector": 2, "frames_per_batch": 3, "sync": True}),
        (MANY, {"slurm_kwargs": {"timeout_min": 7, "slurm_partition": "train", "cpus_per_task": 3}}),
        (MANY, {"slurm_kwargs": {"timeout_min": 7, "slurm_nodes": 2}, "num_sub_threads": 0}),
        (MANY, {"launcher": "mp", "collector_class": "sync", "num_workers_per_collector": 1}),
        (MANY, {"launcher": "mp", "collector_class": collectx.Collector, "num_workers_per_collector": 2}),
        (MANY, {"launcher": "mp", "collector_kwargs": {"device": "cpu", "exploration_type": "mode"}}),
        (MANY, {"launcher": "mp", "collector_kwargs": [{"policy_device": "cpu"}, {"create_env_kwargs": {"x": 1}}]}),
        (MANY, {"launcher": "mp", "collector_kwargs": {"max_frames_per_traj": 3}}),
        (MANY, {"launcher": "mp", "collector_kwargs": [{"compact_obs": True}, {"compact_obs": False}]}),
        (MANY, {"launcher": "mp", "collector_kwargs": {"seed": 3, "device": "gpu", "exploration_type": "none"}}),
        (MANY, {"launcher": "mp", "collector_kwargs": {"max_frames_per_traj": 3}, "max_frames_per_traj": 4}),
        (MANY, {"launcher": "mp", "collector_class": "double", "frames_per_batch": [1, 1]}),
        (MANY, {"launcher": "mp", "collector_class": Mine, "collector_kwargs": {"x": 1}, "exploration_type": "mode"}),
        (MANY, {"launcher": "mp", "collector_class": Picky, "collector_kwargs": {"x": 1}}),
        (MANY, {"launcher": "mp", "tcp_port": "http", "backend": "rpc", "folder": 3}),
        (MANY, {"launcher": "mp", "tcp_port": 0, "backend": "tcp"}),
        (MANY, {"launcher": "submitit_delayed"}),
        (MANY, {"launcher": "mp", "preemptive_threshold": 0.5}),
    ],
    "DistributedSyncCollector": [
        (MANY, {"launcher": "mp"}),
        (MANY, {"launcher": "mp", "update_interval": -1}),
        (MANY, {"launcher": "mp", "policy_factory": [policy, hook]}),
        (MANY, {"launcher": "mp", "max_weight_update_interval": 4}),
    ],
    "RPCCollector": [
        (MANY, {"launcher": "mp"}),
        (MANY, {"launcher": "mp", "sync": True, "visible_devices": ["cpu", "cpu"], "backend": "nccl"}),
        (MANY, {"launcher": "mp", "visible_devices": ["cpu"]}),
        (MANY, {"launcher": "mp", "visible_devices": "gpu", "tensorpipe_options": {"rpc_timeout": 0}}),
        (MANY, {"visible_devices": [0, 1], "device": "cuda"}),
        (MANY, {"visible_devices": [0, None], "device": ["cuda:0", "cuda:1"]}),
    ],
}


def typed(cls, arguments, keywords):
    given = [shown(each) for each in arguments]
    return f"{cls}({', '.join([*given, *(f'{name}={shown(each)}' for name, each in keywords.items())])})"


@pytest.mark.parametrize(
    ("jobs", "keywords", "messages"),
    [
        ((2, "gloo", None), {}, []),
        ((2, "gloo", 1234), {"tcp_port": 99}, []),
        ((3, "gloo", None), {}, ["the collector has 2 workers, but submitit_delayed_launcher has num_jobs=3."]),
        ((2, "mpi", None), {}, ["the collector has backend='gloo', but submitit_delayed_launcher has backend='mpi'."]),
        (
            (1, "mpi", None),
            {"on_worker_failure": "restart"},
            [
                "the collector has 2 workers, but",
                "the collector has backend='gloo', but",
                "on_worker_failure='restart' ",
            ],
        ),
        ((2, "gloo", None), {"on_worker_failure": "drop", "slurm_kwargs": {"nothing": 1}}, []),
        ((3, "gloo", None), {"num_slots": 0}, ["num_slots=0 must be from 1 to 64."]),
    ],
)
def test_jobs_that_were_submitted_before_match_the_collector(jobs, keywords, messages, configured, monkeypatch):
    num_workers, backend, port = jobs
    presubmitted = SimpleNamespace(num_workers=num_workers, backend=backend, tcp_port=port)
    for module in (configuration, rules):
        monkeypatch.setattr(module.PresubmittedJobs, "from_environment", lambda: presubmitted)
    keywords, found = {"launcher": "submitit_delayed", **keywords}, ()
    try:
        collector = configured("DistributedCollector", [cartpole, other], **keywords)
        cfg, *_ = parts_of(collector)
        assert cfg.backend.port == keywords.get("tcp_port", port)
    except ConfigError as error:
        found = error.problems
    assert len(found) == len(messages)
    assert all(text.startswith(begin) for text, begin in zip(found, messages, strict=True)), found


def test_an_added_worker_has_the_device_of_the_first(configured):
    collector = configured("MultiSyncCollector", [cartpole, other], policy, policy_device=["cpu", "meta"])
    kwargs = {"create_env_kwargs": {"x": 1}, "exploration_type": "MODE"}
    cfg, _, keywords = parts_of(collector)
    added = overrides_of_added(keywords, cfg, other, kwargs)
    assert shown(added) == (
        "ConfigOverrides(hooks=Hooks(), env=UserEnvConfig(kind=python, create=other, kwargs={x: 1}), "
        "devices=DevicesConfig(policy_device=cpu), exploration_type=mode)"
    )


def test_an_exploration_type_of_none_in_collector_kwargs_changes_nothing(configured):
    keywords = {"launcher": "mp", "exploration_type": "MODE", "collector_kwargs": {"exploration_type": None}}
    collector = configured("DistributedCollector", [cartpole, other], policy, **keywords)
    cfg, overrides, _ = parts_of(collector)
    assert cfg.collector.exploration_type == "mode"
    assert {each.exploration_type for each in overrides} == {None}


def test_whole_configurations(configured, expected, monkeypatch):
    torch.manual_seed(0)
    text, plain = [], {}
    for cls, rows in ROWS.items():
        first = {}
        for arguments, keywords in rows:
            text.append(typed(cls, arguments, keywords))
            try:
                collector = configured(cls, *arguments, **keywords)
            except (ConfigError, TypeError) as error:
                text += [f"  {type(error).__name__}: {each}" for each in getattr(error, "problems", (error,))]
                continue
            if type(collector).__name__ != cls:
                text.append(f"  made by the class {type(collector).__name__}")
            facts = facts_of(collector)
            text += [f"  {name} = {value}" for name, value in facts.items() if (first or plain).get(name) != value]
            first = first or facts
        plain = plain or first
    expected("configurations", "\n".join(text))
