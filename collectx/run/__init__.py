"""A run in the trainer's process, and the files that it writes.

    execute(cfg, folder, argv)   runs a configuration -> Result           (job.py)
    RunFolder(path)              every file name of a run folder            (folder.py)
    compare(old, new)            did two runs deliver the same batches?     (reproduce.py)

Called by the command line. Importing this package imports neither torch nor rich: names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectx.run.folder import RunFolder
    from collectx.run.job import execute
    from collectx.run.reproduce import Comparison, Verdict, compare
    from collectx.run.result import Result, Status

_HOMES = {
    "Comparison": "reproduce",
    "Result": "result",
    "RunFolder": "folder",
    "Status": "result",
    "Verdict": "reproduce",
    "compare": "reproduce",
    "execute": "job",
}

__all__ = ["Comparison", "Result", "RunFolder", "Status", "Verdict", "compare", "execute"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
