"""Rules that span several fields of a configuration, each with its arithmetic and the change to make.

Called by the command line after types and ranges of single fields were checked, before anything starts. A field that
has a problem of its own holds MISSING; rules that need it stay silent. Imports neither torch nor gymnasium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import MISSING

from collectx.config import (
    ELSEWHERE,
    NETWORK_BACKENDS,
    REMOTE,
    CnnPolicyConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    RayLauncherConfig,
    RpcBackendConfig,
    RunConfig,
    SlurmLauncherConfig,
    SlurmResources,
    SubmititDelayedLauncherConfig,
    backend_of,
    is_async,
    is_stacked,
    num_tasks_of,
    rows_per_env,
    why_no_nccl,
)
from collectx.errors import DamagedFile
from collectx.run import delivery_log
from collectx.run.preflight import why_not
from collectx.transport.network.availability import actor_problems, gpu_problems, tensorpipe_problems, visible_problems

# Options of sbatch that a job of all roles depends on.
_OURS = frozenset({"array", "ntasks", "nodes", "output", "error", "no-kill"})
_OURS_ADVICE = {
    "array": ": use launcher.max_parallel, where the launcher has it",
    "ntasks": ": use collector.num_workers",
    "nodes": ": use launcher.nodes, where the launcher has it",
    "output": ": the run folder has the logs",
    "error": ": the run folder has the logs",
    "no-kill": ": use collector.on_worker_failure",
}
# Trainers that learn, of those that are built in.
_LEARNING = ("ppo", "impala", "dqn")
_DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")


def problems(cfg: RunConfig) -> list[str]:
    """Every rule that `cfg` breaks; empty where it can run."""
    rules = (
        _frames_per_batch,
        _trajectories,
        _preemption,
        _learnable,
        _order_of,
        _single,
        _backend,
        _inner,
        _launcher,
        _env,
        _policy,
        _devices,
    )
    return [problem for rule in rules for problem in rule(cfg)]


def _frames_per_batch(cfg: RunConfig) -> Iterator[str]:
    """Every env contributes the same number of steps to a batch."""
    frames, envs, workers = cfg.collector.frames_per_batch, cfg.env.num_envs, cfg.collector.num_workers
    if _missing(frames, envs, cfg.collector.kind):
        return
    if _missing(cfg.collector.num_workers_per_collector, cfg.collector.inner):
        return
    unit, shown = envs, f"env.num_envs={envs}"
    if (inner := rows_per_env(cfg.collector)) > 1:
        unit, shown = inner * unit, f"collector.num_workers_per_collector={inner} x {shown}"
    if is_stacked(cfg.collector):
        if _missing(workers):
            return
        unit, shown = workers * unit, f"collector.num_workers={workers} x {shown}"
    if frames % unit:
        yield _not_a_multiple("collector.frames_per_batch", frames, shown, unit)


def _trajectories(cfg: RunConfig) -> Iterator[str]:
    """Envs that spend a step on a reset cannot be reset before their episodes end. Where the env itself chose that, it
    is known when it is made."""
    if not isinstance(cfg.env, GymVectorEnvConfig) or cfg.env.autoreset_mode != "next_step":
        return
    for name in ("max_frames_per_traj", "reset_at_each_iter"):
        value = getattr(cfg.collector, name)
        if value and not _missing(value):
            yield (
                f"collector.{name}={str(value).lower()}: with env.autoreset_mode=next_step no env can be reset before "
                "its episode ends: use env.autoreset_mode=disabled or same_step."
            )


def _preemption(cfg: RunConfig) -> Iterator[str]:
    """Workers end their parts early where the trainer's memory tells them to."""
    want, share = cfg.collector, cfg.collector.preemptive_threshold
    if share is None or _missing(share, want.kind, cfg.backend.kind, cfg.launcher.kind):
        return
    told = f"collector.preemptive_threshold={share}"
    if want.kind == "single":
        yield f"{told}: collector=single has no workers of which some could be waited for: use collector=multi_sync."
    elif not _missing(getattr(want, "sync", None)) and is_async(want):
        yield f"{told}: an async batch comes from one worker and waits for no other: use collector=multi_sync, or null."
    elif (backend := backend_of(cfg)) not in ("inline", "shared_memory"):
        yield (
            f"{told}: over backend={backend} workers are not told to end their parts: use collector=multi_sync on one "
            "machine, or null."
        )


