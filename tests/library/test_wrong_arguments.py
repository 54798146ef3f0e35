"""Wrong arguments are refused, all at once and before any process starts: what was given, the rule, what to do."""

from __future__ import annotations

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from worlds.cartpoles import Argmax, cartpole

from collectx import Collector, DistributedCollector, MultiSyncCollector, ReplayBuffer
from collectx.errors import ConfigError, ShapeError

torch.set_num_threads(1)


class Extending:
    """A replay buffer that takes no single frames."""

    def extend(self, batch):
        raise AssertionError("nothing is to be collected")


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        DistributedCollector(
            [cartpole, 3],
            frames_per_batch=0,
            update_interval=0,
            weight_sync_schemes={"value": None},
            launcher="ssh",
            backend="carrier pigeon",
            collector_class="double",
            collector_kwargs=[{"seed": 3}] * 2,
            device="tpu9",
            worker_timeout_s=0,
        )
    expected = [
        "create_env_fn[1]=3 cannot be called",
        "frames_per_batch=0: must be at least 1",
        "device='tpu9'",
        "worker_timeout_s=0: must be above 0",
        "update_interval=0",
        "weight_sync_schemes names value",
        "launcher='ssh': use 'mp', 'submitit' or 'submitit_delayed'",
        "backend='carrier pigeon'",
        "collector_class='double': must be 'single', 'sync', 'async', one of Collector",
        "collector_kwargs has seed: may have create_env_kwargs, device",
    ]
    for problem, start in zip(caught.value.problems, expected, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"frames_per_batch": 0}, "frames_per_batch=0: must be at least 1"),
        ({"total_frames": 0}, "total_frames=0: must be at least 1, or -1"),
        (
            {"frames_per_batch": 20, "total_frames": 50},
            r"not a multiple of frames_per_batch=20 \(50 / 20 = 2.50\): use 40 or 60",
        ),
        ({"exploration_type": "wild"}, "exploration_type='wild': must be one of random, "),
        ({"num_workers": 3}, "num_workers=3, but create_env_fn has 2 callables"),
        ({"policy_factory": Argmax, "policy": Argmax()}, "give one of them"),
        ({"create_env_kwargs": [{}]}, "create_env_kwargs has 1 entries for 2 workers"),
        ({"policy_device": ["cpu"] * 3}, "policy_device has 3 entries for 2 workers"),
        ({"storing_device": ["cpu", None]}, "batches lie on one device"),
        ({"device": "tpu9"}, "device='tpu9'"),
        ({"device": "cuda:99"}, "device='cuda:99': no such device here; torch sees cpu"),
        ({"policy_factory": [Argmax]}, "policy_factory has 1 entries for 2 workers"),
        ({"policy_factory": [Argmax, 3]}, "policy_factory=3 cannot be called"),
        ({"policy": Argmax}, "is a class: give an object of it, or the class as policy_factory"),
        ({"create_env_kwargs": "render"}, "create_env_kwargs='render': must be a dict"),
        ({"cat_results": 1}, "a worker's part is .time., so it must be from -1 to 0, or 'stack'"),
        ({"extend_buffer": False, "replay_buffer": Extending()}, "replay_buffer=Extending has no `add`"),
        ({"split_trajs": True, "replay_buffer": ReplayBuffer(10)}, "split_trajs=True with a replay buffer of frames"),
        ({"seed": -1}, r"seed=-1: must be at least 0 and below 2\*\*61"),
        ({"device": object()}, "must be a torch.device or its name"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(keywords, message):
    with pytest.raises(ConfigError, match=message):
        MultiSyncCollector([cartpole] * 2, **keywords)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"collector_kwargs": {"max_frames_per_traj": 5}, "max_frames_per_traj": 6},
            "max_frames_per_traj=6, but 5 in collector_kwargs: give one of them",
        ),
        (
            {"collector_kwargs": [{"set_truncated": True}, {}]},
            r"collector_kwargs: set_truncated=\[True, None\]: must be the same for all workers",
        ),
        ({"collector_kwargs": {"max_frames_per_traj": "5"}}, "max_frames_per_traj='5': must be an int or None"),
    ],
)
def test_what_collector_kwargs_tell_all_workers(keywords, message):
    with pytest.raises(ConfigError, match=message):
        DistributedCollector([cartpole] * 2, **keywords)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"frames_per_batch": "100"}, "frames_per_batch='100': must be an int or a list of ints"),
        ({"frames_per_batch": [10, 2.5]}, "must be an int or a list of ints"),
        ({"frames_per_batch": True}, "frames_per_batch=True: must be an int or a list of ints"),
        ({"max_frames_per_traj": 5.5}, "max_frames_per_traj=5.5: must be an int or None"),
        ({"num_workers": "2"}, "num_workers='2': must be an int or None"),
        ({"worker_timeout_s": None}, "worker_timeout_s=None: must be a number"),
        ({"split_trajs": "yes"}, "split_trajs='yes': must be True or False or None"),
        ({"weight_sync_schemes": 3}, "weight_sync_schemes=3: must be a dict or None"),
        ({"on_worker_failure": 1}, "on_worker_failure=1: must be a string"),
    ],
)
def test_arguments_of_wrong_types_are_refused_with_all_else(keywords, message):
    with pytest.raises(ConfigError, match=message) as caught:
        MultiSyncCollector([cartpole] * 2, init_random_frames="5", device="tpu9", **keywords)
    assert len(caught.value.problems) == 3


