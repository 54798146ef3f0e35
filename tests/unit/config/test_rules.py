"""Rules between keys, what `backend=auto` stands for, what this machine lacks, and advice."""

import re

import pytest
import torch
from composed_overrides import composed, examine

from collectx.config import registry
from collectx.config.problem import PYTHON, YAML
from collectx.place import place_of
from collectx.rules.warnings import warnings_of
from collectx.run import preflight

METER = "trainer=meter collector.preemptive_threshold"
ENDLESS = "collector.total_frames=-1"
RESTART = "collector.on_worker_failure=restart"
NEXT_STEP = "env=gym_vector env.id=X env.autoreset_mode=next_step"
DISTRIBUTED = f"{ENDLESS} collector=distributed"
RPC = "collector=rpc backend=rpc backend.tensorpipe"
SERVED = "inference=server collector.total_frames=-1"
DELAYED = "launcher=submitit_delayed collector=multi_async collector.num_workers=3 env=counting"
# Overrides -> how the only problem begins, as a pattern.
BROKEN = {
    # multiples
    f"{ENDLESS} collector.frames_per_batch=8": "collector.frames_per_batch=8 .*8 / 16 = 0.50.*. Use 16.",
    f"{ENDLESS} collector.frames_per_batch=1000 collector.num_workers=3": (
        r"collector.frames_per_batch=1000 is not a multiple of collector.num_workers=3 x env.num_envs=8 \(1000 / 24 ="
    ),
    f"{ENDLESS} collector=multi_async collector.frames_per_batch=100": "collector.frames_per_batch=100 .*96 or 104.",
    f"{DISTRIBUTED} collector.num_workers_per_collector=3": (
        "collector.frames_per_batch=512 is not a multiple of collector.num_workers_per_collector=3 x env.num_envs=8"
    ),
    f"{DISTRIBUTED}_sync collector.frames_per_batch=48 collector.num_workers_per_collector=2": (
        "collector.frames_per_batch=48 .*workers=2 x collector.num_workers_per_collector=2 x env.num_envs=8.*48 / 32"
    ),
    # inference
    f"{ENDLESS} inference=server inference.order=ready collector=multi_async inference.timeout_s=120": (
        "inference.timeout_s=120.* must be below collector.worker_timeout_s=120"
    ),
    f"{SERVED} collector.num_workers=201 collector.frames_per_batch=1608": "collector.num_workers=201 .*at most 200",
    f"{SERVED} {METER}=0.5": "collector.preemptive_threshold=0.5 .*inference=server",
    f"{SERVED} collector.min_workers=1 collector.on_worker_failure=drop": "collector.min_workers=1 .*min_workers=2",
    f"{SERVED} collector=multi_async inference.order=fixed": "inference.order=fixed .*async workers",
    f"{SERVED} inference.order=ready collector.overlap=1": "collector.overlap=1 .*inference.order=ready",
    f"{SERVED} inference.min_batch=4 inference.max_batch=3": "inference.max_batch=3 is below inference.min_batch=4",
    f"{SERVED} trainer=meter policy=random": "inference=server .*policy=random",
    f"{SERVED} launcher=inline": "inference=server .*the trainer's process",
    f"{SERVED} collector=distributed": "inference=server .*backend=gloo",
    # workers
    "collector=single collector.num_workers=2": "collector.num_workers=2 cannot be used: .*runs one worker",
    "collector=single launcher=ray": "launcher=ray cannot be used: it would start workers",
    "collector=single launcher=submitit": "launcher=submitit cannot be used: .*launcher=slurm",
    "collector.num_workers_per_collector=2": "collector.num_workers_per_collector=2 cannot be used: .*Use "
    "collector.num_workers=4",
    f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.inner=single": (
        "collector.num_workers_per_collector=2 cannot be used: collector.inner=single"
    ),
    "collector=multi_sync collector.num_workers=2 collector.min_workers=3": (
        "collector.min_workers=3 is more than collector.num_workers=2"
    ),
    f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.inner=async collector.max_policy_lag=2": (
        "collector.max_policy_lag=2 cannot be used: .*collector.inner=async"
    ),
    "collector=multi_async trainer=meter collector.overlap=1": "collector.overlap=1 cannot be used: async workers do "
    "not wait",
    "collector=single trainer=meter collector.overlap=1": "collector.overlap=1 cannot be used: collector=single",
    "collector.overlap=1 collector.refresh=step": "collector.overlap=1 cannot be used: with collector.refresh=step",
    f"collector.overlap=1 {METER}=0.5": "collector.overlap=1 cannot be used: with collector.preemptive_threshold",
    f"{DISTRIBUTED}_sync collector.num_workers_per_collector=2 collector.inner=async collector.overlap=1": (
        "collector.overlap=1 cannot be used: with collector.inner=async"
    ),
    f"collector=multi_async {METER}=0.5": "collector.preemptive_threshold=0.5 cannot be used: .*waits for no",
    f"collector=single {METER}=1": "collector.preemptive_threshold=1.* cannot be used: collector=single",
    f"collector=distributed_sync {METER}=0.5": "collector.preemptive_threshold=0.5 cannot be used: over backend=gloo",
    "checkpoint.keep_best=won": r"checkpoint.keep_best=won is not a metric of this run, which has only "
    r"mean_return\. .*env.metrics",
    # envs
    "env=gym": "env.id is not set",
    "env.id=": "env.id is empty. Write an id such as env.id=CartPole-v1.",
    "env.entry_point=a:B": "env.id=CartPole-v1 cannot be used: env.entry_point",
    f"{NEXT_STEP} collector=multi_async collector.max_policy_lag=0": "collector.max_policy_lag=0 cannot be used: "
    ".*same_step, or",
    f"{NEXT_STEP} {METER}=0.5": "collector.preemptive_threshold=0.5 cannot be used: with env.autoreset_mode=next_step",
    f"{NEXT_STEP} inference=server": "env.autoreset_mode=next_step cannot be used: inference=server.*disabled or "
    "same_step",
    f"{NEXT_STEP} collector.max_frames_per_traj=9": "collector.max_frames_per_traj=9 cannot be used: .*disabled or "
    "same_step",
    f"{NEXT_STEP} collector.reset_at_each_iter=true": "collector.reset_at_each_iter=true cannot be used: .*disabled or "
    "same_step",
    "env=gym_vector env.id=X env.vectorization_mode=vector_entry_point env.wrappers=[a.B]": "env.wrappers cannot be "
    "used: ",
    # jobs
    "launcher=slurm launcher.time=2": (
        r"launcher.signal_s=60 is too much for launcher.time=120 s: .* 120 s before the end\. .*requeue=false"
    ),
    "launcher=slurm launcher.time='1-0:0:30' launcher.signal_s=90000": (
        "launcher.signal_s=90000 is too much for launcher.time=86430 s"
    ),
    "launcher=submitit launcher.sbatch={requeue:true}": "launcher.sbatch.requeue cannot be used: .*Use "
    "launcher.requeue",
    # what trainers learn from
    "collector.preemptive_threshold=0.5": "collector.preemptive_threshold=0.5 .*collector.traj_format=cat",
    "collector.trajs_per_batch=4": "collector.trajs_per_batch=4 cannot be used: .*collector.traj_format=cat",
    "collector.compact_obs=true": "collector.compact_obs=true cannot be used: trainer=ppo",
    "policy=random": "policy=random has no weights that trainer=ppo could train",
    "collector.exploration_type=mode": "collector.exploration_type=mode cannot be used: trainer=ppo needs "
    "log-probabilities",
    "trainer=dqn policy=mlp": "policy=mlp cannot be used: trainer=dqn .*policy=q_mlp or policy=q_cnn",
    "trainer=impala policy=q_cnn": "policy=q_cnn cannot be used: trainer=impala .*policy=cnn, or trainer=dqn",
    "policy=cnn policy.strides=[1]": "policy.channels has 3 .*policy.strides has 1",
    "policy=cnn policy.channels=[] policy.kernel_sizes=[] policy.strides=[]": "policy.channels has 0.*one entry per",
    "devices.device=gpu": "devices.device=gpu is not a device.* cuda:N",
    # backends
    "backend=shared_memory launcher=inline": "backend=shared_memory cannot be used: launcher=inline .*backend=auto",
    "backend=gloo collector=single": "backend=gloo cannot be used: collector=single",
    "backend=inline": "backend=inline cannot be used: .*backend=auto or shared_memory, or launcher=inline",
    "backend=shared_memory collector=distributed": "backend=shared_memory cannot be used: collector=distributed",
    "backend=gloo collector=rpc": "backend=gloo cannot be used: collector=rpc .*backend=auto or rpc",
    f"{RPC}={{num_workers:2}}": "backend.tensorpipe.*num_worker_threads",
    f"{RPC}={{_transports:uv}}": "backend.tensorpipe.*_transports='uv'",
    f"{RPC}={{rpc_timeout:0}}": "backend.tensorpipe.*rpc_timeout=0.*above 0",
    "backend=nccl": "backend=nccl cannot be used: .*devices.policy_device=cpu",
    "backend=nccl devices=cuda": "backend=nccl cannot be used: .*with launcher=local.* both cuda:0",
    "backend=mpi launcher=submitit": "backend=mpi cannot be used: launcher=submitit",
    "backend=mpi launcher=slurm collector.on_worker_failure=drop": (
        "collector.on_worker_failure=drop cannot be used: with backend=mpi and launcher=slurm"
    ),
    # what a job asks for
    f"{DELAYED} launcher.trainer.gpu=1": "launcher.trainer.gpu is not an option. Did you mean launcher.trainer.gpus?",
    f"{DELAYED} launcher.worker=4": "launcher.worker=4 cannot be used: launcher.worker is a section",
    f"{DELAYED} launcher.trainer.gpus=-1": "launcher.trainer.gpus=-1 must be at least 0",
    f"{DELAYED} launcher.trainer.sbatch.ntasks=3": "launcher.trainer.sbatch.ntasks cannot be used: collectx sets this "
    "option itself",
    f"{DELAYED} launcher.max_parallel=2": "launcher.max_parallel=2 cannot be used: jobs with two parts cannot form a "
    "job array",
    f"{DELAYED} launcher.nodes=4": "launcher.nodes=4 is more than the 3 workers",
    "launcher=slurm launcher.nodes=9": "launcher.nodes=9 is more than the 3 tasks",
    "launcher=slurm launcher.sbatch={ntasks:3}": "launcher.sbatch.ntasks cannot be used: collectx sets this option "
    "itself",
}


