"""What each place says of a configuration: how batches travel, what it needs, what does not fit, notes."""

from pathlib import Path

import pytest
from composed_overrides import composed, examine

from collectx.config import registry
from collectx.errors import LauncherError
from collectx.place import place_of
from collectx.place.launcher import InlineLauncher
from collectx.place.slurm import commands

FEW = "env=counting trainer=meter collector.frames_per_batch=240"
WORKERS = f"{FEW} collector=multi_sync collector.num_workers=3"
REMOTE = f"{FEW} collector=distributed_sync collector.num_workers=3"
VECTOR = "env=gym_vector env.id=CartPole-v1 env.num_envs=4 env.vectorization_mode=async"
GPUS = "devices.policy_device=cuda:1 devices.storing_device=cuda"
PLACES = {
    "single": f"{FEW} collector=single",
    "inline": f"{WORKERS} launcher=inline",
    "local": f"{WORKERS} launcher.num_threads=2",
    "local, nested": f"{REMOTE} collector.num_workers_per_collector=2 env.num_envs=4",
    "local, vector envs": f"{WORKERS} {VECTOR}",
    "single, vector envs": f"{FEW} collector=single {VECTOR}",
    "local, served": f"{WORKERS} policy=mlp inference=server",
    "local, over a network": f"{REMOTE} backend.interface=lo",
    "local, gloo": f"{WORKERS} backend=gloo backend.port=7000",
    "local, with a port": f"{WORKERS} backend.port=7000",
    "rpc": f"{FEW} collector=rpc collector.num_workers=3",
    "between GPUs": f"{REMOTE} launcher=submitit {GPUS}",
    "of one GPU": f"{REMOTE} devices.device=cuda",
    "slurm": f"{REMOTE} launcher=slurm launcher.cpus_per_task=2",
    "slurm, single": f"{FEW} collector=single launcher=slurm",
    "slurm, learners": f"{WORKERS} env.num_envs=1 trainer.num_learners=3 launcher=slurm backend.port=7000",
    "ray, learners": f"{WORKERS} env.num_envs=1 trainer.num_learners=3 launcher=ray backend.port=7000",
    "submitit": f"{REMOTE} launcher=submitit launcher.num_threads=4",
    "submitit_delayed": f"{REMOTE} launcher=submitit_delayed",
}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Has each library, and SLURM's commands, but no GPU of which it is asked."""
    monkeypatch.setattr(registry, "why_not", lambda *names: None)
    monkeypatch.setattr(commands, "is_here", lambda: True)


def facts(line):
    cfg, problems = examine(line)
    place = place_of(cfg)
    flags = ("is_local", "is_job", "can_be_step", "has_worker_jobs", "needs_workers", "is_inline", "shares_memory")
    return {
        "is": [name for name in flags if getattr(place, name)],
        "backend": [place.backend, place.network, *place.devices_of_pairs],
        "needs": [place.num_tasks, place.num_threads_beside(), place.job_needs(), place.missing()],
        "processes": {name: count for name, count in place.processes().items() if count},
        "notes": place.notes(),
        "problems": problems,
    }


def test_places(expected):
    expected("places", {name: facts(line) for name, line in PLACES.items()})


@pytest.mark.parametrize(("visible", "gpu"), [("0,1", 1), ("3", 0), (None, 1)])
def test_a_learner_uses_its_gpu_of_those_that_slurm_gave_to_its_task(monkeypatch, visible, gpu):
    place = place_of(composed(PLACES["slurm, learners"]))
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert place.gpu_of(2) == gpu


