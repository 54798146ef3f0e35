"""How worker processes begin: the state that they inherit, and the user's script.

multiprocessing imports the trainer's `__main__` script in every process that it starts, so a script without
`if __name__ == "__main__":` would start its collector again in each worker. Such a script is not imported: collectors
pickle functions and classes of `__main__` by value (`collectx.user_objects`), and need no import.
"""

from __future__ import annotations

import ast
import functools
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from collectx.fork_server.inherited import Inherited

_replacing = threading.Lock()


@functools.cache
def is_guarded() -> bool:
    """Whether the script compares `__name__` with anything. True if there is no script, or its source cannot be
    read."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    try:
        nodes = list(ast.walk(ast.parse(Path(path).read_bytes()))) if path else []
    except (OSError, SyntaxError, ValueError):
        return True
    compared = [each for node in nodes if isinstance(node, ast.Compare) for each in ast.walk(node)]
    return not nodes or "__name__" in [each.id for each in compared if isinstance(each, ast.Name)]


@contextmanager
def usable_preparation(inherited: Inherited) -> Iterator[None]:
    """Within the block, processes start so that they adopt the `inherited` state before they import user code. They do
    not import the script, unless it is guarded, and do not get the start method of joblib's processes, which only
    joblib knows."""
    left_out: tuple[str, ...] = () if is_guarded() else ("init_main_from_name", "init_main_from_path")
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        left_out += ("start_method",)
    with _replacing:
        describe = spawn.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            kept = {key: value for key, value in describe(name).items() if key not in left_out}
            return {"inherited": inherited, **kept}

        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = describe