@pytest.fixture
def every_backend(monkeypatch):
    """As on a machine on which all backends work."""
    monkeypatch.setattr(registry, "why_not", lambda *kind: None)


@pytest.mark.usefixtures("every_backend")
@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_rule_is_one_problem(line):
    (problem,) = examine(line)[1]
    assert re.match(BROKEN[line], problem), problem


@pytest.mark.parametrize(
    "line",
    [
        f"{SERVED} collector.num_workers=200 collector.frames_per_batch=1600",
        f"{SERVED} collector.min_workers=2 collector.on_worker_failure=drop",
        f"{SERVED} collector=multi_async inference.order=auto collector.num_slots=2",
        f"{SERVED} inference.min_batch=4 inference.max_batch=4 collector.overlap=1",
        f"{SERVED} collector.worker_timeout_s=1 inference.timeout_s=0.5",
        "collector.min_workers=2 collector.num_workers=2",
        f"{METER}=0",
        "collector=single collector.num_workers=1",
        "env=gym_vector env.id=X env.vectorization_mode=sync env.wrappers=[a.B] env.autoreset_mode=same_step",
        "env=gym env.entry_point=a:B",
        f"{NEXT_STEP} trainer=meter collector.reset_at_each_iter=false",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.max_policy_lag=2 trainer=meter",
        f"{ENDLESS} collector.frames_per_batch=16",
    ],
)
def test_what_is_just_allowed(line):
    composed(line)


