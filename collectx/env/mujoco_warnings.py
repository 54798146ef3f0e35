"""MuJoCo's warnings, each once per process: MuJoCo repeats them for every model that it loads and every unstable step.

Called where envs are made, in the process that steps them; its own processes, of an async vector env, inherit the
handler and the warnings that were shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable


def show_once() -> None:
    """Installs the handler if MuJoCo is imported and has no handler of the user. Idempotent."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and getattr(mujoco, "get_mju_user_warning", lambda: "none can be set")() is None:
        mujoco.set_mju_user_warning(_handler())


def _handler() -> Callable[[str], None]:
    shown: set[str] = set()

    def warn(text: str) -> None:
        # The same warning at another time, or for another degree of freedom.
        kind = re.sub(r"\d[\d.e+-]*", "", text)
        if kind not in shown:
            shown.add(kind)
            print(f"WARNING of MuJoCo, shown once: {text.strip()}", file=sys.stderr, flush=True)

    return warn
