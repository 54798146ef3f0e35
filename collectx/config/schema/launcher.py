"""Options of the groups `backend`, `launcher` and `devices`."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectx.config.schema.fields import Section, like, option, required, section


@dataclass(kw_only=True)
class BackendConfig(Section):
    kind: str = required("How batches and weights travel.")
    interface: str | None = option(
        None,
        """The network interface, such as eth0, on which the trainer listens for workers on other hosts. `null`: all
        interfaces.""",
    )
    port: int | None = option(
        None, "The TCP port on which the trainer listens. `null`: any free port.", minimum=1, maximum=65535
    )


@dataclass(kw_only=True)
class RpcBackendConfig(BackendConfig):
    tensorpipe: dict[str, Any] = option(
        {},
        """Options of torch.distributed.rpc.TensorPipeRpcBackendOptions: num_worker_threads, rpc_timeout (seconds),
        _transports, _channels.""",
    )
    visible_devices: list[str] | None = option(
        None,
        """The GPU of each worker, such as ["cuda:0", "cuda:1"], numbered as on its host; it sees no other. cpu: no GPU.
        Batches and weights travel through CPU memory. `null`: every worker sees all GPUs.""",
    )


@dataclass(kw_only=True)
class LauncherConfig(Section):
    kind: str = required("Where workers run.")
    num_threads: int = option(1, "Torch threads per worker.", minimum=1)
    pin_cores: bool = option(
        False,
        """`true`: pin each worker and its env threads to one core. Use it for envs with threads (EnvPool) on an
        otherwise idle machine. On a shared machine, a worker may wait for its core while others are idle.""",
    )


@dataclass(kw_only=True)
class SlurmResources(Section):
    """Resources that a job requests from SLURM. None: the cluster's default."""

    partition: str | None = option(None, "Partition of the job. `null`: the cluster's default.")
    account: str | None = option(None, "Account to charge. `null`: the cluster's default.")
    qos: str | None = option(None, "Quality of service. `null`: the cluster's default.")
    time: str | None = option(
        None,
        """Time limit in the syntax of sbatch: minutes, or "days-hours:minutes:seconds" (in quotes, in a file). `null`:
        the cluster's default.""",
    )
    mem: str | None = option(
        None, "Memory per node in the syntax of sbatch, such as 4G. `null`: the cluster's default."
    )
    cpus_per_task: int | None = option(
        None, "Cores per task; more than 1 for envs that use threads. `null`: the cluster's default.", minimum=1
    )
    gpus: int | None = option(None, "GPUs per node. `null`: the cluster's default.", minimum=0)
    constraint: str | None = option(None, """Required features of the nodes, such as "intel&ib". `null`: none.""")
    exclusive: bool = option(False, "`true`: do not share nodes with other jobs.")
    container: str | None = option(None, "OCI bundle in which srun starts the tasks (srun --container). `null`: none.")
    setup: list[str] = option(
        [],
        """Shell commands to run before the tasks start, such as ["module load cuda", "source env.sh"]. The job ends if
        one fails, except before && or ||, or in a pipe before its last command.""",
    )
    sbatch: dict[str, Any] = option(
        {},
        """Other sbatch options, such as {nodelist: n7, mail-type: FAIL, exclusive: user}. They override the keys of
        `launcher`.""",
    )


@dataclass(kw_only=True)
class JobLauncherConfig(SlurmResources, LauncherConfig):
    python: str | None = option(
        None, "Python executable on the nodes. `null`: the same path as the Python that submits the job."
    )
    srun: dict[str, Any] = option({}, "Other srun options, such as {container-image: my.sqsh}.")
    requeue: bool | None = option(
        None,
        """`true`: the run survives preemption and the time limit. The job returns to the queue, and continues from the
        newest checkpoint when it starts again. The same happens after `scontrol requeue`, and when the run loses a node
        that it needs. With launcher=submitit, the trainer resubmits the worker's job, whatever
        collector.on_worker_failure says. `null`: `true` if launcher.time is set or the partition preempts its jobs.""",
    )
    max_requeues: int = option(
        20,
        """Maximum requeues of a job. After that, the run ends as interrupted. With launcher=submitit, the limit counts
        per worker; after that, collector.on_worker_failure applies.""",
        minimum=0,
    )


@dataclass(kw_only=True)
class SubmititLauncherConfig(JobLauncherConfig):
    kind: str = like(
        LauncherConfig,
        "kind",
        """Where workers run. The resources apply to the job of each worker. With collector.on_worker_failure=restart,
        lost workers are resubmitted.""",
    )
    queue_timeout_s: float = option(
        3600.0,
        """Maximum seconds that a worker's job may take to start, including the queue. Meanwhile, an async run continues
        with the workers that have joined.""",
        above=0,
    )