def test_an_inference_server_may_wait_in_every_step():
    """Also where one worker alone fills no call: a step is progress."""
    composed(
        f"{ENDLESS} inference=server collector=multi_async env.num_envs=2 inference.min_batch=4 inference.timeout_s=1"
    )


def test_nested_sync_collectors_may_run_ahead():
    composed(f"{DISTRIBUTED}_sync collector.num_workers_per_collector=2 collector.overlap=1")


def test_each_node_may_have_one_task():
    composed("launcher=slurm launcher.nodes=3")


def test_a_job_that_is_not_requeued_may_be_as_short_as_its_signal():
    composed("launcher=slurm launcher.time=2 launcher.requeue=false")


@pytest.mark.sample(6)
@pytest.mark.usefixtures("every_backend")
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
        ("launcher=slurm devices=cuda", "nccl"),
        ("collector=rpc", "rpc"),
        ("collector=rpc launcher=slurm collector.sync=true", "rpc"),
    ],
)
def test_what_auto_stands_for_and_that_it_says_so(line, backend):
    cfg = composed(line)
    assert place_of(cfg).backend == backend
    notes = [note.split()[2].rstrip(",.") for note in warnings_of(cfg) if note.startswith("backend=auto chose ")]
    assert notes == ([backend] if backend in ("gloo", "nccl", "rpc") else [])


