"""The process of a Ray actor. Imports little, so that the trainer knows at once that the actor runs. While
it imports torch, which may take minutes, it tells the trainer that it makes progress.
"""

from __future__ import annotations

import pickle
import sys

from collectx.transport.network.handshake import Endpoint, telling_progress


class WorkerActor:
    """The actor of a worker, an object in the worker's process."""

    def ready(self) -> None:
        """Returns once the actor's process has started."""

    def work(
        self, path: list[str], num_threads: int, endpoint: Endpoint, worker: int, timeout_s: float, call: bytes
    ) -> None:
        """Runs the worker: calls the function that the pickle `call` contains. Returns when the worker ends."""
        # The pickle may refer to modules on the trainer's path. Ray's own entries contain the code of a `runtime_env`.
        sys.path[:] = dict.fromkeys([*path, *sys.path])
        with telling_progress(endpoint, worker, timeout_s):
            import torch

            torch.set_num_threads(num_threads)
            function, arguments = pickle.loads(call)
        function(*arguments)
