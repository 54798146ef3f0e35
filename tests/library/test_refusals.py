"""Wrong arguments are refused, all at once and before any process starts. A message names the keyword, what is
wrong with its value, and what to do; here it is known by the keyword and a word or number more."""

import copy
import multiprocessing
import os
import re
import threading
from functools import cache, partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from library_collectors import make
from scripts import keywords
from tensordict.nn import TensorDictModule
from torch import distributed, nn
from user_code.cartpoles import Argmax, cartpole, cartpoles
from ways import INLINE_SYNC, SHARED_SYNC, SINGLE, over

import collectx
from collectx import (
    AsyncBatchedCollector,
    Collector,
    DistributedCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
    ReplayBuffer,
    RPCCollector,
)
from collectx.errors import ConfigError, DataError


def never():
    raise AssertionError("an env was made")


def refused(kind, create=never, **keywords):
    with pytest.raises(ConfigError) as caught:
        kind(create if kind is Collector else [create] * 2, **keywords)
    return caught.value.problems


# Names and values of YAML.
YAML_WORDS = re.compile(
    r"`|\b(null|true|false)\b|\b(collector|backend|launcher|devices|env|policy|inference|trainer)(\.[a-z_]+\b(?!\()|=[a-z])"
)


def test_all_that_is_wrong_is_said_at_once():
    """Wrong types and wrong values."""
    wrong = {
        "frames_per_batch": 0,
        "init_random_frames": "5",
        "update_interval": 0,
        "weight_sync_schemes": {"value": None},
        "launcher": "ssh",
        "backend": "carrier pigeon",
        "collector_class": "double",
        "collector_kwargs": [{"seed": 3}] * 2,
        "device": "tpu9",
        "worker_timeout_s": 0,
    }
    problems = refused(DistributedCollector, **wrong)
    assert {name for name in wrong if any(problem.startswith(name) for problem in problems)} == set(wrong)


@pytest.mark.skipif(distributed.is_ucc_available(), reason="this torch has UCC")
def test_a_backend_that_this_machine_lacks_is_refused():
    (problem,) = refused(DistributedCollector, launcher="mp", backend="ucc")
    assert re.match("backend='ucc' cannot be used: torch .* is built without UCC", problem)


