"""The process of a Ray actor. Imports little, so that the trainer knows at once that the actor runs. While
it imports torch, which may take minutes, it tells the trainer that it makes progress.
"""

from __future__ import annotations

import pickle
import sys

from collectx.transport.network.handshake import Endpoint, telling_progress

# What to do about a module that this node lacks.
_MISSING = (
    ". Install it on every node, or let Ray copy the folder that contains it: "
    "launcher.ray_init_config.runtime_env.working_dir=."
)


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