def _learnable(cfg: RunConfig) -> Iterator[str]:
    """The trainers that learn look at every place of a batch, and at the observation after it."""
    want, trainer = cfg.collector, cfg.trainer.kind
    if trainer not in _LEARNING:
        return
    if want.compact_obs is True:
        yield (
            f"collector.compact_obs=true: trainer={trainer} learns from the observation below next: use false, or "
            "trainer=meter or custom."
        )
    if _missing(want.preemptive_threshold, want.trajs_per_batch, want.traj_format):
        return
    if want.trajs_per_batch is None:
        if want.preemptive_threshold is not None:
            yield (
                f"collector.preemptive_threshold={want.preemptive_threshold}: batches have places without a frame, and "
                f"trainer={trainer} learns from every place: use null, or whole trajectories one after another, "
                "collector.trajs_per_batch=N collector.traj_format=cat."
            )
    elif want.traj_format == "padded":
        yield (
            f"collector.trajs_per_batch={want.trajs_per_batch}: padded batches have places without a frame, and "
            f"trainer={trainer} learns from every place: use collector.traj_format=cat."
        )


def _order_of(cfg: RunConfig) -> Iterator[str]:
    """What an async run needs that is to be that of another folder again."""
    want = cfg.collector
    folder, num_workers = want.order_of, want.num_workers
    if _missing(folder, num_workers, want.kind, want.refresh, want.inner) or folder is None:
        return
    given = f"collector.order_of={folder}"
    if not is_async(want):
        yield f"{given}: collector={want.kind} is sync, whose order is always the same: use collector.order_of=null."
        return
    if why := delivery_log.why_never(want.refresh, want.num_workers_per_collector, want.inner):
        yield f"{given}: {why}."
    try:
        workers = {worker for worker, _, _ in delivery_log.read(folder)}
    except (DamagedFile, ValueError) as error:
        yield f"{given}: {error}: use collector.order_of=null."
        return
    if max(workers) >= num_workers:
        yield (
            f"{given}: it has batches of worker {max(workers)}, so of at least {max(workers) + 1} workers, but "
            f"collector.num_workers={num_workers}: use as many as that run had."
        )


def _single(cfg: RunConfig) -> Iterator[str]:
    workers = cfg.collector.num_workers
    if cfg.collector.kind == "single" and not _missing(workers) and workers != 1:
        yield (
            f"collector.num_workers={workers}: collector=single has one worker, the trainer's own process: "
            "use collector=multi_sync or collector=multi_async, or collector.num_workers=1."
        )


def _backend(cfg: RunConfig) -> Iterator[str]:
    collector, backend, launcher = cfg.collector.kind, cfg.backend.kind, cfg.launcher.kind
    if _missing(collector, backend, launcher):
        return
    one_process = collector == "single" or launcher == "inline"
    if collector == "rpc" and backend not in ("auto", "rpc") and launcher != "inline":
        yield (
            f"backend={backend}: collector=rpc is over torch RPC: use backend=auto or rpc, "
            "or collector=distributed or distributed_sync."
        )
        return
    if launcher == "ray" and backend == "mpi":
        yield "backend=mpi: MPI does not start the workers of launcher=ray: use backend=auto or gloo."
    if "ray" in (collector, backend) and launcher not in ("ray", "inline"):
        what = f"collector={collector}" if collector == "ray" else f"backend={backend}"
        yield f"launcher={launcher}: {what} has Ray start its workers: use launcher=ray, or launcher=inline to debug."
    if collector == "ray" and backend not in ("auto", "ray") and launcher != "inline":
        yield (
            f"backend={backend}: collector=ray is over Ray's object store: use backend=auto or ray, or "
            "collector=distributed with launcher=ray."
        )
        return
    if collector in REMOTE and backend in ("inline", "shared_memory"):
        yield (
            f"backend={backend}: collector={collector} is over torch.distributed: use backend=auto or gloo, "
            f"or collector=multi_{'async' if is_async(cfg.collector) else 'sync'}."
        )
        return
    if isinstance(cfg.backend, RpcBackendConfig):
        yield from tensorpipe_problems("backend.tensorpipe", cfg.backend.tensorpipe)
        visible, devices = cfg.backend.visible_devices, cfg.devices
        if not _missing(visible, devices.device, devices.policy_device, cfg.collector.num_workers):
            acting = [devices.policy_device or devices.device or "cpu"] * cfg.collector.num_workers
            yield from visible_problems("backend.visible_devices", visible, acting)
    if (
        backend == "nccl"
        and not one_process
        and not _missing(*vars(cfg.devices).values())
        and (why := why_no_nccl(cfg))
    ):
        yield f"backend=nccl: {why}: use backend=auto or gloo."
    if backend == "mpi":
        yield from _mpi(cfg)
    if backend in NETWORK_BACKENDS and backend != "gloo" and launcher not in ELSEWHERE and (why := why_not(backend)):
        yield why
    if backend in NETWORK_BACKENDS and one_process:
        reason = "collector=single" if collector == "single" else "launcher=inline"
        yield f"backend={backend}: {reason} is one process, which has nobody to send to: use backend=auto or inline."
    if backend == "shared_memory" and one_process:
        reason = "collector=single" if collector == "single" else "launcher=inline"
        yield f"backend=shared_memory: {reason} is one process, which shares nothing: use backend=auto or inline."
    if backend == "inline" and not one_process:
        yield (
            f"backend=inline: collector={collector} with launcher={launcher} has several processes: "
            "use backend=auto or shared_memory, or launcher=inline."
        )


