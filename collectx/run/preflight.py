"""Checks of this machine for a configuration: commands, devices, networks. Rules between options are in
`collectx/config/rules/`.

Called in the process that starts a run, before any worker starts. torch is imported only where it is needed.
"""

from __future__ import annotations

import os
import shutil

from collectx.config.derived import ELSEWHERE, NETWORK_BACKENDS, backend_of
from collectx.config.schema.launcher import SlurmResources
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError


def launcher_problems(cfg: RunConfig) -> list[str]:
    """Commands of the launcher that this machine does not have."""
    if isinstance(cfg.launcher, SlurmResources) and shutil.which("sbatch") is None:
        return [
            f"launcher={cfg.launcher.kind}: this machine has no sbatch on its PATH: start it where SLURM's commands "
            "are, or use launcher=local."
        ]
    return []


def device_problems(cfg: RunConfig) -> list[str]:
    """Devices of the trainer, or of workers on this machine, that do not exist. Imports torch unless all are the
    CPU."""
    chosen = {name: value for name, value in vars(cfg.devices).items() if value not in (None, "cpu")}
    if cfg.launcher.kind not in ("inline", "local"):
        chosen.pop("policy_device", None)
    if not chosen:
        return []
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    available = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    problems = []
    for name, value in chosen.items():
        kind, _, index = value.partition(":")
        here = {"cpu": 1, "cuda": gpus}.get(kind, 0)
        if int(index or 0) >= here:
            problems.append(f"devices.{name}={value}: no such device; torch sees {', '.join(available)}.")
    return problems


def backend_problems(cfg: RunConfig) -> list[str]:
    """Reasons why the backend cannot connect this machine to its workers. Imports torch for network backends."""
    backend = backend_of(cfg)
    if backend not in NETWORK_BACKENDS:
        return []
    from collectx.transport.network.addresses import local_addresses

    problems = [why] if (why := why_not(backend)) else []
    if backend == "mpi" and cfg.launcher.kind in ELSEWHERE and "PMIX_NAMESPACE" not in os.environ:
        problems = [
            f"backend=mpi: launcher={cfg.launcher.kind} has started the roles without MPI's PMIx: "
            "use launcher.srun.mpi=pmix where `srun --mpi=list` names it, or backend=gloo."
        ]
    try:
        local_addresses(cfg.backend.interface)
    except ConfigError as error:
        problems.extend(error.problems)
    return problems


def why_not(backend: str) -> str | None:
    """The reason why a backend cannot work on this machine; None if it can."""
    from collectx.transport.network import availability

    reason = availability.why_not(backend)
    return None if reason is None else f"backend={backend} cannot work on this machine: {reason}."
