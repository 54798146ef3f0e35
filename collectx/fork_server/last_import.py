"""The memory and the end of the trainer's fork server, which imports this module last (`collectx.place.processes`); no
other process does.

The server listens on a socket in a temporary folder of the trainer's process, which removes it when it exits. Of a
trainer that is killed, the server removes it.
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
# A garbage collection writes to all objects that it knows, 80 MB, which a worker would no longer share with the server.
gc.collect()
gc.freeze()


def _remove_socket() -> None:
    server: Any = forkserver._forkserver
    folder = Path(os.fsdecode(server._forkserver_address or "")).parent
    # Processes that the server has forked end without calling this, unless an env forks others that do.
    if os.getpid() == _SERVER and folder.name.startswith("pymp-"):
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_remove_socket)
