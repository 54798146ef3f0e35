"""Memory and exit of the trainer's fork server, which imports this module last (`collectx.fork_server.start`); no other
process imports it.

The server listens on a socket in a temporary folder of the trainer's process, which removes the folder when it exits.
If the trainer is killed, the server removes the folder.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_SERVER = os.getpid()
# A garbage collection writes to all objects that it tracks, 80 MB, and a worker would then not share them with the
# server.
gc.collect()
gc.freeze()


def _remove_socket() -> None:
    server: Any = forkserver._forkserver
    folder = Path(os.fsdecode(server._forkserver_address or "")).parent
    # Processes forked by the server end without calling this, unless an env forks further ones that do.
    if os.getpid() == _SERVER and folder.name.startswith("pymp-"):
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_remove_socket)
