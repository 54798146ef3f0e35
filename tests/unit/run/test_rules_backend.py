"""Which backends may be asked for, what `auto` stands for, and what is said about both."""

from __future__ import annotations

import re

import pytest
import torch

from collectx.cli.compose import compose
from collectx.config import backend_of
from collectx.errors import ConfigError
from collectx.run import machine
from collectx.run.advice import advice
from collectx.transport import backends

WRONG = {
    "backend=gloo collector=single": r"collector=single is one process",
    "collector=distributed backend=shared_memory": r"collector=distributed is over torch\.distributed: use",
    "collector.num_workers_per_collector=2 collector.total_frames=-1": (
        r"over backend=shared_memory every process of this machine is a worker itself: use collector\.num_workers=4"
    ),
    "collector=distributed collector.num_workers_per_collector=2 collector.inner=single": (
        r"^collector\.num_workers_per_collector=2: collector\.inner=single has one process"
    ),
    "collector=distributed collector.num_workers_per_collector=3 collector.total_frames=-1": (
        r"^collector\.frames_per_batch=512 is not a multiple of collector\.num_workers_per_collector=3 x "
        r"env\.num_envs=8 \(512 / 24 = 21\.33\): use 504 or 528\."
    ),
    "collector=distributed_sync collector.frames_per_batch=48 collector.num_workers_per_collector=2 "
    "collector.total_frames=-1": (
        r"^collector\.frames_per_batch=48 is not a multiple of collector\.num_workers=2 x "
        r"collector\.num_workers_per_collector=2 x env\.num_envs=8 \(48 / 32 = 1\.50\)"
    ),
    "collector=rpc backend=gloo": r"^backend=gloo: collector=rpc is over torch RPC: use backend=auto or rpc, or",
    "collector=rpc backend=rpc backend.tensorpipe={num_workers:2}": (
        r"^backend\.tensorpipe has num_workers: may have num_worker_threads, rpc_timeout, _transports, _channels;"
    ),
    "collector=rpc backend=rpc backend.tensorpipe={_transports:uv}": r"_transports='uv': must be a list of TensorPipe",
    "collector=rpc backend=rpc backend.tensorpipe={rpc_timeout:0}": r"rpc_timeout=0: must be a number above 0",
    "backend=nccl": r"^backend=nccl: devices\.policy_device=cpu: it goes from the GPU of the policy to the GPU where",
    "backend=nccl devices=cuda": r"both cuda:0 with launcher=local: NCCL needs a GPU of its own for each end",
    "backend=mpi launcher=submitit": r"^backend=mpi: launcher=submitit starts every worker as a job of its own",
    "backend=mpi launcher=slurm collector.on_worker_failure=restart": (
        r"^collector\.on_worker_failure=restart: with backend=mpi and launcher=slurm the death of one rank ends them"
    ),
}


@pytest.fixture
def everything_works(monkeypatch):
    monkeypatch.setattr(backends, "why_not", lambda backend: None)


@pytest.mark.usefixtures("everything_works")
@pytest.mark.parametrize("line", WRONG)
def test_a_backend_that_does_not_fit_the_rest(line):
    with pytest.raises(ConfigError) as caught:
        compose(line.split())
    (problem,) = caught.value.problems
    assert re.search(WRONG[line], problem), problem


def test_a_backend_that_cannot_work_here_is_told_with_all_other_problems(monkeypatch):
    monkeypatch.setattr(backends, "why_not", lambda backend: f"{backend} is broken")
    with pytest.raises(ConfigError) as caught:
        compose(["backend=ucc", "seed=-1"])
    assert len(caught.value.problems) == 2
    assert "backend=ucc cannot work on this machine: ucc is broken." in caught.value.problems
    cfg = compose(["collector=distributed"])
    assert machine.backend_problems(cfg) == ["backend=gloo cannot work on this machine: gloo is broken."]
    # Another machine's business, where the trainer runs there too.
    compose(["backend=ucc", "launcher=slurm"])


@pytest.mark.usefixtures("everything_works")
@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("collector=single", "inline"),
        ("launcher=inline", "inline"),
        ("", "shared_memory"),
        ("collector=distributed", "gloo"),
        ("collector=distributed devices=cuda", "gloo"),
        ("collector=distributed devices.storing_device=cuda:0 devices.policy_device=cuda:1", "nccl"),
        ("collector=distributed devices.storing_device=cuda devices.policy_device=cuda:0", "gloo"),
        ("collector=distributed devices.storing_device=cuda", "gloo"),
        ("launcher=slurm", "gloo"),
        ("collector=rpc", "rpc"),
        ("collector=rpc launcher=slurm collector.sync=true", "rpc"),
        ("launcher=slurm devices=cuda", "nccl"),
    ],
)
def test_what_auto_stands_for_and_that_it_says_so(line, backend):
    cfg = compose(line.split())
    assert backend_of(cfg) == backend
    notes = [note for note in advice(cfg) if note.startswith("backend=auto: ")]
    assert [note.split()[1].rstrip(",") for note in notes] == ([backend] if backend in ("gloo", "nccl", "rpc") else [])


def test_an_interface_that_is_not_there_is_a_problem_before_anything_starts():
    (problem,) = machine.backend_problems(compose(["collector=distributed", "backend.interface=loo"]))
    assert re.search(r"^backend\.interface=loo: .*did you mean lo\?", problem)
    assert machine.backend_problems(compose(["collector=distributed", "backend.interface=lo"])) == []
    # It says nothing where no network is used.
    assert machine.backend_problems(compose(["backend.interface=loo"])) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_says_what_is_missing():
    with pytest.raises(ConfigError) as caught:
        compose(["backend=nccl", "devices.storing_device=cuda:0", "devices.policy_device=cuda:1"])
    assert re.search(r"cannot work on this machine: torch .* (without CUDA|sees no GPU)", caught.value.problems[0])
