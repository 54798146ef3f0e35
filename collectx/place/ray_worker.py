"""The process of a Ray actor. Imports little, so that the trainer knows at once that the actor runs. While
it imports torch, which may take minutes, it tells the trainer that it makes progress.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectx.errors import LauncherError
from collectx.process import until
from collectx.transport.network.handshake import Endpoint, telling_progress

# What to do about a module that this node lacks.
_MISSING = (
    ". Install it on every node, or let Ray copy the folder that contains it: "
    "launcher.ray_init_config.runtime_env.working_dir=."
)


# Seconds until a file that another node has written must be visible, and seconds between two looks.
_VISIBLE_S, _LOOK_S = 10.0, 0.25


class WorkerActor:
    """The actor of a worker, an object in the worker's process."""

    def ready(self) -> None:
        """Returns once the actor's process has started."""

    def work(
        self, path: list[str], num_threads: int, endpoint: Endpoint, worker: int, timeout_s: float, call: bytes
    ) -> None:
        """Runs the worker: calls the function that the pickle `call` contains. Returns when the worker ends."""
        # The pickle may refer to modules on the trainer's path. What a `runtime_env` brings comes first.
        brought = [entry for entry in sys.path if "/runtime_resources/" in entry]
        sys.path[:] = dict.fromkeys([*brought, *path, *sys.path])
        with telling_progress(endpoint, worker, timeout_s):
            import torch

            from collectx import user_objects

            user_objects.missing_advice = _MISSING
            torch.set_num_threads(num_threads)
            function, arguments = pickle.loads(call)
        function(*arguments)


def run_learner(
    setup: tuple[Any, ...],
    line: str,
    folder: str,
    hydra: dict[str, Any] | None,
    entry: tuple[Callable[..., None], tuple[Any, ...]],
) -> None:
    """Runs a learner in the actor's process: calls the function of `entry` with its arguments.

    Args:
        setup: the arguments of `set_up_process`; the third one is the log.
        line: a line of the log. Raises `LauncherError` if it is not there, as if this node does not see the run folder.
        folder: the working directory, if this node has it and Ray has not chosen another one.
        hydra: what `hydra_state.adopt` takes.
    """
    from collectx import hydra_state
    from collectx.place.local_launcher import set_up_process

    log = Path(setup[2])
    if not until(lambda: log.is_file() and line in log.read_text(errors="replace"), _VISIBLE_S, _LOOK_S):
        raise LauncherError(
            f"{socket.gethostname()} does not see the run folder {log.parent.parent}. Choose a folder on a file system "
            "that all nodes share, with hydra.run.dir"
        )
    set_up_process(*setup)
    if "/runtime_resources/" not in os.getcwd() and os.path.isdir(folder):
        os.chdir(folder)
    hydra_state.adopt(hydra)
    function, arguments = entry
    function(*arguments)
