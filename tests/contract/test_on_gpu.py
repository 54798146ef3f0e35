"""All tests that need a GPU (`make test-gpu`): policies, batches, training, failures and resumed runs on the device.

`make test-gpu DEVICE=cpu` rehearses them on a machine without a GPU.
"""

import json
import os
from functools import partial
from pathlib import Path

import gymnasium
import pytest
import torch
from commands import collectx, result
from configurations import batches, counting, digest_of, gym, mlp, start
from library_collectors import make
from losing_workers import collector, survive
from tensordict.nn import TensorDictModule
from torch import nn
from user_code.cartpoles import Argmax
from user_code.streams import StreamChecker
from user_code.tensorenv import TensorCountingEnv
from user_code.tracing import batches_of_each_version, by_tensordict, by_tensors
from ways import GLOO, RPC_ASYNC, SHARED, SHARED_ASYNC, SHARED_SYNC, SINGLE, over

import collectx as library
from collectx import env as envs
from collectx import policy as policies
from collectx.errors import ConfigError, LauncherError
from collectx.policy import ExplorationType, make_actor
from collectx.policy.flat_weights import FlatWeights

DEVICE = os.environ.get("COLLECTX_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU on this machine"),
    # One process and one worker for all, as each GPU context takes memory and seconds.
    pytest.mark.xdist_group("gpu"),
]
needs_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="not on a CPU")
PPO = ["experiment=cartpole_ppo", f"devices={DEVICE}", "trainer.target_return=null"]


