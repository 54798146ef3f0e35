"""The constructor of a class with worker processes of this machine returns when their envs are made."""

import itertools
import os
import re
import subprocess
import sys
from functools import partial

import pytest
from library_collectors import make
from user_code.cartpoles import cartpole
from user_code.faulty import BrokenLever, pull_the_lever
from ways import GLOO_ASYNC, RPC_SYNC, SHARED_ASYNC, SHARED_SYNC, over

from collectx.errors import WorkerTimeout

LOCAL = (SHARED_SYNC, SHARED_ASYNC, GLOO_ASYNC, RPC_SYNC)


def _logged(folder, trainer, fails=lambda count: False, fault="raises"):
    """CartPole; makes a file in each worker. A worker has the `fault` (`user_code.faulty`) if `fails` of how many files
    there were before."""
    if os.getpid() == trainer:
        return cartpole()
    count = next(index for index in itertools.count() if _makes(folder / str(index)))
    if fails(count):
        pull_the_lever(fault)
    return cartpole()


def _makes(path):
    """Makes the file; tells whether this process was the first to do so."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@over(LOCAL, smoke=True)
def test_all_envs_are_made_when_the_constructor_returns(way, tmp_path):
    with make(way, partial(_logged, tmp_path, os.getpid()), frames_per_batch=8) as collector:
        assert len(list(tmp_path.iterdir())) == 2
        assert next(collector).numel() == 8


@over(LOCAL, smoke=True)
def test_a_worker_that_cannot_make_its_env_is_an_error_of_the_constructor(way, tmp_path):
    with pytest.raises(BrokenLever) as error:
        make(way, partial(_logged, tmp_path, os.getpid(), lambda count: count == 1), frames_per_batch=8)
    assert (error.value.lever, error.value.force) == ("left", 3)
    assert re.search(r"raised in worker [01]\b.*in _logged", "".join(error.value.__notes__), re.DOTALL)


@over([SHARED_SYNC], smoke=True)
@pytest.mark.parametrize(("mode", "frames", "processes"), [("restart", 8, 3), ("drop", 4, 2)])
def test_a_worker_that_fails_at_first_is_replaced_or_dropped(way, mode, frames, processes, tmp_path):
    create = partial(_logged, tmp_path, os.getpid(), lambda count: count == 1)
    with make(way, create, frames_per_batch=8, on_worker_failure=mode) as collector:
        assert len(list(tmp_path.iterdir())) == processes
        assert next(collector).numel() == frames


@pytest.mark.ci
def test_a_worker_that_hangs_is_an_error_of_the_constructor_after_start_timeout_s(tmp_path):
    create = partial(_logged, tmp_path, os.getpid(), lambda count: True, "sleeps")
    with pytest.raises(WorkerTimeout, match=r"no progress for 2 s \(start_timeout_s=2\)"):
        make(SHARED_SYNC, create, frames_per_batch=8, start_timeout_s=2, close_timeout_s=0.1)


@pytest.mark.ci
def test_with_min_workers_the_constructor_returns_when_so_many_are_ready(tmp_path):
    create = partial(_logged, tmp_path, os.getpid(), lambda count: count == 1, "sleeps")
    keywords = {"on_worker_failure": "drop", "min_workers": 1, "close_timeout_s": 0.1}
    with make(SHARED_SYNC, create, frames_per_batch=8, **keywords) as collector:
        assert next(collector).numel() == 4
        assert collector.stats()["workers_alive"] == 1


@pytest.mark.ci
def test_with_min_workers_an_error_of_too_many_is_raised(tmp_path):
    create = partial(_logged, tmp_path, os.getpid(), lambda count: count == 1)
    with (
        pytest.raises(BrokenLever),
        make(SHARED_SYNC, create, frames_per_batch=8, on_worker_failure="drop", min_workers=2) as collector,
    ):
        next(collector)


COLLECTS = """
import importlib.util
import sys

import torch

import collectx

# As a library asks for an optional one.
assert all(map(importlib.util.find_spec, ["tensordict", "torch._dynamo"]))

from tensordict import TensorDict, utils

from collectx.trainer.optimizer import Adam


def make():
    import gymnasium

    return gymnasium.make("CartPole-v1")


if __name__ == "__main__":
    with collectx.Collector(make, None, frames_per_batch=8, total_frames=8) as collector:
        frames = sum(batch.numel() for batch in collector)
    optimizer = Adam([torch.nn.Parameter(torch.ones(1))], fused=True)
    optimizer.zero_grad()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    print(frames, "torch._dynamo" in sys.modules)
    compiled = torch.compile(lambda batch: batch.apply(torch.square), backend="eager", fullgraph=True)
    print(compiled(TensorDict(a=torch.full((3,), 2.0)))["a"].tolist())
    from torch._dynamo import trace_rules

    print(trace_rules.is_callable_allowed(utils._add_batch_dim_c), utils._lock_warn._dynamo_marked_constant)
"""


@pytest.mark.ci
def test_the_compiler_is_imported_when_something_compiles(tmp_path):
    (tmp_path / "collects.py").write_text(COLLECTS)
    run = subprocess.run([sys.executable, "collects.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert run.stdout.splitlines() == ["8 False", "[4.0, 4.0, 4.0]", "True True"], run.stderr