def _actors(cfg: RunConfig, configs: Any) -> Iterator[str]:
    """What is wrong with what Ray is asked for."""
    name, num_workers = "launcher.remote_configs", cfg.collector.num_workers
    each = configs if isinstance(configs, list) else [configs]
    if not all(isinstance(one, dict) for one in each):
        yield f"{name}={configs}: must be a mapping, or a list with one for each worker."
        return
    if each is configs and not _missing(num_workers) and len(each) != num_workers:
        yield f"{name} has {len(each)} entries for collector.num_workers={num_workers}: one for each, or one mapping."
    yield from (wrong := actor_problems(name, each))
    if not wrong and not _missing(cfg.devices.device, cfg.devices.policy_device):
        acting = cfg.devices.policy_device or cfg.devices.device or "cpu"
        yield from gpu_problems(name, each, [acting] * len(each))


def _launcher(cfg: RunConfig) -> Iterator[str]:
    launcher = cfg.launcher
    elsewhere = isinstance(launcher, (SlurmResources, RayLauncherConfig))
    if elsewhere and cfg.backend.kind == "shared_memory" and cfg.collector.kind != "single":
        yield (
            f"backend=shared_memory: the workers of launcher={launcher.kind} may be on other hosts: "
            "use backend=auto or gloo."
        )
    if isinstance(launcher, RayLauncherConfig):
        if why := why_not("ray"):
            yield why.replace("backend=", "launcher=", 1)
        yield from _actors(cfg, launcher.remote_configs)
    parts: dict[str, Any] = {"launcher": launcher}
    if isinstance(launcher, SubmititDelayedLauncherConfig):
        parts |= {"launcher.trainer": launcher.trainer, "launcher.worker": launcher.worker}
        if cfg.collector.kind == "single":
            yield f"launcher={launcher.kind}: collector=single has no workers beside the trainer: use launcher=slurm."
        if launcher.max_parallel not in (None, MISSING):
            yield (
                f"launcher.max_parallel={launcher.max_parallel}: jobs of two parts cannot be a job array: use null, "
                "or launcher=slurm."
            )
    for path, part in parts.items():
        given = {str(key).replace("_", "-") for key in getattr(part, "sbatch", ())}
        for key in sorted(_OURS & given):
            yield f"{path}.sbatch.{key}: collectx sets it itself{_OURS_ADVICE.get(key, '')}."
    if not isinstance(launcher, SlurmLauncherConfig):
        return
    if not _missing(launcher.nodes, cfg.collector.kind, cfg.collector.num_workers):
        tasks, what = num_tasks_of(cfg), f"tasks, the trainer and {num_tasks_of(cfg) - 1} workers"
        if cfg.collector.kind == "single":
            what = "tasks, collector=single"
        elif isinstance(launcher, SubmititDelayedLauncherConfig):
            tasks, what = tasks - 1, "workers"
        if launcher.nodes is not None and launcher.nodes > tasks:
            yield f"launcher.nodes={launcher.nodes} is more than the {tasks} {what}: use {tasks} or null."


