"""What this machine lacks for a configuration: commands, devices, networks. Rules that hold anywhere are in
`collectx/run/rules.py`.

Called in the process that begins a run, before anything starts. torch is imported only where it is needed.
"""

from __future__ import annotations

import os
import shutil

from collectx.config import ELSEWHERE, NETWORK_BACKENDS, RunConfig, SlurmResources, backend_of
from collectx.errors import ConfigError


def launcher_problems(cfg: RunConfig) -> list[str]:
    """What this machine lacks for the launcher."""
    if isinstance(cfg.launcher, SlurmResources) and shutil.which("sbatch") is None:
        return [
            f"launcher={cfg.launcher.kind}: this machine has no sbatch on its PATH: start it where SLURM's commands "
            "are, or use launcher=local."
        ]
    return []


def device_problems(cfg: RunConfig) -> list[str]:
    """Devices that this machine does not have, of those that are the trainer's, or of workers that are here. Imports
    torch, unless everything is on the CPU."""
    chosen = {name: value for name, value in vars(cfg.devices).items() if value not in (None, "cpu")}
    if cfg.launcher.kind not in ("inline", "local"):
        chosen.pop("policy_device", None)
    if not chosen:
        return []
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    found = []
    for name, value in chosen.items():
        kind, _, index = value.partition(":")
        here = {"cpu": 1, "cuda": gpus}.get(kind, 0)
        if int(index or 0) >= here:
            found.append(f"devices.{name}={value}: no such device; torch sees {', '.join(there)}.")
    return found


def backend_problems(cfg: RunConfig) -> list[str]:
    """Why workers cannot be reached from this machine as `cfg` wants it. Imports torch where they are on a network."""
    backend = backend_of(cfg)
    if backend not in NETWORK_BACKENDS:
        return []
    from collectx.transport.network.addresses import local_addresses

    found = [why] if (why := why_not(backend)) else []
    if backend == "mpi" and cfg.launcher.kind in ELSEWHERE and "PMIX_NAMESPACE" not in os.environ:
        found = [
            f"backend=mpi: launcher={cfg.launcher.kind} has started the roles without MPI's PMIx: "
            "use launcher.srun.mpi=pmix where `srun --mpi=list` names it, or backend=gloo."
        ]
    try:
        local_addresses(cfg.backend.interface)
    except ConfigError as error:
        found.extend(error.problems)
    return found


def why_not(backend: str) -> str | None:
    """Why a backend, whatever the rest, cannot work here; None where it can."""
    from collectx.transport.network import availability

    reason = availability.why_not(backend)
    return None if reason is None else f"backend={backend} cannot work on this machine: {reason}."
