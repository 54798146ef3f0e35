"""Rules about backends and devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectx.config.derived import NETWORK_BACKENDS, REMOTE, schedule_of, why_no_nccl
from collectx.config.problem import Problem
from collectx.config.schema.launcher import RayLauncherConfig, RpcBackendConfig, SlurmResources
from collectx.config.schema.run import RunConfig

_DEVICE = re.compile(r"(cpu|cuda)(:\d+)?")
_VISIBLE = re.compile(r"cpu|cuda:\d+")
# Options of `torch.distributed.rpc.TensorPipeRpcBackendOptions` that do not follow from the rest.
_TENSORPIPE = ("num_worker_threads", "rpc_timeout", "_transports", "_channels")


def backend_fits(cfg: RunConfig) -> Iterator[Problem]:
    """Collector, backend and launcher go together."""
    collector, backend, launcher = cfg.collector.kind, cfg.backend.kind, cfg.launcher.kind
    is_inline = launcher == "inline"
    if collector == "rpc" and backend not in ("auto", "rpc") and not is_inline:
        advice = "use backend=auto or rpc, or collector=distributed or distributed_sync."
        yield Problem("backend", "collector=rpc is over torch RPC", backend, advice)
        return
    if launcher == "ray" and backend == "mpi":
        rule = "MPI does not start the workers of launcher=ray"
        yield Problem("backend", rule, backend, "use `backend=auto or gloo`.")
    if collector == "ray" and launcher not in ("ray", "inline"):
        advice = "use launcher=ray, or launcher=inline to debug."
        yield Problem("launcher", "collector=ray has Ray start its workers", launcher, advice)
    if collector in REMOTE and backend in ("inline", "shared_memory") and not is_inline:
        alternative = f"collector=multi_{schedule_of(cfg.collector)}"
        rule = f"collector={collector} is over torch.distributed"
        yield Problem("backend", rule, backend, f"use backend=auto or gloo, or {alternative}.")
        return
    yield from _processes(cfg)
    is_remote = isinstance(cfg.launcher, SlurmResources | RayLauncherConfig)
    if backend == "shared_memory" and is_remote and collector != "single":
        rule = f"the workers of launcher={launcher} may be on other hosts"
        yield Problem("backend", rule, backend, "use `backend=auto or gloo`.")


def _processes(cfg: RunConfig) -> Iterator[Problem]:
    """The backend fits the number of processes."""
    collector, backend, launcher = cfg.collector.kind, cfg.backend.kind, cfg.launcher.kind
    if collector != "single" and launcher != "inline":
        if backend == "nccl" and (reason := why_no_nccl(cfg)):
            yield Problem("backend", reason, backend, "use `backend=auto or gloo`.")
        if backend == "inline":
            rule = f"collector={collector} with launcher={launcher} has several processes"
            yield Problem("backend", rule, backend, "use backend=auto or shared_memory, or launcher=inline.")
    elif backend in (*NETWORK_BACKENDS, "shared_memory"):
        choice = "collector=single" if collector == "single" else "launcher=inline"
        rule = f"{choice} is one process, which needs no transport"
        yield Problem("backend", rule, backend, "use backend=auto or inline.")


def mpi_universe(cfg: RunConfig) -> Iterator[Problem]:
    """Trainer and workers are of one MPI universe. In one that a scheduler made, no process can join or leave."""
    launcher = cfg.launcher.kind
    if cfg.backend.kind != "mpi" or launcher in ("local", "inline", "ray"):
        return
    if launcher.startswith("submitit"):
        rule = f"`launcher={launcher}` starts every worker as a separate job, and MPI does not connect separate jobs"
        yield Problem("backend", rule, "mpi", "use `launcher=local or slurm`, or `backend=gloo`.")
    elif cfg.collector.on_worker_failure != "raise":
        rule = (
            f"with `backend=mpi` and `launcher={launcher}` the death of one rank ends all ranks, and none can be added"
        )
        path = "collector.on_worker_failure"
        yield Problem(path, rule, cfg.collector.on_worker_failure, "use raise, or `backend=gloo`.")


def tensorpipe(cfg: RunConfig) -> Iterator[Problem]:
    """Options of torch RPC's agents."""
    if not isinstance(cfg.backend, RpcBackendConfig):
        return
    path = "backend.tensorpipe"
    for key, value in cfg.backend.tensorpipe.items():
        if key not in _TENSORPIPE:
            rule = f"has {key}: may have {', '.join(_TENSORPIPE)}; agents find each other, and bytes lie on the CPU."
            yield Problem(path, rule)
        elif key.startswith("_"):
            if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
                yield Problem(path, f"{key}={value!r}: must be a list of TensorPipe's names, as ['uv'].")
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            yield Problem(path, f"{key}={value!r}: must be a number above 0.")


def visible_devices(cfg: RunConfig) -> Iterator[Problem]:
    """Each worker sees the GPU that its policy acts on."""
    if isinstance(cfg.backend, RpcBackendConfig):
        acting = [acting_device(cfg)] * cfg.collector.num_workers
        yield from visible_problems(cfg.backend.visible_devices, acting)


def visible_problems(visible: list[str] | None, acting: list[str]) -> Iterator[Problem]:
    """Problems of the devices that workers see.

    Args:
        visible, acting: for each worker the device that it sees, and the one that its policy acts on.
    """
    path = "backend.visible_devices"
    if visible is None:
        return
    if isinstance(visible, str) or not all(_VISIBLE.fullmatch(str(each)) for each in visible):
        rule = "must be a list, for each worker cuda:N, the only GPU that it sees, or cpu for none."
        yield Problem(path, rule, visible)
        return
    if len(visible) != len(acting):
        yield Problem(path, f"has {len(visible)} entries for {len(acting)} workers: give one for each.")
        return
    for worker, (sees, acts) in enumerate(zip(visible, acting, strict=True)):
        if acts not in ("cpu", "cuda", sees) or (acts == "cuda" and sees == "cpu"):
            rule = f"the policy of worker {worker} acts on {acts}, and {sees} is all that it sees"
            yield Problem(path, rule, visible, "give both the same.")


def acting_device(cfg: RunConfig) -> str:
    """The device that policies act on."""
    return cfg.devices.policy_device or cfg.devices.device or "cpu"


def device_names(cfg: RunConfig) -> Iterator[Problem]:
    """Devices are CPUs or CUDA devices. Where the env steps is known when it is made."""
    for name, value in vars(cfg.devices).items():
        if value is not None and not _DEVICE.fullmatch(value):
            yield Problem(f"devices.{name}", "not a device", value, "use cpu, cuda or cuda:N.")