# What is refused, by a rule of the place.
REFUSED = [
    f"{FEW} collector=rpc backend=gloo",
    f"{FEW} collector=ray",
    f"{WORKERS} backend=inline",
    f"{WORKERS} launcher=inline backend=gloo",
    f"{FEW} collector=single backend=gloo",
    f"{REMOTE} backend=shared_memory",
    f"{WORKERS} launcher=submitit backend=shared_memory",
    f"{REMOTE} backend=nccl",
    f"{REMOTE} backend=nccl devices.policy_device=cuda",
    f"{REMOTE} backend=nccl devices.device=cuda:0",
    f"{REMOTE} backend=nccl devices.policy_device=cuda:0 devices.storing_device=cuda",
    f"{FEW} collector=single launcher=submitit",
    f"{FEW} devices.env_device=gpu devices.device=cuda:x devices.storing_device=cpu:0",
    f"{REMOTE} launcher=submitit backend=mpi",
    f"{REMOTE} launcher=slurm backend=mpi collector.on_worker_failure=drop",
    f"{REMOTE} launcher=slurm launcher.sbatch.ntasks=3 launcher.sbatch.no_kill=true launcher.sbatch.mem=1G",
    f"{REMOTE} launcher=submitit_delayed launcher.worker.sbatch.array=0-3 launcher.max_parallel=2 launcher.nodes=4",
    f"{REMOTE} launcher=submitit_delayed launcher.nodes=3",
    f"{REMOTE} launcher=slurm launcher.time=soon launcher.mem=1.5G",
    f"{REMOTE} launcher=submitit_delayed launcher.time=1:2:3:4 launcher.worker.mem=4X launcher.trainer.mem=4gb",
    f"{REMOTE} launcher=slurm launcher.nodes=4",
    f"{REMOTE} launcher=slurm launcher.nodes=5",
    f"{FEW} collector=single launcher=slurm launcher.nodes=2",
    f"{REMOTE} launcher=slurm launcher.time=3 launcher.signal_s=119",
    f"{REMOTE} launcher=slurm launcher.time=3 launcher.signal_s=120",
    f"{REMOTE} launcher=slurm launcher.time=3 launcher.signal_s=120 launcher.requeue=false",
    f"{REMOTE} launcher=slurm launcher.time=UNLIMITED launcher.signal_s=120",
    f"{REMOTE} launcher=slurm launcher.time=9 launcher.sbatch.time=1 launcher.sbatch.signal=USR1@60",
    f"{REMOTE} launcher=slurm launcher.sbatch.time=1h launcher.sbatch.signal=USR1@60 launcher.requeue=false",
]


def test_what_a_place_refuses(expected):
    short = {line: line.replace(REMOTE, "REMOTE").replace(WORKERS, "WORKERS").replace(FEW, "FEW") for line in REFUSED}
    expected("refusals", {short[line]: examine(line)[1] for line in REFUSED})


def test_what_this_machine_lacks(monkeypatch):
    monkeypatch.setattr(registry, "why_not", lambda name: f"there is no {name}")
    monkeypatch.setattr(commands, "is_here", lambda: False)
    assert [*map(str, place_of(composed(REMOTE)).library_problems())] == []
    for backend, is_named in (("mpi", True), ("gloo", False), ("auto", False)):
        cfg = examine(f"{REMOTE} backend={backend}")[0]
        assert [*map(str, place_of(cfg).library_problems())] == [
            "backend=mpi cannot be used: there is no mpi."
        ] * is_named
        job = examine(f"{REMOTE} backend={backend} launcher=slurm")[0]
        assert list(place_of(job).library_problems()) == []
    cfg = examine(f"{REMOTE} backend=gloo backend.interface=nowhere0")[0]
    first, second = place_of(cfg).unreachable()
    assert first == "backend=gloo cannot be used: there is no gloo."
    assert "nowhere0" in second
    assert place_of(composed(WORKERS)).unreachable() == []
    (text,) = place_of(examine(f"{REMOTE} launcher=submitit")[0]).missing()
    assert text.startswith("launcher=submitit cannot be used: this machine has no sbatch on its PATH.")


def test_ranks_of_a_job_need_pmix(monkeypatch):
    cfg = examine(f"{REMOTE} launcher=slurm backend=mpi")[0]
    monkeypatch.delenv("PMIX_NAMESPACE", raising=False)
    assert "started the job without PMIx, which MPI needs" in place_of(cfg).unreachable()[0]
    monkeypatch.setenv("PMIX_NAMESPACE", "x")
    assert place_of(cfg).unreachable() == []


def test_who_starts_the_workers():
    assert isinstance(place_of(composed(f"{FEW} collector=single")).launcher(None), InlineLauncher)
    local = place_of(composed(f"{WORKERS} launcher.num_threads=3")).launcher(Path("/logs"))
    local.names[3] = "inference server"
    assert local.describe(0) == "worker 0 (log: /logs/worker-0.log)"
    assert local.describe(3) == "inference server (log: /logs/inference-server.log)"
    setup = local.process_setup(1)
    assert setup["num_threads"] == 3
    assert setup["log"] == "/logs/worker-1.log"
    assert setup["core"] is None
    with pytest.raises(LauncherError, match="launcher=submitit submits jobs, which only the command does"):
        place_of(composed(f"{REMOTE} launcher=submitit")).launcher(None)


@pytest.mark.parametrize(("log_dir", "mode", "expected"), [
    (None, "raise", False),  # the trainer raises the error
    (None, "drop", True),
    (None, "restart", True),
    (Path("logs"), "raise", True),
    (Path("logs"), "drop", True),
])  # fmt: skip
def test_a_local_worker_prints_an_error_that_is_raised_nowhere_or_goes_to_its_log(log_dir, mode, expected):
    place = place_of(composed(f"{WORKERS} collector.on_worker_failure={mode}"))
    assert place.launcher(log_dir)._prints_errors is expected