def _inner(cfg: RunConfig) -> Iterator[str]:
    """A worker that is itself a collector is on another host, or as good as."""
    want = cfg.collector
    if _missing(want.kind, want.num_workers, want.num_workers_per_collector, want.inner, cfg.launcher.kind):
        return
    count = want.num_workers_per_collector
    if count == 1 or cfg.backend.kind == MISSING:
        return
    if want.refresh == "step":
        yield (
            f"collector.num_workers_per_collector={count}: a worker that is itself a collector takes weights between "
            "its batches: use collector.refresh=batch."
        )
    if want.inner == "single":
        yield (
            f"collector.num_workers_per_collector={count}: collector.inner=single has one process: "
            "use collector.inner=sync or async, or collector.num_workers_per_collector=1."
        )
    if backend_of(cfg) not in NETWORK_BACKENDS:
        yield (
            f"collector.num_workers_per_collector={count}: over backend={backend_of(cfg)} every process of this "
            f"machine is a worker itself: use collector.num_workers={want.num_workers * count}, or "
            "collector=distributed."
        )


def _mpi(cfg: RunConfig) -> Iterator[str]:
    """Trainer and workers must be of one MPI universe, and where a scheduler made it, nobody can join or leave it."""
    launcher, failure = cfg.launcher.kind, cfg.collector.on_worker_failure
    if launcher.startswith("submitit"):
        yield (
            f"backend=mpi: launcher={launcher} starts every worker as a job of its own, between which MPI knows no "
            "way: use launcher=local or slurm, or backend=gloo."
        )
    elif launcher not in ("local", "inline") and not _missing(failure) and failure != "raise":
        yield (
            f"collector.on_worker_failure={failure}: with backend=mpi and launcher={launcher} the death of one rank "
            "ends them all, and none can be added: use raise, or backend=gloo."
        )


def _env(cfg: RunConfig) -> Iterator[str]:
    env = cfg.env
    if not isinstance(env, (GymEnvConfig, GymVectorEnvConfig)) or _missing(env.id, env.entry_point):
        return
    if env.id is None and env.entry_point is None:
        yield "env.id is not set: give a Gymnasium id, env.id=CartPole-v1, or env.entry_point=module:Class."
    if env.id is not None and env.entry_point is not None:
        yield (
            f"env.id={env.id} and env.entry_point={env.entry_point} both say which env to make: "
            "set one of them to null."
        )
    if not isinstance(env, GymVectorEnvConfig) or _missing(env.wrappers):
        return
    if env.wrappers and (env.vectorization_mode == "vector_entry_point" or env.entry_point is not None):
        yield (
            "env.wrappers: an env that is a vector itself has no single envs to wrap: "
            "use env.id with env.vectorization_mode=sync or async, or no wrappers."
        )


def _policy(cfg: RunConfig) -> Iterator[str]:
    policy = cfg.policy
    if isinstance(policy, CnnPolicyConfig):
        lists = {"channels": policy.channels, "kernel_sizes": policy.kernel_sizes, "strides": policy.strides}
        if not _missing(*lists.values()) and len({len(values) for values in lists.values()}) > 1:
            shown = ", ".join(f"policy.{name} has {len(values)}" for name, values in lists.items())
            yield f"{shown}: one entry for each convolution is needed in all three."
    if policy.kind == "random" and cfg.trainer.kind in ("ppo", "impala"):
        yield f"trainer={cfg.trainer.kind} policy=random: there is nothing to train: use policy=mlp, or trainer=meter."
    if cfg.trainer.kind == "dqn" and policy.kind in ("random", "mlp", "cnn"):
        yield (f"trainer=dqn policy={policy.kind}: it learns the values of actions: use policy=q_mlp or policy=q_cnn.")
    if cfg.trainer.kind in ("ppo", "impala") and policy.kind in ("q_mlp", "q_cnn"):
        yield (
            f"trainer={cfg.trainer.kind} policy={policy.kind}: it learns the probabilities of actions: use "
            f"policy={policy.kind.removeprefix('q_')}, or trainer=dqn."
        )


def _devices(cfg: RunConfig) -> Iterator[str]:
    for name, value in vars(cfg.devices).items():
        if value not in (None, MISSING) and not _DEVICE.fullmatch(value):
            yield f"devices.{name}={value}: not a device: use cpu, cuda or cuda:N."
        elif name == "env_device" and value not in (None, MISSING) and not value.startswith("cpu"):
            yield f"devices.env_device={value}: envs step on the CPU: use cpu or null."


def _not_a_multiple(key: str, value: int, shown: str, unit: int) -> str:
    below = value // unit * unit
    use = f"use {below} or {below + unit}." if below else f"use {unit}."
    product = f"{value} / {unit} = {value / unit:.2f}"
    return f"{key}={value} is not a multiple of {shown} ({product}): {use}"


def _missing(*values: Any) -> bool:
    return any(isinstance(value, str) and value == MISSING for value in values)