@pytest.mark.parametrize("collector", ["distributed", "rpc", "ray"])
def test_an_inline_launcher_accepts_the_inline_backend(collector):
    assert place_of(composed(f"collector={collector} launcher=inline backend=inline")).is_inline


def test_a_backend_that_does_not_work_here_is_a_problem_unless_the_trainer_runs_elsewhere(monkeypatch):
    monkeypatch.setattr(registry, "why_not", lambda backend, group="backend": f"{backend} is broken")
    problems = examine("backend=ucc seed=-1")[1]
    assert len(problems) == 2
    assert "backend=ucc cannot be used: ucc is broken." in problems
    (problem,) = place_of(composed("collector=distributed")).unreachable()
    assert problem == "backend=gloo cannot be used: gloo is broken."
    composed("backend=ucc launcher=slurm")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("collector=distributed backend.interface=loo", "backend.interface=loo is not a .*Did you mean lo?"),
        ("collector=distributed backend.interface=lo", None),
        ("backend.interface=loo", None),
        (
            "devices=cuda devices.device=cuda:99",
            "devices.device=cuda:99 cannot be used: (there is no such device|the installed torch|torch sees no GPU "
            ").*cpu",
        ),
        ("", None),
    ],
)
def test_what_this_machine_lacks_is_a_problem_where_it_is_used(line, problem):
    cfg = composed(line)
    found = place_of(cfg).unreachable() + preflight.device_problems(cfg)
    assert re.match(problem, found[0]) if problem else found == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("collector=multi_async", ["impala"]),
        ("experiment=cartpole_impala", []),
        ("collector.max_policy_lag=2", ["collector.max_policy_lag=2 has no effect with collector=multi_sync"]),
        ("collector.total_frames=1000", ["(1000 / 512 = 1.95), rounded up to 2 batches (1024 frames)"]),
        ("collector.total_frames=100", ["(100 / 512 = 0.20), rounded up to 1 batch (512 frames)."]),
        (
            "trainer.minibatch_size=600",
            ["more than collector.frames_per_batch=512, so each epoch is one gradient step"],
        ),
        ("debug=tiny", []),
        ("collector.min_workers=1 collector.on_worker_failure=restart", ["the run needs all workers"]),
        ("collector.min_workers=1 collector.on_worker_failure=drop", []),
        ("collector.init_random_frames=192000", ["log-probability", "the policy never acts"]),
        ("backend.port=7000 backend.interface=lo", ["backend.interface=lo has no effect", "backend.port=7000 has no"]),
        ("collector=distributed_sync backend.port=7000", ["gloo"]),
        ("env.wrappers=[{RecordVideo:{video_folder:v}}]", ["all 16 envs write to video_folder=v"]),
        ("env.wrappers=[{RecordVideo:{video_folder:'v{env_index}'}}]", []),
        ("env.wrappers=[{RecordVideo:{video_folder:'v{env_index:03d}'}}]", []),
        ("env.num_envs=1 env.wrappers=[{RecordVideo:{video_folder:'v{worker_index}'}}]", []),
        (f"{RESTART} env.wrappers=[{{RecordVideo:{{video_folder:'v{{env_index}}'}}}}]", ["earlier files in video"]),
        (f"{RESTART} env.wrappers=[{{RecordVideo:{{video_folder:'v{{env_index}}-{{restart_count}}'}}}}]", []),
        ("env.wrappers=[{RecordVideo:{video_folder:'v{worker_index}'}}]", ["all 16 envs write to"]),
        ("env.wrappers=[{Monitor:{filename:'{env_index%4}'}}]", ["all 16 envs write to"]),
        # Keys that need no reset of single envs are allowed where there is none.
        (f"{NEXT_STEP} trainer=meter collector.init_random_frames=9 collector.set_truncated=true", []),
    ],
)
def test_a_questionable_combination_is_warnings_of(line, words):
    notes = warnings_of(composed(line))
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_says_what_is_missing():
    (problem,) = examine("backend=nccl devices.storing_device=cuda:0 devices.policy_device=cuda:1")[1]
    assert re.search(r"cannot be used: torch.* (without CUDA|sees no GPU)", problem)


def test_words_in_backticks_are_said_in_the_users_language():
    assert PYTHON.words("`seed=3`, `null` or `launcher=slurm or local`") == "seed=3, None or launcher=slurm or local"
    assert YAML.words("`null` and `true`") == "null and true"
