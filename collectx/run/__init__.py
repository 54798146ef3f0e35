"""A run in the trainer's process, and the files that it writes.

    execute(cfg, folder, argv)   runs a configuration -> Result           (execution.py)
    RunFolder(path)              every file name of a run folder            (folder/layout.py)
    Status                       the state of a run                         (folder/result.py)

    folder/      what a run writes: file names, lock, snapshot, saved configuration, result, events
    terminal/    what a user sees
    after/       what happens after a run has ended

The command line also uses the modules that read a run folder. Importing this package imports neither torch nor rich:
names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectx.run.execution import execute
    from collectx.run.folder.layout import RunFolder
    from collectx.run.folder.result import Status

_HOMES = {"RunFolder": "folder.layout", "Status": "folder.result", "execute": "execution"}

__all__ = ["RunFolder", "Status", "execute"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
