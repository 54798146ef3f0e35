"""Shows each of MuJoCo's warnings once per process. MuJoCo repeats them for every model that it loads, and every
unstable step.

The processes of an async vector env inherit the handler and the list of warnings that were shown, as do workers that
write to the same terminal (`place/local_launcher.py`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The texts of the warnings that were shown, without numbers.
shown: set[str] = set()


# The files of MuJoCo's renderers, of Gymnasium's and of dm_control's.
_RENDERERS = re.compile(
    r"mujoco_rendering|[/\\](OpenGL|glfw|dm_control[/\\]_render|mujoco[/\\](renderer|gl_context|egl|osmesa))\b"
)


def advice_on_display(error: BaseException) -> str:
    """Returns what to set if rendering with MuJoCo failed because the machine has no display, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    if os.environ.get("DISPLAY") or not any(_RENDERERS.search(frame.filename) for frame in frames):
        return ""
    now = f", and MUJOCO_GL={os.environ['MUJOCO_GL']}" if "MUJOCO_GL" in os.environ else ""
    return (
        f"this machine has no display{now}. Set MUJOCO_GL=egl (with the driver of a GPU) or MUJOCO_GL=osmesa (with the "
        "library OSMesa) before the command"
    )


def show_once() -> None:
    """Installs the handler, unless the user has set one. If MuJoCo is not imported yet, installs it at that import.
    Idempotent.

    The function that makes the envs may import MuJoCo, which shows its first warnings before that function returns.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        if _at_import not in sys.meta_path:
            sys.meta_path.insert(0, _at_import)
    elif getattr(mujoco, "get_mju_user_warning", lambda: "none can be set")() is None:
        mujoco.set_mju_user_warning(_show)


def _show(text: str) -> None:
    # Without numbers: the same warning may name another time or degree of freedom.
    kind = re.sub(r"\d[\d.e+-]*", "", text)
    if kind not in shown:
        shown.add(kind)
        print(f"MuJoCo warning (shown once): {text.strip()}", file=sys.stderr, flush=True)


class _AtImport(MetaPathFinder):
    """Finds MuJoCo as usual, once, and installs the handler after the import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "mujoco":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            show_once()

        loader.exec_module = execute_and_install
        return spec


_at_import = _AtImport()