def test_a_machine_without_slurm_is_told_how_python_writes_another_launcher(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = refused(DistributedCollector, cartpole)
    assert problem.startswith("launcher='submitit' cannot be used: this machine has no sbatch on its PATH. ")
    assert problem.endswith(" or use launcher='mp'.")


@over([SINGLE, SHARED_SYNC], smoke=True)
def test_batches_that_no_memory_can_hold_are_refused_before_a_worker_starts(way):
    words = r"frames_per_batch=1000000000000 cannot be used: these batches .* GB of memory\. Use fewer frames\.$"
    with pytest.raises(ConfigError, match=words):
        make(way, frames_per_batch=1_000_000_000_000)


@pytest.mark.parametrize("name", keywords.CLASSES)
def test_a_value_that_the_limits_of_an_option_do_not_allow_is_refused(name):
    """0 is refused too where None stands for the default."""
    required = keywords.CLASSES[name][1]
    wrong = [(keyword, value) for keyword, value, is_right in keywords.values(name) if not is_right]
    assert ("num_envs", 0) in wrong
    for keyword, value in wrong:
        problems = refused(getattr(collectx, name), **required | {keyword: value})
        assert any(keyword in problem for problem in problems), (keyword, value)


class FourValues(gymnasium.Wrapper):
    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, info


class NoInfo(gymnasium.Wrapper):
    def reset(self, **keywords):
        return self.env.reset(**keywords)[0]


class NoSeed(gymnasium.Wrapper):
    def reset(self):
        return self.env.reset()


@pytest.mark.parametrize("create", [lambda old: old(cartpole()), lambda old: SyncVectorEnv([lambda: old(cartpole())])])
@pytest.mark.parametrize(
    ("old", "words"),
    [
        (FourValues, "in step 0 of the batch, .* returned 4 values, as in Gym before 0.26"),
        (NoInfo, "returned an observation without an info, as in Gym before 0.26"),
        (NoSeed, "has no argument seed, as in Gym before 0.26"),
    ],
)
def test_an_env_with_the_old_api_of_gym_is_named_so(create, old, words):
    collector = Collector(partial(create, old), frames_per_batch=2)
    with pytest.raises(DataError, match=words):
        collector.next()
    collector.shutdown()


class Counted(gymnasium.ObservationWrapper):
    """Observes `step_count`, as TorchRL's `StepCounter`."""

    def __init__(self):
        super().__init__(cartpole())
        self.observation_space = gymnasium.spaces.Dict(step_count=gymnasium.spaces.Box(0, 9, (1,)))

    def observation(self, observation):
        return {"step_count": np.zeros(1, np.float32)}


KINDS = {
    "single": Collector,
    "sync": MultiSyncCollector,
    "async": MultiAsyncCollector,
    "served": AsyncBatchedCollector,
    "gloo": DistributedCollector,
    "rpc": RPCCollector,
}
NEXT_STEP = partial(cartpoles, mode="NEXT_STEP")
MIN_WORKERS = {"min_workers": 1, "on_worker_failure": "drop"}
INNER_ASYNC = {"num_workers_per_collector": 2, "collector_class": "async"}
PREEMPTIVE = {"preemptive_threshold": 0.5}
LIMITED = {"max_frames_per_traj": 5, "frames_per_batch": 9}
BELL = SimpleNamespace(collection_stopped=lambda: False)
OTHER_TASKS = {"slurm_additional_parameters": {"ntasks": 2}}
OTHER_REQUEUE = {"slurm_additional_parameters": {"requeue": True}}
BETWEEN_STEPS = {"num_workers_per_collector": 2, "update_weights_between_steps": True}


@pytest.mark.difference("a keyword of the constructor in `collector_kwargs`, such as `max_frames_per_traj`")
@pytest.mark.parametrize(
    ("kind", "keywords", "words"),
    [
        ("sync", {"total_frames": 0}, "total_frames=0 1 -1"),
        ("sync", {"exploration_type": "wild"}, "exploration_type='wild' random"),
        ("sync", {"exploration_mode": "wild"}, "exploration_mode='wild' random"),
        ("sync", {"num_workers": 3}, "num_workers=3 create_env_fn 2"),
        ("single", {"policy_factory": Argmax, "policy": Argmax()}, "policy policy_factory one"),
        ("sync", {"policy_factory": [Argmax]}, "policy_factory 1 2"),
        ("sync", {"policy_factory": [Argmax, 3]}, "policy_factory[1]=3"),
        ("sync", {"policy_factory": [Argmax, lambda: Argmax()], "overlap": 1}, "overlap=1 policy_factory overlap=0"),
        ("async", {"overlap": 1}, "overlap=1 async"),
        ("sync", {"policy": Argmax}, "policy= class policy_factory"),
        ("sync", {"create_env_kwargs": [{}]}, "create_env_kwargs 1 2"),
        ("sync", {"create_env_kwargs": "render"}, "create_env_kwargs='render' dict"),
        ("sync", {"policy_device": ["cpu"] * 3}, "policy_device 3 2"),
        ("sync", {"storing_device": ["cpu", None]}, "storing_device= one"),
        ("sync", {"device": "cuda:99"}, "device='cuda:99' cpu"),
        ("sync", {"device": "cpu:1"}, "device='cpu:1' no such device. cpu"),
        ("sync", {"device": object()}, "device= 'cuda:N'"),
        ("sync", {"reset_when_done": False}, "reset_when_done=False"),
        ("sync", {"extend_buffer": False, "replay_buffer": SimpleNamespace(extend=print)}, "extend_buffer=False add()"),
        ("sync", {"split_trajs": True, "replay_buffer": ReplayBuffer(10)}, "split_trajs=True SliceSampler"),
        ("sync", {"init_fn": 3}, "init_fn=3"),
        # What all workers have, in collector_kwargs.
        ("gloo", {"collector_kwargs": {"set_truncated": 1}, "set_truncated": 0}, "set_truncated=0 collector_kwargs"),
        ("gloo", {"collector_kwargs": [{"set_truncated": True}, {}]}, "collector_kwargs set_truncated [True, same"),
        ("gloo", {"collector_kwargs": {"max_frames_per_traj": "5"}}, "max_frames_per_traj='5' int"),
        ("gloo", {"collector_kwargs": [{}, {"policy_device": "there"}]}, "collector_kwargs['policy_device']='there'"),
        ("gloo", {"collector_kwargs": [{}, {"exploration_type": "wild"}]}, "['exploration_type']='wild' random"),
        ("gloo", {"collector_class": lambda *_, **__: None, "num_envs": 2}, "num_envs=2 collector_class"),
        ("gloo", BETWEEN_STEPS, "update_weights_between_steps=True num_workers_per_collector=2"),
        ("served", {"max_batch_size": 1, "min_batch_size": 2}, "max_batch_size=1 min_batch_size=2 None"),
        # What the command line refuses too.
        ("gloo", {"backend": "nccl"}, "backend='nccl' policy_device=cpu backend='gloo'"),
        ("gloo", {"backend": "mpi", "launcher": "submitit"}, "backend='mpi' launcher='submitit' launcher='mp'"),
        ("gloo", {"slurm_kwargs": OTHER_TASKS, "launcher": "submitit"}, "slurm_kwargs.ntasks num_workers"),
        ("gloo", {"slurm_kwargs": OTHER_REQUEUE, "launcher": "submitit"}, "slurm_kwargs.requeue Leave it out."),
        # What rules of the command line say, in the words of Python.
        ("served", MIN_WORKERS, "min_workers=1 AsyncBatchedCollector min_workers=2 MultiAsyncCollector"),
        ("served", MIN_WORKERS | {"min_workers": 3}, "min_workers=3 num_workers=2"),
        ("served", {"overlap": 1}, "overlap=1 async"),
        ("served", {"server_timeout": 120.0}, "server_timeout=120.0 worker_timeout_s=120"),
        ("async", PREEMPTIVE, "preemptive_threshold=0.5 MultiSyncCollector None"),
        ("sync", {"overlap": 1, "update_weights_between_steps": True}, "overlap=1 update_weights_between_steps=False"),
        ("sync", {"overlap": 1} | PREEMPTIVE, "overlap=1 preemptive_threshold=None"),
        ("gloo", {"sync": True, "overlap": 1} | INNER_ASYNC, "collector_class='async' collector_class='sync'"),
        ("gloo", INNER_ASYNC | {"collector_class": "single"}, "num_workers_per_collector=2 collector_class='sync'"),
        ("gloo", {"collector_kwargs": "fast"}, "collector_kwargs='fast' dict"),
        ("gloo", {"collector_kwargs": [{"max_frames_per_traj": 5}, 5]}, "collector_kwargs[1]=5 dict"),
        ("rpc", {"visible_devices": ["cpu"]}, "visible_devices 1 entry 2"),
        ("rpc", {"tensorpipe_options": {"speed": 3}}, "tensorpipe_options speed rpc_timeout"),
        # Parts of other lengths.
        ("sync", {"frames_per_batch": [5, 9]}, "frames_per_batch=[5, 9] cat_results=-1"),
        ("sync", {"frames_per_batch": [5], "cat_results": -1}, "frames_per_batch=[5] 1 2"),
        ("sync", {"frames_per_batch": [5, 0], "cat_results": -1}, "frames_per_batch=[5, 0] 1"),
        ("single", {"frames_per_batch": [5]}, "frames_per_batch=[5] MultiSyncCollector"),
        ("gloo", {"frames_per_batch": [5, 9]}, "frames_per_batch=[5, 9] MultiSyncCollector"),
        ("single", {"interruptor": object()}, "interruptor= object collection_stopped()"),
        ("single", {"interruptor": BELL, "return_same_td": True}, "return_same_td=True interruptor"),
        ("async", PREEMPTIVE, "preemptive_threshold=0.5 async"),
        ("sync", PREEMPTIVE | {"return_same_td": True, "cat_results": 0}, "return_same_td=True cat_results='stack'"),
        # Batches of whole trajectories.
        ("single", {"traj_format": "cat"}, "traj_format='cat' trajs_per_batch"),
        ("single", {"trajs_per_batch": 2, "traj_format": "list"}, "traj_format='list' padded cat"),
        ("single", {"trajs_per_batch": 2, "return_same_td": True}, "return_same_td=True trajs_per_batch=2"),
        ("single", {"trajs_per_batch": 2, "track_traj_ids": False}, "track_traj_ids=False trajs_per_batch=2"),
        # Compiled policies.
        ("sync", {"policy": Argmax(), "compile_policy": "fast"}, "compile_policy='fast' True dict"),
        ("sync", {"policy": Argmax(), "compile_policy": {"speed": 3}}, "compile_policy={'speed': unexpected keyword"),
        ("sync", {"policy": Argmax(), "cudagraph_policy": True}, "cudagraph_policy=True cpu GPU"),
        ("sync", {"compile_policy": True}, "compile_policy=True random"),
        # Delivery, the replay buffer and the functions of users.
        ("sync", {"cat_results": "cat"}, "cat_results='cat' 'stack'"),
        ("sync", {"split_trajs": True, "track_traj_ids": False}, "split_trajs=True track_traj_ids=True"),
        ("sync", {"replay_buffer": 3}, "replay_buffer extend() int"),
        ("gloo", {"weight_recv_schemes": {"env": 1, "critic": 2}}, "weight_recv_schemes models 'critic' 'env'"),
        ("sync", {"policy": 3}, "policy=3 module"),
        ("sync", {"policy_factory": [Argmax, None], "create_env_kwargs": [3, {}]}, "create_env_kwargs[0]=3 dict"),
        ("single", {"trajs_per_batch": 2, "split_trajs": True}, "split_trajs=True trajs_per_batch=2"),
        ("single", {"trajs_per_write": 0}, "trajs_per_write=0 1"),
        # Keywords with one meaning.
        ("sync", {"update_at_each_batch": True, "update_interval": 5}, "update_interval=5 update_at_each_batch=True"),
        ("sync", {"update_interval": 3, "max_weight_update_interval": 5}, "max_weight_update_interval=5 contradict"),
        ("sync", {"exploration_type": "MODE", "exploration_mode": "random"}, "exploration_type='MODE' contradict"),
        # Values of a wrong type.
        ("sync", {"frames_per_batch": "100"}, "frames_per_batch='100' int list"),
        ("sync", {"split_trajs": "yes"}, "split_trajs='yes' True False"),
    ],
)
def test_a_wrong_argument_is_refused_before_an_env_is_made(kind, keywords, words, tmp_path, monkeypatch):
    (tmp_path / "srun").touch(0o755)  # which submitit looks for
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    given = {"launcher": "mp"} | keywords if kind in ("gloo", "rpc") else keywords
    (problem,) = refused(KINDS[kind], **given)
    assert [word for word in words.split() if word not in problem] == []
    assert not YAML_WORDS.search(problem)


@pytest.mark.parametrize(
    ("kind", "create", "keywords", "words"),
    [
        ("sync", cartpoles, {"num_envs": 2}, "num_envs=2 vector num_envs=3"),
        ("sync", cache(cartpole), {"num_envs": 2}, "num_envs=2 same"),
        ("sync", cartpole, {"exclude_keys": ["mission"]}, "exclude_keys mission"),
        ("sync", cartpole, {"cat_results": 1}, "cat_results=1 -1 0 'stack'"),
        ("sync", cartpoles, {"cat_results": 0, "frames_per_batch": [3, 6]}, "cat_results=0 cat_results=-1"),
        ("sync", cartpoles, {"cat_results": 0} | PREEMPTIVE, "cat_results=0 cat_results=-1"),
        ("single", NEXT_STEP, {"interruptor": BELL, "frames_per_batch": 9}, "autoreset_mode disabled same_step"),
        ("single", NEXT_STEP, LIMITED, "max_frames_per_traj=5 autoreset_mode disabled same_step"),
        ("served", NEXT_STEP, {"policy": Argmax(), "frames_per_batch": 9}, "AsyncBatchedCollector MultiAsyncCollector"),
        ("single", Counted, {"max_frames_per_traj": 5}, "max_frames_per_traj=5 step_count"),
        ("sync", cartpole, {"env_device": "meta"}, "env_device='meta' None"),
        ("async", cartpole, {"frames_per_batch": 10**12}, "frames_per_batch=1000000000000 num_slots"),
    ],
)
def test_what_does_not_fit_the_spaces_is_refused_before_a_worker_starts(kind, create, keywords, words):
    (problem,) = refused(KINDS[kind], create, **keywords)
    assert [word for word in words.split() if word not in problem] == []
    assert not YAML_WORDS.search(problem)


def test_an_unknown_keyword_is_named():
    with pytest.raises(TypeError, match=r"'frames_per_bach' .*'frames_per_batch'"):
        Collector(cartpole, frames_per_bach=3)
    with pytest.raises(TypeError, match="'tcp_port'"):
        MultiSyncCollector([cartpole], tcp_port=3)


def test_numbers_may_be_of_numpy_and_whole_numbers_may_be_floats():
    numbers = {"frames_per_batch": np.int64(20), "total_frames": np.int32(40), "cat_results": np.int64(-1)}
    with make(INLINE_SYNC, set_truncated=np.bool_(True), seed=np.int64(1), **numbers) as collector:
        assert [len(batch) for batch in collector] == [20, 20]
    with Collector(cartpole, frames_per_batch=1e1, total_frames=20.0) as collector:
        assert [batch.numel() for batch in collector] == [10, 10]


def test_the_cause_of_wrong_tensors_is_named():
    """Weights of another dtype than observations, and weights or a default device without values."""
    double, meta = nn.Linear(4, 2).double(), nn.Linear(4, 2).to("meta")
    with pytest.raises(RuntimeError, match="must have the same dtype") as caught:
        Collector(cartpole, double)
    assert any(
        "weights are torch.float64, but its observations torch.float32" in note for note in caught.value.__notes__
    )
    for create, policy in ((cartpole, {"policy": meta}), ([cartpole] * 2, {"policy_factory": lambda: meta})):
        kind = MultiSyncCollector if isinstance(create, list) else Collector
        with pytest.raises(ConfigError, match=r"^the policy's weight 'weight' is on the device meta"):
            kind(create, **policy)
    with torch.device("meta"), pytest.raises(ConfigError, match=r"^torch.get_default_device\(\) is meta"):
        Collector(cartpole)


@pytest.mark.parametrize(
    "shared", [multiprocessing.Value("i"), multiprocessing.RawArray("i", 2)], ids=["Value", "Array"]
)
def test_a_shared_value_is_no_curriculum(shared):
    with pytest.raises(
        ConfigError, match=r"a Value, Array, Lock or Queue of multiprocessing.* call collector\.set_attr"
    ):
        MultiSyncCollector([lambda: (shared, cartpole())[1]])


def test_what_cannot_travel_to_workers_is_named():
    lock, policy = threading.Lock(), Argmax()
    policy.lock = lock
    for name, given in (("create_env_fn", [lambda: (lock, cartpole())[1]]), ("policy", [cartpole, policy])):
        with pytest.raises(ConfigError, match=rf"^{name}=.* cannot be pickled .*lock"):
            MultiSyncCollector(*given, num_workers=1)


def test_an_error_of_the_first_call_of_a_policy_says_what_it_was_called_with():
    wide = TensorDictModule(nn.Linear(5, 2), ["observation"], ["action"])
    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        Collector(cartpole, wide)
    called, sizes = caught.value.__notes__
    assert "first observations of the env: observation [4] torch.float32" in called
    assert sizes == "a layer takes 5 features, but gets 4"


@pytest.mark.parametrize(
    ("creates", "keywords", "words"),
    [
        ([cartpole, partial(gymnasium.make, "Pendulum-v1")], {}, "worker 1 observation [3] [4]"),
        ([partial(cartpoles, 2), cartpoles], {}, "worker 1 3 worker 0 2"),
        ([partial(cartpoles, 2), partial(NEXT_STEP, 2)], {"max_frames_per_traj": 5}, "this worker autoreset_mode"),
        ([partial(cartpoles, 2), partial(NEXT_STEP, 2)], {"reset_at_each_iter": True}, "this worker autoreset_mode"),
    ],
)
@over((INLINE_SYNC, SHARED_SYNC))
def test_workers_with_unequal_envs_are_refused(way, creates, keywords, words):
    with pytest.raises(DataError) as caught, make(way, creates, frames_per_batch=40, **keywords) as collector:
        collector.next()
    assert [word for word in words.split() if word not in str(caught.value)] == []


@pytest.mark.difference(
    "`copy.deepcopy(collector)`",
    "`track_policy_version=PolicyVersion(...)`",
    "`cudagraph_policy` of a policy on the CPU",
)
def test_what_torchrls_collector_takes_and_ours_does_not():
    with (
        Collector(cartpole, frames_per_batch=4) as collector,
        pytest.raises(TypeError, match=r"Save its state_dict\(\)"),
    ):
        copy.deepcopy(collector)
    with pytest.raises(ConfigError, match=r"^track_policy_version=.* must be True or False\.$"):
        Collector(cartpole, track_policy_version=object())
    with pytest.raises(ConfigError, match=r"^cudagraph_policy=True needs a GPU, but the policy acts on cpu\."):
        Collector(cartpole, nn.Linear(4, 2), cudagraph_policy=True)


@pytest.mark.difference(
    '`backend="threading"` of `AsyncBatchedCollector`',
    "`transport`, `envs_per_worker`, `yield_completed_trajectories`, `weight_sync`, `worker_affinity`, "
    "`driver_affinity`, `server_config`, `device_config`, `policy_version`, `compile_policy`, `cudagraph_policy` of "
    "`AsyncBatchedCollector`",
    "`env_exchange`, `transition_chunk_size`, `weight_sync_model_id`, `policy_version_key`, `verbose` of "
    "`AsyncBatchedCollector`",
)
def test_keywords_of_torchrls_asyncbatchedcollector():
    fixed = {"transport": "x", "envs_per_worker": 2, "yield_completed_trajectories": True, "policy_version": 1}
    fixed |= dict.fromkeys(["weight_sync", "worker_affinity", "driver_affinity", "server_config", "device_config"], 3)
    fixed |= dict.fromkeys(["compile_policy", "cudagraph_policy"], True)
    given = {"env_exchange": "x", "transition_chunk_size": 3, "weight_sync_model_id": "x", "policy_version_key": "x"}
    given |= dict.fromkeys(["backend", "env_backend", "policy_backend"], "threading") | {"verbose": True}
    with pytest.raises(ConfigError) as caught:
        AsyncBatchedCollector([cartpole], Argmax(), **given, **fixed)
    named = [text.partition("=")[0] for text in caught.value.problems]
    assert sorted(named) == sorted(fixed)
    assert all(". Use " in text or ": " in text for text in caught.value.problems)


@pytest.mark.difference(
    "`Evaluator`, `RayEvalWorker`",
    "`LLMCollector`, `RayLLMCollector`",
    "`cascade_execute`, `register_scheme_receiver`, `init_updater`",
    "`get_cached_weights`",
    "`server_stats` of `AsyncBatchedCollector`",
    "`RandomPolicy.set_action_spec_from_env`",
    "constructors of weight updaters, such as `VanillaWeightUpdater(policy_weights=...)`",
)
def test_names_of_torchrl_that_are_missing():
    methods = ("cascade_execute", "register_scheme_receiver", "init_updater", "get_cached_weights", "server_stats")
    with Collector(cartpole, frames_per_batch=4) as collector:
        for name in methods:
            with pytest.raises(AttributeError, match=f"no attribute {name!r}. [A-Z]"):
                getattr(collector, name)
    for name in ("Evaluator", "RayEvalWorker", "LLMCollector", "RayLLMCollector"):
        with pytest.raises(AttributeError, match=name):
            getattr(collectx, name)
    assert not hasattr(collectx.RandomPolicy, "set_action_spec_from_env")
    with pytest.raises(TypeError):
        collectx.WeightUpdaterBase(policy_weights={})
