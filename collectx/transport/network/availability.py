"""Checks whether a backend can work in this process, and explains why not.

Called before workers start. Imports a backend's libraries only when that backend is checked. Must not know the rules
between options (`collectx/run/rules.py`).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_DEVICE = re.compile(r"cpu|cuda:\d+")


def why_not(backend: str) -> str | None:
    """Why `backend` cannot work here: one clause, and what to do; None if it can."""
    reason = _REASONS.get(backend)
    return None if reason is None else reason()


def tensorpipe_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """Problems of options of `torch.distributed.rpc.TensorPipeRpcBackendOptions`, which are the option `name`."""
    known = ("num_worker_threads", "rpc_timeout", "_transports", "_channels")
    problems = []
    for key, value in options.items():
        if key not in known:
            problems.append(
                f"{name} has {key}: may have {', '.join(known)}; agents find each other, and bytes lie on the CPU."
            )
        elif key.startswith("_"):
            if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
                problems.append(f"{name}: {key}={value!r}: must be a list of TensorPipe's names, as ['uv'].")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            problems.append(f"{name}: {key}={value!r}: must be a number above 0.")
    return problems


def visible_problems(name: str, visible: Sequence[Any] | None, acting: Sequence[str]) -> list[str]:
    """Problems of the devices that are visible to the workers, one for each worker, which are the option `name`.

    Args:
        acting: the device of each worker's policy.
    """
    if visible is None:
        return []
    if isinstance(visible, str) or not all(_DEVICE.fullmatch(str(each)) for each in visible):
        return [
            f"{name}={visible!r}: must be a list, for each worker cuda:N, the only GPU that it sees, or cpu for none."
        ]
    if len(visible) != len(acting):
        return [f"{name} has {len(visible)} entries for {len(acting)} workers: one for each."]
    return [
        f"{name}={visible!r}: the policy of worker {worker} acts on {acts}, and {seen} is all that it sees: give both "
        "the same."
        for worker, (seen, acts) in enumerate(zip(visible, acting, strict=True))
        if acts not in ("cpu", "cuda", seen) or (acts == "cuda" and seen == "cpu")
    ]


def gpu_problems(name: str, configs: Sequence[Mapping[str, Any] | None], acting: Sequence[str]) -> list[str]:
    """Problems of the GPUs that Ray actors request by arguments of `ray.remote`, which are the option `name`.

    Args:
        configs, acting: for each worker the arguments, and the device of its policy.
    """
    problems = []
    for config, acts in zip(configs, acting, strict=True):
        kind, _, index = acts.partition(":")
        num_gpus = math.ceil((config or {}).get("num_gpus") or 0)
        if kind != "cuda" or int(index or 0) < num_gpus:
            continue
        why = f"it sees {num_gpus}, from cuda:0 on" if num_gpus else "Ray may place it where there is none"
        problems.append(
            f"{name}: the policy of a worker acts on {acts}, which asks for num_gpus={num_gpus}: {why}: ask for "
            f"num_gpus={int(index or 0) + 1}{'' if int(index or 0) else ' or a part of one'}, or let the policy act on "
            f"{'cuda' if num_gpus else 'the CPU'}."
        )
    return list(dict.fromkeys(problems))


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