@pytest.fixture
def imports(monkeypatch):
    """Commands of the test import envs of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


@over((SINGLE, *SHARED, *GLOO, RPC_ASYNC))
def test_frames_are_whole_with_a_policy_on_the_gpu(way):
    checker = StreamChecker()
    options = {"frames_per_batch": 36, "total_frames": 360, "device": DEVICE}
    for batch in batches(way.kind, way.place, counting(3), mlp(), **options):
        assert batch.device.type == DEVICE
        checker.take(batch.cpu())
    assert checker.frames == 360


@over((SINGLE, *SHARED, *GLOO, RPC_ASYNC))
@pytest.mark.parametrize("keyword", ["device", "policy_device", "storing_device"])
def test_batches_lie_where_the_keyword_says_and_weights_arrive(way, keyword):
    policy = Argmax()
    acting = TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    with make(way, policy=acting, frames_per_batch=12, **{keyword: DEVICE}) as made:
        for action in (0, 1):
            with torch.no_grad():
                policy.layer.weight.zero_()
                policy.layer.bias.copy_(torch.tensor([1.0 - action, float(action)]))
            made.update_policy_weights_()
            while (batch := made.next())["collector", "policy_version"].max() < action + 1:
                pass  # async workers had begun it before
            assert batch["action"].device.type == (DEVICE if keyword != "policy_device" else "cpu")
            assert batch["action"].unique().tolist() == [action]


@over((SINGLE, SHARED_SYNC))
def test_the_gpu_acts_as_the_cpu_does(way):
    options = {"frames_per_batch": 60, "total_frames": 60, "exploration_type": "deterministic"}
    (there,), (here,) = (batches(way.kind, way.place, gym(3), mlp(), device=on, **options) for on in (DEVICE, "cpu"))
    for key in ("action", "observation"):
        assert torch.equal(there[key].cpu(), here[key])


@pytest.mark.parametrize(("lies", "acts"), [(DEVICE, "cpu"), ("cpu", DEVICE)])
def test_the_users_policy_stays_on_its_device(lies, acts):
    policy = Argmax().to(lies)
    acting = TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    with make(SINGLE, policy=acting, frames_per_batch=10, policy_device=acts) as made:
        for action in (0, 1):
            with torch.no_grad():
                policy.layer.weight.zero_()
                policy.layer.bias.copy_(torch.tensor([1.0 - action, float(action)]))
            made.update_policy_weights_()
            assert made.next()["action"].unique().tolist() == [action]
    assert policy.layer.weight.device.type == lies


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("env", [gym(3), gym(3, "Pendulum-v1")], ids=["categorical", "gaussian"])
def test_acting_does_not_wait_for_the_gpu(env):
    spec = envs.build(env).spec
    actor = make_actor(policies.build(mlp(), spec, 0), spec, torch.device("cuda"), ExplorationType.RANDOM)
    seen = [torch.zeros(3, *leaf.shape, device="cuda") for leaf in spec.observation]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            out = actor.act(seen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.device.type == "cuda" for value in out)


def test_weights_from_and_to_a_gpu():
    source, target = (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(DEVICE) for _ in range(2))
    buffer = torch.zeros(FlatWeights(source).nbytes, dtype=torch.uint8)
    FlatWeights(source).write(buffer)
    FlatWeights(target).read(buffer)
    assert all(torch.equal(source.state_dict()[key], value) for key, value in target.state_dict().items())


@needs_cuda
@over([SHARED_SYNC])
@pytest.mark.parametrize("create", [by_tensors, by_tensordict])
def test_recorded_calls_act_with_the_newest_weights(way, create):
    policy = create()
    options = {"frames_per_batch": 20, "policy_device": "cuda", "cudagraph_policy": True}
    for batch in batches_of_each_version(make(way, policy=policy, **options), policy):
        assert torch.equal(batch["action"], batch["observation"][..., 2].gt(0).long())


def overlapped(place, way):
    """Digests of batches with other weights in each, which lie on the device and are published from there."""
    options = {"overlap": 1, "frames_per_batch": 64, "total_frames": 640, "seed": 3, "device": DEVICE}
    policy = policies.build(mlp(), envs.read_spec(gym(2), False), 3).to(DEVICE)
    digests = []
    with start(way.kind, place, gym(2), mlp(), **options) as made:
        for number, batch in enumerate(made):
            digests.append(digest_of(batch.cpu()))
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.01 * (1 + number))
            made.publish(policy)
    return digests


@over([SHARED_SYNC, GLOO[0]])
def test_overlap_with_weights_on_the_gpu_gives_the_batches_of_one_process(way):
    digests = overlapped(way.place, way)
    assert digests == overlapped("inline", SHARED_SYNC)
    assert len(set(digests)) == len(digests)


FAULTS = [pytest.param("device_memory", RuntimeError), pytest.param("device_index", (RuntimeError, IndexError))]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_an_error_of_the_device_names_its_worker(fault, kind):
    """An out-of-range index breaks the worker's CUDA context, memory that is not there does not."""
    with collector(SHARED_ASYNC, "raise", fault, device=DEVICE) as made, pytest.raises(kind) as raised:
        for _ in made:
            pass
    assert any("worker 1" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_a_worker_whose_device_failed_is_replaced(fault, kind):
    frames, log = survive(SHARED_ASYNC, fault, device=DEVICE)
    assert frames > 0
    (restarted,) = log.of("worker_restarted")
    assert restarted["worker"] == 1


def tensor_policy():
    return TensorDictModule(nn.Sequential(ToFloat(), nn.Linear(5, 2), ToChoice()), ["observation"], ["action"])


class ToFloat(nn.Module):
    def forward(self, observation):
        return observation.float()


class ToChoice(nn.Module):
    def forward(self, scores):
        return scores.argmax(-1)


RECORDED = pytest.param({"cudagraph_policy": True}, marks=needs_cuda)


@pytest.mark.parametrize("options", [{}, {"zero_copy": True}, {"init_random_frames": 40}, RECORDED])
def test_frames_of_an_env_that_returns_tensors_there(options):
    checker, make = StreamChecker(), partial(TensorCountingEnv, 5, DEVICE)
    with library.Collector(make, tensor_policy(), frames_per_batch=40, device=DEVICE, **options) as made:
        for _ in range(8):
            batch = next(made)
            assert batch.device.type == batch["observation"].device.type == DEVICE
            checker.take(batch.cpu())
        made.reset()
        assert not next(made)["observation"][:, 0, 2].any()


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
def test_no_frame_of_such_an_env_leaves_the_device(tmp_path):
    """torch's profiler shows that only returns and lengths of ended episodes leave the device, and a few flags."""
    make = partial(TensorCountingEnv, 256, DEVICE, length=30)
    with library.Collector(make, tensor_policy(), frames_per_batch=256 * 16, device=DEVICE) as made:
        next(made)
        with torch.profiler.profile() as profile:
            batches = [next(made) for _ in range(4)]
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    if DEVICE == "cuda" and not any(event.get("cat") == "kernel" for event in events):
        pytest.skip("the profiler does not see what this GPU does")
    copied = [
        event["args"]["bytes"] for event in events if event.get("cat") == "gpu_memcpy" and "DtoH" in event["name"]
    ]
    ended = sum(int(batch["next", "done"].sum()) for batch in batches)
    assert ended > 0
    # On a GPU, the number of these episodes is read twice.
    assert sum(copied) <= 16 * ended + 4 * 256
    assert (DEVICE == "cpu") is not bool(copied)


@pytest.mark.parametrize(
    ("create", "options", "message"),
    [
        (TensorCountingEnv, {"device": "cpu"}, "device='cpu' cannot be used: the env returns tensors on cuda:0"),
        (TensorCountingEnv, {"device": "cuda", "storing_device": "cpu"}, "storing_device='cpu' cannot be used"),
    ],
)
@needs_cuda
def test_such_an_env_has_policy_and_batches_beside_it(create, options, message):
    with pytest.raises(ConfigError, match=message):
        library.Collector(partial(create, 5, DEVICE), tensor_policy(), frames_per_batch=40, **options)


@needs_cuda
def test_workers_of_their_own_do_not_step_such_an_env():
    with pytest.raises(ConfigError, match="Use Collector\\."):
        library.MultiSyncCollector(
            2 * [partial(TensorCountingEnv, 5, DEVICE)], tensor_policy(), frames_per_batch=40, device=DEVICE
        )


def test_a_run_trains_with_such_an_env(tmp_path, imports):
    env = ["env=gym_vector", "env.entry_point=user_code.tensorenv:TensorCountingEnv", f"env.kwargs.device={DEVICE}"]
    words = ["collector=single", "policy=mlp", "trainer=ppo", "collector.frames_per_batch=64"]
    on_device = [f"devices={DEVICE}", "devices.env_device=null"]
    collectx("run", *env, *words, *on_device, "collector.total_frames=256", cwd=tmp_path)


def test_a_gpu_that_is_not_there_is_refused_by_name():
    with pytest.raises((LauncherError, ValueError), match=r"cuda:99"):
        library.Collector(lambda: gymnasium.make("CartPole-v1"), frames_per_batch=10, policy_device="cuda:99")


def test_a_run_on_the_gpu_is_resumed_evaluated_and_exported(tmp_path):
    words = [*PPO, "collector.total_frames=8192", "trainer.digest=true"]
    collectx("run", *words, "run.max_batches=4", "hydra.run.dir=run", cwd=tmp_path)
    collectx("resume", "run", "run.max_batches=null", cwd=tmp_path)
    collectx("run", *words, "hydra.run.dir=uncut", cwd=tmp_path)
    assert result(tmp_path / "run")["digest"] == result(tmp_path / "uncut")["digest"]
    assert "mean return" in collectx("eval", "run", "episodes=2", cwd=tmp_path).stdout
    for name in ("state_dict", "torchscript"):
        collectx("export", "run", f"format={name}", cwd=tmp_path)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    policy, on_cpu = (library.load_policy(tmp_path / "run", device=device) for device in (DEVICE, "cpu"))
    for _ in range(20):
        assert policy(observation) == on_cpu(observation)
        observation, *_ = env.step(policy(observation))
    exported = next((tmp_path / "run" / "export").glob("*.pt*"))
    assert torch.load(exported, map_location="cpu", weights_only=False) is not None


# The env raises an error at an illegal action.
MASKED = ["env=gym", "env.entry_point=worlds.masked:MaskedEnv", "env.num_envs=2"]
CHOICES, INFO = "env.kwargs={nvec: [3, 2, 4]}", "env.kwargs={where: info}"
SERVER, ASYNC = ["collector=multi_sync", "inference=server"], ["collector=multi_async"]


def test_two_learners_keep_equal_weights(tmp_path):
    """On one GPU, gloo averages their gradients; on two, NCCL does. They compare weights at each checkpoint."""
    device = "cuda:0" if torch.cuda.device_count() == 1 else DEVICE
    words = [*PPO, f"devices.device={device}", "trainer.num_learners=2", "collector.total_frames=4096"]
    collectx("run", *words, "hydra.run.dir=run", cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"


PPO_HERE, DQN = ["policy=mlp", "trainer=ppo"], ["policy=q_mlp", "trainer=dqn", "trainer.warmup_frames=64"]
ACTING = {
    "ppo": [*PPO_HERE, "collector=multi_sync"],
    "ppo-choices-server": [*PPO_HERE, CHOICES, *SERVER],
    "dqn-info": [*DQN, INFO, *ASYNC],
    "dqn-server": [*DQN, *SERVER],
    "random-choices": ["policy=random", "trainer=meter", CHOICES, *ASYNC],
}


@pytest.mark.parametrize("name", ACTING)
def test_a_policy_there_takes_no_illegal_action(tmp_path, imports, name):
    limits = ["collector.frames_per_batch=32", "collector.total_frames=256"]
    collectx("run", *MASKED, *ACTING[name], f"devices={DEVICE}", *limits, cwd=tmp_path)


@pytest.mark.parametrize(
    "words", [["policy=mlp", "trainer=ppo"], ["policy=random", "trainer=meter"]], ids=["ppo", "random"]
)
def test_masks_of_an_env_that_returns_tensors_there(tmp_path, imports, words):
    env = ["env=gym_vector", "env.entry_point=user_code.tensorenv:TensorMaskedEnv", f"env.kwargs.device={DEVICE}"]
    on_device = [f"devices={DEVICE}", "devices.env_device=null", "collector=single", "collector.frames_per_batch=64"]
    collectx("run", *env, *words, *on_device, "collector.total_frames=256", cwd=tmp_path)


def test_statistics_of_observations_and_rewards_there_survive_a_resume(tmp_path):
    env = ["env=pendulum", "env.num_envs=2", "policy.normalize_observations=true", "trainer.normalize_rewards=true"]
    words = ["trainer=ppo", "collector=multi_sync", *env, f"devices={DEVICE}", "trainer.digest=true"]
    words += ["collector.frames_per_batch=128", "collector.total_frames=1024"]
    collectx("run", *words, "run.max_batches=4", "hydra.run.dir=run", cwd=tmp_path)
    collectx("resume", "run", "run.max_batches=null", cwd=tmp_path)
    collectx("run", *words, "hydra.run.dir=uncut", cwd=tmp_path)
    assert result(tmp_path / "run")["digest"] == result(tmp_path / "uncut")["digest"]
    collectx("eval", "run", "episodes=2", cwd=tmp_path)
    observation, _ = gymnasium.make("Pendulum-v1").reset(seed=0)
    there, here = (library.load_policy(tmp_path / "run", device=device) for device in (DEVICE, "cpu"))
    assert there(observation) == pytest.approx(here(observation), abs=1e-4)


@pytest.mark.parametrize("alpha", ["0.6", "null"], ids=["prioritised", "uniform"])
def test_a_replay_buffer_feeds_dqn_there_and_is_resumed(tmp_path, alpha):
    words = [
        "experiment=cartpole_dqn",
        f"devices={DEVICE}",
        "trainer.target_return=null",
        "collector.total_frames=4096",
    ]
    words += ["trainer.warmup_frames=512", f"trainer.priority_alpha={alpha}"]
    collectx("run", *words, "run.max_batches=8", "hydra.run.dir=run", cwd=tmp_path)
    collectx("resume", "run", "run.max_batches=null", cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] >= 4096