def test_numbers_may_be_of_numpy():
    numbers = {"frames_per_batch": np.int64(10), "total_frames": np.int32(20), "cat_results": np.int64(-1)}
    with MultiSyncCollector([cartpole], set_truncated=np.bool_(True), seed=np.int64(1), **numbers) as collector:
        assert [len(batch) for batch in collector] == [10, 10]


def test_a_whole_number_may_be_a_float_and_an_end_may_be_none():
    with Collector(cartpole, frames_per_batch=1e1, total_frames=20.0) as collector:
        assert [batch.numel() for batch in collector] == [10, 10]
    with Collector(cartpole, frames_per_batch=10, total_frames=None, exploration_type=None) as collector:
        assert collector.total_frames == -1


@pytest.mark.parametrize("name", ["create_env_fn", "policy"])
def test_what_cannot_travel_to_workers_is_named(name):
    lock = threading.Lock()
    given = {"create_env_fn": cartpole, "policy": Argmax()}
    if name == "create_env_fn":
        given[name] = lambda: (lock, cartpole())[1]
    else:
        given[name].lock = lock
    with pytest.raises(ConfigError, match=rf"^{name}=.* cannot be pickled .*lock"):
        MultiSyncCollector(given["create_env_fn"], given["policy"], num_workers=1)


def test_a_policy_that_does_not_fit_the_env_is_told_what_it_was_called_with():
    wide = TensorDictModule(nn.Linear(5, 2), ["observation"], ["action"])
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        Collector(cartpole, wide)
    assert caught.value.__notes__ == [
        "raised by the policy, called with zeros in place of observation [1, 4] torch.float32"
    ]


def test_envs_of_different_spaces_are_refused():
    creates = [cartpole, partial(gymnasium.make, "Pendulum-v1")]
    with (
        MultiSyncCollector(creates, frames_per_batch=10) as collector,
        pytest.raises(
            ShapeError, match=r"worker 1 writes observation as \[3\] torch.float32, .* as \[4\] torch.float32"
        ),
    ):
        collector.next()


def test_an_unknown_keyword_is_named():
    with pytest.raises(TypeError, match=r"'frames_per_bach' \(did you mean 'frames_per_batch'\?\)"):
        Collector(cartpole, frames_per_bach=3)
    with pytest.raises(TypeError, match="'tcp_port'"):
        MultiSyncCollector([cartpole], tcp_port=3)
