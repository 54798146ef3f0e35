"""What a process of a job is: the trainer or one of its workers, by its rank. For launchers that start all roles alike.

    rank 0    the trainer: the whole run, and `rendezvous.json`, when it listens
    rank r    worker r - 1: waits for that file, and works until the trainer says stop

Run by a launcher's job on whatever host; all ranks see the same run folder. Must not know who started them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config import RunConfig, backend_of
from collectx.errors import ConfigError, RendezvousError
from collectx.launcher.base import Launcher
from collectx.run.files import read_private, write_json, write_private
from collectx.run.folder import RunFolder
from collectx.user_objects import UserObjects

if TYPE_CHECKING:
    from collectx.transport.network.handshake import Endpoint

_PAUSE_S = 0.1


def play(
    cfg: RunConfig,
    folder: Path,
    argv: list[str],
    rank: int,
    token: str,
    launcher: Launcher,
) -> int:
    """Plays the role of `rank` to its end; returns the exit status of the process.

    Args:
        folder: the run folder, the same for all ranks.
        argv: what the user typed, for the snapshot.
        token: the same word for all ranks of this start of the job, and another one for any other start: what an
            earlier start has left in the run folder must not be taken for this one's.
        launcher: of the workers.
    """
    if rank == 0:
        from collectx.run.job import execute

        _begin_mpi(cfg)
        try:
            return execute(cfg, folder, argv, place=launcher).exit_status
        except ConfigError as error:
            print("\n".join(error.problems), file=sys.stderr)
            return 2
    return work(cfg, folder, rank - 1, token)


def work(
    cfg: RunConfig,
    folder: Path,
    worker: int,
    token: str,
    trainer_timeout: tuple[str, float] | None = None,
    given: UserObjects | None = None,
) -> int:
    """Works as the worker of an index for the trainer of the run in `folder`; returns the exit status of the process.

    Its output goes to its log in the run folder, as a local worker's does.

    Args:
        trainer_timeout: the knob that limits how long the trainer may take to listen, and its value in seconds; None
            where it is `collector.start_timeout_s`.
        given: the env and the policy where they are objects.
    """
    files = RunFolder(folder)
    _log_to(files.log(f"worker-{worker}"))
    import torch

    torch.set_num_threads(cfg.launcher.num_threads)
    from collectx.collector import build
    from collectx.worker.entry import run_remote_worker

    try:
        _begin_mpi(cfg)
        endpoint = find(
            files, token, *(trainer_timeout or ("collector.start_timeout_s", cfg.collector.start_timeout_s))
        )
        run_remote_worker(endpoint, worker, cfg.collector.start_timeout_s, given, build)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    return 0


def _begin_mpi(cfg: RunConfig) -> None:
    """Where the launcher made the roles ranks of one MPI job. What is missing for it is found later."""
    if backend_of(cfg) == "mpi" and "PMIX_NAMESPACE" in os.environ and find_spec("mpi4py") is not None:
        from collectx.transport.network.mpi import initialize_ranks

        initialize_ranks(cfg.collector.start_timeout_s, "collector.start_timeout_s")


def announce(files: RunFolder, endpoint: Endpoint, token: str) -> None:
    """Tells the workers where the trainer listens. The secret is on the disk before the address is."""
    write_private(files.secret, endpoint.secret)
    write_json(files.rendezvous, {"addresses": list(endpoint.addresses), "port": endpoint.port, "token": token})


def find(files: RunFolder, token: str, knob: str, timeout_s: float) -> Endpoint:
    """Where the trainer listens, as soon as it does.

    Raises:
        RendezvousError: the trainer did not say within `timeout_s`, which `knob` names.
        PermissionError: the secret may be another user's.
    """
    from collectx.transport.network.handshake import Endpoint

    deadline = time.monotonic() + timeout_s
    while True:
        place = _read(files.rendezvous)
        if place.get("token") == token:
            return Endpoint(tuple(place["addresses"]), place["port"], read_private(files.secret))
        if time.monotonic() > deadline:
            seen = "is there, but the trainer wrote no rendezvous.json" if files.path.is_dir() else "is not there"
            raise RendezvousError(
                f"no trainer within {timeout_s:g} s ({knob}={timeout_s:g}): on this host the run "
                f"folder {files.path} {seen}. It must be on a file system that all nodes share: choose one with "
                "hydra.run.dir or hydra.sweep.dir; or the trainer failed before it listened: see its log."
            )
        time.sleep(_PAUSE_S)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
