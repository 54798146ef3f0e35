"""Rules between keys, what `backend=auto` stands for, what this machine lacks, and advice."""

import re

import pytest
import torch
from composed_overrides import composed, examine

from collectx.config import registry
from collectx.config.problem import PYTHON, described
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
LINES = {
    "broken rules": [
        f"{ENDLESS} collector.frames_per_batch=8",
        f"{ENDLESS} collector.frames_per_batch=1000 collector.num_workers=3",
        f"{ENDLESS} collector=multi_async collector.frames_per_batch=100",
        f"{DISTRIBUTED} collector.num_workers_per_collector=3",
        f"{DISTRIBUTED}_sync collector.frames_per_batch=48 collector.num_workers_per_collector=2",
        f"{ENDLESS} inference=server inference.order=ready collector=multi_async inference.timeout_s=120",
        f"{SERVED} collector.num_workers=201 collector.frames_per_batch=1608",
        f"{SERVED} {METER}=0.5",
        f"{SERVED} collector.min_workers=1 collector.on_worker_failure=drop",
        f"{SERVED} collector=multi_async inference.order=fixed",
        f"{SERVED} inference.order=ready collector.overlap=1",
        f"{SERVED} inference.min_batch=4 inference.max_batch=3",
        f"{SERVED} trainer=meter policy=random",
        f"{SERVED} launcher=inline",
        f"{SERVED} collector=distributed",
        "collector=single collector.num_workers=2",
        "collector=single launcher=ray",
        "collector=single launcher=submitit",
        "collector.num_workers_per_collector=2",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.inner=single",
        "collector=multi_sync collector.num_workers=2 collector.min_workers=3",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.inner=async collector.max_policy_lag=2",
        "collector=multi_async trainer=meter collector.overlap=1",
        "collector=single trainer=meter collector.overlap=1",
        "collector.overlap=1 collector.refresh=step",
        f"collector.overlap=1 {METER}=0.5",
        f"{DISTRIBUTED}_sync collector.num_workers_per_collector=2 collector.inner=async collector.overlap=1",
        f"collector=multi_async {METER}=0.5",
        f"collector=single {METER}=1",
        f"collector=distributed_sync {METER}=0.5",
        "trainer.num_learners=2 collector=single",
        "trainer.num_learners=2 launcher=inline",
        "trainer.num_learners=2 launcher=submitit",
        "trainer.num_learners=4 launcher=slurm launcher.nodes=8 collector.num_workers=8",
        "trainer.num_learners=2 trainer=record",
        "trainer.num_learners=2 collector.num_workers=3 collector.frames_per_batch=510",
        "trainer.num_learners=3 collector.num_workers=4 collector.frames_per_batch=512 run.resume=auto",
        "trainer.num_learners=2 launcher=ray ~launcher.remote_configs +launcher.remote_configs=[{},{}]",
        "trainer.num_learners=2 launcher=ray devices.policy_device=cuda",
        "trainer.num_learners=2 collector=multi_async env.num_envs=3 collector.frames_per_batch=513",
        f"trainer.num_learners=2 {METER}=0.5 {RESTART.replace('restart', 'drop')}",
        "trainer.num_learners=2 collector.trajs_per_batch=4 collector.traj_format=cat",
        "checkpoint.keep_best=won",
        "checkpoint.keep_best=eval/mean_return",
        "checkpoint.keep_best=eval/won env.metrics=[won] eval.env.metrics=[lost] eval.every_batches=1",
        "eval.env.wrapers=[] eval.env.num_envs=zero env.num_envs=-1",
        "eval.env.entry_point=a:B",
        "eval.env.kind=gymm",
        "env.kind=gymm eval.env.num_envs=2",
        "eval.env.kind=envpool",
        "eval.env=pendulum",
        "env.id= eval.env.num_envs=2",
        "env=gym",
        "env.id=",
        "env.entry_point=a:B",
        f"{NEXT_STEP} collector=multi_async collector.max_policy_lag=0",
        f"{NEXT_STEP} {METER}=0.5",
        f"{NEXT_STEP} inference=server",
        f"{NEXT_STEP} collector.max_frames_per_traj=9",
        f"{NEXT_STEP} collector.reset_at_each_iter=true",
        "env=gym_vector env.id=X env.vectorization_mode=vector_entry_point env.wrappers=[a.B]",
        "launcher=slurm launcher.time=2",
        "launcher=slurm launcher.time='1-0:0:30' launcher.signal_s=90000",
        "launcher=submitit launcher.sbatch={requeue:true}",
        "collector.preemptive_threshold=0.5",
        "collector.trajs_per_batch=4",
        "collector.compact_obs=true",
        "policy=random",
        "collector.exploration_type=mode",
        "trainer=dqn policy=mlp",
        "trainer=sac",
        "trainer=impala policy=squashed_mlp",
        "trainer=impala policy=q_cnn",
        "policy=cnn policy.strides=[1]",
        "policy=multi policy.strides=[1]",
        "trainer=dqn policy=multi",
        "trainer=sac policy=multi",
        "trainer=ppo policy=squashed_multi collector.exploration_type=mode",
        "policy=cnn policy.channels=[] policy.kernel_sizes=[] policy.strides=[]",
        "devices.device=gpu",
        "backend=shared_memory launcher=inline",
        "backend=gloo collector=single",
        "backend=inline",
        "backend=shared_memory collector=distributed",
        "backend=gloo collector=rpc",
        f"{RPC}={{num_workers:2}}",
        f"{RPC}={{_transports:uv}}",
        f"{RPC}={{rpc_timeout:0}}",
        "backend=nccl",
        "backend=nccl devices=cuda",
        "backend=mpi launcher=submitit",
        "backend=mpi launcher=slurm collector.on_worker_failure=drop",
        f"{DELAYED} launcher.trainer.gpu=1",
        f"{DELAYED} launcher.worker=4",
        f"{DELAYED} launcher.trainer.gpus=-1",
        f"{DELAYED} launcher.trainer.sbatch.ntasks=3",
        f"{DELAYED} launcher.max_parallel=2",
        f"{DELAYED} launcher.nodes=4",
        "launcher=slurm launcher.nodes=9",
        "launcher=slurm launcher.sbatch={ntasks:3}",
    ],
    "limits of rules": [
        f"{ENDLESS} collector.frames_per_batch=16",
        f"{ENDLESS} collector.frames_per_batch=15",
        f"{ENDLESS} collector.frames_per_batch=17",
        f"{ENDLESS} collector.frames_per_batch=33",
        f"{ENDLESS} collector=single collector.frames_per_batch=7 env.num_envs=1",
        f"{ENDLESS} collector=multi_async collector.frames_per_batch=8",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.frames_per_batch=8",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.frames_per_batch=8 collector.inner=async",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.max_policy_lag=2 trainer=meter",
        f"{DISTRIBUTED} collector.num_workers_per_collector=2 collector.refresh=step trainer=meter",
        f"{DISTRIBUTED}_sync collector.num_workers_per_collector=2 collector.overlap=1",
        f"{SERVED} collector.num_workers=200 collector.frames_per_batch=1600",
        f"{SERVED} collector.min_workers=2 collector.on_worker_failure=drop",
        f"{SERVED} collector.min_workers=1 collector.on_worker_failure=raise",
        f"{SERVED} collector=multi_async inference.order=auto collector.num_slots=2",
        f"{SERVED} collector=multi_async inference.order=ready collector.overlap=0",
        f"{SERVED} inference.order=fixed collector.overlap=1",
        f"{SERVED} inference.min_batch=4 inference.max_batch=4 collector.overlap=1",
        f"{SERVED} collector.worker_timeout_s=1 inference.timeout_s=0.5",
        f"{SERVED} collector.worker_timeout_s=1 inference.timeout_s=1",
        f"{SERVED} collector=multi_async env.num_envs=2 inference.min_batch=4 inference.timeout_s=1",
        "collector=multi_sync collector.min_workers=2 collector.num_workers=2",
        f"{METER}=0",
        "collector=single collector.num_workers=1",
        "env=gym env.entry_point=a:B",
        "env=gym_vector env.entry_point=a:B env.wrappers=[a.B] env.vectorization_mode=sync",
        "env=gym_vector env.id=X env.vectorization_mode=sync env.wrappers=[a.B] env.autoreset_mode=same_step",
        f"{NEXT_STEP} trainer=meter collector.reset_at_each_iter=false",
        f"{NEXT_STEP} trainer=meter collector.init_random_frames=9 collector.set_truncated=true",
        f"{NEXT_STEP} {METER}=0",
        "launcher=slurm launcher.nodes=3",
        "launcher=slurm launcher.nodes=4",
        "launcher=slurm launcher.time=2 launcher.requeue=false",
        "launcher=slurm launcher.time=3",
        f"{DELAYED} launcher.nodes=3",
        f"{METER}=0.5 collector.trajs_per_batch=1",
        "collector.preemptive_threshold=0.5 collector.trajs_per_batch=1 collector.traj_format=cat",
        "trainer=meter collector.trajs_per_batch=1 collector.compact_obs=true",
        "trainer=record collector.trajs_per_batch=1 collector.compact_obs=true collector.reset_at_each_iter=true",
        "trainer=record policy=random",
        "checkpoint.keep_best=mean_return",
        "checkpoint.keep_best=won env.metrics=[won]",
        "checkpoint.keep_best=eval/won eval.env.metrics=[won] eval.every_batches=1",
        "eval.env.kind=counting",
        "env=gym eval.env.id=CartPole-v1 env.entry_point=a:B eval.env.entry_point=null",
        "policy=cnn",
        "policy=cnn policy.channels=[1] policy.kernel_sizes=[1] policy.strides=[1]",
        "policy=random trainer=impala collector=multi_async",
        "policy=q_mlp trainer=dqn collector.exploration_type=mode",
        "policy=cnn trainer=impala collector=multi_async collector.exploration_type=mean",
        "policy=cnn trainer=dqn",
        "policy=random trainer=dqn",
        "policy=q_mlp trainer=ppo",
        "policy=squashed_mlp trainer=ppo",
        "policy=squashed_mlp trainer=dqn",
        "policy=squashed_mlp trainer=sac",
        "policy=q_mlp trainer=sac",
        "policy=cnn trainer=sac",
        "policy=squashed_multi trainer=sac",
        "policy=multi",
        "policy=multi policy.channels=[1] policy.kernel_sizes=[1] policy.strides=[1]",
        "policy=multi collector.exploration_type=mode",
        "policy=q_mlp trainer=meter collector.exploration_type=mode",
    ],
    "choices of backend=auto": [
        "",
        "collector=single",
        "launcher=inline",
        "collector=distributed",
        "collector=rpc launcher=inline backend=inline trainer=meter",
        "collector=ray launcher=inline backend=inline trainer=meter",
        "collector=distributed devices=cuda",
        "collector=distributed devices.storing_device=cuda:0 devices.policy_device=cuda:1",
        "collector=distributed devices.storing_device=cuda devices.policy_device=cuda:0",
        "collector=distributed devices.storing_device=cuda",
        "launcher=slurm",
        "launcher=slurm devices=cuda",
        "collector=rpc",
        "collector=rpc launcher=slurm collector.sync=true",
        "collector=distributed_sync backend.port=7000",
    ],
    "warnings": [
        "collector=multi_async trainer=impala",
        "collector=multi_sync trainer=impala",
        "collector=single trainer=impala",
        "experiment=cartpole_impala",
        "debug=tiny",
        "collector.max_policy_lag=2",
        "collector=multi_async trainer=impala collector.max_policy_lag=0",
        "collector.total_frames=1000",
        "collector.total_frames=100",
        "collector.total_frames=512",
        "collector.total_frames=513",
        "trainer.minibatch_size=600",
        "trainer.minibatch_size=512",
        "trainer.minibatch_size=513",
        "collector.frames_per_batch=16 collector.total_frames=16 trainer.minibatch_size=256",
        "collector.min_workers=1 collector.on_worker_failure=restart",
        "collector.min_workers=1 collector.on_worker_failure=drop",
        "collector.init_random_frames=192000",
        "collector.init_random_frames=191999",
        "collector.init_random_frames=0",
        f"collector.init_random_frames=1 {ENDLESS}",
        "policy=q_mlp trainer=dqn collector.init_random_frames=192000",
        "policy=q_mlp trainer=dqn collector.init_random_frames=191999",
        "policy=random trainer=meter collector.init_random_frames=192000",
        "eval.every_batches=10 run.max_batches=9",
        "eval.every_batches=10 run.max_batches=10",
        f"eval.every_batches=10 {ENDLESS}",
        "backend.port=7000 backend.interface=lo",
        "env.wrappers=[{RecordVideo:{video_folder:v}}]",
        "env.wrappers=[{RecordVideo:{video_folder:'v{env_index}'}}]",
        "env.wrappers=[{RecordVideo:{video_folder:'v{env_index:03d}'}}]",
        "env.wrappers=[{RecordVideo:{video_folder:'v{worker_index}'}}]",
        "env.wrappers=[a.B,{RecordVideo:{video_folder:v}},{RecordVideo:{video_folder:3}}]",
        "env.num_envs=1 env.wrappers=[{RecordVideo:{video_folder:'v{worker_index}'}}]",
        "env.num_envs=1 collector=single env.wrappers=[{RecordVideo:{video_folder:v}}]",
        "env.wrappers=[{Monitor:{filename:'{env_index%4}'}}]",
        "env.kwargs={video_folder:v}",
        f"{RESTART} env.wrappers=[{{RecordVideo:{{video_folder:'v{{env_index}}'}}}}]",
        f"{RESTART} env.wrappers=[{{RecordVideo:{{video_folder:'v{{env_index}}-{{restart_count}}'}}}}]",
    ],
}


