"""Checks whether a backend can work in this process, and explains why not.

Called before workers start. Imports a backend's libraries only when that backend is checked. Rules of the configuration
are in `collectx/config/rules/`.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def why_not(backend: str) -> str | None:
    """Why `backend` cannot work here: one clause, and what to do; None if it can."""
    reason = _REASONS.get(backend)
    return None if reason is None else reason()


def actor_problems(name: str, configs: Any) -> list[str]:
    """Problems of arguments of `ray.remote`, a dict or a list of dicts, which are the option `name`. Imports ray."""
    if why_not("ray") is not None:
        return []
    return import_module("collectx.transport.network.ray").problems(name, configs)


def mpi_path() -> str:
    """PATH, after the scripts of this interpreter, where a pip-installed Open MPI has its programs."""
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def _gloo() -> str | None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return "this build of torch has no gloo: install one that has, as those of pytorch.org do"
    return None


def _nccl() -> str | None:
    import torch
    import torch.distributed as dist

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a build with it, or use backend=gloo"
    if not torch.cuda.is_available():
        return "torch sees no GPU: use backend=gloo"
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL: install a build with it, or use backend=gloo"
    return None


def _ucc() -> str | None:
    import torch
    import torch.distributed as dist

    if not dist.is_ucc_available():
        return f"torch {torch.__version__} is built without UCC: build it with USE_UCC=1, or use backend=gloo"
    return None


def _rpc() -> str | None:
    import torch.distributed.rpc as rpc

    if not rpc.is_available():
        return "this build of torch has no RPC: install one that has, as those of pytorch.org do, or use backend=gloo"
    return None


def _ray() -> str | None:
    if find_spec("ray") is None:
        return "ray is not installed: pip install 'collectx[ray]', or use another launcher"
    return None


def _mpi() -> str | None:
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'collectx[mpi]', or use backend=gloo"
    try:
        rc = import_module("mpi4py").rc
        rc.initialize = False
        version = import_module("mpi4py.MPI").Get_library_version()
    except Exception as error:
        return f"mpi4py finds no MPI library ({error}): pip install 'collectx[mpi]', or use backend=gloo"
    if "PMIX_NAMESPACE" in os.environ:
        return None
    if not version.startswith("Open MPI"):
        return (
            f"workers are started by MPI_Comm_spawn, which was only tried with Open MPI; this is "
            f"{version.split(',')[0]}: "
            "pip install 'collectx[mpi]', or use backend=gloo"
        )
    if shutil.which("prte", path=mpi_path()) is None:
        scripts = sysconfig.get_path("scripts")
        return f"Open MPI starts workers by its program prte, which is neither in {scripts} nor on PATH"
    names = ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")
    if hasattr(os, "geteuid") and os.geteuid() == 0 and any(os.environ.get(name) != "1" for name in names):
        return (
            "Open MPI starts no workers for root by default: set PRTE_ALLOW_RUN_AS_ROOT=1 and "
            "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 in the environment, be another user, or use backend=gloo"
        )
    return None


_REASONS = {"gloo": _gloo, "nccl": _nccl, "ucc": _ucc, "mpi": _mpi, "rpc": _rpc, "ray": _ray}
