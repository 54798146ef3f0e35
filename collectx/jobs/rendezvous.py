"""How the processes of a run find each other on a shared file system: the trainer's address, and the task of a job.

<run>/rendezvous.json, secret     written by the trainer when it listens, read by workers
<run>/jobs/task.json, task.pkl    written before jobs are submitted, read by every process of a job (entry.py)
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config.registry import from_dict
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import RendezvousError
from collectx.run.folder.files import read_private, write_json, write_private
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import Sealed, UserObjects

if TYPE_CHECKING:
    from collectx.transport.network.handshake import Endpoint

_POLL_S = 0.1


@dataclass(frozen=True)
class JobSpec:
    """`jobs/task.json`: what the processes of a SLURM job run. `token` identifies this attempt of the run, see
    `announce_trainer`; None in a job that runs trainer and workers, whose job id identifies it."""

    cfg: RunConfig
    argv: tuple[str, ...] = ()
    token: str | None = None

    def write(self, run_folder: RunFolder, objects: Sequence[UserObjects] | None = None) -> None:
        """Writes the file, and pickles `objects`, one for each worker, into a file beside it that only this user can
        read."""
        cfg = self.cfg
        run_folder.jobs.mkdir(parents=True, exist_ok=True)
        if objects is not None:
            write_private(run_folder.job_objects, pickle.dumps([*map(Sealed.of, objects)]))
            cfg = replace(cfg, env=EnvConfig(kind="python", num_envs=0), policy=PolicyConfig(kind="python"))
        content = {"cfg": asdict(cfg), "argv": self.argv, "token": self.token}
        # It contains the values of environment variables, which may be secrets.
        write_json(run_folder.job_spec, content, is_private=True)

    @classmethod
    def read(cls, run_folder: RunFolder) -> JobSpec:
        """Returns the content of the file. Raises `OSError`, `ValueError`, `KeyError` or `TypeError` if it cannot be
        read."""
        content = json.loads(run_folder.job_spec.read_text())
        return cls(from_dict(content["cfg"]), tuple(content["argv"]), content["token"])


def read_objects(run_folder: RunFolder, worker: int) -> Sealed[UserObjects] | None:
    """Returns the objects of a worker; None if its configuration is plain data. Raises as `read_private` does."""
    return pickle.loads(read_private(run_folder.job_objects))[worker] if run_folder.job_objects.exists() else None


def announce_trainer(run_folder: RunFolder, endpoint: Endpoint, token: str) -> None:
    """Writes the trainer's address. All processes of one attempt of the run share `token`, so workers ignore the
    address of an earlier attempt."""
    # The secret is on disk before the address.
    write_private(run_folder.secret, endpoint.secret)
    write_json(run_folder.rendezvous, {"addresses": list(endpoint.addresses), "port": endpoint.port, "token": token})


def find_trainer(run_folder: RunFolder, token: str, timeout_name: str, timeout_s: float) -> Endpoint:
    """Blocks until the trainer listens; returns its address. `timeout_name` is what the message calls `timeout_s`.
    Raises `RendezvousError` if no address appeared within `timeout_s`, or `PermissionError` if another user may have
    written the secret."""
    from collectx.transport.network.handshake import Endpoint

    deadline = time.monotonic() + timeout_s
    while True:
        address = _read(run_folder.rendezvous)
        if address.get("token") == token:
            return Endpoint(tuple(address["addresses"]), address["port"], read_private(run_folder.secret))
        if time.monotonic() > deadline:
            reason = "exists, but contains no address of the trainer" if run_folder.path.is_dir() else "does not exist"
            raise RendezvousError(
                f"found no trainer within {timeout_s:g} s ({timeout_name}={timeout_s:g}): on this host the run "
                f"folder {run_folder.path} {reason}. If the nodes do not share its file system, choose another folder "
                "with hydra.run.dir or hydra.sweep.dir. Otherwise, the trainer may have failed: see its log."
            )
        time.sleep(_POLL_S)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}