@pytest.fixture
def every_backend(monkeypatch):
    """Pretends that all backends work on this machine, which has enough cores."""
    monkeypatch.setattr("collectx.run.cores.num_cores", lambda: 1000)
    monkeypatch.setattr(registry, "why_not", lambda *kind: None)


@pytest.mark.usefixtures("every_backend")
@pytest.mark.parametrize("name", LINES)
def test_what_rules_and_warnings_say(name, expected):
    """The problems of each line; without any, the place of its workers, and warnings."""
    text = []
    for line in LINES[name]:
        cfg, problems = examine(line)
        text += [line or "(defaults)", *(f"  ! {problem}" for problem in problems)]
        if not problems:
            text += [f"  {place_of(cfg).backend}", *(f"  note: {note}" for note in warnings_of(cfg))]
    expected(name, "\n".join(text))


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_says_what_is_missing():
    (problem,) = examine("backend=nccl devices.storing_device=cuda:0 devices.policy_device=cuda:1")[1]
    assert re.search(r"cannot be used: torch.* (without CUDA|sees no GPU)", problem)


def test_the_text_of_an_option_has_the_constants_of_the_users_language():
    assert described("`null`, `true` or `module:Class`", PYTHON) == "None, True or `module:Class`"
    assert described("`null` and `true`") == "null and true"
