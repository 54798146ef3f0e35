"""Checks this machine and its cluster: `collectx doctor`. Each check is a small function in `CHECKS`.

Checks start no worker and no cluster. SLURM commands block for at most a minute.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from collectx.config import registry
from collectx.errors import ConfigError, LauncherError, summary_of
from collectx.fork_server.start import MAX_TEMPORARY_PATH
from collectx.place.base import NETWORKS
from collectx.place.local_launcher import descriptors
from collectx.place.slurm import commands
from collectx.run import cores
from collectx.transport.network.addresses import local_addresses

_GB, _MB = 10**9, 10**6
# A local run with this number of workers must be possible.
_NUM_WORKERS = 64
# Processes of a run with the default number of workers: two workers, and the trainer.
_SMALL_RUN = 3
# Docker's default for a container.
_SMALL_SHM = 64 * 2**20
_CONNECT_S = 2.0
_SKEW_S = 2.0


class Finding(NamedTuple):
    """What a check found. `level` is `OK`, `WARNING`, `PROBLEM`, or `ABSENT` for an optional part that is missing.
    `advice` is what to do; empty if there is nothing to do."""

    level: str
    text: str
    advice: str = ""


OK, ABSENT, WARNING, PROBLEM = "ok", "absent", "warning", "problem"


def examine() -> Iterator[tuple[str, Finding]]:
    """Runs all checks, one after another; yields their names and findings. A check that raises is a problem."""
    for name, check in CHECKS.items():
        try:
            for finding in check():
                yield name, finding
        except Exception as error:
            yield name, Finding(PROBLEM, f"the check failed: {summary_of(error)}", "please report this as a bug.")


def _python() -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet

    bounds = importlib.metadata.metadata("collectx")["Requires-Python"] or ""
    version = ".".join(map(str, sys.version_info[:3]))
    supported = ", ".join(sorted(bounds.split(","), reverse=True))
    text, advice = (
        f"{version} (supported: {supported}), {sys.executable}",
        "install collectx into an environment with such a Python.",
    )
    yield Finding(OK, text) if version in SpecifierSet(bounds) else Finding(PROBLEM, text, advice)


def _packages() -> Iterator[Finding]:
    """Compares the versions of dependencies with the bounds of `pyproject.toml`, which the installed metadata lists."""
    from packaging.requirements import Requirement

    right = []
    for text in importlib.metadata.requires("collectx") or ():
        need = Requirement(text)
        is_optional = need.marker is not None and not need.marker.evaluate()
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            if not is_optional:
                yield Finding(PROBLEM, f"{need.name} is not installed", f"pip install '{need.name}{need.specifier}'")
            continue
        if not need.specifier.contains(version, prereleases=True):
            level = WARNING if is_optional else PROBLEM
            rule = f"{need.name} {version} is installed, but collectx needs {need.specifier}"
            yield Finding(level, rule, f"pip install '{need.name}{need.specifier}'")
        elif not is_optional:
            right.append(f"{need.name} {version}")
    yield Finding(OK, ", ".join(right))


def _backends() -> Iterator[Finding]:
    for name in NETWORKS:
        reason = registry.why_not(name)
        # Every other backend is optional.
        level = OK if reason is None else PROBLEM if name == "gloo" else ABSENT
        yield Finding(level, name if reason is None else f"backend={name} cannot be used: {reason}")


def _cores() -> Iterator[Finding]:
    limits, usable = cores.limits(), cores.num_cores()
    listed = ", ".join(f"{name} {limit:g}" for name, limit in limits.items())
    text = f"{usable} of {os.cpu_count()} cores usable ({listed})"
    enforced = min(limit for name, limit in limits.items() if name != "SLURM")
    if limits.get("SLURM", enforced) < enforced:
        advice = (
            f"set OMP_NUM_THREADS={usable}, because other libraries would start {enforced:g} threads. collectx itself "
            f"uses only {usable}."
        )
        yield Finding(WARNING, f"{text}; SLURM does not bind this task to its cores", advice)
    elif shortage := cores.shortage(_SMALL_RUN):
        yield Finding(WARNING, f"{text}, which workers and trainer share", shortage)
    else:
        yield Finding(OK, text)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > usable:
        advice = f"unset it, so that the trainer gets the cores that the workers leave, or set it to at most {usable}."
        yield Finding(WARNING, f"OMP_NUM_THREADS={threads} is more than the usable cores", advice)


def _memory() -> Iterator[Finding]:
    import psutil

    free, limits = psutil.virtual_memory().available, []
    for text in cores.control_group_values("memory", ["memory.max"], ["memory.limit_in_bytes"]):
        # Version 1 of control groups uses a huge number for no limit.
        if text != "max" and int(text) < psutil.virtual_memory().total:
            limits.append(int(text))
    limit = f" (control group limit: {min(limits) / _GB:.1f} GB)" if limits else ""
    text = f"{free / _GB:.1f} GB available{limit}"
    few = min([free, *limits]) < _GB
    advice = "use few workers: each needs about 0.1 GB, plus its envs." if few else ""
    yield Finding(WARNING if few else OK, text, advice)


def _shared_memory() -> Iterator[Finding]:
    """Checks the memory for slots, an anonymous file, and `/dev/shm`, which AsyncVectorEnv and Ray use."""
    from collectx.memory import SharedMemory

    try:
        SharedMemory("doctor").map(_MB).fill_(1)
        yield Finding(OK, "batches can share memory (this does not use /dev/shm)")
    except OSError as error:
        advice = "allow memfd_create in the container's seccomp profile, or use collector=single."
        yield Finding(PROBLEM, f"batches cannot share memory, because memfd_create fails: {error}", advice)
    if Path("/dev/shm").is_dir():
        free = shutil.disk_usage("/dev/shm").free
        size = f"{free / _GB:.1f} GB" if free >= _GB else f"{free / _MB:.0f} MB"
        text, users = f"/dev/shm has {size} free", "Ray and env.vectorization_mode=async"
        small = Finding(WARNING, f"{text}, which is little for {users}", "give the container more: --shm-size=1g")
        yield Finding(OK, text) if free > _SMALL_SHM else small


def _open_files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors(_NUM_WORKERS)
    is_endless = hard == resource.RLIM_INFINITY
    text = f"at most {soft:,} per process"
    if is_endless or soft < hard:
        text += f", which may be raised to {'any number' if is_endless else f'{hard:,}'}"
    if is_endless or hard >= needed:
        yield Finding(OK, text)
    else:
        rule = f"{text}, but {_NUM_WORKERS} workers need {needed}"
        yield Finding(WARNING, rule, "raise the hard limit (limits.conf, LimitNOFILE of a service, ulimit -Hn).")


def _network() -> Iterator[Finding]:
    try:
        addresses = local_addresses(None)
    except ConfigError as error:
        yield Finding(PROBLEM, str(error), "check the network of this machine.")
        return
    best, name = addresses[0], socket.gethostname()
    if best == "127.0.0.1":
        yield Finding(ABSENT, f"{name} has only loopback addresses, so workers on other hosts cannot connect to it")
        return
    more = f", then {', '.join(addresses[1:])}" if addresses[1:] else ""
    try:
        family = socket.AF_INET6 if ":" in best else socket.AF_INET
        with (
            socket.create_server((best, 0), family=family) as server,
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_S),
        ):
            yield Finding(OK, f"workers on other hosts connect to {best}{more}")
    except OSError as error:
        rule = f"cannot connect to {best}, the address for workers on other hosts: {error}"
        yield Finding(PROBLEM, rule, "open the firewall, or choose another interface with backend.interface=NAME.")


def _slurm() -> Iterator[Finding]:
    if not commands.is_here():
        yield Finding(
            ABSENT, "sbatch is not on PATH, so launcher=slurm, submitit and submitit_delayed do not work here"
        )
        return
    try:
        rows = commands.node_states()
    except commands.NoCluster:
        yield Finding(ABSENT, "sbatch is installed, but finds no cluster", "if there is one, set SLURM_CONF.")
        return
    except LauncherError as error:
        rule = f"sbatch is installed, but the cluster does not answer: {error}"
        yield Finding(PROBLEM, rule, "ask the cluster's administrator.")
        return
    by_partition: dict[str, list[str]] = {}
    for partition, state, count in rows:
        by_partition.setdefault(partition, []).append(f"{count} {state}")
    if not rows:
        advice = "ask your administrator which partitions and accounts you may use."
        yield Finding(WARNING, "sinfo lists no nodes that you can use", advice)
    text = "; ".join(f"{partition} {', '.join(states)}" for partition, states in by_partition.items())
    is_usable = any(state.rstrip("*~#") in ("idle", "mixed", "allocated", "completing") for _, state, _ in rows)
    advice = "" if is_usable else "jobs will wait: `sinfo --list-reasons` says why."
    if rows:
        yield Finding(OK if is_usable else WARNING, f"nodes: {text}", advice)
    if reason := commands.why_no_accounting():
        yield Finding(
            WARNING,
            f"SLURM has no accounting ({reason})",
            "use launcher=slurm, which asks the controller instead. hydra/launcher=submitit_slurm may wait forever for "
            "a job that died, because the controller forgets jobs some minutes after their end.",
        )
    else:
        yield Finding(OK, "accounting works")
    if job := os.environ.get("SLURM_JOB_ID"):
        yield Finding(OK, f"inside job {job}, so launcher=slurm runs as its steps")


def _ray() -> Iterator[Finding]:
    if reason := registry.why_not("ray", "launcher"):
        yield Finding(ABSENT, f"launcher=ray cannot be used: {reason}")
        return
    address = os.environ.get("RAY_ADDRESS")
    if address is None:
        yield Finding(OK, "launcher=ray starts a cluster on this machine. To use another one, set RAY_ADDRESS")
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # such as "auto"
        yield Finding(OK, f"RAY_ADDRESS={address}")
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        yield Finding(OK, f"RAY_ADDRESS={address} answers")
    except OSError as error:
        rule = f"no Ray cluster answers at RAY_ADDRESS={address}: {error}"
        yield Finding(PROBLEM, rule, "start Ray there with `ray start --head`, or unset RAY_ADDRESS.")


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield Finding(OK, f"cuda:{index} {name}, {free / _GB:.1f} of {total / _GB:.1f} GB free")
    elif shutil.which("nvidia-smi"):
        rule = f"this machine has nvidia-smi, but torch {torch.__version__} sees no GPU"
        advice = "install a CUDA build of torch, and check the driver and CUDA_VISIBLE_DEVICES."
        yield Finding(WARNING, rule, advice)
    else:
        yield Finding(ABSENT, "torch sees no GPU, so only devices=cpu, the default, works here")


def _folders() -> Iterator[Finding]:
    """Checks the temporary folder, for the fork server's socket, and the working directory, for `outputs`."""
    temporary = tempfile.gettempdir()
    for name, folder in (("temporary folder", temporary), ("working directory", os.getcwd())):
        try:
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                skew_s = os.stat(file.name).st_mtime - time.time()
        except OSError as error:
            advice = (
                "set TMPDIR to another folder."
                if folder == temporary
                else "choose writable folders with hydra.run.dir and hydra.sweep.dir."
            )
            yield Finding(PROBLEM, f"cannot write to the {name} {folder}: {error.strerror}", advice)
            continue
        free = shutil.disk_usage(folder).free
        text, left = f"{name} {folder}", f"{free / _GB:.1f} GB free"
        small = Finding(WARNING, f"{text} has only {left}", "make room for checkpoints and logs.")
        yield Finding(OK, f"{text}, {left}") if free > _GB else small
        if abs(skew_s) > _SKEW_S:
            rule = f"the file system clock of {folder} differs from that of this machine by {skew_s:+.1f} s"
            advice = "synchronise the clocks (NTP), because collectx reads the status of runs from file times."
            yield Finding(WARNING, rule, advice)
    if len(os.fsencode(temporary)) > MAX_TEMPORARY_PATH:
        rule = f"the path {temporary} is too long for sockets, so these go to /tmp instead"
        yield Finding(WARNING, rule, "set TMPDIR to a shorter path.")


def _clock() -> Iterator[Finding]:
    """Checks that the clock is not before the installation of this package."""
    now_s, built_s = time.time(), Path(__file__).stat().st_mtime
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    is_wrong = now_s + _SKEW_S < built_s
    wrong = Finding(PROBLEM, f"the clock shows {text}, a time before collectx was installed", "set the clock (NTP).")
    yield wrong if is_wrong else Finding(OK, text)


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": _python,
    "packages": _packages,
    "backends": _backends,
    "cores": _cores,
    "memory": _memory,
    "shared memory": _shared_memory,
    "open files": _open_files,
    "network": _network,
    "slurm": _slurm,
    "ray": _ray,
    "gpus": _gpus,
    "folders": _folders,
    "clock": _clock,
}
"""All checks, in the order in which they are printed."""
