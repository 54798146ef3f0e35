"""Vector envs that return tensors (`collectx.env.tensor_vector`), here on the CPU; those of a GPU are in
`tests/contract/test_on_gpu.py`."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict.nn import TensorDictModule
from torch import nn
from torch.overrides import TorchFunctionMode
from user_code.streams import StreamChecker
from user_code.tensorenv import TensorCountingEnv

from collectx import Collector, MultiSyncCollector, RandomPolicy
from collectx.errors import CollectxError, ConfigError, DataError


class Threshold(nn.Module):
    """Acts by the step that it sees; its weight is added to it."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return (observation[..., 2] + self.offset > 2).long()


def policy():
    return TensorDictModule(Threshold(), in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize("final", ["final_obs", "final_observation"])
@pytest.mark.parametrize("options", [{}, {"compact_obs": True}, {"zero_copy": True}, {"init_random_frames": 24}])
def test_frames_are_whole(final, options):
    checker, num_random = StreamChecker(), options.get("init_random_frames", 0)
    make = partial(TensorCountingEnv, final=final)
    with Collector(make, policy(), frames_per_batch=24, total_frames=240, **options) as collector:
        for number, batch in enumerate(collector):
            assert batch.shape == (3, 8)
            if "compact_obs" not in options:
                checker.take(batch)
            if 24 * number >= num_random:
                assert torch.equal(batch["action"], (batch["observation"][..., 2] > 2).long())
            assert torch.equal(batch["next", "reward"][..., 0], batch["observation"][..., 2].float() + 1)


class Reads(TorchFunctionMode):
    """Counts the bytes that leave torch, or the device of a tensor."""

    NAMES = ("numpy", "item", "tolist", "cpu", "__bool__", "__array__", "__int__", "__index__", "__float__", "__iter__")

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_function__(self, function, types, arguments=(), kwargs=None):
        if getattr(function, "__name__", "") in self.NAMES and isinstance(arguments[0], torch.Tensor):
            self.nbytes += arguments[0].nbytes
        return function(*arguments, **(kwargs or {}))


def test_no_frame_is_read_by_the_process():
    make = partial(TensorCountingEnv, num_envs=64, length=30, size=50)
    with Collector(make, policy(), frames_per_batch=64 * 16, storing_device="cpu") as collector:
        next(collector)
        with Reads() as reads:
            batches = [next(collector) for _ in range(4)]
    ended = sum(int(batch["next", "done"].sum()) for batch in batches)
    assert ended > 0
    # A returns and a length for each episode, and a few flags.
    assert reads.nbytes <= 16 * ended + 4 * 64
    assert batches[0]["observation"].nbytes > 100 * reads.nbytes


def test_newer_weights_act_and_episodes_go_on():
    module = policy()
    with Collector(TensorCountingEnv, module, frames_per_batch=12) as collector:
        assert set(next(collector)["action"].unique().tolist()) == {0, 1}
        with torch.no_grad():
            module.module.offset.fill_(10)
        collector.update_policy_weights_()
        batch = next(collector)
        assert batch["action"].all()
        assert (batch["collector", "policy_version"] == 1).all()
        assert batch["observation"][:, 0, 2].any()
        collector.reset()
        batch = next(collector)
        assert not batch["observation"][:, 0, 2].any()
        assert batch["collector", "traj_ids"].min() > 3
        state = collector.state_dict()
    with Collector(TensorCountingEnv, policy(), frames_per_batch=12) as other:
        with pytest.warns(UserWarning, match="the envs begin new episodes .*: the env returns tensors"):
            other.load_state_dict(state)
        after = next(other)
    assert after["collector", "traj_ids"].min() > batch["collector", "traj_ids"].max()
    assert after["action"].all()


def test_workers_of_their_own_step_envs_of_the_cpu():
    checker = StreamChecker()
    with MultiSyncCollector(2 * [TensorCountingEnv], policy(), frames_per_batch=48, total_frames=96) as collector:
        for batch in collector:
            checker.take(batch[0])
            assert torch.equal(batch[0]["observation"], batch[1]["observation"])


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (partial(TensorCountingEnv, nan_step=3), {}, DataError, r"env 1 of .* nan in next.reward \(step 2 "),
        (partial(TensorCountingEnv, final=None), {}, CollectxError, "env 0 .* the infos contain no final observation"),
        (TensorCountingEnv, {"max_frames_per_traj": 3}, ConfigError, "resets its envs by itself"),
        (TensorCountingEnv, {"info_keys": ["a"]}, ConfigError, "info_keys"),
        (TensorCountingEnv, {"env_device": "cuda"}, ConfigError, "env_device"),
    ],
)
def test_refusals(make, options, error, message):
    with pytest.raises(error, match=message), Collector(make, policy(), frames_per_batch=24, **options) as collector:
        next(collector)


class Returning(TensorCountingEnv):
    """Returns something else in a step."""

    def __init__(self, **changes):
        super().__init__()
        self.metadata = {"autoreset_mode": changes.pop("mode", AutoresetMode.SAME_STEP)}
        self._changes = changes

    def step(self, actions):
        observation, reward, ended, truncated, info = super().step(actions)
        values = {"observation": observation, "reward": reward} | self._changes
        return values["observation"], values["reward"], ended, truncated, info


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            partial(Returning, reward=torch.zeros(3, 1)),
            "reward with shape [3, 1], torch.float32, on cpu, but it must have shape [3], torch.float32",
        ),
        (partial(Returning, observation=torch.zeros(3, 5)), "but it must have shape [3, 5], torch.int64"),
        (
            partial(Returning, observation=torch.zeros(3, 5).numpy()),
            "returned observation as ndarray, but it has an attribute 'device'",
        ),
    ],
)
def test_an_env_that_breaks_its_promise_is_told(make, message):
    told = pytest.raises((DataError, ConfigError), match=re.escape(message))
    with told, Collector(make, policy(), frames_per_batch=24) as collector:
        next(collector)


class Tensors(VectorEnv):
    """Counts with tensors on the CPU; each env's episodes have 2 or 3 steps, and resets follow `mode`."""

    device = "cpu"
    num_envs = 2
    single_observation_space = spaces.Box(0, 99, (1,), np.float32)
    single_action_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, mode):
        self.metadata = {"autoreset_mode": mode}
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        mask = torch.as_tensor((options or {}).get("reset_mask", [True, True]))
        self.t = torch.where(mask, 0.0, getattr(self, "t", torch.zeros(2)))
        self.over = torch.zeros(2, dtype=torch.bool)
        return self.t[:, None].clone(), {}

    def step(self, actions):
        assert isinstance(actions, torch.Tensor)
        assert actions.dtype == torch.float32
        self.t = torch.where(self.over, 0.0, self.t + 1)
        self.over = self.t >= torch.tensor([2, 3])
        ended = self.over
        if self.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            self.over = torch.zeros(2, dtype=torch.bool)
        return self.t[:, None], self.t.clone(), ended, torch.zeros(2, dtype=torch.bool), {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_tensors_on_the_cpu_work_in_every_autoreset_mode(mode):
    with Collector(partial(Tensors, mode), RandomPolicy(), frames_per_batch=24) as collector:
        batch = next(collector).reshape(2, -1)
    seen, following = batch["observation"][..., 0], batch["next", "observation"][..., 0]
    assert torch.equal(following, seen + 1)
    assert torch.equal(batch["next", "reward"][..., 0], following)
    lengths = following.amax(1, keepdim=True)
    assert sorted(lengths.flatten().tolist()) == [2, 3]
    assert torch.equal(batch["next", "done"][..., 0], following == lengths)