@dataclass(kw_only=True)
class SlurmLauncherConfig(JobLauncherConfig):
    kind: str = like(
        LauncherConfig,
        "kind",
        """Where workers run. The job runs collector.num_workers + 1 tasks; with several learners, one for each learner
        with its workers. Inside an allocation (salloc), runs are steps of the allocation, one after another.""",
    )
    cpus_per_task: int | None = like(
        JobLauncherConfig,
        "cpus_per_task",
        """Cores per task; more than 1 for envs that use threads. `null`: the cluster's default; with several learners,
        one for a learner and one for each thread of its workers.""",
    )
    nodes: int | None = option(None, "Number of nodes for the tasks. `null`: SLURM decides.", minimum=1)
    signal_s: int = option(
        60,
        """With requeue=true: how many seconds before the time limit SLURM signals the run (up to 60 s earlier). The run
        must then save a checkpoint within checkpoint.grace_s. Preemption signals the run as well, so the partition's
        GraceTime must be longer than checkpoint.grace_s.""",
        minimum=1,
    )
    max_parallel: int | None = option(
        None, "Maximum points of a sweep that run at a time. `null`: no maximum.", minimum=1
    )
    wait: bool = option(
        True,
        """`true`: wait for the job, and show the queue, then the progress. Ctrl-C asks whether to cancel. `false`:
        submit the job and exit. `collectx status DIR` shows the state later.""",
    )


def _of_part(name: str, text: str | None = None) -> Any:
    """Returns the option `name` of `SlurmResources` for one part of a job, for which null means something else."""
    text = text or SlurmResources.__dataclass_fields__[name].metadata["text"]
    return like(SlurmResources, name, text.partition(" `null`:")[0])


@dataclass(kw_only=True)
class PartResources(Section):
    """Resources of one part of a heterogeneous job. None: the launcher's option of that name applies."""

    partition: str | None = _of_part("partition", "Partition of the component.")
    mem: str | None = _of_part("mem")
    cpus_per_task: int | None = _of_part("cpus_per_task")
    gpus: int | None = _of_part("gpus")
    constraint: str | None = _of_part("constraint")
    exclusive: bool | None = like(SlurmResources, "exclusive", default=None)
    container: str | None = _of_part("container")
    sbatch: dict[str, Any] = like(SlurmResources, "sbatch")


@dataclass(kw_only=True)
class SubmititDelayedLauncherConfig(SlurmLauncherConfig):
    kind: str = like(
        LauncherConfig,
        "kind",
        "Where workers run. SLURM starts trainer and workers together, the trainer on a separate node.",
    )
    nodes: int | None = like(SlurmLauncherConfig, "nodes", "Number of nodes for the workers. `null`: SLURM decides.")
    trainer: PartResources = section(
        PartResources, "Resources of the trainer's component. `null`: the launcher's key of that name."
    )
    worker: PartResources = section(
        PartResources, "Resources of the workers' component, which has collector.num_workers tasks."
    )


@dataclass(kw_only=True)
class RayLauncherConfig(LauncherConfig):
    ray_init_config: dict[str, Any] = option(
        {},
        """Arguments of ray.init, such as {"address": "auto"} for a running cluster. Without an address here or in
        RAY_ADDRESS, the run starts a cluster on this machine, which ends with the run.""",
    )
    remote_configs: dict[str, Any] | list[dict[str, Any]] = option(
        {"num_cpus": 1},
        """Arguments of ray.remote for the workers' actors, such as {num_cpus: 2, num_gpus: 0.5}, or a list with one
        mapping per worker; on the command line as '~launcher.remote_configs' '+launcher.remote_configs=[{num_cpus: 2},
        {num_gpus: 1}]'. With several learners, those of the learners' actors, for each learner but the first; num_cpus
        is at least 1 for a learner and 1 for each thread of its workers.""",
    )
    queue_timeout_s: float = option(
        180.0,
        """Maximum seconds for Ray to start a worker process, including the wait for resources in use or, with
        autoscaling, for new nodes. Afterwards, collector.start_timeout_s applies.""",
        above=0,
    )
    autoscaling: bool = option(
        False,
        """`true`: the cluster adds nodes itself, so the run waits for missing resources. `false`: missing resources are
        an error before anything starts.""",
    )


@dataclass(kw_only=True)
class DevicesConfig(Section):
    device: str | None = option(
        "cpu",
        """Default of the three devices below. `null`: cpu for the policy and the envs; batches stay on their device if
        both share one, and are on the CPU otherwise.""",
    )
    storing_device: str | None = option(None, "Device of delivered batches. `null`: the value of `device`.")
    policy_device: str | None = option(None, "Device of the policy. `null`: the value of `device`.")
    env_device: str | None = option(
        None,
        """Device of the env's observations and actions. `null`: the CPU, or the device of the tensors that the env
        returns (see `collectx docs envs`).""",
    )
